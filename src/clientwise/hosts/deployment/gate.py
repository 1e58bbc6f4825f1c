"""What a node answers: only what the approved experiment asks for, and each question once.

A request passes through `check` before the node reads its data, and through `admit` before it uses them.
Its results pass through `evaluation` or `update`, its reply through `sent`. Each writes to the node's
ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from ...core.method import Method
from ...core.objective.loss import LOSSES, LossRecord
from ...core.objective.problem import Classification, Problem, Regression
from ...core.types import Evaluation, Updates
from ...data.federated import FederatedData, Holdings
from ...engine.wrappers.engine import EmbeddedEngine
from ...errors import ClientwiseError
from ...experiment.config.schema import Experiment
from ...models.flat import same_frozen
from ...secrecy.masks.terms import KEYS
from ..flower.wire import RUNS_HERE, VERSION, Request, evaluation_from, plain_request
from .allowance import Allowance, row_cost
from .approval import present
from .ledger import Entry, Ledger
from .small_numbers import MU, Release

ASK_OPERATOR = "this needs an approval by the node's operator (deploy/agree.sh)"
LONGEST_REASON = 300  # characters
ROUNDING = 1e-9  # of a sum of costs
# Of a request to train: its answer is the same, but the time that it takes could be averaged.
MOST_REPEATS = 10


class RefusedError(ClientwiseError):
    """A request that this node refuses.

    The text is about the request alone, so the server may read it.
    """


class Gate:
    """Decides on one request, and on what its reply may say.

    Args:
        experiment: that of the app.
        name: names it in an approval; see `approval.config_digest`.
        ledger: what this node approved, was asked and answered so far.
        cell: the smallest cell; see `small_numbers.py`.
        run: Flower's number of the run.
    """

    def __init__(
        self, experiment: Experiment, name: str, ledger: Ledger, cell: int, run: int
    ) -> None:
        self._experiment = experiment
        self._ledger = ledger
        self._cell = cell
        self._allowance = Allowance(experiment)
        self._about: dict[str, Any] = {"run": str(run), "experiment": name}

    def check(self, request: Request) -> None:
        """RefusedError for a request that the approved experiment does not ask for."""
        round_num = request.round_num if request.task is None else request.task.round_num
        kind = "evaluate" if request.task is None else "train"
        self._about |= {"kind": kind, "seed": request.seed, "round": round_num}
        with self._ledger.locked() as entries:
            self._approved(entries)
        refuse_other_work(self._experiment, request)

    def admit(self, request: Request, models: Tensor, data: FederatedData | None = None) -> None:
        """Note a request; RefusedError where the approval does not cover it.

        Args:
            request: what is asked.
            models: to train [d], or to evaluate [c, d].
            data: of this node. With other training rows, the same request is another one, which
                counts. Not needed if `claim_step` follows: then a round is answered once.
        """
        self.check(request)
        kind = self._about["kind"]
        if request.task is None:
            spent = None
            names = [_digest(model.numpy().tobytes()) for model in _rows(models)]
        else:
            refuse_other_types(models)
            spent = row_cost(request.task.training, request.task.noise)
            plain = plain_request(request) | {"frozen": request.frozen, "runs": RUNS_HERE}
            self._asked = json.dumps(plain, sort_keys=True).encode() + models.numpy().tobytes()
            names = [self._name(data)]
        with self._ledger.locked() as entries:
            approval = self._approved(entries)
            mine = [entry for entry in entries if entry.get("approval") == approval]
            asked = [entry for entry in mine if entry.get("kind") == kind and "models" in entry]
            known = {name for entry in asked for name in entry["models"]}
            new = [name for name in dict.fromkeys(names) if name not in known]
            cost = 0.0
            if new and request.task is None:
                self._check_evaluations(mine, len(new))
                cost = len(new) / self._allowance.models
                spent = cost * MU**2 if self._cell > 1 else None
            elif new:
                self._check_trainings(mine)
                cost = len(new) / self._allowance.trainings
            facts = {"models": new, "asked": len(names), "cost": cost}
            if new:
                self._note(entries, "asked", approval, **facts, mu_squared=spent)
                return
            before = sum(entry.get("again") == names for entry in mine)
            if request.task is not None and before >= MOST_REPEATS:
                raise RefusedError(
                    f"this request was repeated {MOST_REPEATS} times already: {ASK_OPERATOR}"
                )
            self._note(entries, "repeated", approval, **facts, again=names)

    def note_step(self, seed: int, round_num: int, step: str) -> None:
        """What `claim_step`, `sent` and `failed` note about a step of secure aggregation."""
        self._about |= {"kind": _kind_of(step), "seed": seed, "round": round_num}

    def claim_step(self) -> None:
        """RefusedError if this node answered the step that `note_step` named before.

        Whichever app asked, under whichever approval: two sums of a round over different clients
        differ by single updates. Flower's state of a run is read when a request arrives, so two
        requests at once see the same state. The ledger has a lock.
        """
        with self._ledger.locked() as entries:
            approval = self._approved(entries)
            for entry in entries:
                if entry["event"] == "step" and self._is_claimed(entry):
                    raise RefusedError(
                        f"{self._about['kind']}: this node answered it before in round "
                        f"{self._about['round']} of seed {self._about['seed']}, and a round is summed "
                        "once. Another run needs other seeds"
                    )
            self._note(entries, "step", approval)

    def _is_claimed(self, step: Entry) -> bool:
        """Whether an answered step rules out the present one.

        Any step rules out the first one of its round: version 0.2.0 did not note that one.
        """
        same_round = all(step.get(key) == self._about[key] for key in ("seed", "round"))
        is_first = self._about["kind"] == _kind_of(KEYS)
        return same_round and (is_first or step["kind"] == self._about["kind"])

    @property
    def approval(self) -> str:
        """The id of the present approval; "none" without one."""
        with self._ledger.locked() as entries:
            return _id(present(entries))

    def evaluation(
        self,
        models: Tensor,
        data: FederatedData,
        problem: Problem,
        evaluate: Callable[[Tensor], Evaluation],
    ) -> Evaluation:
        """Results of models [c, d]: those of an earlier answer, or of `evaluate` by the rule."""
        if reason := self._release.why_not(problem):
            raise RefusedError(reason)
        names = [_digest(model.numpy().tobytes()) for model in models]
        with self._ledger.locked() as entries:
            answers = self._answers(entries)
        first_rows = {name: row for row, name in enumerate(names) if name not in answers}
        if first_rows:
            exact = evaluate(models[list(first_rows.values())])
            held = rows_digest(self._ledger.key(), data, data.test)
            keyed = [json.dumps([self.approval, held, one]) for one in first_rows]
            released = self._release.evaluation(exact, problem, keyed)
            found = {name: _plain(released.pick(row)) for row, name in enumerate(first_rows)}
            with self._ledger.locked() as entries:
                approval = self._approved(entries)
                # Another process may have answered meanwhile: the same question, the same answer.
                answers = found | self._answers(entries)
                new = {name: answers[name] for name in found}
                self._note(entries, "measured", approval, answers=new)
        return evaluation_from([answers[name] for name in names], problem)

    def noise_key(self, data: FederatedData) -> bytes:
        """What the noise of this node's updates follows from: the names under which requests count.

        A request that gets other noise is therefore another request. One that is counted as repeated has
        the same noise, the same rows in the same order, and the same result.
        """
        name = json.dumps(["local noise", self.approval, self._name(data)])
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
        with self._ledger.locked() as entries:
            self._note(entries, "answered", self._approved(entries), **facts)

    def failed(self, error: Exception) -> None:
        """Note a request that was not answered."""
        event = "refused" if isinstance(error, RefusedError) else "failed"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        with self._ledger.locked() as entries:
            self._note(entries, event, _id(present(entries)), reason=reason)

    def _note(self, entries: list[Entry], event: str, approval: str, **facts: Any) -> None:
        self._ledger.add(entries, event, approval=approval, **self._about, **facts)

    _asked = b""

    @cached_property
    def _release(self) -> Release:
        return Release(self._cell, self._allowance.models, self._ledger.key())

    def _approved(self, entries: list[Entry]) -> str:
        """The id of the approval that covers this app and this run; RefusedError without one."""
        approval = present(entries)
        if approval is None:
            raise RefusedError(
                "nothing is approved; approvals of version 0.2.0 ended with the upgrade: "
                f"{ASK_OPERATOR}"
            )
        if lost := self._ledger.missing(entries):
            raise RefusedError(f"{lost} entries of this node's ledger are missing: {ASK_OPERATOR}")
        if not self._ledger.has_key:
            raise RefusedError(f"the key of this node's ledger is missing: {ASK_OPERATOR}")
        if approval["experiment"] != self._about["experiment"]:
            raise RefusedError(
                f"an approval ends the earlier ones, and the last names another app: {ASK_OPERATOR}"
            )
        if approval["smallest_cell"] != self._cell:
            raise RefusedError(
                f"approved with SMALLEST_CELL={approval['smallest_cell']}, started with {self._cell}: "
                f"{ASK_OPERATOR}"
            )
        for entry in entries:
            same_run = entry.get("run") == self._about["run"] and "models" in entry
            if same_run and entry["approval"] != approval["approval"]:
                raise RefusedError(
                    f"Flower's run {self._about['run']} began under an earlier approval, which has "
                    "ended: start the run again (deploy/start.sh)"
                )
        return str(approval["approval"])

    def _name(self, data: FederatedData | None) -> str:
        """Names a request to train, on these training rows. The node's key hides the rows."""
        key = self._ledger.key()
        held = "" if data is None else rows_digest(key, data, data.train)
        asked = [self._about["experiment"], held, _digest(self._asked)]
        return hmac.new(key, json.dumps(asked).encode(), "sha256").hexdigest()

    def _of_this_round(self, entries: Sequence[Entry]) -> int:
        """Different models of this kind, seed and round so far."""
        count = 0
        for entry in entries:
            same = all(entry.get(key) == self._about[key] for key in ("kind", "seed", "round"))
            if same and "models" in entry:
                count += len(entry["models"])
        return count

    def _check_trainings(self, entries: Sequence[Entry]) -> None:
        most = self._allowance.trained()
        if self._of_this_round(entries) + 1 > most:
            times = "once" if most == 1 else f"{most} times"
            raise RefusedError(
                f"round {self._about['round']} was trained {times} already, with other models or "
                f"training rows: {ASK_OPERATOR}"
            )
        if _spent(entries, "train") + 1 / self._allowance.trainings > 1 + ROUNDING:
            raise RefusedError(f"all trainings of the run are used up: {ASK_OPERATOR}")

    def _check_evaluations(self, entries: Sequence[Entry], new: int) -> None:
        round_num = self._about["round"]
        most = self._allowance.evaluated(round_num)
        before = self._of_this_round(entries)
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

    def _answers(self, entries: list[Entry]) -> dict[str, Any]:
        """Earlier answers by model, under the present approval."""
        approval = self._approved(entries)
        stored: dict[str, Any] = {}
        for entry in entries:
            if entry.get("approval") == approval:
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
        loss = _fits(task.loss.record(), experiment.flower.class_count)
        loss &= _is_of(method, task.loss.record(), experiment.flower.class_count)
        training = method.scheduled(method.training, round_num)
        same_work = (task.training, task.noise) == (training, method.local_noise)
        if criteria and loss and same_work:
            return
    raise RefusedError(
        "the request's training, loss, noise or criteria are not those of any method of the experiment"
    )


