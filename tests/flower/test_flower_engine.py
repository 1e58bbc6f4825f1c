"""The engine on a grid of real client apps.

The local engine's numbers, and limits on waiting (by a fake clock).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from grid import Behaviour, FakeClock, LoopGrid, client_of, dies, never

from clientwise.core.method import Method
from clientwise.core.round import first_state, run_round
from clientwise.core.types import RoundRecord, ServerState
from clientwise.engine.local import LocalEngine
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.config.settings import FlowerSettings
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.client_app import client_app
from clientwise.hosts.flower.engine import LOSS_TOO_LARGE, FlowerEngine
from clientwise.hosts.flower.exchange import CHUNK
from clientwise.hosts.flower.server_app import simulated_clients
from clientwise.hosts.flower.wire import (
    ARRAYS,
    NUMBERS,
    pack,
    unpack,
)
from clientwise.models.networks import MODELS

pytestmark = pytest.mark.usefixtures("clock")
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "prioritized": {"criteria": ["label_diversity", "dataset_size", "model_divergence"]},
    "online": {
        "criteria": ["label_diversity", "dataset_size", "model_divergence"],
        "adjust": "first_improvement",
    },
    "all orders": {
        "criteria": ["label_diversity", "dataset_size", "model_divergence"],
        "adjust": "best_order",
    },
    "AdaFed": {
        "criteria": ["server_performance", "dataset_size"],
        "score": "product",
        "adapt_loss": "class_weights",
    },
    "trust": {"criteria": ["trust", "dataset_size"]},
    "Recommended": {
        "like": "Recommended",
        "evidence": {"name": "significance", "threshold": 0.1, "slack": 0.0},
    },
}


class Setup:
    """One experiment, twice: embedded, and with its clients behind a grid."""

    def __init__(self, config: dict[str, Any], **settings: float) -> None:
        experiment = load_experiment(config)
        samples = load_samples(experiment)
        data, hostile = build_data(experiment, samples, 1)
        executor = build_executor(experiment, samples, torch.device("cpu"))
        self.local, behind = (
            build_engine(experiment, data, hostile, 1, executor) for _ in range(2)
        )
        self.grid = LoopGrid(client_app(config))
        self.gone: set[int] = set()
        dealt = simulated_clients(self.grid, self.local.num_clients)
        self.flower = FlowerEngine(
            behind,
            self.grid,
            lambda: {client: node for client, node in dealt().items() if client not in self.gone},
            settings=FlowerSettings(**{"reply_seconds": 30.0} | settings),
        )
        self.methods = {method.name: method for method in experiment.build_methods()}
        self.federation = build_plan(experiment, self.local.num_clients, 1)

    def rounds(
        self, engine: LocalEngine | FlowerEngine, method: Method, count: int = 1
    ) -> tuple[ServerState, list[RoundRecord]]:
        state, records = first_state(engine.initial_model, method, engine), []
        for _ in range(count):
            state, record = run_round(state, method, self.federation, engine)
            records.append(record)
        return state, records

    def round_with(
        self, behaviour: dict[int, Behaviour]
    ) -> tuple[ServerState, RoundRecord, dict[int, str]]:
        """One round of FedAvg in which some clients behave otherwise; who was refused, and why."""
        self.grid.behaviour = behaviour
        state, (record,) = self.rounds(self.flower, Method())
        return state, record, {refusal.client_id: refusal.reason for refusal in record.refusals}


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {
        "federation": {"fraction": 1.0},
        "methods": [{"name": name, **how} for name, how in METHODS.items()],
    }


def sorted_weights(record: RoundRecord) -> list[float]:
    return [
        weight for _, weight in sorted(zip(record.client_ids, record.weights.tolist(), strict=True))
    ]


@pytest.mark.parametrize("elsewhere", [0.0, 1.0])
def test_a_node_with_other_frozen_weights_refuses(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, elsewhere: float
) -> None:
    pretrained = 0.0
    monkeypatch.setattr(
        MODELS, "_parts", {**MODELS._parts}
    )  # where the test's own is left out later

    @MODELS.register("pretrained")
    def network(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A frozen layer, and one that learns."""
        body = nn.Linear(math.prod(input_shape), 8).requires_grad_(False)
        nn.init.constant_(body.weight, pretrained)
        return nn.Sequential(nn.Flatten(), body, nn.Linear(8, outputs))

    setup = Setup(tiny | {"name": f"frozen {elsewhere}", "model": "pretrained"})
    pretrained = elsewhere
    _, record, refusals = setup.round_with({})
    if elsewhere == 0.0:
        assert record.client_ids
        assert not refusals
    else:
        assert not record.client_ids
        (reason,) = set(refusals.values())
        assert "frozen parameters of this node's network are not those of the server" in reason


