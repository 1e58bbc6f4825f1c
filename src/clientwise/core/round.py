"""One round of federated learning: `run_round` is the papers, step by step.

sample -> train -> guard -> criteria -> normalise -> score -> weights -> aggregate -> evaluate
                                                       ^                    |
                               P2: order adjusted here +--------------------+--> P3: loss of the next round
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .aggregate import Aggregator, Stack, SubsetSums
from .criteria import Arrivals, agreement_with_others, updated_trust
from .guard import inspect_measurements, inspect_updates
from .loss import plain_loss
from .method import Federation, Method
from .priority import Search, all_orders
from .scores import Prioritized, all_subset_terms
from .types import Candidate, Engine, Evaluation, Refusal, RoundRecord, ServerState, Task, Updates
from .weighting import divide, to_weights, without_effect


def first_state(model: Tensor, method: Method, engine: Engine) -> ServerState:
    """Where a run begins: the initial model, the plain loss, everyone trusted."""
    return ServerState(0, model, plain_loss(engine.problem), torch.ones(engine.num_clients), method.first_priority)


def run_round(
    state: ServerState, method: Method, federation: Federation, engine: Engine
) -> tuple[ServerState, RoundRecord]:
    """The server's part of one round (P1 Eq. 2-6, P2 Algorithm 1, P3 Algorithm 1)."""
    round_num = state.round_num + 1
    asked = federation.cohort(engine.num_clients, round_num)
    task = Task(round_num, method.training, state.loss, method.client_criteria)

    cohort = Cohort(asked, state, method, federation, engine)
    for updates in engine.train(asked, state.model, task):
        cohort.admit(updates)  # guard -> criteria -> fold

    search = adjust_priority(cohort, state, method, engine)
    chosen = search.chosen if search else cohort.candidate(state.priority)
    local = search.evaluation if search else None  # the search has just evaluated this very model on all clients
    if method.fine_tune and bool(chosen.model.isfinite().all()):
        tuned = engine.train_server(chosen.model, replace(task, training=method.fine_tune))
        chosen, local = replace(chosen, model=tuned), None
    report, local = evaluate(chosen.model, local, round_num, federation, engine)
    notes = why_unusable(chosen, report, local)
    if notes:
        chosen = replace(chosen, model=state.model, step_state=state.step_state, priority=state.priority)
        report, local = evaluate(chosen.model, None, round_num, federation, engine)
    quality = float(local.overall()[0]) if search and local and not notes else state.quality
    loss = state.loss if method.adapt_loss is None else method.adapt_loss(state.loss, cohort.judge(chosen.model[None]))

    tested = len(search.tried) * engine.num_clients if search else 0
    judged_by_clients = cohort.judged * len(asked) if federation.judged_by == "clients" else 0

    next_state = ServerState(
        round_num=round_num,
        model=chosen.model,
        loss=loss,
        trust=cohort.updated_trust(),
        priority=chosen.priority,
        quality=quality,
        step_state=chosen.step_state,
    )
    record = RoundRecord(
        round_num=round_num,
        client_ids=tuple(cohort.client_ids),
        criteria=method.names,
        raw=cohort.raw,
        normalised=divide(cohort.raw, cohort.scales),
        scores=chosen.scores,
        weights=chosen.weights,
        training_loss=cohort.training_loss,
        seconds=cohort.seconds,
        refusals=tuple(cohort.refusals),
        no_effect=without_effect(method.names, cohort.raw),
        priority=chosen.priority,
        candidates=search.tried if search else (),
        testing_rounds=search.testing_rounds if search else 0,
        models_moved=len(asked) + len(cohort.client_ids) + len(cohort.refusals) + tested + judged_by_clients,
        evaluations=tested + (judged_by_clients or cohort.judged),
        loss=loss,
        notes=notes,
        report=report,
        local=local,
    )
    return next_state, record


