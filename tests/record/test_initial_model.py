"""Runs that begin with a model of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.errors import ConfigError, RunError

pytestmark = pytest.mark.bits


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {
        "rounds": 5,
        "checkpoint_seconds": 0.0,
        "methods": [{"name": "FedAvg"}],
    }


def metrics(run: cw.Run) -> pandas.Series[float]:
    return run.frame("rounds").set_index("round")["metric"]


def test_a_run_begins_with_the_model_of_another(config: dict[str, Any], tmp_path: Path) -> None:
    first = cw.run(config, tmp_path / "first")
    told = CliRunner().invoke(app, ["export", str(first.folder), "--out", str(tmp_path)])
    assert told.exit_code == 0, told.output
    (file,) = tmp_path.glob("*.safetensors")
    assert file.name == "FedAvg-seed1.safetensors"

    still = config | {"rounds": 1, "initial_model": str(file), "training": {"learning_rate": 1e-30}}
    second = cw.Run(cw.run(still, tmp_path / "second"))
    assert metrics(second)[1] == metrics(first)[5]
    assert second.facts.initial_model.startswith(f"{file.name} (fingerprint ")

    # It goes on with the same, wherever that lies by then, and with no other.
    moved = file.rename(tmp_path / "moved.safetensors")
    cw.run(still | {"rounds": 2, "initial_model": str(moved)}, second.folder, resume=True)
    save_file({name: tensor + 1 for name, tensor in load_file(moved).items()}, moved)
    with pytest.raises(RunError, match="the run began with something else: other initial model"):
        cw.run(still | {"rounds": 3, "initial_model": str(moved)}, second.folder, resume=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda all_: all_.update({"1.weight": torch.zeros(10, 63)}),
            r"size mismatch for 1\.weight",
        ),
        (lambda all_: all_.pop("1.bias"), r"it has, or lacks, 1\.bias"),
        (lambda all_: all_.update({"2.bias": torch.zeros(3)}), r"it has, or lacks, 2\.bias"),
        (lambda all_: all_["1.bias"].fill_(torch.nan), "it has NaN or Inf"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    config: dict[str, Any], tmp_path: Path, change: Any, reason: str
) -> None:
    fitting = {"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}
    change(fitting)
    save_file(fitting, tmp_path / "model.safetensors")
    with pytest.raises(
        ConfigError, match=rf"initial_model: .*model\.safetensors: not a model .*{reason}"
    ):
        cw.run(config | {"initial_model": str(tmp_path / "model.safetensors")}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
