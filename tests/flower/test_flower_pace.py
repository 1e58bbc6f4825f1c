"""When a round ends on Flower, by a fake clock.

Deadlines, the first to answer, late updates, asynchronous rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Message
from grid import Behaviour, FakeClock, dies, never
from test_flower_engine import Setup

from clientwise.core.clock import LATE, Clock, Pace
from clientwise.core.round import first_state, run_round
from clientwise.core.types import RoundRecord, Task
from clientwise.experiment.load import load_experiment

pytestmark = pytest.mark.usefixtures("clock")
AGED = {"name": "aged", "criteria": ["staleness", "response_time"], "score": "product"}


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    tiny["evaluation"] = {
        "test_fraction": 0.0,
        "clients_every": 0,
    }  # nobody who is at work is asked to evaluate
    return tiny | {"engine": "flower", "federation": {}, "methods": [{"name": "FedAvg"}, AGED]}


def slow(clock: FakeClock, seconds: float) -> Behaviour:
    """Answers so many seconds after the server first looked for the answer."""
    begun: dict[str, float] = {}

    def behave(message: Message, honest: Callable[[], Message]) -> Message | None:
        first = begun.setdefault(message.metadata.message_id, clock.now)
        return honest() if clock.now - first >= seconds else None

    return behave


def paced(config: dict[str, Any], pace: Pace, **behaviour: Behaviour) -> Setup:
    """Six clients, of whom some behave otherwise; keys are like client_3."""
    setup = Setup(config)
    setup.flower.clock = Clock(6, pace)
    setup.grid.behaviour = {
        int(name.removeprefix("client_")): how for name, how in behaviour.items()
    }
    return setup


def rounds(
    setup: Setup, name: str, count: int, clock: FakeClock
) -> tuple[list[RoundRecord], list[float]]:
    """The records, and how long every round took."""
    method = setup.methods[name]
    engine = setup.flower
    records = []
    took = []
    state = first_state(engine.initial_model, method, engine)
    for _ in range(count):
        began = clock.now
        state, record = run_round(state, method, setup.federation, engine)
        records.append(record)
        took.append(clock.now - began)
    return records, took


def test_after_the_deadline_nobody_is_waited_for(config: dict[str, Any], clock: FakeClock) -> None:
    setup = paced(config, Pace(deadline=10.0), client_2=never)
    (first, second), took = rounds(setup, "FedAvg", 2, clock)
    assert [(refusal.client_id, refusal.reason) for refusal in first.refusals] == [
        (2, "no answer in time")
    ]
    assert 10.0 <= took[0] < 11.0
    assert len(second.client_ids) == 5
    assert first.ended is not None
    assert second.ended is not None
    assert (
        10.0 <= first.ended < second.ended <= sum(took) + 1
    )  # the clock began a moment before the first round


def test_the_first_to_answer_make_the_round(config: dict[str, Any], clock: FakeClock) -> None:
    config["federation"] = {"clients_per_round": 5}
    setup = paced(config, Pace(extra=0.2), client_2=never)
    (record,), (took,) = rounds(setup, "FedAvg", 1, clock)
    assert [(refusal.client_id, refusal.reason) for refusal in record.refusals] == [(2, LATE.text)]
    assert took < 1  # not the 30 seconds that the settings would wait


def test_a_late_answer_is_kept_and_added_to_the_model_of_then(
    config: dict[str, Any], clock: FakeClock
) -> None:
    setup = paced(config, Pace(deadline=10.0, late="keep"), client_2=slow(clock, 15.0))
    training = load_experiment(config).build_methods()[0].training
    model, engine = setup.flower.initial_model, setup.flower
    first, second = (Task(number, training, engine.problem.loss, ()) for number in (1, 2))
    assert engine.clock is not None
    assert list(engine.train([2], model, first)) == []
    assert engine.clock.at_work == {2}
    assert 2 not in engine.clock.cohort(6, 1, 2)
    later = model + 1.0
    (late,) = engine.train([], later, second)
    (alone,) = setup.local.train([2], model, first)
    assert late.ages is not None
    assert (late.client_ids, late.ages.tolist()) == ((2,), [1.0])
    assert torch.allclose(late.models, later + (alone.models - model), atol=1e-5)
    assert 15.0 <= float(late.seconds) < 17.0
    assert not engine.clock.at_work


def test_nobody_waits_for_the_late_of_earlier_rounds_but_for_those_just_asked(
    config: dict[str, Any], clock: FakeClock
) -> None:
    behaviour = {"client_1": dies, "client_2": never, "client_3": slow(clock, 10.0)}
    setup = paced(config, Pace(deadline=3.0, late="keep"), **behaviour)
    engine = setup.flower
    training = load_experiment(config).build_methods()[0].training
    first, second = (Task(number, training, engine.problem.loss, ()) for number in (1, 2))
    list(engine.train([2], engine.initial_model, first))
    assert engine.clock is not None
    engine.clock.pace = Pace(deadline=25.0, late="keep")
    began = clock.now
    found = [
        client
        for one in engine.train([0, 1, 3], engine.initial_model, second)
        for client in one.client_ids
    ]
    assert sorted(found) == [0, 3]  # the slow one of this round, though others had answered
    assert engine.clock.at_work == {2}
    assert 10.0 <= clock.now - began < 12.0  # not the deadline


def test_asynchronous_rounds_go_on_without_the_slow_who_weigh_less_when_they_come(
    config: dict[str, Any], clock: FakeClock
) -> None:
    config["federation"] = {"clients_per_round": 4}
    setup = paced(config, Pace(buffer=2), client_0=slow(clock, 0.3), client_1=slow(clock, 0.3))
    method, engine = setup.methods["aged"], setup.flower
    state = first_state(engine.initial_model, method, engine)
    ages: dict[int, float] = {}
    while not (ages.keys() & {0, 1} and ages.keys() & {2, 3, 4, 5}):
        state, record = run_round(state, method, setup.federation, engine)
        assert len(record.client_ids) >= 2
        assert not record.refusals
        assert record.raw[:, 1].tolist() == pytest.approx((1 / (1 + record.seconds / 60)).tolist())
        ages |= dict(zip(record.client_ids, record.raw[:, 0].tolist(), strict=True))
        assert state.round_num < 500
    assert all(age == 1 for client, age in ages.items() if client > 1)
    assert all(age < 1 for client, age in ages.items() if client < 2)


def test_the_clock_goes_on_after_a_resume(config: dict[str, Any], clock: FakeClock) -> None:
    setup = paced(config, Pace())
    rounds(setup, "FedAvg", 1, clock)
    engine, state = setup.flower, dict(setup.flower.state())
    assert engine.clock is not None
    before = engine.clock.now
    again = paced(config, Pace()).flower
    again.load_state(state)
    assert again.clock is not None
    assert again.clock.now == before > 0
    task = Task(2, load_experiment(config).build_methods()[0].training, again.problem.loss, ())
    list(again.train([0], again.initial_model, task))
    assert before < again.clock.now < before + 1
