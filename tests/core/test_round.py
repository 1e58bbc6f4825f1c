"""The round, on a real engine with real clients, some of whom are tampered with on the wire."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clientwise.core.aggregation.server_step import momentum_step, sgd_step
from clientwise.core.criteria import (
    Arrivals,
    Criterion,
    criterion,
    make_criterion,
)
from clientwise.core.feedback import best_order, class_weights, first_improvement
from clientwise.core.guard import inspect_updates
from clientwise.core.method import Method, Plan
from clientwise.core.objective.metrics import accuracy, per_class_f1
from clientwise.core.round import first_state, run_round
from clientwise.core.types import (
    LocalTraining,
    Refusal,
    RoundRecord,
    ServerState,
    Task,
    Updates,
)
from clientwise.core.weights.scores import (
    Owa,
    Prioritized,
    Product,
)
from clientwise.core.weights.weighting import max_scale, no_scale, sum_scale
from clientwise.data.datasets import digits
from clientwise.data.partition import iid
from clientwise.engine.local import LocalEngine
from clientwise.models.networks import linear, mlp
from dividing import federate

TRAINING = LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
P1_CRITERIA = tuple(
    make_criterion(name) for name in ("dataset_size", "label_diversity", "model_divergence")
)
MakeEngine = Callable[..., LocalEngine]
Tamper = Callable[[Updates], Updates | list[Updates]]


class Wire:
    """A real engine whose updates pass through other hands before they reach the server."""

    def __init__(self, engine: LocalEngine, tamper: Tamper = lambda updates: updates) -> None:
        self._engine, self._tamper = engine, tamper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, client_ids, model, task) -> Iterator[Updates]:
        for updates in self._engine.train(client_ids, model, task):
            changed = self._tamper(updates)
            yield from changed if isinstance(changed, list) else [changed]


def start(engine, method: Method = Method(training=TRAINING)):  # noqa: B008
    return first_state(engine.initial_model, method, engine)


def once(
    engine, method: Method, plan: Plan, wire: Wire | None = None
) -> tuple[ServerState, ServerState, RoundRecord]:
    """The state before a first round, the one after it, and the record."""
    state = start(engine, method)
    return state, *run_round(state, method, plan, wire or engine)


def all_updates(engine: LocalEngine, plan: Plan, state, method: Method) -> Updates:
    from clientwise.core.sampling import sample_clients

    ids = sample_clients(engine.num_clients, plan.cohort_size, plan.seed, 1)
    task = Task(1, method.training, state.loss, method.client_criteria)
    (updates,) = engine.train(ids, state.model, task)
    return updates


def test_fedavg_round_is_the_mean_weighted_by_size(make_engine: MakeEngine, plan: Plan) -> None:
    engine, method = make_engine(), Method(training=TRAINING)
    state, after, record = once(engine, method, plan)
    updates = all_updates(engine, plan, state, method)
    sizes = engine.data.train.sizes[list(record.client_ids)].double()
    torch.testing.assert_close(record.weights, sizes / sizes.sum())
    torch.testing.assert_close(
        after.model, ((sizes / sizes.sum()) @ updates.models.double()).float()
    )
    assert after.round_num == record.round_num == 1
    assert record.refusals == record.notes == ()
    assert len(record.client_ids) == 5


def test_prioritized_round_uses_eq_6(make_engine: MakeEngine, plan: Plan) -> None:
    engine = make_engine()
    order = ("model_divergence", "label_diversity", "dataset_size")
    method = Method(criteria=P1_CRITERIA, score=Prioritized(order), training=TRAINING)
    state = start(engine, method)
    _, record = run_round(state, method, plan, engine)
    size, labels, divergence = (record.raw / record.raw.sum(0)).T
    score = divergence + divergence * labels + divergence * labels * size
    torch.testing.assert_close(record.scores, score)
    torch.testing.assert_close(record.weights, score / score.sum())
    assert record.priority == order


@pytest.mark.bits
@pytest.mark.parametrize(
    "score",
    [
        Owa(quantifier="most"),
        Prioritized(),
    ],
)
def test_cohort_large_and_small_aggregate_alike(make_engine: MakeEngine, score) -> None:
    """Whether models are folded into sums or kept, the model is Σ w·Θ."""
    engine = make_engine()
    method = Method(criteria=P1_CRITERIA, score=score, normaliser=max_scale, training=TRAINING)
    for size in (2, 8):  # the prioritized score has three terms: kept at 2, folded at 8
        plan = Plan(seed=1, cohort_size=size)
        state, after, record = once(engine, method, plan)
        updates = all_updates(engine, plan, state, method)
        torch.testing.assert_close(after.model, (record.weights @ updates.models.double()).float())


@pytest.mark.bits
def test_results_do_not_depend_on_the_chunk_size(make_engine: MakeEngine) -> None:
    method = Method(
        criteria=(make_criterion("server_performance"), *P1_CRITERIA),
        score=Prioritized(),
        adjust=first_improvement,
        adapt_loss=class_weights,
        training=TRAINING,
    )
    plan = Plan(seed=1, cohort_size=8)
    models = []
    for chunk_size in (1, 3, 16):
        engine = make_engine(chunk_size=chunk_size)
        state = start(engine, method)
        for _ in range(2):
            state, _ = run_round(state, method, plan, engine)
        models.append(state.model)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


# AdaFed ------------------------------------------------------------------------------------------------------------

ADAFED = Method(
    criteria=(make_criterion("server_performance"),),
    normaliser=no_scale,
    score=Product({"server_performance": 2.0}),
    adapt_loss=class_weights,
    training=TRAINING,
)


def test_adafed_weighs_by_the_server_set_and_adapts_the_loss(
    make_engine: MakeEngine, plan: Plan
) -> None:
    engine = make_engine()
    state, after, record = once(engine, ADAFED, plan)
    updates = all_updates(engine, plan, state, ADAFED)
    measured = accuracy(engine.evaluate_server(updates.models, "weigh").counts)
    torch.testing.assert_close(record.raw[:, 0], measured)
    torch.testing.assert_close(record.weights, measured**2 / (measured**2).sum())
    f1 = per_class_f1(engine.evaluate_server(after.model[None], "weigh").counts[0])
    assert after.loss.class_weights == pytest.approx((1 / (f1 + 0.1)).tolist())
    # ... and the clients of the next round train with it
    seen: list[Task] = []

    class Spy(Wire):
        def train(self, client_ids, model, task):
            seen.append(task)
            return self._engine.train(client_ids, model, task)

    run_round(after, ADAFED, plan, Spy(engine))
    assert seen[0].loss == after.loss


def test_without_a_server_set_the_cohort_judges(make_engine: MakeEngine) -> None:
    engine = make_engine()
    plan = Plan(seed=1, cohort_size=5, judged_by="clients")
    state, after, record = once(engine, ADAFED, plan)
    updates = all_updates(engine, plan, state, ADAFED)
    judged = engine.evaluate(record.client_ids, updates.models)
    torch.testing.assert_close(record.raw[:, 0], judged.overall())
    f1 = per_class_f1(engine.evaluate(record.client_ids, after.model[None]).counts[0])
    assert after.loss.class_weights == pytest.approx((1 / (f1 + 0.1)).tolist())


# Online adjustment -------------------------------------------------------------------------------------------------


def test_online_adjustment_carries_order_and_accuracy_over(
    make_engine: MakeEngine, plan: Plan
) -> None:
    engine = make_engine()
    method = Method(
        criteria=P1_CRITERIA, score=Prioritized(), adjust=first_improvement, training=TRAINING
    )
    state = replace(
        start(engine, method), quality=2.0
    )  # a past no order can match: all six are tried
    after, record = run_round(state, method, plan, engine)
    assert record.testing_rounds == len(record.candidates) == 6
    assert record.candidates[0][0] == method.names
    best = max(value for _, value in record.candidates)
    assert after.quality == best
    assert (
        after.priority
        == record.priority
        == next(order for order, value in record.candidates if value == best)
    )
    everyone = engine.evaluate(range(engine.num_clients), after.model[None])
    assert float(everyone.overall()[0]) == best


def test_best_order_finds_the_best_of_all_orders(make_engine: MakeEngine, plan: Plan) -> None:
    engine = make_engine()
    method = Method(
        criteria=P1_CRITERIA,
        score=Prioritized(),
        normaliser=max_scale,
        adjust=best_order,
        training=TRAINING,
    )
    _, after, record = once(engine, method, plan, engine)
    by_hand = {}
    for order in itertools.permutations(method.names):
        fixed = replace(method, adjust=None, score=Prioritized(order))
        one, _ = run_round(start(engine, fixed), fixed, plan, engine)
        by_hand[order] = (float(engine.evaluate(range(8), one.model[None]).overall()[0]), one.model)
    assert dict(record.candidates) == pytest.approx(
        {order: value for order, (value, _) in by_hand.items()}
    )
    torch.testing.assert_close(after.model, by_hand[record.priority][1], rtol=0, atol=1e-6)


# Trust, server step, evaluation ------------------------------------------------------------------------------------


def test_trust_falls_for_those_who_push_the_other_way(make_engine: MakeEngine) -> None:
    engine = make_engine()
    method = Method(
        criteria=(make_criterion("trust"), make_criterion("dataset_size")),
        score=Prioritized(),
        normaliser=max_scale,
        training=TRAINING,
    )
    victim = 3

    def flip(updates: Updates) -> Updates:
        models = updates.models.clone()
        row = updates.client_ids.index(victim)
        models[row] = -models[row]
        return replace(updates, models=models)

    state, wire = start(engine, method), Wire(engine, flip)
    for _ in range(4):
        state, record = run_round(state, method, Plan(seed=1, cohort_size=8), wire)
    trust = state.kept("criteria")["trust"]
    assert trust[victim] == trust.min() < trust.median()
    assert float(trust[victim]) < 0.5
    weights = dict(zip(record.client_ids, record.weights.tolist(), strict=True))
    fair = engine.data.train.sizes.double() / engine.data.train.sizes.sum()
    assert weights[victim] < float(fair[victim])


def test_trust_is_in_what_was_learned_and_not_in_statistics() -> None:
    """Unrelated updates that share large batch-norm statistics do not agree."""
    split = {"test_fraction": 0.2, "server_fraction": 0.2, "report_fraction": 0.5}
    data = federate(digits(None), lambda targets, seed: iid(targets, seed, clients=4), 1, **split)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    engine = LocalEngine(data, network, seed=1)
    assert engine.spec.size > engine.spec.num_parameters

    def unrelated(updates: Updates) -> Updates:
        models = updates.models.clone()
        for row, client in enumerate(updates.client_ids):
            models[row] = torch.randn(
                models.shape[1], generator=torch.Generator().manual_seed(client)
            )
        models[:, engine.spec.num_parameters :] = 1000.0
        return replace(updates, models=models)

    method = Method(criteria=(make_criterion("trust"),), training=TRAINING)
    state = first_state(engine.initial_model * 0, method, engine)
    after, _ = run_round(state, method, Plan(seed=1, cohort_size=4), Wire(engine, unrelated))
    assert (
        float(after.kept("criteria")["trust"].max()) < 0.85
    )  # 0.8 and what chance agrees on; 1.0 with the statistics


# Parts that need the whole cohort ------------------------------------------------------------------------------------


def test_a_criterion_that_needs_the_whole_cohort_sees_it_however_it_arrives(
    make_engine: MakeEngine,
) -> None:
    seen: list[tuple[int, ...]] = []

    @criterion("closeness", measured_by="server", high=1.0, needs={"whole_cohort"})
    def closeness(arrivals: Arrivals) -> Tensor:
        """How near a model is to the mean of the cohort, against the farthest."""
        seen.append(arrivals.client_ids)
        distance = (arrivals.models - arrivals.models.mean(0)).norm(dim=1)
        return 1 - distance / distance.max() / 2

    method = Method(
        criteria=(make_criterion("closeness"), make_criterion("dataset_size")), training=TRAINING
    )
    plan = Plan(seed=1, cohort_size=8)
    records = []
    for chunk_size in (1, 3, 16):
        engine = make_engine(chunk_size=chunk_size)
        _, _, record = once(engine, method, plan)
        records.append(record)
    assert seen == [tuple(range(8))] * 3

    class Backwards(Wire):
        def train(self, client_ids, model, task) -> Iterator[Updates]:
            yield from reversed(list(self._engine.train(client_ids, model, task)))

    engine = make_engine(chunk_size=1)
    _, late = run_round(start(engine, method), method, plan, Backwards(engine))
    for record in (*records, late):
        assert torch.equal(record.weights, records[0].weights)
        assert record.client_ids == tuple(range(8))


def test_what_the_server_knows_about_clients_is_not_asked_of_them(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.attributes = {"age": torch.arange(8.0)}
    method = Method(criteria=(make_criterion("attribute", of="age"),), training=TRAINING)
    assert method.client_criteria == ()

    def boast(updates: Updates) -> Updates:
        lies = {
            "attribute": torch.full((len(updates.client_ids),), 1e6),
            "age": torch.full((8,), 1e6),
        }
        return replace(updates, measurements=lies)

    _, _, record = once(engine, method, Plan(seed=1, cohort_size=8), Wire(engine, boast))
    assert record.raw[:, 0].tolist() == list(range(8))


# Large powers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [30.0, 140.0])
@pytest.mark.parametrize("normaliser", [sum_scale, max_scale, no_scale])
@pytest.mark.parametrize("boast", [None, 4e9], ids=["honest", "one boasts"])
def test_large_powers_neither_raise_nor_freeze_the_model(
    make_engine: MakeEngine, power, normaliser, boast
) -> None:
    engine = make_engine(chunk_size=3)
    score = Product({"dataset_size": power})
    method = Method(score=score, normaliser=normaliser, training=TRAINING)
    state = start(engine, method)
    wire = Wire(engine, lie("dataset_size", boast)) if boast else engine
    after, record = run_round(state, method, Plan(seed=1, cohort_size=8), wire)
    assert record.notes == ()
    assert float(record.weights.sum()) == pytest.approx(1)
    assert bool(after.model.isfinite().all())
    assert not torch.equal(after.model, state.model)
    sizes = record.raw[:, 0]
    expected = torch.softmax(power * sizes.log(), 0)
    torch.testing.assert_close(record.weights, expected, rtol=1e-6, atol=1e-12)


def test_server_steps_apply_the_weighted_update(make_engine: MakeEngine, plan: Plan) -> None:
    engine = make_engine()
    mean = run_round(start(engine), Method(training=TRAINING), plan, engine)[0].model
    half = Method(server_step=partial(sgd_step, learning_rate=0.5), training=TRAINING)
    state = start(engine, half)
    torch.testing.assert_close(
        run_round(state, half, plan, engine)[0].model, (state.model + mean) / 2
    )
    heavy = Method(server_step=momentum_step, training=TRAINING)
    assert set(run_round(state, heavy, plan, engine)[0].kept("server_step")) == {"velocity"}


# The guard ---------------------------------------------------------------------------------------------------------


def spoil(row: int, value: float) -> Tamper:
    def tamper(updates: Updates) -> Updates:
        models = updates.models.clone()
        models[row, 5] = value
        return replace(updates, models=models)

    return tamper


def lie(name: str, value: float) -> Tamper:
    def tamper(updates: Updates) -> Updates:
        values = updates.measurements[name].clone()
        values[0] = value
        return replace(updates, measurements={**updates.measurements, name: values})

    return tamper


def alone(updates: Updates, row: int, **changes) -> Updates:
    """One client's update as a message of its own."""
    mask = torch.arange(len(updates.client_ids)) == row
    return replace(updates.select(mask), **changes)


