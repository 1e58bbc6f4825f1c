"""Counterfactuals on nodes with their own data: one message, counted, and the embedded engine's values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Message
from grid import LoopGrid, client_of

import clientwise as cw
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run
from clientwise.flower import client_app, write_parts
from clientwise.hosts.flower.data import server_side
from clientwise.hosts.flower.server_app import connector
from clientwise.hosts.flower.wire import ARRAYS, unpack

NAMES = ["a", "b", "c"]
SQL = """SELECT method, round_num, kind, excluded, tested, metric, loss
         FROM counterfactuals JOIN lanes USING (lane) WHERE kind != 'size' ORDER BY 1, 2, 3, 4, 5"""


class Nodes(LoopGrid):
    """Every node has its own file."""

    def __init__(self, config: dict[str, Any], data: Path) -> None:
        super().__init__(client_app(config))
        self._data = data
        self.behaviour = dict.fromkeys(range(len(NAMES)), self._with_own_data)

    def _with_own_data(self, message: Message, honest: Callable[[], Message]) -> Message:
        name = NAMES[client_of(message)]
        data = str(self._data / f"{name}.npz")
        self.node_config = {"data": data}
        return honest()


@pytest.mark.parametrize("tuned", [False, True])
def test_all_candidates_travel_in_one_message(
    tiny: dict[str, Any], tmp_path: Path, tuned: bool
) -> None:
    files = tmp_path / "data"
    settings = {"clients": NAMES, "input_shape": [1, 8, 8], "num_classes": 10}
    tiny["partition"]["clients"] = len(NAMES)
    method: dict[str, Any] = {"name": "capped", "bounds": {"cap": 0.6}}
    if tuned:
        method |= {"fine_tune": {"epochs": 1}}
    tiny |= {"federation": {}, "flower": settings, "methods": [method], "rounds": 2}
    tiny |= {"evaluation": {"counterfactuals": True, "clients_every": 1}}
    write_parts(tiny, files)
    deployed = {key: value for key, value in tiny.items() if key not in ("data", "partition")}
    experiment = load_experiment(deployed, replaced={"engine": "flower"})
    grid = Nodes(deployed, files)
    connect = connector(experiment, grid, lambda: {client: 2 + client for client in range(3)})
    own = server_side(experiment, str(files / "server.npz"))
    there = run(experiment, tmp_path / "flower", data=own, engines=nullcontext(connect))
    here = cw.run(tiny, tmp_path / "local", progress=False)

    # Chosen, uniform, without a, b and c; and the model that the server tuned.
    models = 5 + tuned
    asked = [one for one in grid.sent if one.metadata.message_type == "evaluate"]
    assert len(asked) == 2 * 3
    for message in asked:
        assert len(unpack(message.content.array_records[ARRAYS])) == models

    found, expected = cw.Run(there).query(SQL), cw.Run(here).query(SQL)
    assert len(found) == 2 * 5 * 4  # rounds, candidates, test sets
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert one[5:] == pytest.approx(other[5:], rel=1e-4, abs=1e-5)
