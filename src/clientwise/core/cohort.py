"""The clients of a round, from their updates to one model.

guard -> criteria as updates arrive; then normalise -> score -> evidence -> bounds -> rule -> server step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .aggregation.adapters import average_products
from .aggregation.rules import Ruled, mean
from .aggregation.server_step import StepState
from .aggregation.sums import (
    HeldModels,
    Stack,
    SubsetSums,
    can_fold,
    weighted_mean,
)
from .criteria import Arrivals, Outcome
from .engine import Engine
from .guard import inspect_measurements, inspect_updates
from .method import Method, Plan
from .objective.problem import Problem
from .privacy import release
from .seeding import derive_seed
from .types import (
    Candidate,
    Evaluation,
    Folded,
    Gathered,
    LocalTraining,
    ModelSpec,
    Posterior,
    Refusal,
    ServerState,
    Task,
    Updates,
)
from .weights.bounds import InfeasibleError
from .weights.scores import Score, Term
from .weights.weighting import (
    divide,
    to_weights,
    without_effect,
    zero_for_all,
)

RUINED = 10.0  # an error beyond this counts as this much, or one client would dominate all values


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
        self.num_clients = engine.num_clients
        self.criteria = method.names
        self.client_ids: list[int] = []
        self.refusals: list[Refusal] = []
        self.notes: tuple[str, ...] = ()  # of the engine
        self.raw = torch.zeros(0, len(method.criteria), dtype=torch.float64)  # [n, m]
        self.training_loss = torch.zeros(0)  # [n]
        self.seconds = torch.zeros(0)  # [n]
        self.judged = 0  # models judged so far
        self._state = state
        self._method = method
        self._plan = plan
        self._engine = engine
        self._server_model: Tensor | None = None  # the global model, trained on the server's set
        self._moved: Tensor | None = None  # [n, d] how far every model moved, once all are there
        at_work = engine.clock.at_work if engine.clock else frozenset()
        self._expected = at_work.union(asked)
        self._seen = set[int]()
        self._pairs = method.averaged_pairs(engine.spec)
        self._held = self._hold_models(is_part)
        waits = method.sees_whole_cohort or bool(self._pairs)
        self._waiting: list[Updates] | None = [] if waits else None
        self._chunks: list[tuple[Tensor, Tensor, Tensor]] = []  # raw, training_loss, seconds

    def admit(self, updates: Updates) -> None:
        """Guard, measure and fold one chunk of updates as it arrives."""
        self.notes += updates.notes
        updates, refused = inspect_updates(
            updates, self._state.model, self._expected, self._seen, self._method.criteria
        )
        self._refuse(refused)
        self._seen.update(updates.client_ids)
        if not updates.client_ids:
            return
        if self._waiting is None:
            self._take(updates)
        else:
            self._waiting.append(updates)

    def complete(self) -> None:
        """Call after the last chunk: criteria that need the whole cohort see it now, ordered by client.

        What was measured chunk by chunk is joined only now: joined each time, it would take quadratic time.
        """
        if self._waiting:
            arrived = Updates.joined(self._waiting)
            self._waiting = []  # before the models are copied once more
            arrived = arrived.by_client()
            self._take(arrived)
        if self._chunks:
            columns = zip(*self._chunks, strict=True)
            self.raw, self.training_loss, self.seconds = (torch.cat(column) for column in columns)

    @property
    def can_be_divided(self) -> bool:
        """Whether parts of the cohort can be measured and folded without the others."""
        engine = self._engine
        clients = len(self.asked)
        method = self._method
        return count_sums_of_parts(method, self._plan, engine.spec, engine.problem, clients) > 0

    def folded(self) -> Folded:
        """The cohort as another process adds it to its own (`add`)."""
        assert isinstance(self._held, SubsetSums)
        return Folded(
            client_ids=tuple(self.client_ids),
            raw=self.raw,
            training_loss=self.training_loss,
            seconds=self.seconds,
            refusals=tuple(self.refusals),
            notes=self.notes,
            judged=self.judged,
            totals=self._held.totals,
            sums=self._held.sums.cpu(),
        )

    def add(self, part: Folded) -> None:
        """Add clients that were guarded, measured and folded elsewhere."""
        assert isinstance(self._held, SubsetSums)
        self._held.merge(part.totals, part.sums)
        self._refuse(part.refusals)
        self.notes += part.notes
        self.judged += part.judged
        self._seen.update(part.client_ids)
        self._append(part.client_ids, part.raw, part.training_loss, part.seconds)

    def candidate(self, priority: tuple[str, ...] | None) -> Candidate:
        """Score, weigh and aggregate the cohort, in the given order of priority."""
        method = self._method
        state = self._state
        scales = self.scales
        score = method.score.with_order(priority)
        if method.noises_mean:
            return self._private(score)
        scores = score(method.names, divide(self.raw, scales))
        prior = to_weights(scores)
        if not prior.any():
            return self._unchanged(priority, scores, prior, None)
        posterior = None
        if method.evidence:
            posterior = method.evidence(self._gathered, prior, state.evidence)
        weights = posterior.weights if posterior else prior
        if not weights.any():
            return self._unchanged(priority, scores, prior, posterior)
        try:
            weights, notes = self._within_bounds(weights, range(len(weights)))
        except InfeasibleError as error:
            unchanged = self._unchanged(priority, scores, prior, posterior)
            return replace(unchanged, weights=torch.zeros_like(weights), unmet=str(error))
        ruled = self._ruled(weights, range(len(weights)))
        moved = None if ruled is None else state.model + ruled.update
        aggregate = self._held.aggregate(score, scales, weights) if moved is None else moved
        self._rescale(aggregate, posterior)
        model, step_state = self._step(aggregate)
        is_shaped = bool(method.rule or method.before)  # else influence is weight
        return Candidate(
            priority=priority,
            scores=scores,
            prior=prior,
            posterior=posterior,
            weights=weights,
            influence=ruled.influence if ruled and is_shaped else None,
            model=model,
            step_state=step_state,
            rule_state=ruled.state if ruled else {},
            residual=ruled.residual if ruled else None,
            notes=notes + _notes_of(posterior) + self._without_effect_after_zero(priority),
        )

    @property
    def sizes(self) -> Tensor | None:
        """Training samples of the accepted clients [n], where the server knows them."""
        known = self._engine.train_sizes
        return None if known is None else known[list(self.client_ids)]

    @property
    def model_before(self) -> Tensor:
        """The model [d] before the round."""
        return self._state.model

    def reported(self, models: Tensor) -> Tensor:
        """The metric of models [c, d] on the server's reporting part [c]; negative if lower is better."""
        found = self._engine.evaluate_server(models, "report")
        assert found is not None, "validation refuses contributions without reporting samples"
        metric = found.overall().double()
        if self._engine.problem.higher_is_better:
            return metric.nan_to_num(nan=0.0)
        return -metric.nan_to_num(nan=torch.inf).clamp(max=RUINED)

    def bounded(self, weights: Tensor, rows: Sequence[int]) -> Tensor:
        """Weights of some rows within the method's bounds; InfeasibleError where they cannot be."""
        return self._within_bounds(weights, rows)[0]

    def model_of(self, weights: Tensor, rows: Sequence[int], chosen: Candidate) -> Tensor:
        """The model [d] that some rows would give with these weights; all models are kept.

        What is not about weights is that of `chosen`: the factor of its evidence on the model.
        """
        state = self._state
        ruled = self._ruled(weights, rows)
        if ruled is None:
            assert isinstance(self._held, Stack)
            aggregate = weighted_mean([self._held.models[row] for row in rows], weights)
        else:
            aggregate = state.model + ruled.update
        self._rescale(aggregate, chosen.posterior)
        model, _ = self._step(aggregate)
        return model

    def _rescale(self, aggregate: Tensor, posterior: Posterior | None) -> None:
        """Multiply the parameters of an aggregate [d] by the evidence's factor.

        Buffers are statistics of the data and stay what they are.
        """
        if posterior and posterior.scale != 1:
            aggregate[: self._engine.spec.num_parameters] *= posterior.scale

    def _within_bounds(
        self, weights: Tensor, rows: Sequence[int]
    ) -> tuple[Tensor, tuple[str, ...]]:
        bounds = self._method.bounds
        if bounds is None:
            return weights, ()
        newcomers = bounds.newcomers(self._state.policy, self.num_clients)
        return bounds.apply(weights, [self.client_ids[row] for row in rows], newcomers)

    def _private(self, score: Score) -> Candidate:
        """The weighted mean of clipped updates with noise; see `privacy.py`."""
        method = self._method
        state = self._state
        assert method.privacy is not None
        assert method.bounds is not None, "validation refuses privacy without a cap"
        normalised = divide(self.raw, self.scales)
        # One by one: then no client changes the score of another, whatever the score computes.
        each = [score(method.names, row[None]) for row in normalised]
        scores = torch.cat(each) if each else torch.zeros(0, dtype=torch.float64)
        scores = scores.nan_to_num(nan=0.0)
        plan = self._plan
        released = release(
            method.privacy,
            list(self._updates()) if self.client_ids else [],
            scores,
            state.model,
            cap=method.bounds.cap,
            clip=float(state.privacy["clip"]),
            replaced=plan.probability is None,
            expected=plan.expected_size(self.num_clients),
            key=plan.key,
            round_num=state.round_num + 1,
        )
        aggregate = (state.model.double() + released.update).to(state.model.dtype)
        candidate = self._weighted(
            aggregate,
            priority=state.priority,
            scores=scores,
            prior=to_weights(scores),
            weights=released.weights,
        )
        return replace(candidate, released=released)

    def _weighted(
        self,
        aggregate: Tensor,
        *,
        priority: tuple[str, ...] | None,
        scores: Tensor,
        prior: Tensor,
        weights: Tensor,
    ) -> Candidate:
        """The candidate of an aggregate [d] that is a weighted mean, without evidence and without a rule."""
        model, step_state = self._step(aggregate)
        return Candidate(
            priority=priority,
            scores=scores,
            prior=prior,
            posterior=None,
            weights=weights,
            influence=None,
            model=model,
            step_state=step_state,
        )

    def _unchanged(
        self,
        priority: tuple[str, ...] | None,
        scores: Tensor,
        prior: Tensor,
        posterior: Posterior | None,
    ) -> Candidate:
        """The model as it was, where no client has a weight."""
        return Candidate(
            priority=priority,
            scores=scores,
            prior=prior,
            posterior=posterior,
            weights=posterior.weights if posterior else prior,
            influence=None,
            model=self._state.model,
            step_state=self._state.step_state,
            rule_state=self._state.rule_state,
            notes=_notes_of(posterior),
        )

    def _step(self, aggregate: Tensor) -> tuple[Tensor, StepState]:
        """The model [d] and the state after the server step, with the buffers of the aggregate [d].

        Buffers are statistics of the data, such as batch norm's running variance. A server step with
        momentum would make variances negative.
        """
        state = self._state
        model, step_state = self._method.server_step(state.model, aggregate, state.step_state)
        num_parameters = self._engine.spec.num_parameters
        if num_parameters < len(model):
            model = torch.cat([model[:num_parameters], aggregate[num_parameters:]])
        return model, step_state

    def judge(self, models: Tensor) -> Evaluation:
        """AdaFed's evaluation of models [c, d]: on the server's set, or by the cohort (P3 III.C)."""
        self.judged += len(models)
        if self._plan.judged_by == "clients":
            judged = self._engine.evaluate(self._judges, models)
            return replace(judged, right=None, sample_losses=None)  # these stay with the clients
        evaluation = self._engine.evaluate_server(models, "weigh")
        if evaluation is None:
            raise RuntimeError(
                f"{self._method.name} weighs by a server set, but the engine has none"
            )
        return evaluation

    @property
    def judgements_sent(self) -> int:
        """Number of models sent to clients to be judged."""
        return self.judged * len(self._judges) if self._plan.judged_by == "clients" else 0

    @property
    def scales(self) -> Tensor:
        """What each criterion is divided by [m]."""
        if not self.client_ids:
            return torch.ones(self.raw.shape[1])
        return self._method.normaliser(self.raw)

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Criteria that are constant across the clients, except those that are so by design."""
        alike = {criterion.name for criterion in self._method.criteria if criterion.alike}
        return tuple(name for name in without_effect(self.criteria, self.raw) if name not in alike)

    @property
    def zero_for_all(self) -> tuple[str, ...]:
        """Criteria that are zero for all clients."""
        return zero_for_all(self.criteria, self.raw) if self.client_ids else ()

    def updated_memory(self) -> dict[str, Tensor]:
        """What the criteria remember of all clients after the round; see `criteria.trust`."""
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

    def updated_policy(self) -> dict[str, Tensor]:
        """What the bounds remember of all clients after the round."""
        bounds = self._method.bounds
        if bounds is None:
            return {}
        return bounds.memory_after(self._state.policy, self.client_ids, self.num_clients)

    def _hold_models(self, is_part: bool) -> HeldModels:
        """Sums if the score has fewer terms than there are clients, otherwise the whole matrix.

        A part of a cohort has sums whatever its size, as the whole has.
        """
        method = self._method
        terms = _terms(method, self._plan, self._engine.spec, self._engine.problem)
        if terms is None:
            return Stack()
        if len(terms) >= len(self.asked) and not is_part:
            return Stack()
        return SubsetSums(method.names, terms, like=self._state.model)

    def _take(self, updates: Updates) -> None:
        """Measure updates, refuse those out of range, and add the others."""
        method = self._method
        measured = self._measure(updates)
        updates, raw, refused = inspect_measurements(
            updates, measured, method.criteria, self._engine.problem
        )
        self._refuse(refused)
        self._held.add(method.score.prepare(method.names, raw), updates.models)
        self._append(updates.client_ids, raw, updates.training_loss, updates.seconds)

    def _append(
        self, client_ids: Sequence[int], raw: Tensor, training_loss: Tensor, seconds: Tensor
    ) -> None:
        self.client_ids += client_ids
        self._chunks.append((raw, training_loss, seconds))

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        self.refusals += refusals
        self._seen.update(refusal.client_id for refusal in refusals)

    def _measure(self, updates: Updates) -> Tensor:
        """The criteria [n, m]: what the clients reported, and what the server sees on arrival."""
        state = self._state
        rows = list(updates.client_ids)
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
        columns = []
        for criterion in self._method.criteria:
            if criterion.measured_by == "client":
                column = updates.measurements[criterion.name]
            else:
                column = criterion.measure(arrivals).cpu()
            columns.append(column.double())
        return torch.stack(columns, dim=1)

    @property
    def _judges(self) -> Sequence[int]:
        """The clients that judge, if clients do; an asynchronous round may have asked none."""
        return self.asked or sorted(self._expected)

    def _without_effect_after_zero(self, priority: Sequence[str] | None) -> tuple[str, ...]:
        """A note: criteria after one that is zero have no effect in an order of priority (P1 Eq. 8)."""
        order = priority or ()
        for position, name in enumerate(order[:-1]):
            if name in self.zero_for_all:
                rest = ", ".join(order[position + 1 :])
                return (
                    f"{name} is zero for all clients: what comes after it has no effect ({rest})",
                )
        return ()

    def _ruled(self, weights: Tensor, rows: Sequence[int]) -> Ruled | None:
        """The steps before the rule, then the rule, on some rows; None for a plain weighted mean."""
        method = self._method
        if not method.before and method.rule is None and not self._pairs:
            return None
        gathered = self._gathered
        if len(rows) < len(self.client_ids):
            gathered = gathered.select(rows)
        steps = []
        for step in method.before:
            mixed = step(gathered, weights)
            gathered = replace(gathered, updates=mixed.updates)
            steps.append(replace(mixed, updates=mixed.updates[:0]))  # the last updates are enough
        rule = method.rule or mean
        ruled = rule(gathered.updates, weights, self._state.rule_state)
        if self._pairs:
            ruled = self._with_products(ruled, gathered.updates)
        influence = ruled.influence
        for mixed in reversed(steps):
            influence = mixed.passed_on(influence)
        return replace(ruled, influence=influence)

    def _with_products(self, ruled: Ruled, updates: Tensor) -> Ruled:
        """The result of a rule with the mean of the adapters' products, by the influence of every client."""
        before = self._state.model
        factors, residual = average_products(before + updates, ruled.influence, self._pairs)
        update = ruled.update.clone()
        for layer, values in factors:
            where = slice(layer.start, layer.stop)
            update[where] = (values - before[where]).to(update)
        return replace(ruled, update=update, residual=residual)

    @property
    def _gathered(self) -> Gathered:
        # Not kept: it refers to this cohort, and such a circle would keep all models in memory for a while.
        state = self._state
        return Gathered(
            client_ids=tuple(self.client_ids),
            updates=self._updates(),
            global_model=state.model,
            spec=self._engine.spec,
            criteria=self._raw_by_name(),
            judge=self.judge,
            train_server=self._train_server,
            seed=derive_seed(self._plan.seed, "gathered", state.round_num + 1),
            training=self._method.training,
        )

    def _raw_by_name(self) -> dict[str, Tensor]:
        """Raw values [n] of every criterion by its name; of one listed twice, the first."""
        found: dict[str, Tensor] = {}
        for criterion, column in zip(self._method.criteria, self.raw.T, strict=True):
            found.setdefault(criterion.part.name, column)
        return found

    def _train_server(self, model: Tensor, training: LocalTraining | None = None) -> Tensor:
        """A model trained on the server's set; the global one, trained as a client would, once a round."""
        is_usual = model is self._state.model and training is None
        if is_usual and self._server_model is not None:
            return self._server_model
        training = training or self._method.training
        task = Task(self._state.round_num + 1, training, self._state.loss, ())
        trained = self._engine.train_server(model, task)
        # Kept by hand: a cached property locks all cohorts, so that lanes would wait for each other.
        if is_usual:
            self._server_model = trained
        return trained

    def _updates(self) -> Tensor:
        """How far every client's model moved [n, d]; for parts that need the models."""
        if self._moved is None:
            assert isinstance(self._held, Stack)
            self._moved = torch.stack(self._held.models).sub_(self._state.model)
        return self._moved


