"""Members join between two sittings of a run: numbers stay whose they were, and the record says it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Message
from grid import FilesGrid, client_of

import clientwise as cw
from clientwise.errors import RunError
from clientwise.experiment.load import load_experiment
from clientwise.experiment.running.runner import run
from clientwise.flower import write_parts
from clientwise.hosts.flower.data import server_side
from clientwise.hosts.flower.server_app import connector
from clientwise.hosts.flower.wire import ARRAYS, unpack
from clientwise.record.run import RunFolder
from clientwise.report.about import about

NAMES = ["a", "b", "c", "d"]
METHODS = [
    {"name": "trust", "criteria": ["trust", "dataset_size"]},
    {"name": "Recommended", "like": "Recommended"},
]


@pytest.fixture
def config(tiny: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Files for four members, of which the first three begin."""
    tiny["partition"]["clients"] = len(NAMES)
    settings = {"clients": NAMES, "input_shape": [1, 8, 8], "num_classes": 10}
    tiny |= {"federation": {}, "flower": settings, "methods": METHODS, "rounds": 2}
    write_parts(tiny, tmp_path / "data")
    return with_members(tiny, NAMES[:3])


def with_members(config: dict[str, Any], clients: list[str]) -> dict[str, Any]:
    return config | {"flower": config["flower"] | {"clients": clients}}


def run_on_flower(
    config: dict[str, Any],
    tmp_path: Path,
    out: Path,
    on_server: dict[str, Any],
) -> list[Message]:
    """Begin a run, or go on with it; what was sent. `on_server` are keys that the server alone is given."""
    experiment = load_experiment(config, replaced={"engine": "flower", **on_server})
    grid = FilesGrid(config, tmp_path / "data")
    engines = nullcontext(connector(experiment, grid, grid.connected))
    data = server_side(experiment, str(tmp_path / "data" / "server.npz"))
    resume = out.exists()
    run(experiment, out, data=data, resume=resume, engines=engines)
    return grid.sent


def sitting(config: dict[str, Any], tmp_path: Path) -> set[int]:
    """Begin the run, or go on with it; who was asked for anything."""
    return {client_of(message) for message in run_on_flower(config, tmp_path, tmp_path / "run", {})}


def test_one_joins(config: dict[str, Any], tmp_path: Path) -> None:
    assert sitting(config, tmp_path) == {0, 1, 2}
    before = cw.Run(tmp_path / "run").frame("weights")

    assert sitting(with_members(config, NAMES) | {"rounds": 3}, tmp_path) == {0, 1, 2, 3}

    found = cw.Run(tmp_path / "run")
    weights = found.frame("weights")
    early = weights[weights["round"] <= 2].reset_index(drop=True)
    pandas.testing.assert_frame_equal(early, before, check_dtype=False)
    accepted = weights[weights["refusal"].isna()]
    took_part = {number: {*clients} for number, clients in accepted.groupby("round")["client"]}
    assert took_part == {1: {0, 1, 2}, 2: {0, 1, 2}, 3: {0, 1, 2, 3}}
    assert found.frame("clients")["name"].tolist() == NAMES
    assert "not connected" not in str(found.frame("rounds")["notes"].tolist())
    assert (
        dict(about(RunFolder(found.folder)))["clients"] == "4 with local data; cohort: all clients"
    )
    assert [change.what for change in found.facts.changes] == [["d joined"]]


def test_members_stay_the_same_where_epsilon_follows_from_their_number(
    config: dict[str, Any], tmp_path: Path
) -> None:
    privacy = {"clip": 0.5, "delta": 0.1, "noise_multiplier": 1.0, "secret": True}
    config |= {
        "evaluation": {"clients_every": 0, "test_fraction": 0.0},
        "methods": [{"name": "private", "bounds": {"cap": 0.5}, "privacy": privacy}],
    }
    sitting(config, tmp_path)
    with pytest.raises(RunError, match=r"flower\.clients.*holds for the members so far"):
        sitting(with_members(config, NAMES) | {"rounds": 4}, tmp_path)
    sitting(config | {"rounds": 4}, tmp_path)


def test_nobody_joins_in_the_place_of_another(config: dict[str, Any], tmp_path: Path) -> None:
    sitting(config, tmp_path)
    for clients in (["d", *NAMES[:3]], ["a", "b", "d", "c"], NAMES[:2]):
        with pytest.raises(
            RunError,
            match=r"another config: flower.clients.*names may join flower.clients at its end",
        ):
            sitting(with_members(config, clients) | {"rounds": 3}, tmp_path)


def test_a_run_begins_with_a_model_that_only_the_server_has(
    config: dict[str, Any], tmp_path: Path
) -> None:
    sitting(config | {"rounds": 1}, tmp_path)
    file = cw.Run(tmp_path / "run").export("trust", 1, tmp_path)
    nobody_else = config | {
        "rounds": 1,
        "initial_model": "nowhere.safetensors",
    }  # as the nodes' copies say
    sent = run_on_flower(nobody_else, tmp_path, tmp_path / "warm", {"initial_model": str(file)})
    first = unpack(sent[0].content.array_records[ARRAYS])
    assert torch.equal(
        first,
        torch.cat(
            [
                tensor.flatten()
                for tensor in RunFolder(tmp_path / "run").trained("trust", 1)[1].values()
            ]
        ),
    )
    assert cw.Run(tmp_path / "warm").facts.initial_model.startswith(file.name)
