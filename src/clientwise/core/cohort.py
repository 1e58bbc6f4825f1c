"""The clients of a round, from their updates to one model: guard -> criteria, then normalise -> score -> evidence ->
bounds -> rule -> server step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .aggregate import Aggregator, Stack, SubsetSums, can_fold
from .criteria import Arrivals, Outcome
from .engine import Engine
from .guard import inspect_measurements, inspect_updates
from .method import Method, Plan
from .rules import Ruled, mean
from .seeding import derive_seed
from .types import Candidate, Evaluation, Gathered, LocalTraining, Refusal, ServerState, Task, Updates
from .weighting import divide, to_weights, without_effect, zero_for_all


class Cohort:
    """The accepted clients of a round: their criteria, and their models as far as they must be kept."""

    def __init__(self, asked: Sequence[int], state: ServerState, method: Method, plan: Plan, engine: Engine) -> None:
        self.asked, self.num_clients, self.criteria = asked, engine.num_clients, method.names
        self.client_ids: list[int] = []
        self.refusals: list[Refusal] = []
        self.raw = torch.zeros(0, len(method.criteria), dtype=torch.float64)  # [n, m]
        self.training_loss = torch.zeros(0)
        self.seconds = torch.zeros(0)
        self.judged = 0  # models judged so far
        self._server_model: Tensor | None = None  # the global one, trained on the server's set
        self._moved: Tensor | None = None  # how far every client's model moved, once all are there
        at_work = engine.clock.at_work if engine.clock else frozenset()
        self._expected, self._seen = at_work.union(asked), set[int]()
        self._state, self._method, self._plan, self._engine = state, method, plan, engine
        self._aggregator = self._make_aggregator()
        self._held: list[Updates] | None = [] if method.sees_whole_cohort else None

    def _make_aggregator(self) -> Aggregator:
        """Sums where the score has terms, fewer of them than there are clients; the whole matrix otherwise."""
        method, names = self._method, self._method.names
        terms = method.score.terms_of_all_orders(names) if method.adjust else method.score.terms(names)
        if terms is None or method.keeps_models or len(terms) >= len(self.asked):
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
            server_update=lambda: self._train_server(state.model) - state.model,
            metric=self._engine.problem.usual_metric,
            seconds=updates.seconds,
            ages=updates.known_ages,
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
        if self._plan.judged_by == "clients":
            judged = self._engine.evaluate(self._judges, models)
            return replace(judged, right=None, sample_losses=None)  # none of it leaves a client
        evaluation = self._engine.evaluate_server(models, "weigh")
        if evaluation is None:
            raise RuntimeError(f"{self._method.name} weighs by a server set, but the engine has none")
        return evaluation

    @property
    def judgements_sent(self) -> int:
        """Models that were sent to clients for their judgement."""
        return self.judged * len(self._judges) if self._plan.judged_by == "clients" else 0

    @property
    def _judges(self) -> Sequence[int]:
        """The clients who judge, if any do: an asynchronous round may have asked nobody."""
        return self.asked or sorted(self._expected)

    @property
    def scales(self) -> Tensor:
        """What each criterion is divided by [m]."""
        return self._method.normaliser(self.raw) if self.client_ids else torch.ones(self.raw.shape[1])

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Criteria that told nobody apart, but for those that are not meant to."""
        alike = {criterion.name for criterion in self._method.criteria if criterion.alike}
        return tuple(name for name in without_effect(self.criteria, self.raw) if name not in alike)

    @property
    def zero_for_all(self) -> tuple[str, ...]:
        """Criteria that were zero for everybody."""
        return zero_for_all(self.criteria, self.raw) if self.client_ids else ()

    def _silenced(self, priority: Sequence[str] | None) -> tuple[str, ...]:
        """As a note: in an order of priority nothing counts after a criterion that is zero (P1 Eq. 8)."""
        order = priority or ()
        for place, name in enumerate(order[:-1]):
            if name in self.zero_for_all:
                return (f"{name} is zero for everybody: {', '.join(order[place + 1 :])} after it counts for nothing",)
        return ()

    def candidate(self, priority: tuple[str, ...] | None) -> Candidate:
        """Score, weigh and aggregate the cohort, in the given order of priority."""
        method, state, scales = self._method, self._state, self.scales
        score = method.score.with_order(priority)
        scores = score(method.names, divide(self.raw, scales))
        prior = to_weights(scores)
        if not prior.any():
            return Candidate(
                priority, scores, prior, None, prior, None, state.model, state.step_state, state.rule_state
            )
        posterior = method.evidence(self._gathered, prior, state.evidence) if method.evidence else None
        weights = posterior.weights if posterior else prior
        weights, notes = method.bounds.apply(weights) if method.bounds else (weights, ())
        ruled = self._ruled(weights)
        aggregate = state.model + ruled.update if ruled else self._aggregator.aggregate(score, scales, weights)
        if posterior and posterior.scale != 1:
            # Buffers are statistics of the data and stay what they are.
            aggregate[: self._engine.spec.num_parameters] *= posterior.scale
        model, step_state = method.server_step(state.model, aggregate, state.step_state)
        return Candidate(
            priority,
            scores,
            prior,
            posterior,
            weights,
            ruled.influence if ruled else None,
            model,
            step_state,
            ruled.state if ruled else {},
            notes + (posterior.notes if posterior else ()) + self._silenced(priority),
        )

    def _ruled(self, weights: Tensor) -> Ruled | None:
        """What the steps before the rule and the rule make of the updates; None where they are simply averaged."""
        method = self._method
        if not method.before and method.rule is None:
            return None
        gathered, shares = self._gathered, torch.eye(len(weights), dtype=torch.float64)
        for step in method.before:
            mixed = step(gathered, weights)
            gathered, shares = replace(gathered, updates=mixed.updates), mixed.shares @ shares
        ruled = (method.rule or mean)(gathered.updates, weights, self._state.rule_state)
        return replace(ruled, influence=ruled.influence @ shares)

    @property
    def _gathered(self) -> Gathered:  # not kept: it leads back here, and a circle would keep all models for a while
        method, state = self._method, self._state
        return Gathered(
            client_ids=tuple(self.client_ids),
            updates=self._updates(),
            global_model=state.model,
            spec=self._engine.spec,
            criteria=self._raw_by_name(),
            judge=self.judge,
            train_server=self._train_server,
            seed=derive_seed(self._plan.seed, "gathered", state.round_num + 1),
            training=method.training,
        )

    def _raw_by_name(self) -> dict[str, Tensor]:
        """Raw values [n] of every criterion by its name; of one listed twice, the first."""
        found: dict[str, Tensor] = {}
        for criterion, column in zip(self._method.criteria, self.raw.T, strict=True):
            found.setdefault(criterion.part.name, column)
        return found

    def _train_server(self, model: Tensor, training: LocalTraining | None = None) -> Tensor:
        """A model trained on the server's set: the global one, as a client would, once a round however many ask."""
        is_usual = model is self._state.model and training is None
        if is_usual and self._server_model is not None:
            return self._server_model
        task = Task(self._state.round_num + 1, training or self._method.training, self._state.loss, ())
        trained = self._engine.train_server(model, task)
        if is_usual:  # kept by hand: a cached property locks all cohorts, and lanes that train together would wait
            self._server_model = trained
        return trained

    def _updates(self) -> Tensor:
        """How far every client's model moved [n, d]; for parts that need the models."""
        if self._moved is None:
            assert isinstance(self._aggregator, Stack)
            self._moved = torch.stack(self._aggregator.models) - self._state.model
        return self._moved

    def updated_memory(self) -> dict[str, Tensor]:
        """What the criteria remember of everyone after the round; see `criteria.trust`."""
        memory = dict(self._state.memory)
        if not self._method.memories:
            return memory
        updates = self._updates()[:, : self._engine.spec.num_parameters] if self.client_ids else ()
        refused = [refusal.client_id for refusal in self.refusals]
        late = set(self.client_ids) - set(self.asked)
        outcome = Outcome(self.client_ids, tuple(updates), refused, late)
        for name, one in self._method.memories.items():
            memory[name] = one.after(memory[name], outcome)
        return memory
