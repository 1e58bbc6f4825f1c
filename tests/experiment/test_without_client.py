"""Whole runs repeated without a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.errors import RunError
from clientwise.experiment.running.resume import without_client
from clientwise.record.run import RunFolder
from recorded import curve, everything, rows

CONFIG: dict[str, Any] = {
    "name": "otherwise",
    "rounds": 2,
    "checkpoint_seconds": 0.0,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 4, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.2},
    "methods": ["FedAvg"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    methods = ["FedAvg", {"name": "tuned", "fine_tune": {}}, {"name": "Median", "bounds": {}}]
    config = CONFIG | {"methods": methods, "rounds": 3}
    return cw.run(config, tmp_path_factory.mktemp("runs") / "run").folder


def test_a_whole_run_without_a_client_is_paired_and_resumed(folder: Path) -> None:
    runner = CliRunner()
    target = folder.with_name("run-without-2")
    done = runner.invoke(app, ["run", str(folder), "--without", "2"])
    assert done.exit_code == 0, done.output
    other = RunFolder(target)
    for method in ("FedAvg", "tuned", "Median"):
        assert {*rows(other, "weights", method, 1, 1)["client"]} == {0, 1, 3}
        # It still evaluates: the model without it, on its own data.
        assert {*rows(other, "local", method)["client"]} == {0, 1, 2, 3}
    assert len(curve(other, "metric", "FedAvg")) == 3
    assert "FedAvg: accuracy is" in done.output
    assert "points worse" in done.output
    before = everything(other)
    again = runner.invoke(app, ["run", str(folder), "--without", "2"])
    assert again.exit_code == 0
    assert everything(RunFolder(target)) == before


def test_runs_that_cannot_be_run_again(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no client is called 'Basel'"):
        without_client(folder, "Basel")
    samples = cw.Samples.from_clients(
        {name: (torch.randn(20, 3), torch.arange(20) % 2) for name in ("a", "b")}
    )
    config = {k: v for k, v in CONFIG.items() if k not in ("data", "partition")}
    own = cw.run(config, tmp_path / "own", data=samples).folder
    with pytest.raises(RunError, match="its samples are not here"):
        without_client(own, "a")
    wrong = CliRunner().invoke(app, ["run", str(folder), "--without", "2", "--seeds", "1"])
    assert wrong.exit_code == 2
