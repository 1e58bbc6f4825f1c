"""What a node answers: only what the approved experiment asks for, and each question once.

A request passes through `admit` before the node reads its data, its results through `evaluation` or
`update`, and its reply through `sent`. Each writes to the node's ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from ..core.problem import Problem
from ..core.types import Evaluation, Updates
from ..data.federated import FederatedData
from ..engine.wrapping import EmbeddedEngine
from ..errors import ClientwiseError
from ..experiment.schema import Experiment
from ..models.flat import same_frozen
from .allowance import Allowance
from .ledger import Entry, Ledger
from .small_numbers import Release
from .wire import VERSION, Request, evaluation_from, plain_request

ASK_OPERATOR = "another run needs another approval by the node's operator (deploy/agree.sh)"
LONGEST_REASON = 300  # characters
ROUNDING = 1e-9  # of a sum of costs


class RefusedError(ClientwiseError):
    """A request that this node refuses.

    The text is about the request alone, so the server may read it.
    """


class Gate:
    """Decides on one request, and on what its reply may say.

    Args:
        experiment: the approved one.
        ledger: what this node was asked so far.
        cell: the smallest cell; see `small_numbers.py`.
        run: Flower's number of the run.
    """

    def __init__(self, experiment: Experiment, ledger: Ledger, cell: int, run: int) -> None:
        self._experiment = experiment
        self._ledger = ledger
        self._allowance = Allowance(experiment)
        self._about: dict[str, Any] = {
            "run": str(run),
            "experiment": _digest(experiment.to_toml().encode())[:12],
        }
        self._release = Release(cell, self._allowance.models, ledger.key())

    def admit(self, request: Request, models: Tensor, *, once: bool = False) -> None:
        """RefusedError for a request that the experiment does not ask for; a note of all others.

        With `once`, also for a round of a seed that was trained before, with the same model or another.
        """
        round_num = request.round_num if request.task is None else request.task.round_num
        kind = "evaluate" if request.task is None else "train"
        self._about |= {"kind": kind, "seed": request.seed, "round": round_num}
        refuse_other_work(self._experiment, request)
        if request.task is None:
            names = [_digest(model.numpy().tobytes()) for model in _rows(models)]
        else:
            asked = json.dumps(plain_request(request), sort_keys=True).encode()
            refuse_other_types(models)
            names = [_digest(asked + models.numpy().tobytes())]
        with self._ledger.locked() as entries:
            if once and self._of_this_round(entries, kind):
                raise RefusedError(f"round {round_num} began before; a round is summed once")
            known = {name for entry in self._mine(entries, kind) for name in entry["models"]}
            new = [name for name in dict.fromkeys(names) if name not in known]
            cost = 0.0
            if new and request.task is None:
                self._check_evaluations(entries, len(new))
                cost = len(new) / self._allowance.models
            elif new:
                self._check_trainings(entries)
                cost = len(new) / self._allowance.trainings
            event = "asked" if new else "repeated"
            self._ledger.add(event, **self._about, models=new, asked=len(names), cost=cost)

    def note_step(self, seed: int, round_num: int, step: str) -> None:
        """What `sent` and `failed` note about a later step of secure aggregation."""
        self._about |= {"kind": f"secure aggregation, {step}", "seed": seed, "round": round_num}

    def claim_step(self) -> None:
        """RefusedError if the step that `note_step` named was answered before.

        Flower's state of a run is read when a request arrives, so two requests at once see the same
        state. The ledger has a lock.
        """
        claimed = ("experiment", "seed", "round", "kind")
        with self._ledger.locked() as entries:
            for entry in entries:
                same = all(entry.get(key) == self._about[key] for key in claimed)
                if same and entry["event"] == "step":
                    raise RefusedError(f"{self._about['kind']}: answered before in this round")
            self._ledger.add("step", **self._about)

    @property
    def approval(self) -> str:
        """The present approval; see `ledger.approval`."""
        return self._ledger.approval

    def evaluation(
        self, models: Tensor, problem: Problem, evaluate: Callable[[Tensor], Evaluation]
    ) -> Evaluation:
        """Results of models [c, d]: those of an earlier answer, or of `evaluate` by the rule."""
        if reason := self._release.why_not(problem):
            raise RefusedError(reason)
        names = [_digest(model.numpy().tobytes()) for model in models]
        answers = self._stored()
        first_rows = {name: row for row, name in enumerate(names) if name not in answers}
        if first_rows:
            exact = evaluate(models[list(first_rows.values())])
            keyed = [
                f"{self._ledger.approval} {self._about['experiment']} {one}" for one in first_rows
            ]
            released = self._release.evaluation(exact, problem, keyed)
            for row, name in enumerate(first_rows):
                answers[name] = _plain(released.pick(row))
        self._answers = {name: answers[name] for name in first_rows}
        return evaluation_from([answers[name] for name in names], problem)

    def noise_key(self, data: FederatedData) -> bytes:
        """What the noise of this node's updates follows from.

        Other data, another seed or another approval give another update for the same request. With the
        same noise, the difference of the two would be exact.
        """
        held = hashlib.sha256()
        for values in (
            data.samples.inputs,
            data.train.indices,
            data.train.targets,
            data.train.offsets,
        ):
            held.update(repr((values.dtype, values.shape)).encode())
            held.update(values.cpu().contiguous().numpy().tobytes())
        about = (self._ledger.approval, self._about["experiment"], self._about["seed"])
        name = json.dumps(["local noise", *about, held.hexdigest()])
        return hmac.digest(self._ledger.key(), name.encode(), "sha256")

    def update(self, updates: Updates) -> Updates:
        """An update by the rule for its numbers; the model is not changed."""
        return self._release.update(updates)

    def sent(self, reply: RecordDict) -> None:
        """Note what leaves the node."""
        left = []
        content = b""
        for record in reply.array_records.values():
            for array in record.values():
                left.append(f"array of {'×'.join(map(str, array.shape))}")
                content += array.data
        for name, numbers in reply.metric_records.items():
            left += [f"{name}: {number}" for number in numbers]
            content += json.dumps(dict(numbers)).encode()
        facts = {"left": left, "bytes": len(content), "result": _digest(content)}
        with self._ledger.locked():
            self._ledger.add("answered", **self._about, **facts, answers=self._answers)

    def failed(self, error: Exception) -> None:
        """Note a request that was not answered."""
        event = "refused" if isinstance(error, RefusedError) else "failed"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        with self._ledger.locked():
            self._ledger.add(event, **self._about, reason=reason)

    _answers: Mapping[str, Any] = {}

    def _mine(self, entries: Sequence[Entry], kind: str) -> list[Entry]:
        """Entries of this experiment with models of a kind."""
        mine = []
        for entry in entries:
            same = entry.get("experiment") == self._about["experiment"]
            if same and entry.get("kind") == kind and "models" in entry:
                mine.append(entry)
        return mine

    def _of_this_round(self, entries: Sequence[Entry], kind: str) -> int:
        """Different models of this seed and round so far."""
        count = 0
        for entry in self._mine(entries, kind):
            if (entry["seed"], entry["round"]) == (self._about["seed"], self._about["round"]):
                count += len(entry["models"])
        return count

    def _check_trainings(self, entries: Sequence[Entry]) -> None:
        most = self._allowance.trained()
        if self._of_this_round(entries, "train") + 1 > most:
            raise RefusedError(
                f"round {self._about['round']} was trained {most} times already, with other "
                f"models: {ASK_OPERATOR}"
            )
        if _spent(entries, "train") + 1 / self._allowance.trainings > 1 + ROUNDING:
            raise RefusedError(
                "all trainings of the run are used up, those of other approved apps included: "
                f"{ASK_OPERATOR}"
            )

    def _check_evaluations(self, entries: Sequence[Entry], new: int) -> None:
        round_num = self._about["round"]
        most = self._allowance.evaluated(round_num)
        before = self._of_this_round(entries, "evaluate")
        if before + new > most:
            raise RefusedError(
                f"{before + new} models to evaluate in round {round_num}: the experiment asks for "
                f"at most {most}, repetitions included (see evaluation.clients_every)"
            )
        spent = _spent(entries, "evaluate")
        if spent + new / self._allowance.models > 1 + ROUNDING:
            raise RefusedError(
                f"all {self._allowance.models} evaluations of the run are used up: {ASK_OPERATOR}"
            )

    def _stored(self) -> dict[str, Any]:
        """Earlier answers by model."""
        stored: dict[str, Any] = {}
        with self._ledger.locked() as entries:
            for entry in entries:
                if entry.get("experiment") == self._about["experiment"]:
                    stored |= entry.get("answers", {})
        return stored


def refuse_other_weights(request: Request, engine: EmbeddedEngine) -> None:
    """Frozen parameters are not sent: with others, a client would train or judge another model."""
    if not same_frozen(request.frozen, engine.frozen):
        raise RefusedError(
            "the frozen parameters of this node's network are not those of the server: load the same "
            "pretrained weights"
        )


def refuse_other_work(experiment: Experiment, request: Request) -> None:
    """A server may ask only for what the experiment says: the node's operator approved that."""
    if request.version != VERSION:
        raise RefusedError(
            f"the server runs clientwise {request.version}, this node {VERSION}: install the same version"
        )
    task = request.task
    round_num = request.round_num if task is None else task.round_num
    # A round 1.5 would count as another round than 1, and be trained again.
    if not all(type(number) is int for number in (request.client, request.seed, round_num)):
        raise RefusedError("client, seed and round must be integers")
    if not 0 <= request.client < len(experiment.flower.clients):
        raise RefusedError(
            f"client {request.client}, but the experiment has {len(experiment.flower.clients)} clients"
        )
    if request.seed not in experiment.seeds:
        raise RefusedError(
            f"seed {request.seed} is not one of the experiment's: {experiment.seeds}"
        )
    if not 1 <= round_num <= experiment.rounds:
        raise RefusedError(f"round {round_num}, but the experiment has {experiment.rounds} rounds")
    if task is None:
        return
    for method in experiment.build_methods():
        criteria = all(part in method.client_criteria for part in task.criteria)
        loss = method.adapt_loss is not None or _is_plain(task.loss.record())
        same_work = (task.training, task.noise) == (method.training, method.local_noise)
        if criteria and loss and same_work:
            return
    raise RefusedError(
        "the request's training, noise or criteria are not those of any method of the experiment"
    )


def refuse_other_types(model: Tensor) -> None:
    """A model to train is a float32 vector: as another type, the same bytes are another model."""
    if model.ndim != 1 or model.dtype != torch.float32:
        raise RefusedError(f"a model of shape {tuple(model.shape)} and type {model.dtype}")


def _spent(entries: Sequence[Entry], kind: str) -> float:
    """The share of a run that the requests of a kind used, of whichever approved app."""
    costs = 0.0
    for entry in entries:
        if entry.get("kind") == kind:
            costs += entry.get("cost", 0.0)
    return costs


def _is_plain(loss: Any) -> bool:
    """Whether a loss is one that no method adapted."""
    usual = type(loss)(loss.kind)
    return bool(asdict(loss) == asdict(usual))


def _rows(models: Tensor) -> Tensor:
    if models.ndim != 2 or not len(models) or models.dtype != torch.float32:
        raise RefusedError(f"models of shape {tuple(models.shape)} and type {models.dtype}")
    return models


def _plain(one: Evaluation) -> dict[str, Any]:
    """The results of one model, as the ledger keeps them."""
    return {
        "samples": int(one.num_samples),
        "value": float(one.values),
        "loss": float(one.losses),
        "counts": one.counts[0].tolist(),
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