def rest(updates: Updates) -> Updates:
    return updates.select(torch.arange(len(updates.client_ids)) != 0)


def sends(**changes: object) -> Tamper:
    """The first client's update has these fields instead."""
    return lambda updates: [alone(updates, 0, **changes), rest(updates)]


MEASURED = ["dataset_size", "label_diversity"]
ATTACKS_ON_THE_WIRE: dict[str, tuple[Tamper, str]] = {
    "NaN": (spoil(0, float("nan")), "model has NaN or Inf"),
    "infinity": (spoil(0, float("inf")), "model has NaN or Inf"),
    "huge": (spoil(0, 3e38), "model norm is not finite"),
    "short": (sends(models=torch.zeros(1, 7)), "wrong size: (7,), expected (650,)"),
    "flat": (sends(models=torch.zeros(650)), "wrong size"),
    "integers": (sends(models=torch.zeros(1, 650).long()), "expected floating point"),
    "too large for 32 bits": (sends(models=torch.ones(1, 650).double() * 1e300), "NaN or Inf"),
    "silent": (sends(measurements={}), "no measurement of dataset_size, label_diversity"),
    "negative size": (lie("dataset_size", -5.0), "dataset_size = -5 is outside [0, 1e+12]"),
    "NaN size": (lie("dataset_size", float("nan")), "dataset_size = nan is outside"),
    "infinite size": (lie("dataset_size", float("inf")), "dataset_size = inf is outside"),
    "boast": (lie("dataset_size", 1e300), "dataset_size = 1e+300 is outside [0, 1e+12]"),
    "eleven of ten labels": (lie("label_diversity", 11.0), "= 11 is outside [0, 10]"),
    "loss of another shape": (
        sends(training_loss=torch.zeros(3)),
        "training loss is not one number per client",
    ),
    "a tuple for a measurement": (
        sends(measurements=dict.fromkeys(MEASURED, (1.0,))),
        "dataset_size is not one number per client",
    ),
    "complex size": (
        sends(measurements=dict.fromkeys(MEASURED, torch.tensor([1j]))),
        "dataset_size is not one number per client",
    ),
    "failed": (
        lambda updates: replace(
            rest(updates), failures=(Refusal(updates.client_ids[0], "out of memory"),)
        ),
        "out of memory",
    ),
}


