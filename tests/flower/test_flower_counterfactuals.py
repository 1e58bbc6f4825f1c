"""Counterfactuals on nodes with their own data: one message, counted, and the embedded engine's values."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from grid import FilesGrid

import clientwise as cw
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run
from clientwise.flower import write_parts
from clientwise.hosts.flower.data import server_side
from clientwise.hosts.flower.server_app import connector
from clientwise.hosts.flower.wire import ARRAYS, unpack

NAMES = ["a", "b", "c"]
KEYS = ["method", "round", "kind", "without", "tested"]


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
    grid = FilesGrid(deployed, files)
    connect = connector(experiment, grid, grid.connected)
    own = server_side(experiment, str(files / "server.npz"))
    there = run(experiment, tmp_path / "flower", data=own, engines=nullcontext(connect))
    here = cw.run(tiny, tmp_path / "local", progress=False)

    # Chosen, uniform, without a, b and c; and the model that the server tuned.
    models = 5 + tuned
    asked = [one for one in grid.sent if one.metadata.message_type == "evaluate"]
    assert len(asked) == 2 * 3
    for message in asked:
        assert len(unpack(message.content.array_records[ARRAYS])) == models

    frames = [cw.Run(folder).frame("other_weights") for folder in (there, here)]
    found, expected = [one[one["kind"] != "size"].sort_values(KEYS) for one in frames]
    assert len(found) == 2 * 5 * 4  # rounds, candidates, test sets
    assert found[KEYS].to_numpy().tolist() == expected[KEYS].to_numpy().tolist()
    for value in ("metric", "loss"):
        assert found[value].tolist() == pytest.approx(expected[value].tolist(), rel=1e-4, abs=1e-5)
