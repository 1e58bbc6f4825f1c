"""`Recommended` in the drop-in strategy on Flower: the embedded engine's weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from grid import become_task
from test_flower_engine import Setup, sorted_weights
from torch import Tensor, nn

from clientwise.core.types import RoundRecord, Task
from clientwise.flower import MethodStrategy
from clientwise.hosts import aggregator

ROUNDS = 11
TURN = 5  # the first round in which the hostile clients attack
HOSTILE = (1, 4)
CONFIG: dict[str, Any] = {
    "name": "drop-in",
    "rounds": ROUNDS,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 8, "concentration": 0.5},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.3, "report_fraction": 0.6},
    "evaluation": {"clients_every": 0},
    "hostile": [
        {
            "clients": list(HOSTILE),
            "attack": {"name": "sign_flip", "strength": 2.0},
            "from_round": TURN,
        }
    ],
    "methods": ["Recommended"],
}


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup(CONFIG)


@pytest.fixture(scope="module")
def embedded(setup: Setup) -> tuple[Tensor, list[RoundRecord]]:
    """The model and the records of the embedded engine."""
    state, records = setup.rounds(setup.local, setup.methods["Recommended"], ROUNDS)
    assert records[TURN].evidence.look_back.copies is not None
    turned = [dict(zip(one.client_ids, one.weights.tolist(), strict=True)) for one in records]
    before, after = turned[TURN - 2], turned[-1]
    for client in HOSTILE:
        assert after[client] < 0.9 * before[client]
    return state.model, records


def named(model: Tensor, setup: Setup) -> ArrayRecord:
    """A flat model as Flower's arrays."""
    layers = setup.local.spec.layers
    parts = {one.name: model[one.start : one.stop].reshape(one.shape) for one in layers}
    return ArrayRecord({name: Array(part.numpy()) for name, part in parts.items()})


def flat(arrays: ArrayRecord, setup: Setup) -> Tensor:
    """Flower's arrays as a flat model."""
    layers = setup.local.spec.layers
    return torch.cat([torch.tensor(arrays[one.name].numpy()).flatten() for one in layers])


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def strategy_of(setup: Setup, **options: Any) -> MethodStrategy:
    """The strategy with the server's samples, and a module of the same layout and names."""
    data = setup.local.data
    samples = (data.samples.batch(data.weigh.indices), data.weigh.targets)
    flat = setup.local.inner.executor.flat
    given = {"model": flat.module, "samples": samples, "num_classes": 10, "learning_rate": 0.1}
    return MethodStrategy(FedAvg(), **(given | options))


def reply(node: int, model: Tensor, size: float, setup: Setup) -> Message:
    become_task()
    asked = Message(RecordDict({"arrays": named(model, setup)}), node, "train")
    asked.metadata.__dict__["_message_id"] = f"to {node}"
    numbers = MetricRecord({"num-examples": int(size), "loss": float(node)})
    answer = Message(
        RecordDict({"arrays": named(model, setup), "metrics": numbers}), reply_to=asked
    )
    answer.metadata.__dict__["_src_node_id"] = node
    return answer


def test_the_strategy_gives_the_weights_of_the_embedded_engine(
    setup: Setup, embedded: tuple[Tensor, list[RoundRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = strategy_of(setup)
    monkeypatch.setattr(strategy._strategy, "configure_train", lambda *arguments: [])
    engine = Setup(CONFIG).local
    method = setup.methods["Recommended"]
    arrays = named(engine.initial_model, setup)
    for round_num, record in enumerate(embedded[1], start=1):
        strategy.configure_train(round_num, arrays, ConfigRecord(), None)  # type: ignore[arg-type]
        sent = flat(arrays, setup)
        task = Task(round_num, method.training, engine.problem.loss, method.client_criteria)
        replies = []
        for chunk in engine.train(record.client_ids, sent, task):
            sizes = chunk.measurements["dataset_size"].tolist()
            for client, model, size in zip(chunk.client_ids, chunk.models, sizes, strict=True):
                # Nodes answer in another order than the clients' numbers
                replies.insert(0, reply(1000 - client, model, size, setup))
        aggregated, metrics = strategy.aggregate_train(round_num, replies)
        found = strategy.rounds[round_num]
        assert not found.refusals
        weights = [found.weights[1000 - client] for client in sorted(record.client_ids)]
        assert weights == pytest.approx(sorted_weights(record), abs=1e-6)
        loss = sum(node * weight for node, weight in found.weights.items())
        assert metrics["loss"] == pytest.approx(loss)
        arrays = aggregated
    final = flat(arrays, setup)
    assert torch.allclose(final, embedded[0], rtol=1e-4, atol=1e-5)


def test_what_cannot_run_inside_a_strategy_is_said_at_once(setup: Setup) -> None:
    with pytest.raises(ValueError, match="adapt_loss does not run inside another framework"):
        strategy_of(setup, method={"name": "mine", "adapt_loss": "class_weights"})
    with pytest.raises(TypeError, match="FedAdam takes a server step of its own"):
        MethodStrategy(FedAdam(), model=network(), samples=(torch.zeros(9, 64), torch.arange(9)))


def test_arrays_of_another_model_are_refused(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = strategy_of(setup, model=network())
    monkeypatch.setattr(strategy._strategy, "configure_train", lambda *arguments: [])
    with pytest.raises(ValueError, match="not the state of `model`"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), None)  # type: ignore[arg-type]


def test_nodes_beyond_the_limit_and_broken_models_are_refused(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator, "MAX_CLIENTS", 2)
    strategy = strategy_of(setup)
    monkeypatch.setattr(strategy._strategy, "configure_train", lambda *arguments: [])
    start = setup.local.initial_model
    strategy.configure_train(1, named(start, setup), ConfigRecord(), None)  # type: ignore[arg-type]
    models = [start * 0.9, torch.full_like(start, torch.nan), start * 1.1, start]
    replies = [reply(node, model, 9, setup) for node, model in enumerate(models)]
    strategy.aggregate_train(1, replies)
    found = strategy.rounds[1]
    assert set(found.weights) == {0, 2}
    assert "NaN" in found.refusals[1]
    assert found.refusals[3] == "more than 2 clients have taken part"
