"""One round of federated learning: `run_round` is the papers, step by step.

sample -> train -> guard -> criteria -> normalise -> score -> evidence -> bounds -> rule -> server step -> tune ->+
                                                       ^                                                          |
                               P2: order adjusted here +------------------------ evaluate ------------------------+
                                                                P3: loss of the next round <----------------------+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .adapt_loss import Adapted
from .cohort import Cohort
from .engine import Engine
from .method import Method, Plan
from .metrics import accuracy
from .priority import Search, all_orders
from .types import Candidate, Evaluation, RoundRecord, ServerState, Task
from .weighting import divide

LARGEST_LOSS = 1e30  # beyond what a model in float32 that still learns could have


def first_state(model: Tensor, method: Method, engine: Engine) -> ServerState:
    """Where a run begins: the initial model, the plain loss, nothing known of anybody."""
    memory = {name: one.first(engine.num_clients) for name, one in method.memories.items()}
    evidence = method.evidence.first(engine.num_clients) if method.evidence else {}
    return ServerState(0, model, engine.problem.loss, memory, method.first_priority, evidence=evidence)


def run_round(state: ServerState, method: Method, plan: Plan, engine: Engine) -> tuple[ServerState, RoundRecord]:
    """The server's part of one round (P1 Eq. 2-6, P2 Algorithm 1, P3 Algorithm 1)."""
    round_num = state.round_num + 1
    asked = plan.cohort(engine.num_clients, round_num, engine.clock)
    task = Task(round_num, method.training, state.loss, method.client_criteria)

    cohort = Cohort(asked, state, method, plan, engine)
    for updates in engine.train(asked, state.model, task):
        cohort.admit(updates)  # guard -> criteria
    cohort.complete()

    # normalise -> score -> evidence -> bounds -> rule -> server step, in the order of priority that serves best
    search = adjust_priority(cohort, state, method, engine)
    chosen = search.chosen if search else cohort.candidate(state.priority)
    local = search.evaluation if search else None  # the search has just evaluated this very model on all clients
    if method.fine_tune and bool(chosen.model.isfinite().all()):
        chosen, local = replace(chosen, model=tune(chosen.model, task, method, cohort, engine)), None
    report, local = evaluate(chosen.model, local, round_num, plan, engine)
    notes = why_unusable(chosen, cohort, report, local) or why_braked(chosen.model, state.model, method, engine)
    if notes:
        chosen = replace(chosen, model=state.model, priority=state.priority)
        chosen = replace(chosen, step_state=state.step_state, rule_state=state.rule_state)
        report, local = evaluate(chosen.model, None, round_num, plan, engine)
    quality = float(local.overall()[0]) if search and local and not notes else state.quality
    adapted = method.adapt_loss(state.loss, cohort.judge(chosen.model[None])) if method.adapt_loss else None
    adapted = adapted or Adapted(state.loss)
    triggered = engine.evaluate_server(chosen.model[None], "triggered")

    next_state = ServerState(
        round_num=round_num,
        model=chosen.model,
        loss=adapted.loss,
        memory=cohort.updated_memory(),
        priority=chosen.priority,
        quality=quality,
        step_state=chosen.step_state,
        evidence=chosen.posterior.memory if chosen.posterior else state.evidence,
        rule_state=chosen.rule_state,
    )
    record = _record(next_state, cohort, chosen, search, chosen.notes + notes + adapted.notes, report, local)
    success = float(accuracy(triggered.counts)[0]) if triggered else None
    return next_state, replace(record, attack_success=success, ended=engine.clock.now if engine.clock else None)


def tune(model: Tensor, task: Task, method: Method, cohort: Cohort, engine: Engine) -> Tensor:
    """The server goes on training the model [d] on its samples; see `Method.line_search`."""
    assert method.fine_tune is not None
    tuned = engine.train_server(model, replace(task, training=method.fine_tune))
    if not method.line_search:
        return tuned
    on_the_way = model + torch.linspace(0, 1, 5, device=model.device)[:, None] * (tuned - model)
    losses = cohort.judge(on_the_way).losses[:, 0]
    return on_the_way[int(losses.nan_to_num(nan=torch.inf).argmin())]


