"""How often a round waits for its clients: every exchange costs a deployment seconds, whatever it is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Message
from grid import FakeClock, asked_by, never
from test_flower_engine import METHODS, Setup, sorted_weights
from test_flower_pace import slow

from clientwise.core.clock import Clock, Pace
from clientwise.core.method import Method
from clientwise.core.round import run_round
from clientwise.core.types import ServerState
from clientwise.hosts.flower.replies import NO_ANSWER

pytestmark = pytest.mark.usefixtures("clock")
ROUNDS = 4
CLIENTS = 6


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    methods = [{"name": name, **how} for name, how in METHODS.items()]
    return tiny | {"rounds": ROUNDS, "federation": {"fraction": 1.0}, "methods": methods}


def trainings(setup: Setup) -> Counter[int]:
    """How many requests to train every round sent."""
    asked = [asked_by(message) for message in setup.grid.sent]
    return Counter(round_num for _, kind, round_num in asked if kind == "train")


@pytest.mark.parametrize(
    ("name", "exchanges"),
    [
        # Each training with the last model's evaluation, and the last evaluation
        ("FedAvg", ROUNDS + 1),
        ("Recommended", ROUNDS + 1),
        ("all orders", 2 * ROUNDS),  # the clients evaluate the orders, which decides on the model
    ],
)
def test_training_and_the_last_models_evaluation_are_one_exchange(
    config: dict[str, Any], name: str, exchanges: int
) -> None:
    setup = Setup(config)
    method = setup.methods[name]
    ours, theirs = (setup.rounds(engine, method, ROUNDS) for engine in (setup.local, setup.flower))
    assert setup.grid.exchanges == exchanges
    assert trainings(setup) == dict.fromkeys(range(1, ROUNDS + 1), CLIENTS)
    assert torch.allclose(ours[0].model, theirs[0].model, rtol=1e-5, atol=1e-6)
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert sorted_weights(one) == pytest.approx(sorted_weights(other), abs=1e-6)


def test_a_round_without_evaluation_is_one_exchange(config: dict[str, Any]) -> None:
    config["evaluation"] = {"clients_every": 0}
    setup = Setup(config)
    setup.rounds(setup.flower, Method(), ROUNDS)
    assert setup.grid.exchanges == ROUNDS


def test_without_samples_of_the_server_the_clients_evaluation_decides_first(
    config: dict[str, Any],
) -> None:
    config |= {"server_set": {"fraction": 0.0}, "methods": [{"name": "FedAvg"}]}
    setup = Setup(config)
    setup.rounds(setup.flower, Method(), ROUNDS)
    assert setup.grid.exchanges == 2 * ROUNDS


def test_nodes_are_asked_for_the_same_in_the_same_order_as_one_by_one(
    config: dict[str, Any],
) -> None:
    """What a node's ledger counts."""
    setup = Setup(config)
    setup.rounds(setup.flower, Method(), ROUNDS)
    for client in range(CLIENTS):
        asked = [asked_by(one)[1:] for one in setup.grid.sent if asked_by(one)[0] == client]
        one_by_one = []
        for number in range(1, ROUNDS + 1):
            one_by_one += [("train", number), ("evaluate", number)]
        assert asked == one_by_one


def test_no_training_is_asked_for_in_vain(config: dict[str, Any]) -> None:
    """Models that the server keeps out: what is asked ahead is the training of the old model."""
    setup = Setup(config)
    braked = replace(setup.methods["AdaFed"], brake=-1e9)
    state, records = setup.rounds(setup.flower, braked, ROUNDS)
    assert all(record.notes for record in records)
    assert torch.equal(state.model, setup.flower.initial_model)
    assert trainings(setup) == dict.fromkeys(range(1, ROUNDS + 1), CLIENTS)
    # A round evaluates the new model, then the old one: nothing is evaluated after the next training.
    asked = [asked_by(one)[1:] for one in setup.grid.sent if asked_by(one)[0] == 0]
    assert asked[:4] == [("train", 1), ("evaluate", 1), ("evaluate", 1), ("train", 2)]