@pytest.mark.parametrize("attack", list(ATTACKS_ON_THE_WIRE))
def test_the_guard_refuses_with_a_reason_and_the_rest_goes_on(
    make_engine: MakeEngine, plan: Plan, attack: str
) -> None:
    tamper, reason = ATTACKS_ON_THE_WIRE[attack]
    engine = make_engine()
    method = Method(criteria=P1_CRITERIA, score=Prioritized(), training=TRAINING)
    _, honest_record = run_round(start(engine, method), method, plan, engine)
    victim = honest_record.client_ids[0]

    _, after, record = once(engine, method, plan, Wire(engine, tamper))
    assert [refusal.client_id for refusal in record.refusals] == [victim]
    assert reason in record.refusals[0].reason
    assert record.client_ids == honest_record.client_ids[1:]
    without, _ = run_round(start(engine, method), method, plan, Wire(engine, rest))
    torch.testing.assert_close(after.model, without.model)  # it never reached the aggregate


def test_the_guard_refuses_strangers_and_second_updates(
    make_engine: MakeEngine, plan: Plan
) -> None:
    engine, method = make_engine(), Method(training=TRAINING)
    honest, honest_record = run_round(start(engine), method, plan, engine)
    stranger = next(client for client in range(8) if client not in honest_record.client_ids)

    def tamper(updates: Updates) -> list[Updates]:
        strangers = [alone(updates, 2, client_ids=(name,)) for name in (stranger, 99, 2**70, "me")]
        return [updates, alone(updates, 1), *strangers]

    after, record = run_round(start(engine), method, plan, Wire(engine, tamper))
    assert record.refusals[0].reason == "second update of the same client"
    assert {refusal.reason for refusal in record.refusals[1:]} == {
        "unknown client, or not asked this round"
    }
    assert [refusal.client_id for refusal in record.refusals[1:]] == [stranger, 99, -1, -1]
    assert torch.equal(after.model, honest.model)


