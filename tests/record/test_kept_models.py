"""Models that a run keeps along the way, and runs that begin with a model of another."""

from __future__ import annotations

import json
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
from clientwise.record.run import RunFolder

pytestmark = pytest.mark.bits


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {
        "rounds": 5,
        "keep_every": 2,
        "checkpoint_seconds": 0.0,
        "methods": [{"name": "FedAvg"}],
    }


def best_round(run: cw.Run) -> int:
    return int(metrics(run).idxmax())


def metrics(run: cw.Run) -> pandas.Series[float]:
    return run.frame("rounds").set_index("round")["metric"]


def tensors(run: cw.Run, after: Any = None) -> dict[str, bytes]:
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in RunFolder(run.folder).trained("FedAvg", 1, after)[1].items()
    }


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_every_so_many_rounds_and_the_best_are_kept(
    config: dict[str, Any], tmp_path: Path, seconds: float
) -> None:
    run = cw.Run(cw.run(config | {"checkpoint_seconds": seconds}, tmp_path / "run"))
    assert RunFolder(run.folder).kept_rounds("FedAvg", 1) == sorted({2, 4, best_round(run)})
    assert RunFolder(run.folder).trained("FedAvg", 1, "best")[0] == best_round(run)
    short = cw.Run(cw.run(config | {"rounds": 2, "keep_every": 0}, tmp_path / "short"))
    assert tensors(run, 2) == tensors(short)
    assert tensors(short, 2) == tensors(short)  # the last one is kept in any case
    assert RunFolder(short.folder).kept_rounds("FedAvg", 1) == []
    with pytest.raises(
        RunError, match="has no model of round best: `keep_every` keeps more than one"
    ):
        RunFolder(short.folder).trained("FedAvg", 1, "best")
    with pytest.raises(RunError, match="has no model of round 3: kept are those after 2, 4"):
        RunFolder(run.folder).trained("FedAvg", 1, 3)


def test_a_smaller_error_is_the_better_one(config: dict[str, Any], tmp_path: Path) -> None:
    config |= {
        "data": "diabetes",
        "partition": {"name": "iid", "clients": 3},
        "evaluation": {},
        "keep_every": 100,
    }
    run = cw.Run(cw.run(config, tmp_path / "run"))
    assert RunFolder(run.folder).kept_rounds("FedAvg", 1) == [metrics(run).idxmin()]


def test_what_was_kept_after_the_checkpoint_is_run_again(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """As after a power cut: the last checkpoint is of round 1, the database and the models know more."""
    whole = cw.run(config | {"rounds": 6}, tmp_path / "whole")
    folder = cw.run(config | {"rounds": 1}, tmp_path / "run")
    early = (folder / "checkpoints" / "lane-1.safetensors").read_bytes()
    cw.run(config, folder, resume=True)
    (folder / "checkpoints" / "lane-1.safetensors").write_bytes(early)
    (folder / "checkpoints" / "lane-1-round-4.safetensors").write_bytes(b"half of it")
    run = cw.Run(cw.run(config | {"rounds": 6}, folder, resume=True))
    assert RunFolder(run.folder).kept_rounds("FedAvg", 1) == RunFolder(whole.folder).kept_rounds(
        "FedAvg", 1
    )
    assert tensors(run, 4) == tensors(cw.Run(whole), 4)


def test_a_run_begins_with_the_model_of_another(config: dict[str, Any], tmp_path: Path) -> None:
    first = cw.run(config, tmp_path / "first")
    told = CliRunner().invoke(
        app, ["export", str(first), "--round", "best", "--out", str(tmp_path)]
    )
    assert told.exit_code == 0, told.output
    (file,) = tmp_path.glob("*.safetensors")
    assert file.name == f"FedAvg-seed1-round{best_round(cw.Run(first))}.safetensors"

    still = config | {"rounds": 1, "initial_model": str(file), "training": {"learning_rate": 1e-30}}
    second = cw.Run(cw.run(still, tmp_path / "second"))
    assert metrics(second)[1] == metrics(cw.Run(first)).max()
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


@pytest.mark.parametrize("content", [None, b"", json.dumps({"model": 1}).encode()])
def test_a_file_that_is_no_model_is_refused(
    config: dict[str, Any], tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match="not a model for this network"):
        cw.run(config | {"initial_model": str(tmp_path / "model.safetensors")}, tmp_path / "run")