@pytest.mark.parametrize("name", METHODS)
def test_both_engines_give_the_same_weights_and_models(config: dict[str, Any], name: str) -> None:
    setup = Setup(config)
    method = setup.methods[name]
    ours, theirs = (setup.rounds(engine, method, 3) for engine in (setup.local, setup.flower))
    assert torch.allclose(ours[0].model, theirs[0].model, rtol=1e-5, atol=1e-6)
    assert ours[0].loss.class_weights == pytest.approx(theirs[0].loss.class_weights)
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert sorted(one.client_ids) == sorted(other.client_ids)
        assert sorted_weights(one) == pytest.approx(sorted_weights(other), abs=1e-6)
        assert (one.posterior is None) == (method.evidence is None)
        assert one.priority == other.priority
        assert one.local is not None
        assert other.local is not None
        assert torch.allclose(one.local.values, other.local.values)
        assert torch.equal(one.local.counts, other.local.counts)
        assert not other.refusals
        assert not other.local.missing


def test_the_cohort_can_judge_while_it_trains(config: dict[str, Any]) -> None:
    config["server_set"] = {"source": "clients"}
    config["methods"] = [{"name": "AdaFed", **METHODS["AdaFed"]}]
    setup = Setup(config)
    ours, theirs = (
        setup.rounds(engine, setup.methods["AdaFed"], 2) for engine in (setup.local, setup.flower)
    )
    assert torch.allclose(ours[0].model, theirs[0].model, rtol=1e-5, atol=1e-6)
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert sorted_weights(one) == pytest.approx(sorted_weights(other), abs=1e-6)


def says(content: RecordDict) -> Behaviour:
    return lambda message, honest: Message(content, reply_to=message)


def sends(change: Callable[[RecordDict], None]) -> Behaviour:
    """An honest answer, changed before it is sent; evaluations stay honest."""

    def behave(message: Message, honest: Callable[[], Message]) -> Message:
        reply = honest()
        if message.metadata.message_type == "train":
            change(reply.content)
        return reply

    return behave


def with_model(model: torch.Tensor) -> Behaviour:
    return sends(lambda content: content.__setitem__(ARRAYS, pack(model)))


def with_number(name: str, value: Any) -> Behaviour:
    return sends(lambda content: content.metric_records[NUMBERS].__setitem__(name, value))


def raises(message: Message, honest: Callable[[], Message]) -> Message:
    return Message(Error(code=2, reason="ValueError: no such file"), reply_to=message)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (never, "no answer in time"),
        (dies, "its process died"),
        (raises, "ValueError: no such file"),
        (with_model(torch.full((650,), torch.nan)), "model has NaN or Inf"),
        (with_model(torch.zeros(3)), "model of the wrong size: (3,), expected (650,)"),
        (
            with_model(torch.zeros(650, dtype=torch.int64)),
            "model of type torch.int64, expected floating point",
        ),
        (with_number("criterion.dataset_size", -1.0), "dataset_size = -1 is outside [0, 1e+12]"),
        (
            with_number("criterion.dataset_size", [1.0]),
            "answer refused: criterion.dataset_size is not one number",
        ),
        (sends(lambda content: content.pop(NUMBERS)), "answer cannot be read: KeyError"),
        (
            sends(lambda content: content.__setitem__(ARRAYS, ArrayRecord())),
            "answer cannot be read: KeyError",
        ),
        (
            sends(lambda content: content.__setitem__(NUMBERS, MetricRecord({}))),
            "answer cannot be read: KeyError",
        ),
        (says(RecordDict()), "answer cannot be read: KeyError"),
    ],
)
def test_a_client_that_fails_is_left_out_with_the_reason(
    config: dict[str, Any], behaviour: Behaviour, reason: str
) -> None:
    setup = Setup(config, reply_seconds=0.5)
    state, record, refused = setup.round_with({3: behaviour})
    assert list(refused) == [3]
    assert refused[3].startswith(reason)
    assert sorted(record.client_ids) == [0, 1, 2, 4, 5]
    assert float(record.weights.sum()) == pytest.approx(1.0)
    assert not torch.equal(state.model, setup.flower.initial_model)


