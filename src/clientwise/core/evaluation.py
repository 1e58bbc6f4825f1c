"""Evaluation at the end of a round: how good the model is, whether it is used, what is asked next, what is recorded."""

from __future__ import annotations

from dataclasses import fields, replace

from torch import Tensor

from .cohort import Cohort
from .feedback import Search
from .objective.metrics import accuracy
from .reasons import Kept
from .types import (
    Candidate,
    Evaluation,
    PrivacyRecord,
    RoundRecord,
    ServerState,
    Weighing,
)
from .weights.weighting import divide

LARGEST_LOSS = 1e30  # a float32 model that still learns has a smaller one


class Evaluations:
    """The evaluations of a round's model, by the server and by the clients.

    The server's reporting part decides whether the model is used. Clients then evaluate last, and are asked
    for the next round's training at the same time. Without a reporting part, the clients decide.

    Args:
        model: the new model [d].
        cohort: the clients of the round.
        local: the evaluation of the model by all clients, where there was one before.
    """

    def __init__(self, model: Tensor, cohort: Cohort, local: Evaluation | None) -> None:
        self.local = local
        self.attack_success: float | None = None  # of a simulated backdoor
        self._cohort = cohort
        self.report = self._on_server(model)
        self._has_report = self.report is not None
        if not self._has_report and local is None:
            self.local = self._on_clients(model)

    def finish(self, used: Tensor, is_new: bool) -> None:
        """Evaluate what is still to evaluate.

        Args:
            used: the model [d] after the round: the new one, or that of the round before.
            is_new: whether `used` is the new one.
        """
        if not is_new:
            self.report = self._on_server(used)
            self.local = None
        # Nothing that the clients say now changes the next round
        if self.local is None:
            self.local = self._on_clients(used)
        triggered = self._cohort.engine.evaluate_server(used[None], "triggered")
        if triggered:
            self.attack_success = float(accuracy(triggered.counts)[0])

    def _on_server(self, model: Tensor) -> Evaluation | None:
        return self._cohort.engine.evaluate_server(model[None], "report")

    def _on_clients(self, model: Tensor) -> Evaluation | None:
        """On the clients' own test sets; None where the round does not (`Plan.evaluates_clients`)."""
        cohort = self._cohort
        if not cohort.plan.evaluates_clients(cohort.state.round_num + 1, self._has_report):
            return None
        return cohort.engine.evaluate(range(cohort.engine.num_clients), model[None])


def why_kept(chosen: Candidate, cohort: Cohort, evaluations: Evaluations) -> Kept | None:
    """Why the old model is kept; None if the new one is used."""
    # A noised sum is released without any client, too: that there was none must not show
    unweighted = None if chosen.released else _why_no_weights(chosen, cohort)
    if unweighted:
        return unweighted
    if not bool(chosen.model.isfinite().all()):
        return Kept("aggregate")
    by_clients = None if chosen.released else evaluations.local
    evaluation = evaluations.report or by_clients
    return _why_no_answers(evaluation) if evaluation else None


def _why_no_weights(chosen: Candidate, cohort: Cohort) -> Kept | None:
    if not len(chosen.weights):
        return Kept("no update")
    if chosen.unmet:
        return Kept("bounds", chosen.unmet)
    if chosen.weights.any():
        return None
    if not bool(chosen.scores.sum().isfinite()):
        return Kept("overflow")
    if cohort.zero_for_all:
        return Kept("zero criteria", " and ".join(cohort.zero_for_all))
    return Kept("zero weights")


def _why_no_answers(evaluation: Evaluation) -> Kept | None:
    """Whether the losses of more than half of the clients are finite: no single client has a veto."""
    held = evaluation.num_samples > 0
    if not bool(held.any()):
        return Kept("no evaluation")
    usable = evaluation.losses[0][held].abs() < LARGEST_LOSS
    return None if float(usable.double().mean()) > 0.5 else Kept("predictions")


def record_round(
    state: ServerState,
    cohort: Cohort,
    chosen: Candidate,
    search: Search | None,
    evaluations: Evaluations,
    *,
    kept: Kept | None,
    notes: tuple[str, ...],
) -> RoundRecord:
    """The record of the round that led to `state`.

    Args:
        state: after the round.
        cohort: the clients of the round.
        chosen: what became of them.
        search: for the order of priority, if there was one.
        evaluations: of the new model.
        kept: why the model is that of the round before, if it is.
        notes: for people, beside those of the cohort and of the candidate.
    """
    weighing = {one.name: getattr(chosen, one.name) for one in fields(Weighing)}
    weighing["notes"] = cohort.notes + chosen.notes + ((kept.sentence,) if kept else ()) + notes
    if chosen.posterior:  # the state has its memory
        weighing["posterior"] = replace(chosen.posterior, memory={})
    noise = chosen.released or cohort.method.local_noise
    clock = cohort.engine.clock
    return RoundRecord(
        **weighing,
        **vars(cohort.columns),
        round_num=state.round_num,
        client_ids=tuple(cohort.client_ids),
        criteria=cohort.method.names,
        normalised=divide(cohort.raw, cohort.scales),
        refusals=tuple(cohort.refusals),
        # Without weights, see the notes
        no_effect=cohort.no_effect if chosen.weights.any() else (),
        candidates=search.tried if search else (),
        testing_rounds=search.testing_rounds if search else 0,
        models_moved=_models_moved(cohort, search),
        loss=state.loss,
        report=evaluations.report,
        local=evaluations.local,
        ended=clock.now if clock else None,
        attack_success=evaluations.attack_success,
        released=PrivacyRecord(noise.clip, noise.deviation) if noise else None,
        kept=kept,
    )


def _models_moved(cohort: Cohort, search: Search | None) -> int:
    """How many models were sent to clients and received."""
    tested = len(search.tried) * cohort.engine.num_clients if search else 0
    received = len(cohort.client_ids) + sum(refusal.was_sent for refusal in cohort.refusals)
    return len(cohort.asked) + received + tested + cohort.sent_to_judges