class Cohort:
    """The accepted clients of a round: their criteria, and their models as far as they must be kept."""

    def __init__(
        self, asked: Sequence[int], state: ServerState, method: Method, federation: Federation, engine: Engine
    ) -> None:
        self.asked = asked
        self.client_ids: list[int] = []
        self.refusals: list[Refusal] = []
        self.raw = torch.zeros(0, len(method.criteria), dtype=torch.float64)  # [n, m]
        self.training_loss = torch.zeros(0)
        self.seconds = torch.zeros(0)
        self.judged = 0  # models judged so far
        self._expected, self._seen = frozenset(asked), set[int]()
        self._state, self._method, self._federation, self._engine = state, method, federation, engine
        self._aggregator = self._make_aggregator()

    def _make_aggregator(self) -> Aggregator:
        """Sums where the score has terms, fewer of them than there are clients; the whole matrix otherwise."""
        method, names = self._method, self._method.names
        terms = all_subset_terms(len(names)) if method.adjust else method.score.terms(names)
        looks_back = any(criterion.needs_models for criterion in method.criteria)
        if terms is None or looks_back or len(terms) >= len(self.asked):
            return Stack()
        return SubsetSums(names, terms, like=self._state.model)

    def admit(self, updates: Updates) -> None:
        """Guard, measure and fold one chunk of updates as it arrives."""
        method, state = self._method, self._state
        updates, refused = inspect_updates(updates, state.model, self._expected, self._seen, method.criteria)
        self._refuse(refused)
        self._seen.update(updates.client_ids)
        if not updates.client_ids:
            return
        updates, raw, refused = inspect_measurements(
            updates, self._measure(updates), method.criteria, self._engine.problem
        )
        self._refuse(refused)
        self._aggregator.add(method.score.prepare(method.names, raw), updates.models)
        self.client_ids += updates.client_ids
        self.raw = torch.cat([self.raw, raw])
        self.training_loss = torch.cat([self.training_loss, updates.training_loss])
        self.seconds = torch.cat([self.seconds, updates.seconds])

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        self.refusals += refusals
        self._seen.update(refusal.client_id for refusal in refusals)

    def _measure(self, updates: Updates) -> Tensor:
        """The criteria [n, m]: what the clients reported, and what the server sees on arrival."""
        state = self._state
        trust = state.trust[list(updates.client_ids)]
        arrivals = Arrivals(updates.client_ids, updates.models, state.model, self._engine.spec, trust, self.judge)
        columns = [
            updates.measurements[criterion.name]
            if criterion.measured_by == "client"
            else criterion.measure(arrivals).cpu()
            for criterion in self._method.criteria
        ]
        return torch.stack([column.double() for column in columns], dim=1)

    def judge(self, models: Tensor) -> Evaluation:
        """AdaFed's evaluation of models [c, d]: on the server's set, or without one by the cohort (P3 III.C)."""
        self.judged += len(models)
        if self._federation.judged_by == "clients":
            return self._engine.evaluate(self.asked, models)
        evaluation = self._engine.evaluate_server(models, "weigh")
        if evaluation is None:
            raise RuntimeError(f"{self._method.name} weighs by a server set, but the engine has none")
        return evaluation

    @property
    def scales(self) -> Tensor:
        """What each criterion is divided by [m]."""
        return self._method.normaliser(self.raw) if self.client_ids else torch.ones(self.raw.shape[1])

    def candidate(self, priority: tuple[str, ...] | None) -> Candidate:
        """Score, weigh and aggregate the cohort, in the given order of priority."""
        method, state, scales = self._method, self._state, self.scales
        score = method.score
        if isinstance(score, Prioritized) and priority is not None:
            score = score.with_priority(priority)
        scores = score(method.names, divide(self.raw, scales))
        weights = to_weights(scores)
        if not weights.any():
            return Candidate(priority, scores, weights, state.model, state.step_state)
        mean = self._aggregator.aggregate(score, scales, weights)
        model, step_state = method.server_step(state.model, mean, state.step_state)
        return Candidate(priority, scores, weights, model, step_state)

    def updated_trust(self) -> Tensor:
        """Everyone's trust after the round, where a criterion looks back at it; see `criteria.trust`."""
        trust = self._state.trust
        if not any(criterion.needs_models for criterion in self._method.criteria):
            return trust
        assert isinstance(self._aggregator, Stack)
        agreement = agreement_with_others([model - self._state.model for model in self._aggregator.models])
        refused = [refusal.client_id for refusal in self.refusals]
        return updated_trust(trust, self.client_ids, agreement, refused)


def adjust_priority(cohort: Cohort, state: ServerState, method: Method, engine: Engine) -> Search | None:
    """P2: look for an order of priority whose model is no worse than the last round's, on the clients' test data."""
    if method.adjust is None or state.priority is None or not cohort.client_ids:
        return None

    def evaluate(candidates: Sequence[Candidate]) -> Evaluation:
        return engine.evaluate(range(engine.num_clients), torch.stack([candidate.model for candidate in candidates]))

    orders = all_orders(state.priority, method.names)
    return method.adjust(orders, cohort.candidate, evaluate, state.quality, engine.problem.higher_is_better)


def why_unusable(chosen: Candidate, report: Evaluation | None, local: Evaluation | None) -> tuple[str, ...]:
    """Why the old model stays, as notes for the record; empty where the new one is fine."""
    if not len(chosen.weights):
        return ("no update was accepted: the model stays as it was",)
    if not chosen.weights.any():
        if not bool(chosen.scores.sum().isfinite()):
            return ("the scores overflow: the model stays as it was",)
        return ("all weights are zero: the model stays as it was",)
    if not bool(chosen.model.isfinite().all()):
        return ("the aggregate has NaN or Inf: the model stays as it was",)
    shown = report or local
    if shown is not None and not bool(shown.num_samples.any()):
        return ("nobody evaluated the aggregate: the model stays as it was",)
    if shown is not None and not bool(shown.overall_loss().isfinite().all()):
        return ("the aggregate answers NaN or Inf: the model stays as it was",)
    return ()


def evaluate(
    model: Tensor, local: Evaluation | None, round_num: int, federation: Federation, engine: Engine
) -> tuple[Evaluation | None, Evaluation | None]:
    """The model on the server's reporting part; and on every client's own test set, if known, due or all there is."""
    report = engine.evaluate_server(model[None], "report")
    if local is None and (report is None or federation.evaluates_clients(round_num)):
        local = engine.evaluate(range(engine.num_clients), model[None])
    return report, local
