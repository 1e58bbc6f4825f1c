"""What a site answers: what its approval covers, each question once, and what the answers say.

`SiteGate` is the library's `Gate`. A question is the release itself: the request with its models, under one approval,
on the rows that this approval began with. It is in the ledger before any row is read.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from clientwise.core.objective.loss import LOSSES, LossRecord
from clientwise.core.objective.problem import Classification, Regression
from clientwise.core.types import Evaluation, Task, Updates
from clientwise.experiment.config.schema import Experiment
from clientwise.hosts.protocols import VERSION, OwnData, Permit, Refused, Request
from torch import Tensor

from .approval import Approval
from .canonical import digest, encode
from .ledger import Ledger, LedgerError, Limits
from .small_numbers import coarse_update, has_bound, in_groups, noisy_evaluation, rows_digest

# The answer is the same, but the time that it takes could be averaged.
MOST_REPEATS = 10
MORE_HEADS = 100  # than trainings: lines about other things


@dataclass(frozen=True)
class SitePermit(Permit):
    """A request that was let in, and the names of its models in the ledger."""

    questions: tuple[str, ...] = ()


class SiteGate:
    """Decides for one site, under one approval.

    Args:
        experiment: the approved one, as the library reads it.
        approval: signed by the site's approver.
        ledger: of the site.
    """

    def __init__(self, experiment: Experiment, approval: Approval, ledger: Ledger) -> None:
        self._experiment = experiment
        self._approval = approval
        self._ledger = ledger
        self._id = approval.id
        names = experiment.flower.clients
        if approval.site not in names:
            raise Refused(f"{approval.site} is none of the experiment's members: {names}")
        self._client = names.index(approval.site)
        self._classes = experiment.flower.num_classes
        self._methods = experiment.build_methods()

    def rows(self, load: Callable[[], OwnData]) -> OwnData:
        """The site's rows; refused where two readings differ, or the rows that the approval began with do."""
        own = self._read(load)
        named = rows_digest(own, self._secret("rows"))
        if rows_digest(self._read(load), self._secret("rows")) != named:
            raise Refused("two readings of this site's rows differ: its loader must not be random")
        self._ledger.note("rows", self._id, question=named)
        if self._ledger.questions("rows", self._id) != [named]:
            raise Refused(
                "this site's rows are not those that the approval began with: approve anew"
            )
        return own

    def admit(self, request: Request, models: Tensor) -> SitePermit:
        """Write the questions of a request into the ledger; Refused where the approval does not cover them."""
        refuse_ended(self._ledger, self._approval)
        self.refuse_other_work(request)
        task = request.task
        if task is None:
            kind, round_num, cost = "evaluate", request.round_num, self._evaluation_cost()
            _refuse_other_types(models, dimensions=2)
            questions = [_name("evaluate", request.frozen, _bytes_of(model)) for model in models]
        else:
            kind, round_num, cost = "train", task.round_num, training_cost(task)
            _refuse_other_types(models, dimensions=1)
            plain = asdict(replace(request, task=None)) | {"task": task.plain()}
            questions = [_name("train", plain, _bytes_of(models))]
            if cost is None and not self._approval.without_noise:
                raise Refused("the approval covers no training without noise")
        limits = limits_of(self._approval, kind)
        try:
            new = self._ledger.ask(self._id, kind, request.seed, round_num, questions, cost, limits)
        except LedgerError as error:
            raise Refused(str(error)) from None
        if not new:
            self._count_repeat(questions)
        key = self._secret("noise", self._id, *questions)
        return SitePermit(noise_key=key, questions=tuple(questions))

    def release(self, permit: Permit, exact: Updates | Evaluation) -> Any:
        """What leaves the site: an answer that was given before, or a new one by the rule of small numbers."""
        if isinstance(exact, Updates):
            return coarse_update(exact) if self._approval.cell > 1 else exact
        assert isinstance(permit, SitePermit)
        return self._evaluation(permit.questions, exact)

    def note_head(self, head: str) -> None:
        """Keep the head of the record that came with an instruction."""
        known = self._ledger.questions("head", self._id)
        if head not in known and len(known) >= self._approval.trainings + MORE_HEADS:
            raise Refused("the record has more lines than the approved experiment has rounds")
        self._ledger.note("head", self._id, question=head)

    def refuse_other_work(self, request: Request) -> None:
        """Refused where the approved experiment does not ask for this, of this site."""
        if request.version != VERSION:
            raise Refused(f"the server runs clientwise {request.version}, this site {VERSION}")
        task = request.task
        round_num = request.round_num if task is None else task.round_num
        self.refuse_other_rounds(request.seed, round_num)
        if type(request.client) is not int or request.client != self._client:
            raise Refused(f"this request is for client {request.client}, not for {self._client}")
        if task is not None and not self._is_of_a_method(task, round_num):
            raise Refused(
                "training, loss, noise or criteria are those of no method that was approved"
            )

    def refuse_other_rounds(self, seed: object, round_num: object) -> None:
        """Refused unless the approved experiment has such a round."""
        # A round 1.5 would count as another round than 1, and be trained again.
        if type(seed) is not int or type(round_num) is not int:
            raise Refused("seed and round must be integers")
        if seed not in self._experiment.seeds:
            raise Refused(f"seed {seed} is none of the experiment's")
        if not 1 <= round_num <= self._experiment.rounds:
            raise Refused(f"round {round_num} of {self._experiment.rounds}")

    def _is_of_a_method(self, task: Task, round_num: int) -> bool:
        record = task.loss.record()
        weights = record.options.get("class_weights")
        for_classes = "classes" in LOSSES.declared(record.kind).needs
        # With no weight for a class, the error would tell whether this site has rows of it.
        if for_classes != bool(self._classes) or (weights and len(weights) != self._classes):
            return False
        problem = Classification(self._classes) if self._classes else Regression()
        for method in self._methods:
            first = method.first_loss(problem).record()
            same_loss = record == first if method.adapt_loss is None else _adapts(record, first)
            training = method.scheduled(method.training, round_num)
            same_work = (task.training, task.noise) == (training, method.local_noise)
            known = set(map(repr, method.client_criteria))
            if same_loss and same_work and all(repr(part) in known for part in task.criteria):
                return True
        return False

    def _read(self, load: Callable[[], OwnData]) -> OwnData:
        own = load()
        if self._approval.cell == 1:
            return own
        return in_groups(own, self._approval.cell, self._secret("order"))

    def _evaluation(self, questions: tuple[str, ...], exact: Evaluation) -> Evaluation:
        problem = self._problem()
        if self._approval.cell > 1 and not has_bound(problem):
            raise Refused(
                "results of this metric have no bound per row: evaluate with the server's samples, or approve with "
                "cell = 1, which gives exact results"
            )
        stored = self._ledger.answers(self._id, questions)
        for row, question in enumerate(questions):
            if question in stored:
                continue
            one = exact.pick(row)
            if self._approval.cell > 1:
                most = self._approval.evaluations
                one = noisy_evaluation(one, problem, most, self._approval.cell)
            self._ledger.note("measured", self._id, _plain(one), question=question)
        # As they are on the disk: another process may have been faster.
        stored = self._ledger.answers(self._id, questions)
        return _evaluation_of([stored[one] for one in questions], exact)

    def _problem(self) -> Any:
        problem = Classification(self._classes) if self._classes else Regression()
        return problem.by(self._experiment.evaluation.metric)

    def _evaluation_cost(self) -> float | None:
        """The μ² that the results of one model spend; None: they are exact."""
        most = self._approval.mu_of_tests
        return None if most is None else most**2 / max(1, self._approval.evaluations)

    def _count_repeat(self, questions: list[str]) -> None:
        for one in questions:
            if self._ledger.questions("repeated", self._id).count(one) >= MOST_REPEATS:
                raise Refused(f"this request was repeated {MOST_REPEATS} times")
            self._ledger.note("repeated", self._id, question=one)

    def _secret(self, *parts: str) -> bytes:
        return hmac.digest(self._ledger.key, encode(["clientwise site", *parts]), "sha256")


