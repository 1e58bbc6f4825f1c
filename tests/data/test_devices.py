"""Devices, drawn from distributions."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from clientwise.data.devices import (
    DEVICE_FACTS,
    DISTRIBUTIONS,
    constant,
    draw_devices,
    kinds,
    lognormal,
    uniform,
)
from clientwise.data.folder import DataError
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.load import load_experiment

SHARES = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:-1]
ORDINARY = {name: partial(constant, value=1.0) for name in DEVICE_FACTS}


def test_distributions_are_what_they_say() -> None:
    assert constant(SHARES, value=3.0).unique().tolist() == [3.0]
    drawn = uniform(SHARES, low=2.0, high=6.0)
    assert (float(drawn.min()), float(drawn.mean())) == (2.0, pytest.approx(4.0, abs=1e-3))
    logs = lognormal(SHARES[1:], median=5.0, sigma=0.5).log()
    assert (float(logs.mean()), float(logs.std())) == (
        pytest.approx(1.609, abs=1e-3),
        pytest.approx(0.5, abs=2e-3),
    )
    assert kinds(SHARES, values=[1.0, 1.0, 1.0, 9.0]).eq(9.0).sum() == 2_500
    for name in DISTRIBUTIONS:
        assert DISTRIBUTIONS.describe(name)


def test_values_that_cannot_be_true_are_refused_in_a_line() -> None:
    stopped = ORDINARY | {"speed": partial(constant, value=0.0)}
    with pytest.raises(
        DataError, match=r"speed = 0 of a client's device is outside \[1e-06, 1e\+15\]"
    ):
        draw_devices(3, 1, stopped)


def test_a_config_has_numbers_and_distributions(tiny: dict[str, object]) -> None:
    dropout = {"name": "uniform", "low": 0.1, "high": 0.2}
    experiment = load_experiment(tiny | {"devices": {"up": 7, "dropout": dropout}})
    data, _ = build_data(experiment, load_samples(experiment), 1)
    assert data.devices is not None
    assert data.devices.up.unique().tolist() == [7.0]
    assert bool(((data.devices.dropout >= 0.1) & (data.devices.dropout <= 0.2)).all())
    experiment = load_experiment(tiny | {"devices": {"dropout": 1.5}})
    with pytest.raises(ConfigError, match=r"devices: dropout = 1\.5"):
        build_data(experiment, load_samples(experiment), 1)
