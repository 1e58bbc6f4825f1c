"""What users of Flower ask of a strategy: weights of their own.

The apps are real and their nodes are in this process; only the transport is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result
from grid import LoopGrid

from clientwise.flower import Weighted

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
FIRST = 1000  # the first node's id
START = ArrayRecord({"w": Array(numpy.zeros(2, "float32"))})


class NodesGrid(LoopGrid):
    """Every node has a partition of its own, and answers at once."""

    def __init__(self, app: ClientApp, count: int) -> None:
        super().__init__(app)
        self.count = count
        self.asked: list[list[int]] = []  # nodes of every training round

    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST, FIRST + self.count)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        listed = list(messages)
        if listed and listed[0].metadata.message_type == "train":
            self.asked.append(sorted(one.metadata.dst_node_id for one in listed))
        return [self._answered(one) for one in listed]

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = f"to {node}"
        own = {"partition-id": node - FIRST, "num-partitions": self.count}
        reply = self.app(message, Context(1, node, own, RecordDict(), {}))
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


def numbers_app() -> ClientApp:
    """Node k moves the model by k + 1 and has 10·(k + 1) examples; the best model is 5."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        ((name, before),) = message.content.array_records["arrays"].items()
        metrics = MetricRecord({"num-examples": 10 * (node + 1), "quality": float(node)})
        arrays = ArrayRecord({name: Array((before.numpy() + node + 1).astype("float32"))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        (array,) = message.content.array_records["arrays"].values()
        value = float(array.numpy().flat[0])
        node = int(context.node_config["partition-id"])
        accuracy = 7.0 if node == 2 else max(0.0, 1 - abs(value - 5) / 10)
        metrics = MetricRecord({"num-examples": 10, "accuracy": accuracy})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def run(strategy: Weighted, nodes: int = 3, rounds: int = 4, **options: Any) -> NodesGrid:
    grid = NodesGrid(numbers_app(), nodes)
    found = strategy.start(grid, START, num_rounds=rounds, **options)
    assert isinstance(found, Result)
    return grid


def test_weights_by_node_survive_dropouts() -> None:
    strategy = Weighted(
        FedAvg(fraction_train=0.5), weights={FIRST: 2.0, FIRST + 1: 1.0, FIRST + 2: 1}
    )
    grid = run(strategy, nodes=4, rounds=6)
    for round_num, asked in enumerate(grid.asked, 1):
        found = strategy.rounds[round_num]
        known = {node: {FIRST: 2.0}.get(node, 1.0) for node in asked if node < FIRST + 3}
        total = sum(known.values())
        assert found.weights == pytest.approx({node: one / total for node, one in known.items()})
        assert found.refusals.keys() == set(asked) - known.keys()
    with pytest.raises(ValueError, match="give `criteria`, or `weights`"):
        Weighted(FedAvg())


def test_a_function_of_the_replies_metrics_weighs() -> None:
    strategy = Weighted(FedAvg(), weights=lambda node, metrics: metrics["num-examples"] ** 0.5)
    run(strategy, rounds=1)
    roots = numpy.sqrt([10.0, 20.0, 30.0])
    found = strategy.rounds[1].weights
    shares = [found[FIRST + number] for number in range(3)]
    assert shares == pytest.approx((roots / roots.sum()).tolist())