def count_sums_of_parts(
    method: Method, plan: Plan, spec: ModelSpec, problem: Problem, clients: int
) -> int:
    """How many sums a part of a cohort gives elsewhere instead of its models; see `count_sums`."""
    if method.training.control_variates:  # every model renews those of its client
        return 0
    if plan.judged_by == "clients":
        return 0
    return count_sums(method, plan, spec, problem, clients)


def count_sums(method: Method, plan: Plan, spec: ModelSpec, problem: Problem, clients: int) -> int:
    """How many sums over its models a cohort has instead of them; 0 where it keeps single models.

    Args:
        method: whose cohort.
        plan: of its rounds.
        spec: of its models.
        problem: what they predict.
        clients: in the whole cohort.
    """
    terms = _terms(method, plan, spec, problem)
    if terms is None or len(terms) >= clients:
        return 0
    return len(terms)


def _terms(method: Method, plan: Plan, spec: ModelSpec, problem: Problem) -> Sequence[Term] | None:
    """The terms of the score to add up models by; None where single models are needed."""
    if method.keeps_models or plan.counterfactuals or plan.shapley:
        return None
    if method.averaged_pairs(spec):
        return None
    score = method.score
    terms = score.terms_of_all_orders(method.names) if method.adjust else score.terms(method.names)
    highs = [criterion.high(problem) for criterion in method.criteria]
    if terms is None or not can_fold(terms, highs):
        return None
    return terms


def _notes_of(posterior: Posterior | None) -> tuple[str, ...]:
    return posterior.notes if posterior else ()
