"""One round of federated learning: `run_round` is the papers' algorithms, step by step.

sample -> train -> guard -> criteria -> normalise -> score -> evidence -> bounds -> rule -> server step -> tune ->+
                                                       ^                                                          |
                               P2: order adjusted here +------------------------ evaluate ------------------------+
                                                                P3: loss of the next round <----------------------+
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .clock import Pace
from .cohort import Cohort
from .contributions import Contributions
from .counterfactuals import contributions, counterfactuals, evaluated
from .engine import AsksAhead, Engine, FoldingEngine
from .method import Method, Plan
from .objective.adapt_loss import Adapted
from .objective.loss import Loss
from .objective.metrics import accuracy
from .priority import Search, all_orders
from .reasons import Kept
from .secrecy import SecretCohort
from .seeding import generator
from .types import (
    Candidate,
    Counterfactual,
    Evaluation,
    Folded,
    LookBack,
    PrivacyRecord,
    RoundRecord,
    ServerState,
    Task,
)
from .weights.weighting import divide

LARGEST_LOSS = 1e30  # a float32 model that still learns has a smaller one
LINE_SEARCH_POINTS = 5  # models tried between the aggregate and the tuned model


def first_state(model: Tensor, method: Method, engine: Engine) -> ServerState:
    """The state before round 1: the initial model [d], the plain loss, empty memories."""
    memory = {name: one.first(engine.num_clients) for name, one in method.memories.items()}
    evidence = method.evidence.first(engine.num_clients) if method.evidence else {}
    return ServerState(
        0,
        model,
        engine.problem.loss,
        memory,
        method.first_priority,
        evidence=evidence,
        privacy=_first_privacy(method, engine.num_clients),
        policy=method.bounds.first_memory(engine.num_clients) if method.bounds else {},
    )


def run_round(
    state: ServerState, method: Method, plan: Plan, engine: Engine
) -> tuple[ServerState, RoundRecord]:
    """The server's part of one round (P1 Eq. 2-6, P2 Algorithm 1, P3 Algorithm 1)."""
    round_num = state.round_num + 1
    asked = plan.cohort(engine.num_clients, round_num, engine.clock)
    task = _task(round_num, state.loss, method)

    cohort = gather(asked, state, method, plan, engine, task)  # guard -> criteria

    # normalise -> score -> evidence -> bounds -> rule -> server step, in the best order of priority
    search = adjust_priority(cohort, state, method, engine)
    chosen = search.chosen if search else cohort.candidate(state.priority)
    local = search.evaluation if search else None  # of the chosen model, on all clients
    others = counterfactuals(cohort, chosen) if plan.counterfactuals else ()
    gave = _contributions(cohort, chosen, round_num, plan) if plan.shapley else None
    if method.fine_tune and bool(chosen.model.isfinite().all()):
        chosen = replace(chosen, model=tune(chosen.model, task, method, cohort, engine))
        local = None

    tried = chosen.model
    on_server = partial(engine.evaluate_server, part="report")
    report, report_others = evaluate_all(tried, others, on_server)
    on_clients = partial(evaluate_clients, report is not None, round_num, plan, engine)
    local_others: Evaluation | None = None
    if report is None:  # the clients decide whether the model is used
        local, local_others = evaluate_all(tried, others, on_clients, local)
    kept = why_unusable(chosen, cohort, report, local)
    kept = kept or why_braked(tried, state.model, method, engine)
    if kept:
        chosen = with_old_model(chosen, state)
    adapted = Adapted(state.loss)
    if method.adapt_loss:
        adapted = method.adapt_loss(state.loss, cohort.judge(chosen.model[None]))
    ask_ahead = partial(
        expect_training, chosen.model, adapted.loss, round_num, method, plan, engine
    )
    if report is not None:  # nothing that the clients say now changes the next round
        if not kept:
            ask_ahead()
        local, local_others = evaluate_all(tried, others, on_clients, local)
    if kept:
        ask_ahead()
        report, local = on_server(chosen.model[None]), on_clients(chosen.model[None])
    others = evaluated(others, report_others, local_others)
    quality = state.quality
    if search and local and not kept:
        quality = float(local.overall()[0])
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
        privacy=_spent(state, chosen, method, asked),
        policy=cohort.updated_policy(),
    )
    stayed = (kept.sentence,) if kept else ()
    notes = cohort.notes + chosen.notes + stayed + adapted.notes
    record = _record(next_state, cohort, chosen, search, notes, report, local)
    success = float(accuracy(triggered.counts)[0]) if triggered else None
    ended = engine.clock.now if engine.clock else None
    released = _released(chosen, method)
    record = replace(record, attack_success=success, ended=ended, released=released, kept=kept)
    return next_state, replace(record, counterfactuals=others, contributions=gave)