def _record(
    state: ServerState,
    cohort: Cohort,
    chosen: Candidate,
    search: Search | None,
    notes: tuple[str, ...],
    report: Evaluation | None,
    local: Evaluation | None,
) -> RoundRecord:
    """Enough to explain every weight of the round that led to `state`."""
    tested = len(search.tried) * cohort.num_clients if search else 0
    sent = sum(refusal.was_sent for refusal in cohort.refusals)
    trained = len(cohort.asked) + len(cohort.client_ids) + sent  # models sent to clients and received
    return RoundRecord(
        round_num=state.round_num,
        client_ids=tuple(cohort.client_ids),
        criteria=cohort.criteria,
        raw=cohort.raw,
        normalised=divide(cohort.raw, cohort.scales),
        scores=chosen.scores,
        prior=chosen.prior,
        z=chosen.posterior.z if chosen.posterior else None,
        posterior=chosen.posterior.weights if chosen.posterior else None,
        weights=chosen.weights,
        influence=chosen.influence,
        training_loss=cohort.training_loss,
        seconds=cohort.seconds,
        refusals=tuple(cohort.refusals),
        no_effect=cohort.no_effect if chosen.weights.any() else (),  # or it froze the model, which the notes say
        priority=chosen.priority,
        candidates=search.tried if search else (),
        testing_rounds=search.testing_rounds if search else 0,
        models_moved=trained + tested + cohort.judgements_sent,
        evaluations=tested + (cohort.judgements_sent or cohort.judged),
        loss=state.loss,
        notes=notes,
        report=report,
        local=local,
    )


def adjust_priority(cohort: Cohort, state: ServerState, method: Method, engine: Engine) -> Search | None:
    """P2: look for an order of priority whose model is no worse than the last round's, on the clients' test data."""
    if method.adjust is None or state.priority is None or not cohort.client_ids:
        return None

    def evaluate(candidates: Sequence[Candidate]) -> Evaluation:
        return engine.evaluate(range(engine.num_clients), torch.stack([candidate.model for candidate in candidates]))

    orders = all_orders(state.priority, method.names)
    return method.adjust(orders, cohort.candidate, evaluate, state.quality, engine.problem.higher_is_better)


def why_unusable(
    chosen: Candidate, cohort: Cohort, report: Evaluation | None, local: Evaluation | None
) -> tuple[str, ...]:
    """Why the old model stays, as notes for the record; empty where the new one is fine."""
    if not len(chosen.weights):
        return ("no update was accepted: the model stays as it was",)
    if not chosen.weights.any():
        if not bool(chosen.scores.sum().isfinite()):
            return ("the scores overflow: the model stays as it was",)
        reason = f" ({' and '.join(cohort.zero_for_all)}: zero for everybody)" if cohort.zero_for_all else ""
        return (f"all weights are zero{reason}: the model stays as it was",)
    if not bool(chosen.model.isfinite().all()):
        return ("the aggregate has NaN or Inf: the model stays as it was",)
    shown = report or local
    if shown is not None and not bool(shown.num_samples.any()):
        return ("nobody evaluated the aggregate: the model stays as it was",)
    if shown is not None and not _most_can_use(shown):
        return ("the aggregate answers NaN or Inf: the model stays as it was",)
    return ()


def why_braked(model: Tensor, before: Tensor, method: Method, engine: Engine) -> tuple[str, ...]:
    """Why the old model [d] stays though the new one can be used: worse than the noise of the server's set allows."""
    judged = engine.evaluate_server(torch.stack([before, model]), "weigh") if method.brake is not None else None
    if judged is None or method.brake is None:
        return ()
    assert judged.sample_losses is not None, "the server knows its own samples"
    good = -judged.sample_losses if judged.right is None else judged.right
    worse = good[0].double() - good[1].double()
    mean, error = float(worse.mean()), float(worse.std(correction=0)) / len(worse) ** 0.5
    if mean <= method.brake * error:
        return ()
    return (f"braked: the new model is worse on the server's set by {mean:.3g} ± {error:.2g}: the old one stays",)


def _most_can_use(evaluation: Evaluation) -> bool:
    """Whether the losses are numbers: of the server, or of most clients, since one alone must have no veto."""
    losses = evaluation.losses[0][evaluation.num_samples > 0]
    return bool((losses.abs() < LARGEST_LOSS).double().mean() > 0.5)


def evaluate(
    model: Tensor, local: Evaluation | None, round_num: int, plan: Plan, engine: Engine
) -> tuple[Evaluation | None, Evaluation | None]:
    """The model on the server's reporting part; and on every client's own test set, if known, due or all there is."""
    report = engine.evaluate_server(model[None], "report")
    if local is None and (report is None or plan.evaluates_clients(round_num)):
        local = engine.evaluate(range(engine.num_clients), model[None])
    return report, local
