"""The clients of a round: guarded and measured as their updates arrive, and folded where possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .aggregation.sums import Stack, SubsetSums, can_fold
from .criteria import Arrivals, Outcome
from .engine import Engine, FoldingEngine
from .guard import inspect_measurements, inspect_updates
from .method import Method, Plan
from .objective.problem import Problem
from .seeding import derive_seed
from .types import (
    ClientColumns,
    Evaluation,
    Folded,
    Gathered,
    LocalTraining,
    ModelSpec,
    Refusal,
    ServerState,
    Task,
    Updates,
)
from .weights.scores import Score, Term
from .weights.weighting import without_effect, zero_for_all


class Cohort:
    """The accepted clients of a round: their criteria, and their models as far as they must be kept."""

    def __init__(
        self,
        asked: Sequence[int],
        state: ServerState,
        method: Method,
        plan: Plan,
        engine: Engine,
        *,
        is_part: bool = False,
    ) -> None:
        """A cohort of the clients `asked`, or the part of one that is folded (`is_part`)."""
        self.asked = asked
        self.client_ids: list[int] = []
        self.refusals: list[Refusal] = []
        self.notes: tuple[str, ...] = ()  # of the engine
        self.columns = ClientColumns.none(len(method.criteria))  # once all are there
        self.state = state  # before the round
        self.method = method
        self.plan = plan
        self.engine = engine
        self.pairs = method.averaged_pairs(engine.spec)  # adapted layers
        self._moved: Tensor | None = None  # [n, d] how far every model moved, once all are there
        at_work = engine.clock.at_work if engine.clock else frozenset()
        self._expected = at_work.union(asked)
        # An asynchronous round may have asked none
        self._judges = asked or sorted(self._expected)
        self.sent_to_judges = 0  # models that clients got to judge
        self._server_model: Tensor | None = None  # the global model, trained on the server's set
        self._seen = set[int]()
        self._held = self._hold_models(is_part)
        waits = method.sees_whole_cohort or bool(self.pairs)
        self._waiting: list[Updates] | None = [] if waits else None
        self._chunks: list[ClientColumns] = []

    def gather(self, task: Task) -> None:
        """Have the clients train, and guard, measure and fold their updates as they arrive."""
        if isinstance(self.engine, FoldingEngine) and self._can_be_divided:
            for part in self.engine.fold(self.asked, self.state):
                self._add(part)
            self._join()
            self._order_as_asked()
        else:
            for updates in self.engine.train(self.asked, self.state.model, task):
                self._admit(updates)
            self._complete()

    def _admit(self, updates: Updates) -> None:
        """Guard, measure and fold one chunk of updates as it arrives."""
        self.notes += updates.notes
        updates, refused = inspect_updates(
            updates, self.state.model, self._expected, self._seen, self.method.criteria
        )
        self._refuse(refused)
        self._seen.update(updates.client_ids)
        if not updates.client_ids:
            return
        if self._waiting is None:
            self._take(updates)
        else:
            self._waiting.append(updates)

    def _complete(self) -> None:
        """After the last chunk, criteria that need the whole cohort see it now, ordered by client.

        What was measured chunk by chunk is joined only now: joined each time, it would take quadratic time.
        """
        if self._waiting:
            arrived = Updates.joined(self._waiting)
            self._waiting = []  # before the models are copied once more
            arrived = arrived.by_client()
            self._take(arrived)
        self._join()

    def _join(self) -> None:
        if self._chunks:
            self.columns = ClientColumns.joined(self._chunks)

    def _order_as_asked(self) -> None:
        rank = {client: position for position, client in enumerate(self.asked)}
        rows = sorted(range(len(self.client_ids)), key=lambda row: rank[self.client_ids[row]])
        self.client_ids = [self.client_ids[row] for row in rows]
        self.columns = self.columns.in_order(rows)
        self.refusals.sort(key=lambda refusal: rank[refusal.client_id])

    def judge(self, models: Tensor) -> Evaluation:
        """Models [c, d] evaluated to weigh by: on the server's set, or by the cohort (P3 III.C)."""
        if self._clients_judge:
            self.sent_to_judges += len(models) * len(self._judges)
            judged = self.engine.evaluate(self._judges, models)
            return replace(judged, right=None, sample_losses=None)  # these stay with the clients
        evaluation = self.engine.evaluate_server(models, "weigh")
        if evaluation is None:
            raise RuntimeError(
                f"{self.method.name} weighs by a server set, but the engine has none"
            )
        return evaluation

    @property
    def _clients_judge(self) -> bool:
        return self.plan.judged_by == "clients"

    def train_server(self, model: Tensor, training: LocalTraining | None = None) -> Tensor:
        """A model trained on the server's set; the global one, trained as a client would, once a round."""
        is_usual = model is self.state.model and training is None
        if is_usual and self._server_model is not None:
            return self._server_model
        round_num = self.state.round_num + 1
        training = training or self.method.scheduled(self.method.training, round_num)
        task = Task(round_num, training, self.state.loss, ())
        trained = self.engine.train_server(model[None], task)[0]
        # Kept by hand: a cached property locks all cohorts, so that lanes would wait for each other.
        if is_usual:
            self._server_model = trained
        return trained

    @property
    def _can_be_divided(self) -> bool:
        """Whether parts of the cohort can be measured and folded without the others."""
        renews_variates = self.method.training.control_variates  # by the model of every client
        is_folded = isinstance(self._held, SubsetSums)
        return is_folded and not renews_variates and not self._clients_judge

    def folded(self) -> Folded:
        """The cohort as another process adds it to its own."""
        assert isinstance(self._held, SubsetSums)
        return Folded(
            client_ids=tuple(self.client_ids),
            columns=self.columns,
            refusals=tuple(self.refusals),
            notes=self.notes,
            totals=self._held.totals,
            sums=self._held.sums.cpu(),
        )

    def _add(self, part: Folded) -> None:
        """Add clients that were guarded, measured and folded elsewhere."""
        assert isinstance(self._held, SubsetSums)
        self._held.merge(part.totals, part.sums)
        self._refuse(part.refusals)
        self.notes += part.notes
        self._seen.update(part.client_ids)
        self._append(part.client_ids, part.columns)

    @property
    def raw(self) -> Tensor:
        """The criteria [n, m]."""
        return self.columns.raw

    @property
    def scales(self) -> Tensor:
        """What each criterion is divided by [m]."""
        if not self.client_ids:
            return torch.ones(self.raw.shape[1])
        return self.method.normaliser(self.raw)

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Criteria that are constant across the clients, except those that are so by design."""
        alike = {criterion.name for criterion in self.method.criteria if criterion.alike}
        return tuple(
            name for name in without_effect(self.method.names, self.raw) if name not in alike
        )

    @property
    def zero_for_all(self) -> tuple[str, ...]:
        """Criteria that are zero for all clients."""
        return zero_for_all(self.method.names, self.raw) if self.client_ids else ()

    def without_effect_after_zero(self, priority: Sequence[str] | None) -> tuple[str, ...]:
        """A note: criteria after one that is zero have no effect in an order of priority (P1 Eq. 8)."""
        order = priority or ()
        for position, name in enumerate(order[:-1]):
            if name in self.zero_for_all:
                rest = ", ".join(order[position + 1 :])
                return (
                    f"{name} is zero for all clients: what comes after it has no effect ({rest})",
                )
        return ()

    @property
    def gathered(self) -> Gathered:
        """What parts receive that need the whole cohort."""
        state = self.state
        return Gathered(
            client_ids=tuple(self.client_ids),
            updates=self.updates(),
            global_model=state.model,
            spec=self.engine.spec,
            criteria=self._raw_by_name(),
            judge=self.judge,
            train_server=self.train_server,
            gradients=None if self._clients_judge else self.engine.server_gradients,
            network=None if self._clients_judge else self.engine.server_network,
            compares_samples=self.engine.problem.loss.compares_samples,
            seed=derive_seed(self.plan.seed, "gathered", state.round_num + 1),
            training=self.method.scheduled(self.method.training, self.state.round_num + 1),
        )

    def updates(self) -> Tensor:
        """How far every client's model moved [n, d]; for parts that need the models."""
        if self._moved is None:
            assert isinstance(self._held, Stack)
            self._moved = self._held.updates(self.state.model)
            if not self.averages_models:
                self._held = Stack()  # they are as large as the updates
        return self._moved

    @property
    def averages_models(self) -> bool:
        """Whether the aggregate is a mean of models, not of updates; see `candidates.apply_rule`."""
        method = self.method
        return not (method.before or method.rule or self.pairs)

    def mean(self, score: Score, scales: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean of all models [d]."""
        return self._held.aggregate(score, scales, weights)

    def updated_memory(self) -> dict[str, Tensor]:
        """What the criteria remember of all clients after the round; see `criteria.RunningMean`."""
        remembered = self.state.kept("criteria")
        if not self.method.memories:
            return {}
        updates = self.updates()[:, : self.engine.spec.num_parameters] if self.client_ids else ()
        refused = [refusal.client_id for refusal in self.refusals]
        late = set(self.client_ids) - set(self.asked)
        outcome = Outcome(self.client_ids, tuple(updates), refused, late)
        memories = self.method.memories
        return {name: one.after(remembered[name], outcome) for name, one in memories.items()}

    def _hold_models(self, is_part: bool) -> SubsetSums | Stack:
        """Sums if the score has fewer terms than there are clients, otherwise the whole matrix.

        A part of a cohort has sums whatever its size, as the whole has.
        """
        method = self.method
        engine = self.engine
        clients = math.inf if is_part else len(self.asked)
        terms = folded_terms(method, self.plan, engine.spec, engine.problem, clients)
        return SubsetSums(method.names, terms, like=self.state.model) if terms else Stack()

    def _take(self, updates: Updates) -> None:
        """Measure updates, refuse those out of range, and add the others."""
        method = self.method
        measured = self._measure(updates)
        updates, raw, refused = inspect_measurements(
            updates, measured, method.criteria, self.engine.problem
        )
        self._refuse(refused)
        self._held.add(method.score.prepare(method.names, raw), updates.models)
        columns = ClientColumns(raw, updates.training_loss, updates.seconds)
        self._append(updates.client_ids, columns)

    def _append(self, client_ids: Sequence[int], columns: ClientColumns) -> None:
        self.client_ids += client_ids
        self._chunks.append(columns)

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        self.refusals += refusals
        self._seen.update(refusal.client_id for refusal in refusals)

    def _measure(self, updates: Updates) -> Tensor:
        """The criteria [n, m]: what the clients reported, and what the server sees on arrival."""
        state = self.state
        rows = list(updates.client_ids)
        arrivals = Arrivals(
            updates.client_ids,
            updates.models,
            state.model,
            self.engine.spec,
            self.judge,
            memory={name: values[rows] for name, values in state.kept("criteria").items()},
            attributes={name: values[rows] for name, values in self.engine.attributes.items()},
            server_update=lambda: self.train_server(state.model) - state.model,
            metric=self.engine.problem.weighed_by,
            seconds=updates.seconds,
            ages=updates.known_ages,
        )
        columns = []
        for criterion in self.method.criteria:
            if criterion.measured_by == "client":
                column = updates.measurements[criterion.name]
            else:
                column = criterion.column(arrivals, len(rows))
            columns.append(column.double())
        return torch.stack(columns, dim=1)

    def _raw_by_name(self) -> dict[str, Tensor]:
        """Raw values [n] of every criterion by its name; of one listed twice, the first."""
        found: dict[str, Tensor] = {}
        for criterion, column in zip(self.method.criteria, self.raw.T, strict=True):
            found.setdefault(criterion.part.name, column)
        return found


def fold(
    asked: Sequence[int], state: ServerState, method: Method, plan: Plan, engine: Engine
) -> Folded:
    """Guard, measure and fold a part of a cohort, where its clients train; see `FoldingEngine`."""
    cohort = Cohort(asked, state, method, plan, engine, is_part=True)
    cohort.gather(method.task(state.round_num + 1, state.loss))
    return cohort.folded()


def folded_terms(
    method: Method, plan: Plan, spec: ModelSpec, problem: Problem, clients: float
) -> Sequence[Term]:
    """The terms of the score by which a cohort adds up its models; none where it keeps single models.

    Args:
        method: whose cohort.
        plan: of its rounds.
        spec: of its models.
        problem: what they predict.
        clients: in the whole cohort.
    """
    if method.keeps_models or method.averaged_pairs(spec):
        return ()
    score = method.score
    terms = score.terms_of_all_orders(method.names) if method.adjust else score.terms(method.names)
    highs = [criterion.high(problem) for criterion in method.criteria]
    if terms is None or len(terms) >= clients or not can_fold(terms, highs):
        return ()
    return terms