def _contributions(
    cohort: Cohort, chosen: Candidate, round_num: int, plan: Plan
) -> Contributions | None:
    random = generator(plan.seed, "contributions", round_num)
    return contributions(cohort, chosen, random)


def gather(
    asked: Sequence[int],
    state: ServerState,
    method: Method,
    plan: Plan,
    engine: Engine,
    task: Task,
) -> Cohort:
    """The trained clients; with secure aggregation, the weighted sum of their updates alone."""
    if method.secure:
        secret = SecretCohort(asked, state, method, plan, engine)
        secret.gather(task)
        return secret
    cohort = Cohort(asked, state, method, plan, engine)
    if isinstance(engine, FoldingEngine) and cohort.can_be_divided:
        cohort.add(engine.fold(asked, state))
        cohort.complete()
        return cohort
    for updates in engine.train(asked, state.model, task):
        cohort.admit(updates)
    cohort.complete()
    return cohort


def fold(
    asked: Sequence[int], state: ServerState, method: Method, plan: Plan, engine: Engine
) -> Folded:
    """Guard, measure and fold a part of a cohort, where its clients train; see `FoldingEngine`."""
    cohort = Cohort(asked, state, method, plan, engine, is_part=True)
    for updates in engine.train(asked, state.model, _task(state.round_num + 1, state.loss, method)):
        cohort.admit(updates)
    cohort.complete()
    return cohort.folded()


def _task(round_num: int, loss: Loss, method: Method) -> Task:
    return Task(round_num, method.training, loss, method.client_criteria, method.local_noise)


def adjust_priority(
    cohort: Cohort, state: ServerState, method: Method, engine: Engine
) -> Search | None:
    """P2: search an order of priority whose model is no worse than the last round's on the clients' test data."""
    if method.adjust is None or state.priority is None or not cohort.client_ids:
        return None

    def evaluate_all(candidates: Sequence[Candidate]) -> Evaluation:
        models = torch.stack([candidate.model for candidate in candidates])
        return engine.evaluate(range(engine.num_clients), models)

    orders = all_orders(state.priority, method.names)
    higher_is_better = engine.problem.higher_is_better
    return method.adjust(orders, cohort.candidate, evaluate_all, state.quality, higher_is_better)


def tune(model: Tensor, task: Task, method: Method, cohort: Cohort, engine: Engine) -> Tensor:
    """Train the model [d] further on the server's samples; see `Method.line_search`."""
    assert method.fine_tune is not None
    tuned = engine.train_server(model, replace(task, training=method.fine_tune))
    if not method.line_search:
        return tuned
    fractions = torch.linspace(0, 1, LINE_SEARCH_POINTS, device=model.device)
    between = model + fractions[:, None] * (tuned - model)
    losses = cohort.judge(between).losses[:, 0]
    return between[int(losses.nan_to_num(nan=torch.inf).argmin())]


def evaluate_all(
    model: Tensor,
    others: tuple[Counterfactual, ...],
    evaluate: Callable[[Tensor], Evaluation | None],
    known: Evaluation | None = None,
) -> tuple[Evaluation | None, Evaluation | None]:
    """Evaluate the model [d] and all counterfactuals in one pass.

    Args:
        model: the model.
        others: those without a model have nothing to evaluate.
        evaluate: of models [c, d].
        known: the evaluation of the model alone, if there was one before.

    Returns:
        The evaluation of the model, and that of the counterfactuals that have one.
    """
    models = [one.model for one in others if one.model is not None]
    if not models:
        return known or evaluate(model[None]), None
    # The first counterfactual is the chosen one: without fine-tuning, it is the model itself.
    is_first = models[0] is model
    found = evaluate(torch.stack(models if is_first else [model, *models]))
    rest = slice(0 if is_first else 1, None)
    return found and found.pick(0), found and found.part(rest)


def evaluate_clients(
    has_report: bool, round_num: int, plan: Plan, engine: Engine, models: Tensor
) -> Evaluation | None:
    """Evaluate models [c, d] on the clients' own test sets; None where the round does not.

    The clients, or a sample of them (`Plan.evaluating`), evaluate them if either this round is due or the
    server has no reporting part (`Plan.evaluates_clients`).
    """
    if not plan.evaluates_clients(round_num, has_report=has_report):
        return None
    clients = plan.evaluating(engine.num_clients, round_num)
    found = engine.evaluate(clients, models)
    if len(clients) < engine.num_clients:
        found = found.as_sample(clients, engine.num_clients)
    return found


