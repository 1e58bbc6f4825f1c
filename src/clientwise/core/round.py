"""One round of federated learning: `run_round` is the papers' algorithms, step by step.

criteria -> normalise -> score -> prior -> evidence -> bounds -> before -> rule -> server step -> tune -> evaluate
                           ^                                                                                 |
   P2: order adjusted here +-- evaluate candidates <---------------------------------------------------------+
                                                                           P3: loss of the next round <------+

`Cohort.gather` measures the criteria as updates arrive. `aggregate_cohort` is the formula from `normalise` to the
server step. With P2, `adjust_priority` calls it once for every order that is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .aggregation.server_step import BestOf
from .candidates import (
    apply_rule,
    noised,
    stepped,
    with_old_model,
)
from .cohort import Cohort
from .engine import CountsLabels, Engine, RemembersClaims
from .evaluation import Evaluations, record_round, why_kept
from .evidence.backdoor import loss_with, unlearned
from .feedback import Adapted, Order, Search, all_orders
from .method import Method, Plan
from .types import (
    Candidate,
    Evaluation,
    Memory,
    RoundRecord,
    Scanned,
    ServerState,
    Task,
    TriedStep,
)
from .weights.weighting import InfeasibleError, divide, to_weights

LINE_SEARCH_POINTS = 5  # models tried from that of the server step to the tuned one


def run_round(
    state: ServerState, method: Method, plan: Plan, engine: Engine
) -> tuple[ServerState, RoundRecord]:
    """The server's part of one round (P1 Eq. 2-6, P2 Algorithm 1, P3 Algorithm 1)."""
    round_num = state.round_num + 1
    asked = plan.cohort(engine.num_clients, round_num, engine.clock)
    task = method.task(round_num, state.loss)

    cohort = Cohort(asked, state, method, plan, engine)
    cohort.gather(task)
    if isinstance(engine, RemembersClaims):
        engine.remember_claims(cohort.client_ids)
    search = adjust_priority(cohort)
    chosen = search.chosen if search else aggregate_cohort(cohort, state.priority)

    local = search.evaluation if search else None  # of the chosen model, on all clients
    goes_on = method.fine_tune is not None or len(chosen.stepped) > 1
    if goes_on and bool(chosen.stepped.isfinite().all(1).any()):
        chosen = tune_and_choose(chosen, task, cohort)
        local = None

    shown = Evaluations(chosen.model, cohort, local)
    kept = why_kept(chosen, cohort, shown)
    if kept:
        chosen = with_old_model(chosen, cohort)
    adapted = Adapted(state.loss)
    if method.adapt_loss:
        adapted = method.adapt_loss(state.loss, cohort.judge(chosen.model[None]))
    shown.finish(chosen.model, is_new=kept is None)

    quality = state.quality
    if search and shown.local and not kept:
        quality = float(shown.local.overall()[0])
    next_state = ServerState(
        round_num=round_num,
        model=chosen.model,
        loss=adapted.loss,
        memory=memory_after(cohort, chosen),
        priority=chosen.priority,
        quality=quality,
    )
    record = record_round(next_state, cohort, chosen, search, shown, kept=kept, notes=adapted.notes)
    return next_state, record


def aggregate_cohort(cohort: Cohort, priority: Order | None) -> Candidate:
    """The formula: the clients of a round become one model, in an order of priority."""
    method = cohort.method
    score = method.score.with_order(priority)
    if method.noises_mean:
        return noised(cohort, score)

    # criteria -> normalise -> score -> prior
    scales = cohort.scales
    normalised = divide(cohort.raw, scales)
    scores = method.scores_of(score, normalised, cohort.client_ids)
    prior = to_weights(scores)

    # evidence
    posterior = None
    if method.evidence and prior.any():
        posterior = method.evidence(cohort.gathered, prior, cohort.state.kept("evidence"))
    weights = posterior.weights if posterior else prior
    candidate = partial(stepped, cohort, priority, scores, prior, posterior=posterior)
    earlier = posterior.notes if posterior else ()
    if not weights.any():
        return candidate(weights, None, notes=earlier)

    # bounds
    notes: tuple[str, ...] = ()
    if method.bounds:
        try:
            weights, notes = method.bounds.apply(weights)
        except InfeasibleError as error:
            return candidate(torch.zeros_like(weights), None, notes=earlier, unmet=str(error))

    # before -> rule; then the server step, in `stepped`
    ruled = apply_rule(cohort, weights)
    if ruled is None:
        aggregate = cohort.mean(score, scales, weights)
    else:
        aggregate = cohort.state.model + ruled.update
    is_shaped = bool(method.rule or method.before)  # else influence is weight
    return candidate(
        weights,
        aggregate,
        influence=ruled.influence if ruled and is_shaped else None,
        rule_state=ruled.state if ruled else {},
        residual=ruled.residual if ruled else None,
        notes=notes + earlier + cohort.without_effect_after_zero(priority),
    )


