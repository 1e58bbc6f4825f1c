"""One round of federated learning: `run_round` is the papers, step by step.

sample -> train -> guard -> criteria -> normalise -> score -> weights -> rule -> server step -> tune -> evaluate
                                                       ^                                                  |
                               P2: order adjusted here +--------------------------------------------------+
                                                          P3: loss of the next round <--------------------+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .adapt_loss import Adapted
from .aggregate import Aggregator, Stack, SubsetSums, can_fold
from .criteria import Arrivals, Outcome
from .guard import inspect_measurements, inspect_updates
from .method import Federation, Method
from .priority import Search, all_orders
from .types import Candidate, Engine, Evaluation, Refusal, RoundRecord, ServerState, Task, Updates
from .weighting import divide, to_weights, without_effect

LARGEST_LOSS = 1e30  # beyond what a model in float32 that still learns could have


def first_state(model: Tensor, method: Method, engine: Engine) -> ServerState:
    """Where a run begins: the initial model, the plain loss, nothing known of anybody."""
    memory = {one.part.name: one.memory.first(engine.num_clients) for one in method.criteria if one.memory}
    return ServerState(0, model, engine.problem.loss, memory, method.first_priority)


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
    cohort.complete()

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
    adapted = method.adapt_loss(state.loss, cohort.judge(chosen.model[None])) if method.adapt_loss else None
    adapted = adapted or Adapted(state.loss)

    tested = len(search.tried) * engine.num_clients if search else 0
    judged_by_clients = cohort.judged * len(asked) if federation.judged_by == "clients" else 0

    next_state = ServerState(
        round_num=round_num,
        model=chosen.model,
        loss=adapted.loss,
        memory=cohort.updated_memory(),
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
        loss=adapted.loss,
        notes=notes + adapted.notes,
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
        self._held: list[Updates] | None = [] if method.needs("whole_cohort") else None

    def _make_aggregator(self) -> Aggregator:
        """Sums where the score has terms, fewer of them than there are clients; the whole matrix otherwise."""
        method, names = self._method, self._method.names
        terms = method.score.terms_of_all_orders(names) if method.adjust else method.score.terms(names)
        keeps_models = method.rule is not None or method.needs("models") or method.needs("whole_cohort")
        if terms is None or keeps_models or len(terms) >= len(self.asked):
            return Stack()
        if not can_fold(terms, [criterion.high(self._engine.problem) for criterion in method.criteria]):
            return Stack()
        return SubsetSums(names, terms, like=self._state.model)

    def admit(self, updates: Updates) -> None:
        """Guard, measure and fold one chunk of updates as it arrives."""
        state, method = self._state, self._method
        updates, refused = inspect_updates(updates, state.model, self._expected, self._seen, method.criteria)
        self._refuse(refused)
        self._seen.update(updates.client_ids)
        if self._held is not None:
            self._held += [updates] if updates.client_ids else []
        elif updates.client_ids:
            self._take(updates)

    def complete(self) -> None:
        """All that will arrive has arrived: criteria that need the whole cohort see it now, ordered by client."""
        if self._held:
            self._take(Updates.joined(self._held).by_client())

    def _take(self, updates: Updates) -> None:
        method = self._method
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
        state, rows = self._state, list(updates.client_ids)
        arrivals = Arrivals(
            updates.client_ids,
            updates.models,
            state.model,
            self._engine.spec,
            self.judge,
            memory={name: values[rows] for name, values in state.memory.items()},
            attributes={name: values[rows] for name, values in self._engine.attributes.items()},
        )
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
        score = method.score.with_order(priority)
        scores = score(method.names, divide(self.raw, scales))
        weights = to_weights(scores)
        if not weights.any():
            return Candidate(priority, scores, weights, state.model, state.step_state)
        if method.rule is None:
            aggregate = self._aggregator.aggregate(score, scales, weights)
        else:
            aggregate = state.model + method.rule(self._updates(), weights)
        model, step_state = method.server_step(state.model, aggregate, state.step_state)
        return Candidate(priority, scores, weights, model, step_state)

    def _updates(self) -> Tensor:
        """How far every client's model moved [n, d]; for parts that need the models."""
        assert isinstance(self._aggregator, Stack)
        return torch.stack(self._aggregator.models) - self._state.model

    def updated_memory(self) -> dict[str, Tensor]:
        """What the criteria remember of everyone after the round; see `criteria.trust`."""
        memory, remembering = dict(self._state.memory), [one for one in self._method.criteria if one.memory]
        if remembering:
            updates = self._updates()[:, : self._engine.spec.num_parameters] if self.client_ids else ()
            outcome = Outcome(self.client_ids, tuple(updates), [refusal.client_id for refusal in self.refusals])
            for one in remembering:
                assert one.memory is not None
                memory[one.part.name] = one.memory.after(memory[one.part.name], outcome)
        return memory


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
    if shown is not None and not _most_can_use(shown):
        return ("the aggregate answers NaN or Inf: the model stays as it was",)
    return ()


def _most_can_use(evaluation: Evaluation) -> bool:
    """Whether the losses are numbers: of the server, or of most clients, since one alone must have no veto."""
    losses = evaluation.losses[0][evaluation.num_samples > 0]
    return bool((losses.abs() < LARGEST_LOSS).double().mean() > 0.5)


def evaluate(
    model: Tensor, local: Evaluation | None, round_num: int, federation: Federation, engine: Engine
) -> tuple[Evaluation | None, Evaluation | None]:
    """The model on the server's reporting part; and on every client's own test set, if known, due or all there is."""
    report = engine.evaluate_server(model[None], "report")
    if local is None and (report is None or federation.evaluates_clients(round_num)):
        local = engine.evaluate(range(engine.num_clients), model[None])
    return report, local