class Answered(Collection[int]):
    """Clients that have answered; to go through them for every chunk would take quadratic time."""

    def __contains__(self, client: object) -> bool:
        return client == 3

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it goes through all clients that have answered")

    def __len__(self) -> int:
        return 1


def test_the_guard_asks_about_its_chunk_alone() -> None:
    nothing = torch.zeros(4)
    updates = Updates((3, 4, 5, 4), torch.ones(4, 2), {}, nothing, nothing)
    accepted, refusals = inspect_updates(updates, torch.zeros(2), range(10), Answered(), ())
    assert accepted.client_ids == (4, 5)
    assert [refusal.client_id for refusal in refusals] == [3, 4]
    assert {refusal.reason for refusal in refusals} == {"second update of the same client"}


@pytest.mark.parametrize(
    "method",
    [
        Method(training=TRAINING),
        ADAFED,
        Method(criteria=P1_CRITERIA, adjust=first_improvement, training=TRAINING),
    ],
    ids=["FedAvg", "AdaFed", "online"],
)
def test_with_nobody_left_the_model_stays(
    make_engine: MakeEngine, plan: Plan, method: Method
) -> None:
    engine = make_engine()
    state = start(engine, method)
    broken = Wire(engine, lambda updates: replace(updates, models=updates.models * float("nan")))
    after, record = run_round(state, method, plan, broken)
    assert torch.equal(after.model, state.model)
    assert record.notes == ("no update was accepted: the model stays as it was",)
    assert len(record.refusals) == 5
    again, record = run_round(after, method, plan, engine)  # and the run goes on
    assert record.notes == ()
    assert not torch.equal(again.model, state.model)