def refuse_other_types(model: Tensor) -> None:
    """A model to train is a float32 vector: as another type, the same bytes are another model."""
    if model.ndim != 1 or model.dtype != torch.float32:
        raise RefusedError(f"a model of shape {tuple(model.shape)} and type {model.dtype}")


def rows_digest(key: bytes, data: FederatedData, held: Holdings) -> str:
    """Names rows, in their order, by a secret: by a public hash, a row could be guessed and confirmed."""
    digest = hmac.new(key, digestmod="sha256")
    for values in (data.samples.inputs[held.indices], held.targets, held.offsets):
        digest.update(repr((values.dtype, values.shape)).encode())
        digest.update(values.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _kind_of(step: str) -> str:
    """The kind of a step of secure aggregation, in the ledger."""
    return f"secure aggregation, {step}"


def _spent(entries: Sequence[Entry], kind: str) -> float:
    """The share of a run that the requests of a kind used."""
    costs = 0.0
    for entry in entries:
        if entry.get("kind") == kind:
            costs += entry.get("cost", 0.0)
    return costs


def _fits(loss: LossRecord, classes: int) -> bool:
    """Whether a loss is for so many classes; 0: for numbers to predict.

    Where a class had no weight, the error would tell whether this node has rows of that class.
    """
    for_classes = "classes" in LOSSES.declared(loss.kind).needs
    weights = loss.class_weights
    return for_classes == bool(classes) and (weights is None or len(weights) == classes)


def _is_of(method: Method, loss: LossRecord, classes: int) -> bool:
    """Whether a loss is the one that a method begins with; an adapted one may have other weights or shape."""
    problem = Classification(classes) if classes else Regression()
    first = method.first_loss(problem).record()
    if method.adapt_loss is None:
        return loss == first
    return (loss.kind, loss.options) == (first.kind, first.options)


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


def _id(approval: Entry | None) -> str:
    return "none" if approval is None else str(approval["approval"])
