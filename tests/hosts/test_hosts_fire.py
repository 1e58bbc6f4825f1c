"""Thousands of hostile updates: nothing that a client sends ends a job of any host, or steers it alone.

The same for Flower's strategies is in `tests/flower/test_flower_fire.py`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest

import clientwise as cw
from clientwise.record.run import RunFolder
from fire_share import EVERY
from hostile_replies import GLOBAL, Net, hostile_arrays, hostile_metrics, server_samples

pytestmark = pytest.mark.fire
ROUNDS = 500 // EVERY
CLIENTS = 7  # with three methods: 10,500 updates


def options(method: str) -> dict[str, Any]:
    if method != "Recommended":
        return {}
    return {"model": Net(), "weigh": server_samples(), "num_classes": 2}


def odd(chance: random.Random, value: Any) -> Any:
    """Now and then something else altogether."""
    if chance.random() < 0.05:
        return chance.choice([None, 3, "text", [], b"", {1: 2}, {"kernel": None}, object()])
    return value


def check(model: Any, weights: dict[Any, float]) -> None:
    assert {name: array.shape for name, array in model.items()} == {
        name: array.shape for name, array in GLOBAL.items()
    }
    assert all(numpy.isfinite(array).all() for array in model.values())
    assert all(0 <= weight <= 1 for weight in weights.values())
    assert not any(weights.values()) or sum(weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("method", ["FedAvg", "Median", "Recommended"])
def test_hostile_updates_of_the_aggregator(method: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    with cw.Aggregator(method, folder=tmp_path / "run", **options(method)) as aggregator:
        for _ in range(ROUNDS):
            aggregator.begin(GLOBAL)
            for client in range(CLIENTS):
                name = chance.choice([f"site {client}", client, "site 0", "\x1b[2J"])
                arrays = odd(chance, hostile_arrays(chance))
                aggregator.accept(name, arrays, odd(chance, hostile_metrics(chance)))
            done = aggregator.finish()
            for client in set(done.weights) & set(done.refusals):
                assert done.refusals[client] == "second update of the same client"
            check(done.model, dict(done.weights))
    assert RunFolder(tmp_path / "run").facts.rounds == ROUNDS


@pytest.mark.parametrize("method", ["FedAvg", "Median", "Recommended"])
def test_hostile_updates_of_nvflare(method: str, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs clientwise[nvflare]")
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.abstract.fl_model import FLModel
    from nvflare.app_common.abstract.model import make_model_learnable
    from nvflare.app_common.app_constant import AppConstants

    from clientwise.nvflare import MethodAggregator

    class Own(MethodAggregator):
        def server_side(self) -> dict[str, Any]:
            return {key: value for key, value in options(method).items() if key != "num_classes"}

    chance = random.Random(1)
    aggregator = Own(method, num_classes=2, folder=str(tmp_path / "run"))
    aggregator.fl_ctx = FLContext()
    sent = make_model_learnable(GLOBAL, {})
    aggregator.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, sent, private=True, sticky=True)
    for _ in range(ROUNDS):
        aggregator.reset_stats()
        for client in range(CLIENTS):
            model = FLModel(
                params=odd(chance, hostile_arrays(chance)) or {},
                params_type=chance.choice(["FULL", "FULL", "FULL", "DIFF"]),
                metrics=chance.choice([None, hostile_metrics(chance)]),
                meta=hostile_metrics(chance),
            )
            model.meta["client_name"] = chance.choice([f"site-{client}", "site-0"])
            aggregator.accept_model(model)
        found = aggregator.aggregate_model()
        check(found.params, {})
        assert all(numpy.isfinite(value) for value in (found.metrics or {}).values())
    aggregator.handle_event("_end_run", aggregator.fl_ctx)
    run = RunFolder(tmp_path / "run")
    assert run.facts.rounds == ROUNDS
    assert run.finished