def test_a_client_that_is_away_is_left_out_and_comes_back(config: dict[str, Any]) -> None:
    setup = Setup(config)
    setup.gone = {0, 5}
    _, record, refused = setup.round_with({})
    assert refused == {0: "not connected", 5: "not connected"}
    assert record.local is not None
    assert record.local.num_samples[[0, 5]].tolist() == [0, 0]
    assert sorted(refusal.client_id for refusal in record.local.missing) == [0, 5]
    setup.gone = set()
    _, _, refused = setup.round_with({})
    assert not refused


def test_a_round_with_too_few_answers_keeps_the_model(config: dict[str, Any]) -> None:
    setup = Setup(config, reply_seconds=0.3, min_replies=3)
    late = {
        client: lambda message, honest: (
            honest() if message.metadata.message_type == "evaluate" else None
        )
        for client in range(4)
    }
    state, record, refused = setup.round_with(late)
    assert torch.equal(state.model, setup.flower.initial_model)
    assert record.notes == ("no update was accepted: the model stays as it was",)
    assert refused == dict.fromkeys(range(4), "no answer in time") | dict.fromkeys(
        (4, 5), "only 2 of 3 required replies arrived"
    )
    state, record, refused = setup.round_with(
        {0: late[0], 1: late[1], 2: late[2]}
    )  # three answer: that is enough
    assert sorted(record.client_ids) == [3, 4, 5]
    assert not torch.equal(state.model, setup.flower.initial_model)


def test_with_nobody_to_evaluate_it_a_model_is_not_taken(config: dict[str, Any]) -> None:
    config["server_set"] = {"fraction": 0.0}
    config["methods"] = [{"name": "FedAvg"}]
    setup = Setup(config, reply_seconds=0.3)
    late = dict.fromkeys(
        range(6),
        lambda message, honest: honest() if message.metadata.message_type == "train" else None,
    )
    state, record, refused = setup.round_with(late)
    assert record.notes == ("no client evaluated the aggregate: the model stays as it was",)
    assert torch.equal(state.model, setup.flower.initial_model)
    assert not refused
    assert record.local is not None
    assert {refusal.reason for refusal in record.local.missing} == {"no answer in time"}


def test_clients_that_are_not_connected_are_waited_for_as_long_as_configured(
    config: dict[str, Any], clock: FakeClock
) -> None:
    setup = Setup(config, reply_seconds=50.0)
    setup.gone = set(range(6))
    began = clock.now
    state, _record, refused = setup.round_with({})
    assert refused == dict.fromkeys(range(6), "not connected")
    assert torch.equal(state.model, setup.flower.initial_model)
    assert 50 + 50 <= clock.now - began < 50 + 2 * 50 + 3  # trained once, evaluated twice at most


def test_evaluations_of_liars_and_of_the_late_do_not_count(config: dict[str, Any]) -> None:
    setup = Setup(config, reply_seconds=0.5)

    def lies(message: Message, honest: Callable[[], Message]) -> Message:
        reply = honest()
        if message.metadata.message_type == "evaluate":
            reply.content.metric_records[NUMBERS]["values"] = [7.0]
        return reply

    def says(loss: float) -> Behaviour:
        def behave(message: Message, honest: Callable[[], Message]) -> Message:
            reply = honest()
            if message.metadata.message_type == "evaluate":
                reply.content.metric_records[NUMBERS]["losses"] = [loss]
            return reply

        return behave

    def late(message: Message, honest: Callable[[], Message]) -> Message | None:
        return honest() if message.metadata.message_type == "train" else None

    _, record, refused = setup.round_with(
        {0: lies, 1: late, 2: says(math.nan), 3: dies, 4: says(1e307)}
    )
    assert record.local is not None
    reasons = {refusal.client_id: refusal.reason for refusal in record.local.missing}
    assert reasons[0] == "answer refused: accuracy does not follow from the counts: [7.0]"
    assert reasons[1] == "no answer in time"
    assert reasons[2] == reasons[4] == LOSS_TOO_LARGE
    assert reasons[3] == refused[3] == "its process died"
    assert record.local.num_samples.nonzero().flatten().tolist() == [5]
    assert int(record.local.counts.sum()) == int(record.local.num_samples.sum())