def test_a_training_of_another_model_is_dropped(config: dict[str, Any]) -> None:
    """A round that does not happen as it was told: the answers to what was asked ahead do not count."""
    setup = Setup(config)
    state, _ = setup.rounds(setup.flower, Method(), 1)
    other = ServerState(1, state.model + 0.5, state.loss, state.memory, state.priority)
    ours, theirs = (
        run_round(other, Method(), setup.federation, engine)
        for engine in (setup.local, setup.flower)
    )
    assert trainings(setup)[2] == 2 * CLIENTS
    assert torch.allclose(ours[0].model, theirs[0].model, rtol=1e-5, atol=1e-6)
    assert len(theirs[1].client_ids) == CLIENTS


def no_training(message: Message, honest: Callable[[], Message]) -> Message | None:
    """Evaluates, and trains only in the first round."""
    _, kind, round_num = asked_by(message)
    return None if kind == "train" and round_num > 1 else honest()


def test_who_evaluates_and_does_not_train_is_refused_in_the_round_of_the_training(
    config: dict[str, Any], clock: FakeClock
) -> None:
    setup = Setup(config, train_seconds=20.0)
    setup.grid.behaviour = {3: no_training}
    _, (first, second) = setup.rounds(setup.flower, Method(), 2)
    assert not first.refusals
    assert first.local is not None
    assert not first.local.missing
    assert [(one.client_id, one.reason) for one in second.refusals] == [(3, NO_ANSWER.text)]
    assert len(second.client_ids) == CLIENTS - 1


def test_the_time_of_a_training_begins_after_the_evaluation(
    config: dict[str, Any], clock: FakeClock
) -> None:
    wait = slow(clock, 5.0)

    def slow_evaluation(message: Message, honest: Callable[[], Message]) -> Message | None:
        return wait(message, honest) if asked_by(message)[1] == "evaluate" else honest()

    setup = Setup(config)
    setup.grid.behaviour = dict.fromkeys(range(CLIENTS), slow_evaluation)
    _, (_, second) = setup.rounds(setup.flower, Method(), 2)
    assert float(second.seconds.max()) < 2


def test_a_client_that_comes_back_after_the_evaluation_is_asked_then(
    config: dict[str, Any],
) -> None:
    setup = Setup(config)
    setup.gone = {3}
    state, _ = setup.rounds(setup.flower, Method(), 1)
    assert trainings(setup) == {1: CLIENTS - 1, 2: CLIENTS - 1}
    setup.gone = set()
    _, second = run_round(state, Method(), setup.federation, setup.flower)
    assert sorted(second.client_ids) == list(range(CLIENTS))
    assert trainings(setup)[2] == CLIENTS


@pytest.mark.parametrize("pace", [Pace(deadline=10.0), Pace(extra=0.5), Pace(late="keep")])
def test_with_a_pace_a_round_begins_when_it_begins(config: dict[str, Any], pace: Pace) -> None:
    setup = Setup(config)
    setup.flower.clock = Clock(CLIENTS, pace)
    setup.rounds(setup.flower, Method(), ROUNDS)
    assert setup.grid.exchanges == 2 * ROUNDS


def test_a_model_that_no_client_can_be_asked_about_costs_one_exchange(
    config: dict[str, Any], clock: FakeClock
) -> None:
    """All clients are gone when the model is evaluated: the server's own samples decide, as before."""
    setup = Setup(config, evaluate_seconds=5.0, repeats=0)
    setup.grid.behaviour = dict.fromkeys(
        range(CLIENTS),
        lambda message, honest: (
            never(message, honest) if asked_by(message)[1] == "evaluate" else honest()
        ),
    )
    _, records = setup.rounds(setup.flower, Method(), 2)
    assert all(record.kept is None for record in records)
    assert [len(record.client_ids) for record in records] == [CLIENTS, CLIENTS]