def test_a_criterion_that_is_zero_for_everybody_freezes_the_model_and_is_named(
    make_engine: MakeEngine, plan: Plan
) -> None:
    engine = make_engine()
    engine.attributes = {"member": torch.zeros(8)}
    zero, size, labels = (
        make_criterion("attribute", "member", of="member"),
        make_criterion("dataset_size"),
        make_criterion("label_diversity"),
    )

    def played(*criteria: Criterion) -> tuple[bool, RoundRecord]:
        method = Method(criteria=criteria, training=TRAINING)
        state, after, record = once(engine, method, plan)
        return torch.equal(after.model, state.model), record

    stays, record = played(zero, size)
    assert stays
    assert record.notes == (
        "all weights are zero (member: zero for all clients): the model stays as it was",
    )
    assert record.no_effect == ()  # it had the greatest there is
    stays, record = played(size, zero, labels)
    assert not stays
    assert record.notes == (
        "member is zero for all clients: what comes after it has no effect (label_diversity)",
    )
    assert "member" in record.no_effect


@pytest.mark.parametrize("reporting", [True, False], ids=["with a reporting set", "without"])
def test_an_aggregate_that_answers_nan_is_not_taken(plan: Plan, reporting: bool) -> None:
    """Finite models, at a finite distance, whose answers are not finite."""
    samples = digits(None)
    data = federate(
        samples,
        lambda targets, seed: iid(targets, seed, clients=8),
        1,
        test_fraction=0.2,
        server_fraction=0.2 if reporting else 0.0,
        report_fraction=0.5,
    )
    engine = LocalEngine(data, mlp((1, 8, 8), 10, hidden=[50, 50, 50]), seed=1)
    method = Method(training=TRAINING)

    def enormous(updates: Updates) -> Updates:
        random = torch.Generator().manual_seed(1)
        return replace(updates, models=1e16 * torch.randn(updates.models.shape, generator=random))

    state = start(engine)
    plan = replace(plan, evaluate_clients_every=0)
    after, record = run_round(state, method, plan, Wire(engine, enormous))
    assert record.notes == ("the aggregate predicts NaN or Inf: the model stays as it was",)
    assert torch.equal(after.model, state.model)
    shown = record.report or record.local
    assert bool(torch.isfinite(shown.losses).all())


@pytest.mark.parametrize("liars", [1, 3, 5])
def test_one_client_that_evaluates_has_no_veto(plan: Plan, liars: int) -> None:
    split = {"test_fraction": 0.2, "server_fraction": 0.0, "report_fraction": 0.0}
    data = federate(digits(None), lambda targets, seed: iid(targets, seed, clients=8), 1, **split)
    engine = LocalEngine(data, linear((1, 8, 8), 10), seed=1)

    class Liars(Wire):
        def evaluate(self, client_ids, models):
            evaluation = self._engine.evaluate(client_ids, models)
            evaluation.losses[:, :liars] = 1e307
            return evaluation

    _, record = run_round(start(engine), Method(training=TRAINING), plan, Liars(engine))
    assert bool(record.notes) == (liars > 4)  # most of the eight


def test_the_last_round_is_evaluated_in_any_case(make_engine: MakeEngine) -> None:
    engine, method = make_engine(), Method(training=TRAINING)
    plan = Plan(seed=1, cohort_size=5, evaluate_clients_every=2, rounds=3)
    state, evaluated = start(engine), []
    for _ in range(3):
        state, record = run_round(state, method, plan, engine)
        evaluated.append(record.local is not None)
    assert evaluated == [False, True, True]