def first_state(model: Tensor, method: Method, engine: Engine) -> ServerState:
    """The state before round 1: the initial model [d], the first loss, empty memories."""
    clients = engine.num_clients
    label_counts = None
    if method.counts_labels and isinstance(engine, CountsLabels):
        label_counts = engine.label_counts
    memory: dict[str, Memory] = {
        "criteria": {name: one.first(clients) for name, one in method.memories.items()}
    }
    if method.evidence:
        memory["evidence"] = method.evidence.first(clients)
    if method.privacy:
        memory["privacy"] = method.privacy.first(clients)
    first_loss = method.first_loss(engine.problem, label_counts)
    return ServerState(0, model, first_loss, memory, priority=method.first_priority)


def memory_after(cohort: Cohort, chosen: Candidate) -> dict[str, Memory]:
    """What the parts of the method keep for the next round."""
    method = cohort.method
    state = cohort.state
    memory: dict[str, Memory] = {
        "criteria": cohort.updated_memory(),
        "rule": chosen.rule_state,
        "server_step": chosen.step_state,
        "evidence": chosen.posterior.memory if chosen.posterior else state.kept("evidence"),
    }
    if method.privacy:
        memory["privacy"] = method.privacy.after(state.kept("privacy"), cohort.asked)
    return memory


def adjust_priority(cohort: Cohort) -> Search | None:
    """P2: search an order of priority whose model is no worse than the last round's on the clients' test data."""
    method = cohort.method
    state = cohort.state
    engine = cohort.engine
    if method.adjust is None or state.priority is None or not cohort.client_ids:
        return None

    def candidate(order: Order) -> Candidate:
        return aggregate_cohort(cohort, order)

    def evaluate(candidates: Sequence[Candidate]) -> Evaluation:
        models = torch.stack([candidate.model for candidate in candidates])
        return engine.evaluate(range(engine.num_clients), models)

    orders = all_orders(state.priority, method.names)
    higher_is_better = engine.problem.higher_is_better
    return method.adjust(orders, candidate, evaluate, state.quality, higher_is_better)


def tune_and_choose(chosen: Candidate, task: Task, cohort: Cohort) -> Candidate:
    """The model of every server step trained further on the server's samples, and the best one used."""
    method = cohort.method
    models = chosen.stepped
    losses = None
    if method.fine_tune:
        training = method.scheduled(method.fine_tune, task.round_num)
        scanned = chosen.posterior.scanned if chosen.posterior else Scanned()
        models, losses = tune(models, replace(task, training=training), cohort, scanned)
    if len(models) == 1:
        return replace(chosen, model=models[0])
    assert isinstance(method.server_step, BestOf)
    if losses is None:
        losses = cohort.judge(models).losses[:, 0]
    used, step_state = method.server_step.choose(losses, chosen.step_state)
    steps = tuple(
        TriedStep(step.name, float(losses[index]), index == used)
        for index, step in enumerate(method.server_step.steps)
    )
    return replace(chosen, model=models[used], step_state=step_state, steps=steps)


def tune(
    models: Tensor, task: Task, cohort: Cohort, scanned: Scanned
) -> tuple[Tensor, Tensor | None]:
    """Train models [c, d] further on the server's samples; see `Method.line_search`.

    Args:
        models: to be trained.
        task: how.
        cohort: of the round.
        scanned: the patterns of suspected backdoors, which the models unlearn.

    Returns:
        The models [c, d], and their losses on these samples [c] if they were computed.
    """
    tuned = cohort.engine.train_server(models, task)
    patterns = scanned.patterns
    network = None if patterns is None else cohort.engine.server_network()
    if network is not None:
        tuned = unlearned(network, tuned, scanned, task.training, task.round_num)
    if not cohort.method.line_search:
        return tuned, None
    fractions = torch.linspace(0, 1, LINE_SEARCH_POINTS, device=models.device)
    between = models[:, None] + fractions[:, None] * (tuned - models)[:, None]  # [c, points, d]
    tried = between.flatten(0, 1)
    losses = cohort.judge(tried).losses[:, 0]
    if network is not None and patterns is not None:
        losses = losses + loss_with(network, tried, patterns).to(losses)
    losses = losses.reshape(len(models), -1)
    lowest, points = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).min(1)
    # By numbers: a tensor of indices would have to be copied to a GPU first
    best = [between[row, point] for row, point in enumerate(points.tolist())]
    return torch.stack(best), lowest
