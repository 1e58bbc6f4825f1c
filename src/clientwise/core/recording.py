"""The record of a round: enough to explain every weight."""

from __future__ import annotations

from .cohort import Cohort
from .contributions import Contributions
from .evaluation import Evaluations
from .method import Method
from .reasons import Kept
from .types import Candidate, LookBack, PrivacyRecord, RoundRecord, ServerState
from .weights.priority import Search
from .weights.weighting import divide


def record_round(
    state: ServerState,
    cohort: Cohort,
    chosen: Candidate,
    search: Search | None,
    evaluations: Evaluations,
    *,
    kept: Kept | None,
    notes: tuple[str, ...],
    contributions: Contributions | None,
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
        contributions: Shapley values, where they are computed.
    """
    posterior = chosen.posterior
    models_moved, num_evaluations = _traffic(cohort, search)
    clock = cohort.engine.clock
    stayed = (kept.sentence,) if kept else ()
    return RoundRecord(
        round_num=state.round_num,
        client_ids=tuple(cohort.client_ids),
        criteria=cohort.criteria,
        raw=cohort.raw,
        normalised=divide(cohort.raw, cohort.scales),
        scores=chosen.scores,
        prior=chosen.prior,
        z=posterior.z if posterior else None,
        posterior=posterior.weights if posterior else None,
        look_back=posterior.look_back if posterior else LookBack(),
        weights=chosen.weights,
        influence=chosen.influence,
        training_loss=cohort.training_loss,
        seconds=cohort.seconds,
        refusals=tuple(cohort.refusals),
        # Without weights, see the notes
        no_effect=cohort.no_effect if chosen.weights.any() else (),
        priority=chosen.priority,
        candidates=search.tried if search else (),
        testing_rounds=search.testing_rounds if search else 0,
        models_moved=models_moved,
        evaluations=num_evaluations,
        loss=state.loss,
        notes=cohort.notes + chosen.notes + stayed + notes,
        report=evaluations.report,
        local=evaluations.local,
        ended=clock.now if clock else None,
        attack_success=evaluations.attack_success,
        released=_released(chosen, cohort.method),
        counterfactuals=evaluations.counterfactuals,
        contributions=contributions,
        residual=chosen.residual,
        steps=chosen.steps,
        kept=kept,
        harm=posterior.harm if posterior else None,
        harm_error=posterior.harm_error if posterior else None,
        held_out_change=posterior.held_out_change if posterior else None,
    )


def _traffic(cohort: Cohort, search: Search | None) -> tuple[int, int]:
    """How many models were sent to clients and received, and how many evaluations were made."""
    tested = len(search.tried) * cohort.num_clients if search else 0
    sent = sum(refusal.was_sent for refusal in cohort.refusals)
    trained = len(cohort.asked) + len(cohort.client_ids) + sent
    judgements = cohort.judge.sent
    return trained + tested + judgements, tested + (judgements or cohort.judge.count)


def _released(chosen: Candidate, method: Method) -> PrivacyRecord | None:
    if chosen.released:
        return PrivacyRecord(chosen.released.clip, chosen.released.deviation)
    if method.local_noise:
        return PrivacyRecord(method.local_noise.clip, method.local_noise.deviation)
    return None
