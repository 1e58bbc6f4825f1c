"""`keep_best`: the best model so far by a metric, in a file beside the record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import clientwise as cw
from clientwise.hosts.record import Best, BestModel
from clientwise.record.run import RunFolder


def model(value: float) -> dict[str, numpy.ndarray]:
    return {"w": numpy.full((2, 3), value, "float32"), "steps": numpy.array(7)}


@pytest.mark.parametrize(
    ("wanted", "values", "best"),
    [
        ("accuracy", [0.5, math.nan, 0.7, 0.7, 0.6, math.inf], Best("accuracy", 0.7, 2, False)),
        ("loss", [0.5, 0.4, 0.6], Best("loss", 0.4, 1, True)),
        ("mape", [0.5, 0.4, 0.6], Best("mape", 0.4, 1, True)),
        ("lowest val loss", [0.5, 0.4, 0.6], Best("val loss", 0.4, 1, True)),
        ("highest auc", [0.5, 0.4, 0.6], Best("auc", 0.6, 2, False)),
    ],
)
def test_of_equal_values_the_first_is_kept(
    wanted: str, values: list[float], best: Best, tmp_path: Path
) -> None:
    kept = BestModel(wanted, tmp_path)
    for number, value in enumerate(values):
        kept.offer(model(value), value, number)
    assert kept.best == best
    file = tmp_path / "best.safetensors"
    found = load_file(file)
    assert torch.equal(found["w"], torch.full((2, 3), best.value))
    assert found["steps"] == 7
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {
            "metric": best.metric,
            "value": str(best.value),
            "round_num": str(best.round_num),
            "lower": str(best.lower).lower(),
        }


@pytest.mark.parametrize("wanted", ["brier", "lowest", ""])
def test_the_direction_of_an_unknown_metric_is_asked_for(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'keep_best: say "highest .*" or "lowest .*"'):
        cw.Aggregator("FedAvg", keep_best=wanted, folder=tmp_path / "run")


def test_a_place_is_needed() -> None:
    with pytest.raises(ValueError, match="give `folder`"):
        cw.Aggregator("FedAvg", keep_best="accuracy")


def test_values_of_clients_are_about_the_model_that_they_were_sent(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sizes = {"a": 10, "b": 30}
    claims = [(0.5, 0.5), (0.9, 0.7), (0.2, 7.0), (math.nan, "x")]
    with cw.Aggregator("FedAvg", keep_best="accuracy", folder=folder) as aggregator:
        assert aggregator.best is None
        remarks = []
        for number, pair in enumerate(claims):
            values = {
                client: {"dataset_size": size, "accuracy": claim}
                for (client, size), claim in zip(sizes.items(), pair, strict=True)
            }
            updates = {client: model(9.0) for client in sizes}
            remarks += aggregator.aggregate(model(float(number)), updates, values).remarks
        assert aggregator.best is not None
        assert aggregator.best.round_num == 1
        assert aggregator.best.value == pytest.approx(0.25 * 0.9 + 0.75 * 0.7)
    assert remarks.count("keep_best: no usable accuracy from b") == 1
    assert remarks.count("keep_best: no usable accuracy from a, b") == 1
    assert load_file(folder / "best.safetensors")["w"][0, 0] == 1
    assert RunFolder(folder).finished


def test_the_servers_samples_measure_the_new_model(tmp_path: Path) -> None:
    network = nn.Linear(1, 1, bias=False)
    inputs = torch.tensor([[1.0], [2.0]])
    options: dict[str, Any] = {"model": network, "report": (inputs, 3 * inputs)}
    folder = tmp_path / "run"
    sent = {"weight": torch.tensor([[0.0]])}
    with cw.Aggregator("FedAvg", folder=folder, keep_best="loss", **options) as aggregator:
        for value in (2.0, 3.0, 5.0):
            update = {"a": {"weight": torch.tensor([[value]])}}
            lied = {"a": {"dataset_size": 1, "loss": 0.0}}
            sent = dict(aggregator.aggregate(sent, update, lied).model)
    best = aggregator.best
    assert best is not None
    assert (best.round_num, best.value) == (2, 0.0)
    network.load_state_dict(load_file(folder / "best.safetensors"))
    assert network.weight.item() == 3
