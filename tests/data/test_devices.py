"""Devices: drawn from distributions, or read from a file of traces."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from clientwise.data.devices import (
    DEVICE_FACTS,
    DISTRIBUTIONS,
    constant,
    draw_devices,
    kinds,
    lognormal,
    read_traces,
    uniform,
)
from clientwise.data.folder import DataError
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.load import load_experiment

EXAMPLE = Path(__file__).parents[2] / "examples" / "devices.csv"
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


def test_the_example_of_traces_is_dealt_out_by_the_seed() -> None:
    some = draw_devices(200, 1, ORDINARY, read_traces(EXAMPLE, 200, 1))
    assert sorted(some.speed.unique().tolist()) == [
        60,
        120,
        180,
        300,
        420,
        500,
        850,
        900,
        1800,
        2400,
    ]
    assert {(float(a), float(b)) for a, b in zip(some.speed, some.battery, strict=True)} >= {
        (60, 0.35),
        (2400, 1.0),
    }


def test_traces_may_say_whose_they_are_and_leave_out_facts(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("client, speed\n2,30\n0,10\n1,20\n", encoding="utf-8")
    some = draw_devices(3, 1, ORDINARY, read_traces(path, 3, 1))
    assert (some.speed.tolist(), some.up.tolist()) == ([10, 20, 30], [1, 1, 1])
    with pytest.raises(DataError, match="must name each of the clients 0 to 3 once"):
        draw_devices(4, 1, ORDINARY, read_traces(path, 4, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a table of rows and columns"),
        ("speed,up\n", "has no rows"),
        ("speed,upp\n1,2\n", "unknown column 'upp'; did you mean 'up'?"),
        ("speed,up\n1\n", "column 'up' has something that is no number"),
        ("speed\nfast\n", "column 'speed' has something that is no number"),
        ("speed\n0\n", r"speed = 0 of a client's device is outside \[1e-06, 1e\+15\]"),
        ("battery\nnan\n", "column 'battery' has something that is no number"),
        ("dropout\n1.5\n", "dropout = 1.5"),
    ],
)
def test_traces_that_cannot_be_true_are_refused_in_a_line(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "traces.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        draw_devices(3, 1, ORDINARY, read_traces(path, 3, 1))


def test_a_config_finds_its_traces_beside_it(tiny: dict[str, object], tmp_path: Path) -> None:
    import tomli_w

    (tmp_path / "phones.csv").write_text("battery\n0.5\n", encoding="utf-8")
    config = tiny | {
        "devices": {
            "traces": "phones.csv",
            "up": 7,
            "dropout": {"name": "uniform", "low": 0.1, "high": 0.2},
        }
    }
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    experiment = load_experiment(tmp_path / "mine.toml")
    experiment = load_experiment(experiment.to_dict())  # as it is written into the run folder
    data, _ = build_data(experiment, load_samples(experiment), 1)
    assert data.devices is not None
    assert (data.devices.battery.unique().tolist(), data.devices.up.unique().tolist()) == (
        [0.5],
        [7.0],
    )
    assert bool(((data.devices.dropout >= 0.1) & (data.devices.dropout <= 0.2)).all())
    (tmp_path / "phones.csv").unlink()
    with pytest.raises(ConfigError, match=r"devices: .*phones\.csv: no such file"):
        build_data(experiment, load_samples(experiment), 1)
