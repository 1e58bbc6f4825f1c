"""Fingerprints are of what was given: another CPU, which returns other last bits, does not change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from small_files import write_cells, write_table
from torch import nn

from clientwise.data.datasets import DATASETS
from clientwise.data.features import FEATURES, Backbone, with_features
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.partition import iid
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.load import load_experiment
from clientwise.registry import Part
from dividing import federate

pytestmark = pytest.mark.bits
SPLIT = {"test_fraction": 0.25, "server_fraction": 0.2, "report_fraction": 0.5}


def next_up(values: Any) -> Any:
    """Each value as another CPU may return it: the next larger number.

    It is the next number of float32, since inputs are float32: the last bit of a float64 seldom changes them.
    """
    if isinstance(values, torch.Tensor):
        return torch.from_numpy(next_up(values.numpy())).to(values.dtype)
    return numpy.nextafter(values.astype(numpy.float32), numpy.float32(numpy.inf))


def elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on another CPU."""
    return lambda *given, **options: next_up(function(*given, **options))


def federated(samples: Samples) -> FederatedData:
    return federate(samples, partial(iid, clients=3), 1, **SPLIT)


def built(config: dict[str, Any]) -> FederatedData:
    experiment = load_experiment(config)
    return build_data(experiment, load_samples(experiment), 1)[0]


def diabetes(folder: Path) -> FederatedData:
    return federated(DATASETS.get("diabetes")(None))


def cells(folder: Path) -> FederatedData:
    return federated(DATASETS.get("vgg_cells")(folder, size=16))


def own_table(folder: Path) -> FederatedData:
    table = DATASETS.get("table")
    samples = table(
        folder,
        files="own/*.csv",
        target="ill",
        categories=["sex"],
    )
    return federated(samples)


def some_ages(folder: Path) -> FederatedData:
    """A regression with a hostile client, south."""
    table = {"name": "table", "files": "ages.csv", "target": "age", "kind": "regression"}
    table |= {"client": "site"}
    config = {
        "name": "ages",
        "rounds": 1,
        "data": table,
        "data_dir": str(folder),
        "partition": "by_id",
        "server_set": {"fraction": 0.0},
        "hostile": [{"clients": ["south"], "attack": "wrong_labels"}],
        "model": "linear",
        "methods": ["FedAvg"],
    }
    return built(config)


def lognormal_devices(folder: Path) -> FederatedData:
    config = {
        "name": "slow",
        "rounds": 1,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "devices": {"speed": {"name": "lognormal", "median": 5.0}},
        "model": "linear",
        "methods": ["FedAvg"],
    }
    return built(config)


def features(folder: Path) -> FederatedData:
    network = nn.Conv2d(3, 2, 1, bias=False)
    nn.init.constant_(network.weight, 0.25)

    @FEATURES.register("mean_colour")
    def mean_colour(data_dir: Path | None) -> Backbone:
        """The mean of two linear colours."""
        return Backbone(network, 8, lambda images: images, lambda found: found.mean((2, 3)))

    images = torch.arange(12 * 192, dtype=torch.int32).reshape(12, 3, 8, 8).to(torch.uint8)
    samples = replace(DATASETS.get("digits")(None), inputs=images, scale=1 / 255)
    samples = replace(samples, targets=samples.targets[:12])
    part = Part("mean_colour", {})
    cpu = torch.device("cpu")
    found = federated(with_features(Part("tiles", {}), part, folder, cpu, lambda: samples))
    FEATURES._parts.pop("mean_colour")
    return found


COMPUTED = {
    "exp of device speeds": (lognormal_devices, torch.Tensor, "exp"),
    "deviations of a table": (own_table, numpy, "sqrt"),
    "targets beside hostile ones": (some_ages, numpy, "sqrt"),
    "scaled diabetes": (diabetes, "sklearn.datasets", "load_diabetes"),
    "blurred cells": (cells, "scipy.ndimage", "gaussian_filter"),
    "features": (features, nn.Conv2d, "forward"),
}


@pytest.fixture
def everything(small: Path) -> Path:
    """A data folder with small files of all these datasets."""
    write_cells(small)
    write_table(small)
    rows = [f"{('north', 'south')[n % 2]},{n * 7 % 11},{40 + n}" for n in range(20)]
    (small / "ages.csv").write_text("\n".join(["site,dose,age", *rows]))
    return small


@pytest.mark.parametrize("name", COMPUTED)
def test_the_last_bit_of_a_function_changes_no_fingerprint(
    name: str, everything: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, where, function = COMPUTED[name]
    here = make(everything)
    if isinstance(where, str):
        where = pytest.importorskip(where)
    original = getattr(where, function)
    changed = elsewhere(original)
    if function == "load_diabetes":

        def changed(**options: Any) -> Any:
            inputs, targets = original(**options)
            return (inputs if options.get("scaled") is False else next_up(inputs)), targets

    monkeypatch.setattr(where, function, changed)
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path / "cache elsewhere"))
    there = make(everything)
    assert there.fingerprint() == here.fingerprint()


def test_a_cell_of_a_table_changes_the_fingerprint(everything: Path) -> None:
    before = own_table(everything).fingerprint()
    path = everything / "own" / "north.csv"
    path.write_text(path.read_text().replace("44,", "44.5,"))
    assert own_table(everything).fingerprint() != before


def test_given_targets_and_wrong_labels_count(everything: Path) -> None:
    before = some_ages(everything)
    path = everything / "ages.csv"
    path.write_text(path.read_text().replace(",52", ",53"))
    assert some_ages(everything).fingerprint() != before.fingerprint()
    truth = before.samples.targets[before.train.indices]
    honest = replace(before, train=replace(before.train, targets=truth))
    assert honest.fingerprint() != before.fingerprint()
