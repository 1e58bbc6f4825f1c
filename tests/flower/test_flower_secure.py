"""Secure aggregation over Flower's messages: real apps in this process, only the transport is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from grid import LoopGrid

import clientwise as cw
from clientwise.core.round import run_round
from clientwise.core.types import RoundRecord
from clientwise.experiment.build import build_data, build_engine, build_executor, build_plan, load_samples
from clientwise.experiment.config import load_experiment
from clientwise.experiment.schema import Experiment
from clientwise.flower import client_app
from clientwise.flower.connections import connector
from clientwise.core.round import first_state

CLIENTS = 5


class KeepingGrid(LoopGrid):
    """Every client has a node of its own, which keeps its state. `change` may replace replies."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__(app)
        self.contexts: dict[int, Context] = {}
        self.change: Callable[[str, int, Message], Message | None] = lambda step, client, reply: reply

    def _answer(self, message: Message) -> Message | None:
        plain = json.loads(str(message.content.config_records["secure"]["json"]))
        client = plain["client"]
        fresh = Context(1, 2, dict(self.node_config), RecordDict(), {})
        context = self.contexts.setdefault(client, fresh)
        return self.change(plain["step"], client, self.app(message, context))


def experiment_of(tiny: dict[str, Any], **method: Any) -> Experiment:
    secret = {"name": "secret", "criteria": ["label_diversity", "dataset_size"]}
    changes = {
        "engine": "flower",
        "partition": {"name": "dirichlet", "clients": CLIENTS, "concentration": 0.5},
        "federation": {},
        "evaluation": {"clients_every": 0},
        "flower": {"evaluate_seconds": 0.2, "train_seconds": 1.0},
        "methods": [secret | {"secure_aggregation": {}} | method],
    }
    return load_experiment(tiny | changes)


def run_one(experiment: Experiment, grid: KeepingGrid | None) -> tuple[torch.Tensor, RoundRecord]:
    samples = load_samples(experiment)
    data, hostile = build_data(experiment, samples, 1)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    (method,) = experiment.build_methods()
    engine: Any = build_engine(experiment, data, hostile, 1, executor, method)
    if grid is not None:
        connect = connector(
            experiment, grid, lambda: {client: client + 2 for client in range(CLIENTS)}, run_id=1
        )
        engine = connect(engine, 1)
    plan = build_plan(experiment, CLIENTS, 1)
    state, record = run_round(first_state(engine.initial_model, method, engine), method, plan, engine)
    return state.model, record


def test_the_model_is_the_embedded_engines(tiny: dict[str, Any]) -> None:
    experiment = experiment_of(tiny)
    grid = KeepingGrid(client_app(experiment.to_dict()))
    model, record = run_one(experiment, grid)
    local, _ = run_one(experiment, None)
    print(record.notes, record.refusals)
    assert torch.equal(model, local)