def training_cost(task: Task) -> float | None:
    """The μ² that a training spends of one row; None: no noise hides it.

    A row is in one batch an epoch, and every step has noise of its own. Noise on the whole update also hides what one
    row adds to it. Where a request has both, the smaller cost holds.
    """
    costs = []
    training = task.training
    if training.sample_clip is not None and training.sample_noise is not None:
        costs.append(training.epochs / training.sample_noise**2)
    if task.noise is not None:
        costs.append((2 * task.noise.clip / task.noise.deviation) ** 2)
    return min(costs, default=None)


def limits_of(approval: Approval, kind: str) -> Limits:
    """The limits of an approval for requests to train, or to evaluate."""
    if kind == "train":
        squared = None if approval.mu is None else approval.mu**2
        return Limits(approval.trainings_a_round, approval.trainings, squared)
    return Limits(approval.evaluations, approval.evaluations)


def begin(ledger: Ledger, approval: Approval) -> None:
    """Note a signed approval, once. It ends the earlier ones. Refused for an id that another one had."""
    ledger.note("approved", approval.id, vars(approval), question=approval.id)
    # Else what was spent under this id would count for neither of the two.
    if ledger.approved(approval.id) != vars(approval):
        raise Refused("another approval had this id: approve anew")
    refuse_ended(ledger, approval)


def refuse_ended(ledger: Ledger, approval: Approval) -> None:
    """Refused where another approval came later: approvals are events, not the state of a file."""
    if ledger.last("approved") != approval.id:
        raise Refused("this approval has ended: another one was begun after it")


def _adapts(record: LossRecord, first: LossRecord) -> bool:
    """Whether a loss differs from a method's first one in its class weights alone."""

    def without(one: LossRecord) -> Mapping[str, Any]:
        return {name: value for name, value in one.options.items() if name != "class_weights"}

    return record.kind == first.kind and without(record) == without(first)


def _refuse_other_types(models: Tensor, dimensions: int) -> None:
    """As another type, the same bytes are another model."""
    if models.ndim != dimensions or models.dtype != torch.float32 or not len(models):
        raise Refused(f"models of shape {tuple(models.shape)} and type {models.dtype}")


def _name(kind: str, about: Any, model: bytes) -> str:
    return digest(encode([kind, json.loads(json.dumps(about)), digest(model)]))


def _bytes_of(model: Tensor) -> bytes:
    return model.cpu().contiguous().numpy().tobytes()


def _plain(one: Evaluation) -> dict[str, Any]:
    """The results of one model, as the ledger keeps them."""
    return {
        "values": one.values[0].tolist(),
        "losses": one.losses[0].tolist(),
        "counts": one.counts[0].tolist(),
    }


def _evaluation_of(answers: list[dict[str, Any]], exact: Evaluation) -> Evaluation:
    def column(name: str, like: Tensor) -> Tensor:
        return torch.tensor([one[name] for one in answers], dtype=like.dtype)

    return Evaluation(
        exact.num_samples,
        column("values", exact.values),
        column("losses", exact.losses),
        column("counts", exact.counts),
    )
