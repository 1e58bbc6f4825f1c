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
    shown: Evaluations,
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
        shown: the evaluations.
        kept: why the model is that of the round before, if it is.
        notes: for people, beside those of the cohort and of the candidate.
        contributions: Shapley values, where they are computed.
    """
    posterior = chosen.posterior
    tested = len(search.tried) * cohort.num_clients if search else 0
    sent = sum(refusal.was_sent for refusal in cohort.refusals)
    # Models sent to clients and received
    trained = len(cohort.asked) + len(cohort.client_ids) + sent
    judgements = cohort.judge.sent
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
        models_moved=trained + tested + judgements,
        evaluations=tested + (judgements or cohort.judge.count),
        loss=state.loss,
        notes=cohort.notes + chosen.notes + stayed + notes,
        report=shown.report,
        local=shown.local,
        ended=clock.now if clock else None,
        attack_success=shown.attack_success,
        released=_released(chosen, cohort.method),
        counterfactuals=shown.counterfactuals,
        contributions=contributions,
        residual=chosen.residual,
        steps=chosen.steps,
        kept=kept,
    )


def _released(chosen: Candidate, method: Method) -> PrivacyRecord | None:
    if chosen.released:
        return PrivacyRecord(chosen.released.clip, chosen.released.deviation)
    if method.local_noise:
        return PrivacyRecord(method.local_noise.clip, method.local_noise.deviation)
    return None