def claims(factor: int) -> Behaviour:
    """So many times the test set it has; all numbers agree."""

    def behave(message: Message, honest: Callable[[], Message]) -> Message:
        reply = honest()
        if message.metadata.message_type == "evaluate":
            numbers = reply.content.metric_records[NUMBERS]
            numbers["num_samples"] = numbers["num_samples"] * factor
            reply.content[ARRAYS] = pack(unpack(reply.content.array_records[ARRAYS]) * factor)
        return reply

    return behave


def test_a_claimed_test_set_does_not_decide_what_is_best(config: dict[str, Any]) -> None:
    setup = Setup(config)
    _, record, _ = setup.round_with({2: claims(10**8)})
    assert record.local is not None
    ((client, reason),) = [(refusal.client_id, refusal.reason) for refusal in record.local.missing]
    assert client == 2
    assert reason.startswith("answer refused: ")
    assert reason.endswith("00 test samples: at most 1000000 are accepted")
    assert int(record.local.num_samples[2]) == 0


def test_a_test_set_stays_as_large_as_it_was_at_first(config: dict[str, Any]) -> None:
    def missing(setup: Setup, factor: int) -> list[str]:
        setup.grid.behaviour = {2: claims(factor)}
        evaluation = setup.flower.evaluate(range(6), setup.flower.initial_model[None])
        return [refusal.reason for refusal in evaluation.missing]

    setup, again = Setup(config), Setup(config)
    size = int(setup.local.evaluate([2], setup.local.initial_model[None]).num_samples)
    reason = f"answer refused: {10 * size} test samples, {size} in its first answer"
    assert missing(setup, 1) == []
    assert missing(setup, 10) == [reason]
    assert missing(setup, 1) == []
    again.flower.load_state(setup.flower.state())
    assert missing(again, 10) == [reason]  # a resumed run remembers
    assert missing(Setup(config), 10) == []  # nothing is known yet: it may be true


def test_models_are_handed_on_as_they_arrive_and_few_are_held(config: dict[str, Any]) -> None:
    config["partition"]["clients"] = 40
    setup = Setup(config)
    model, method = setup.flower.initial_model, Method()
    task = first_task(setup, method)
    sizes = [len(updates.client_ids) for updates in setup.flower.train(range(40), model, task)]
    assert sizes == [CHUNK] * (40 // CHUNK)
    answered = len(setup.grid.answers)
    next(iter(setup.flower.train(range(40), model, task)))
    assert len(setup.grid.answers) - answered == CHUNK  # the others were not even looked for


def first_task(setup: Setup, method: Method) -> Any:
    from clientwise.core.types import Task

    state = first_state(setup.flower.initial_model, method, setup.flower)
    return Task(1, method.training, state.loss, method.client_criteria)


def test_what_the_config_says_of_a_client_is_not_asked_of_it(config: dict[str, Any]) -> None:
    config["attributes"] = {"premium": [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]}
    config["methods"] = [{"name": "premium", "criteria": [{"name": "attribute", "of": "premium"}]}]
    setup = Setup(config)
    setup.grid.behaviour = {0: with_number("criterion.attribute", 1e6)}
    _, (record,) = setup.rounds(setup.flower, setup.methods["premium"])
    assert sorted_weights(record) == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.2, 0.2])
    assert not any(
        "attribute" in str(message.content.config_records) for message in setup.grid.sent
    )


def test_one_message_carries_all_candidates(config: dict[str, Any]) -> None:
    setup = Setup(config)
    setup.rounds(setup.flower, setup.methods["all orders"])
    kinds = [message.metadata.message_type for message in setup.grid.sent]
    assert kinds == ["train"] * 6 + ["evaluate"] * 6  # six orders of three criteria, one exchange
    assert {client_of(message) for message in setup.grid.sent} == set(range(6))