def expect_training(
    model: Tensor, loss: Loss, round_num: int, method: Method, plan: Plan, engine: Engine
) -> None:
    """Tell the engine what the next round trains, where that is known by now; see `AsksAhead`."""
    if not isinstance(engine, AsksAhead) or plan.rounds is None or round_num >= plan.rounds:
        return
    if method.privacy or method.secure:  # a round is counted before clients are asked
        return
    if engine.clock is not None and engine.clock.pace != Pace():
        return
    asked = plan.cohort(engine.num_clients, round_num + 1, engine.clock)
    engine.expect_training(asked, model, _task(round_num + 1, loss, method))


def why_unusable(
    chosen: Candidate, cohort: Cohort, report: Evaluation | None, local: Evaluation | None
) -> Kept | None:
    """Why the new model cannot be used; None if it can."""
    if chosen.released:  # without any client, too: that there was none must not show
        return _why_no_answers(chosen.model, report)
    return _why_no_weights(chosen, cohort) or _why_no_answers(chosen.model, report or local)


def why_braked(model: Tensor, before: Tensor, method: Method, engine: Engine) -> Kept | None:
    """Why the brake keeps the old model [d]: the new one is significantly worse on the server's set."""
    if method.brake is None:
        return None
    judged = engine.evaluate_server(torch.stack([before, model]), "weigh")
    if judged is None:
        return None
    assert judged.sample_losses is not None, "the server knows its own samples"
    good = -judged.sample_losses if judged.right is None else judged.right
    worse = good[0].double() - good[1].double()  # [N]
    mean = float(worse.mean())
    error = float(worse.std(correction=0)) / len(worse) ** 0.5
    if mean <= method.brake * error:
        return None
    return Kept("brake", f"{mean:.3g} ± {error:.2g}")


def with_old_model(chosen: Candidate, state: ServerState) -> Candidate:
    """The candidate with its weights, but with the model, order and states of the round before."""
    return replace(
        chosen,
        model=state.model,
        priority=state.priority,
        step_state=state.step_state,
        rule_state=state.rule_state,
    )


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


def _why_no_answers(model: Tensor, shown: Evaluation | None) -> Kept | None:
    if not bool(model.isfinite().all()):
        return Kept("aggregate")
    if shown is None:
        return None
    if not bool(shown.num_samples.any()):
        # A sample may happen to have no test data: that is no fault of the model.
        is_by_chance = shown.drawn is not None and not shown.missing
        return None if is_by_chance else Kept("no evaluation")
    if not _most_are_finite(shown):
        return Kept("predictions")
    return None


def _most_are_finite(evaluation: Evaluation) -> bool:
    """Whether the losses of more than half of the clients are finite: no single client has a veto."""
    losses = evaluation.losses[0][evaluation.num_samples > 0]
    return bool((losses.abs() < LARGEST_LOSS).double().mean() > 0.5)


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
    posterior = chosen.posterior
    tested = len(search.tried) * cohort.num_clients if search else 0
    sent = sum(refusal.was_sent for refusal in cohort.refusals)
    # Models sent to clients and received
    trained = len(cohort.asked) + len(cohort.client_ids) + sent
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
        no_effect=cohort.no_effect
        if chosen.weights.any()
        else (),  # without weights, see the notes
        priority=chosen.priority,
        candidates=search.tried if search else (),
        testing_rounds=search.testing_rounds if search else 0,
        models_moved=trained + tested + cohort.judgements_sent,
        evaluations=tested + (cohort.judgements_sent or cohort.judged),
        loss=state.loss,
        notes=notes,
        report=report,
        local=local,
        residual=chosen.residual,
    )


def _first_privacy(method: Method, num_clients: int) -> dict[str, Tensor]:
    """The clipping norm, and in how many releases each client was [K]."""
    if method.privacy is None:
        return {}
    clip = torch.tensor(method.privacy.clip, dtype=torch.float64)
    return {"clip": clip, "releases": torch.zeros(num_clients, dtype=torch.int64)}


def _spent(
    state: ServerState, chosen: Candidate, method: Method, asked: Sequence[int]
) -> dict[str, Tensor]:
    """The state of privacy after a round.

    With noise of the server, all clients are in every release: which were asked is a secret. With
    noise of the clients, only those that were asked.
    """
    if method.privacy is None:
        return {}
    releases = state.privacy["releases"].clone()
    clip = state.privacy["clip"]
    if chosen.released:
        releases += 1
        clip = torch.tensor(chosen.released.next_clip, dtype=torch.float64)
    else:
        releases[list(asked)] += 1
    return {"clip": clip, "releases": releases}


def _released(chosen: Candidate, method: Method) -> PrivacyRecord | None:
    if chosen.released:
        return PrivacyRecord(chosen.released.clip, chosen.released.deviation)
    if method.local_noise:
        return PrivacyRecord(method.local_noise.clip, method.local_noise.deviation)
    return None
