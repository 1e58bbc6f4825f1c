"""Thousands of hostile replies: nothing that a client sends ends a run of `Weighted`, or steers it alone."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from flwr.supercore.task_identity import TaskIdentity

from clientwise.flower import Weighted

pytestmark = pytest.mark.fire
ROUNDS, CLIENTS = 250, 7  # with three strategies, to train and to evaluate: 10,500 replies
GLOBAL = {
    "kernel": numpy.zeros((2, 2), "float32"),
    "bias": numpy.zeros(2, "float32"),
    "steps": numpy.array(3),
}
NUMBERS: list[Any] = [
    0,
    1,
    -1,
    0.5,
    1e12,
    1e13,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    10**400,
    2**63,
    1e-320,
]
NAMES = [
    "size",
    "num-examples",
    "label_diversity",
    "model_divergence",
    "accuracy",
    "loss",
    "clientwise-weight",
    "",
    "é",
]
TYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int64",
    "uint64",
    "bool",
    "complex64",
    "U3",
    "S2",
    "datetime64[s]",
]
SHAPES = [(2, 2), (2,), (), (1, 2), (4,), (0,), (2, 2, 1), (3, 3)]


def hostile_array(chance: random.Random) -> Array:
    if chance.random() < 0.2:  # not even an array
        return Array(
            "float32", (2, 2), "numpy.ndarray", chance.randbytes(chance.choice([0, 10, 200]))
        )
    value = chance.choice([0, 1, 1e30, float("nan"), float("inf"), -3])
    with numpy.errstate(all="ignore"):
        return Array(numpy.full(chance.choice(SHAPES), value).astype(chance.choice(TYPES)))


def hostile_arrays(chance: random.Random) -> ArrayRecord:
    record = {name: Array(array) for name, array in GLOBAL.items()}
    for name in chance.sample([*record, "more"], chance.randint(0, 3)):
        record[name] = hostile_array(chance)
    if chance.random() < 0.2:
        del record[chance.choice(list(record))]
    return ArrayRecord(record)


def hostile_metrics(chance: random.Random) -> MetricRecord:
    record: dict[str, Any] = {"size": 1.0, "num-examples": 10, "loss": 1.0}
    for name in chance.sample(NAMES, chance.randint(0, 4)):
        record[name] = chance.choice([*NUMBERS, [], [1.0], [float("nan"), 2.0], [1, 2]])
    for name in chance.sample(list(record), chance.randint(0, 1)):
        del record[name]
    return MetricRecord(record)


def hostile_reply(chance: random.Random, node: int) -> Message:
    asked = Message(RecordDict(), node, "train")
    asked.metadata.__dict__["_message_id"] = "asked"
    if chance.random() < 0.05:
        answer = Message(
            Error(code=chance.randint(0, 99), reason="x" * chance.choice([0, 10**5])),
            reply_to=asked,
        )
    else:
        content = RecordDict({"arrays": hostile_arrays(chance), "metrics": hostile_metrics(chance)})
        for name in chance.sample(
            ["arrays", "metrics", "config", "more"], chance.choice([0, 0, 0, 1, 2])
        ):
            content[name] = chance.choice(
                [ConfigRecord({"a": "b"}), hostile_metrics(chance), hostile_arrays(chance)]
            )
        answer = Message(content, reply_to=asked)
    answer.metadata.__dict__["_src_node_id"] = node
    return answer


@pytest.mark.parametrize("strategy", [FedAvg(), FedAvgM(server_momentum=0.5), FedAdam()])
def test_ten_thousand_hostile_replies(
    strategy: FedAvg, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    model = ArrayRecord({name: Array(array) for name, array in GLOBAL.items()})
    monkeypatch.setattr(FedAvg, "configure_train", lambda *arguments: [])
    accuracy = {"accuracy": lambda record: 1 / (1 + abs(float(record["bias"].numpy()[0])))}
    weighted = Weighted(
        strategy,
        criteria=["accuracy", "size", "model_divergence"],
        measured_here=accuracy,
        record=tmp_path / "record",
    )
    chance = random.Random(1)
    for round_num in range(1, ROUNDS + 1):
        weighted.configure_train(round_num, model, ConfigRecord(), None)  # type: ignore[arg-type]
        weighted.aggregate_evaluate(
            round_num, [hostile_reply(chance, node) for node in range(CLIENTS)]
        )
        replies = [hostile_reply(chance, node) for node in range(CLIENTS)]
        arrays, metrics = weighted.aggregate_train(round_num, replies)
        found = weighted.rounds[round_num]
        assert set(found.weights).isdisjoint(found.refusals)
        assert all(0 <= weight <= 1 for weight in found.weights.values())
        if arrays is not None:
            assert sum(found.weights.values()) == pytest.approx(1)
            assert {name: array.numpy().shape for name, array in arrays.items()} == {
                name: array.shape for name, array in GLOBAL.items()
            }
            assert all(numpy.isfinite(array.numpy()).all() for array in arrays.values())
        for values in (metrics or {}).values():
            assert numpy.isfinite(values).all()
    assert len((tmp_path / "record").read_text().splitlines()) == 2 * ROUNDS
