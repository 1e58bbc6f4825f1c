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
from clientwise.errors import RunError
from clientwise.hosts.best import BestModel
from clientwise.hosts.best_file import Best
from clientwise.record.run import RunFolder


def model(value: float) -> dict[str, numpy.ndarray]:
    return {"w": numpy.full((2, 3), value, "float32"), "steps": numpy.array(7)}


def test_of_equal_values_the_first_is_kept(tmp_path: Path) -> None:
    kept = BestModel("accuracy", tmp_path)
    values = [0.5, math.nan, 0.7, 0.7, 0.6, math.inf]
    better = [kept.offer(model(value), value, number) for number, value in enumerate(values)]
    assert better == [True, False, True, False, False, False]
    assert kept.best == Best("accuracy", 0.7, 2, lower=False)
    found = load_file(tmp_path / "best.safetensors")
    assert torch.equal(found["w"], torch.full((2, 3), 0.7))
    assert found["steps"] == 7
    with safe_open(tmp_path / "best.safetensors", "pt") as file:
        said = {"metric": "accuracy", "value": "0.7", "round_num": "2", "lower": "false"}
        assert file.metadata() == said


def test_a_restarted_server_goes_on_from_the_file(tmp_path: Path) -> None:
    file = str(tmp_path / "kept" / "model.safetensors")
    table = {"metric": "val_loss", "file": file}
    assert BestModel(table, None).offer(model(1.0), 0.4, 3)
    before = Path(file).read_bytes()
    again = BestModel(table, None)
    assert again.best == Best("val_loss", 0.4, 3, lower=True)
    assert not again.offer(model(2.0), 0.4, 1)
    assert not again.offer(model(2.0), 0.9, 2)
    assert Path(file).read_bytes() == before
    assert again.offer(model(2.0), 0.3, 4)
    assert load_file(file)["w"][0, 0] == 2


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("accuracy", False),
        ("macro_f1", False),
        ("eval-acc", False),
        ("val.AUROC", False),
        ("loss", True),
        ("eval_loss", True),
        ("mape", True),
        ("test/RMSE", True),
    ],
)
def test_names_that_tell_the_direction(metric: str, lower: bool, tmp_path: Path) -> None:
    assert BestModel(metric, tmp_path).lower is lower
    assert BestModel({"metric": metric, "lower": not lower}, tmp_path).lower is not lower


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("brier", "say whether a lower brier is better"),
        ("loss_accuracy", "say whether a lower"),
        ("", "must name a metric"),
        ({"lower": True}, "must name a metric"),
        ({"metric": "brier", "lower": "yes"}, "must be true or false"),
        ({"metric": "loss", "path": "x"}, "unknown key 'path'"),
    ],
)
def test_what_cannot_be_kept_is_refused(wanted: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why) as error:
        cw.Aggregator("FedAvg", keep_best=wanted, folder=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_place_is_needed() -> None:
    with pytest.raises(ValueError, match="needs a place"):
        cw.Aggregator("FedAvg", keep_best="accuracy")


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "best.safetensors"
    assert BestModel("accuracy", tmp_path).offer(model(1.0), 0.5, 1)
    with pytest.raises(RunError, match="the highest accuracy"):
        BestModel("loss", tmp_path)
    with pytest.raises(RunError, match="other names or shapes"):
        BestModel("accuracy", tmp_path).offer({"w": numpy.zeros(2)}, 0.9, 1)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(RunError, match="not a model that keep_best wrote"):
        BestModel("accuracy", tmp_path)


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
