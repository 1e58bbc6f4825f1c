"""`keep_best`: the best model so far on the server's samples, in a file beside the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import clientwise as cw

INPUTS = torch.tensor([[1.0], [2.0]])


def best(folder: Path, metric: str, slopes: list[float]) -> tuple[float, dict[str, str]]:
    """The slope that is kept of a line that should have slope 3, and what its file says."""
    network = nn.Linear(1, 1, bias=False)
    options: dict[str, Any] = {"model": network, "report": (INPUTS, 3 * INPUTS)}
    sent = {"weight": torch.tensor([[0.0]])}
    with cw.Aggregator("FedAvg", folder=folder, keep_best=metric, **options) as aggregator:
        for slope in slopes:
            update = {"a": {"weight": torch.tensor([[slope]])}}
            lied = {"a": {"dataset_size": 1, "loss": 0.0}}
            sent = dict(aggregator.aggregate(sent, update, lied).model)
    file = folder / "best.safetensors"
    network.load_state_dict(load_file(file))
    with safe_open(file, "pt") as opened:
        return network.weight.item(), opened.metadata()


def test_the_servers_samples_measure_the_new_model(tmp_path: Path) -> None:
    said = {"metric": "loss", "value": "0.0", "round_num": "2"}
    assert best(tmp_path / "run", "loss", [2.0, 3.0, 5.0]) == (3, said)


@pytest.mark.parametrize("metric", ["loss", "rmse"])
def test_of_equal_values_the_first_is_kept(metric: str, tmp_path: Path) -> None:
    slope, said = best(tmp_path / "run", metric, [5.0, 4.0, 2.0])
    assert (slope, said["round_num"]) == (4, "2")


def test_what_is_missing_is_said_at_once(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": nn.Linear(1, 1), "report": (INPUTS, INPUTS)}
    for keep, folder, given, message in (
        ("accuracy", "run", options, "keep_best = 'accuracy': must be one of loss, rmse"),
        ("loss", None, options, "give `folder`"),
        ("loss", "run", {}, "needs samples of the server"),
    ):
        place = folder and tmp_path / folder
        with pytest.raises(ValueError, match=message):
            cw.Aggregator("FedAvg", keep_best=keep, folder=place, **given)
