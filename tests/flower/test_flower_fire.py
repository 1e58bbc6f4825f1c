"""Thousands of hostile replies: nothing that a client sends ends a run of a strategy, or steers it alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from flwr.supercore.task_identity import TaskIdentity

from clientwise.flower import MethodStrategy, Weighted
from fire_share import EVERY
from hostile_replies import (
    GLOBAL,
    Garbage,
    Net,
    hostile_arrays,
    hostile_metrics,
    server_samples,
)

pytestmark = pytest.mark.fire
ROUNDS = 250 // EVERY
CLIENTS = 7  # with three strategies, to train and to evaluate: 10,500 replies


def hostile_record(chance: random.Random) -> ArrayRecord:
    arrays = {}
    for name, array in hostile_arrays(chance).items():
        if isinstance(array, Garbage):
            arrays[name] = Array("float32", (2, 2), "numpy.ndarray", bytes(array))
        else:
            arrays[name] = Array(array)
    return ArrayRecord(arrays)


def hostile_reply(chance: random.Random, node: int) -> Message:
    asked = Message(RecordDict(), node, "train")
    asked.metadata.__dict__["_message_id"] = "asked"
    if chance.random() < 0.05:
        answer = Message(
            Error(code=chance.randint(0, 99), reason="x" * chance.choice([0, 10**5])),
            reply_to=asked,
        )
    else:
        content = RecordDict(
            {
                "arrays": hostile_record(chance),
                "metrics": MetricRecord(hostile_metrics(chance)),
            }
        )
        for name in chance.sample(
            ["arrays", "metrics", "config", "more"], chance.choice([0, 0, 0, 1, 2])
        ):
            content[name] = chance.choice(
                [
                    ConfigRecord({"a": "b"}),
                    MetricRecord(hostile_metrics(chance)),
                    hostile_record(chance),
                ]
            )
        answer = Message(content, reply_to=asked)
    answer.metadata.__dict__["_src_node_id"] = node
    return answer


@pytest.mark.parametrize("strategy", [FedAvg(), FedAvgM(server_momentum=0.5), FedAdam()])
def test_ten_thousand_hostile_replies(
    strategy: FedAvg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "configure_train", lambda *arguments: [])
    accuracy = {"accuracy": lambda record: 1 / (1 + abs(float(record["bias"].numpy()[0])))}
    weighted = Weighted(
        strategy,
        criteria=["accuracy", "size", "model_divergence"],
        measured_here=accuracy,
        folder=tmp_path / "run",
    )
    send_hostile_replies(weighted)


@pytest.mark.parametrize("method", ["FedAvg", "Median", "Recommended"])
def test_hostile_replies_to_a_whole_method(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "configure_train", lambda *arguments: [])
    strategy = MethodStrategy(
        FedAvg(),
        model=Net(),
        samples=server_samples(),
        method=method,
        num_classes=2,
        folder=tmp_path / "run",
    )
    send_hostile_replies(strategy)
    assert any(found.weights for found in strategy.rounds.values())


def send_hostile_replies(weighted: Weighted) -> None:
    """Rounds of hostile replies, after each of which weights, model and metrics are usable."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    model = ArrayRecord({name: Array(array) for name, array in GLOBAL.items()})
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
