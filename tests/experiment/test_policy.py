"""A policy on weights: checked before the run, kept in every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.config_file import merge
from clientwise.experiment.load import load_experiment
from clientwise.record.run import RunFolder
from clientwise.report.audit import audit
from clientwise.report.explanation import Round
from clientwise.report.items import Table
from recorded import rows

CONFIG: dict[str, Any] = {
    "name": "policy",
    "rounds": 3,
    "checkpoint_seconds": 0.0,
    "data": "digits",
    "partition": {"name": "quantity", "clients": 4, "concentration": 1.0},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.2},
}


def config(bounds: dict[str, Any], **changes: Any) -> dict[str, Any]:
    method = {"name": "A", "criteria": ["dataset_size", "model_divergence"], "bounds": bounds}
    return merge(CONFIG, changes) | {"methods": [method]}


def weights(folder: Path, round_num: int) -> dict[int, float | None]:
    found = rows(cw.Run(folder), "weights", "A", 1, round_num)
    return dict(zip(found["client"], found["weight"], strict=True))


def test_the_weights_of_every_round_meet_the_policy(tmp_path: Path) -> None:
    bounds = {"cap": 0.4, "floor": 0.05}
    folder = cw.run(config(bounds), tmp_path / "run").folder
    for round_num in (1, 2, 3):
        found = weights(folder, round_num)
        assert sum(found.values()) == pytest.approx(1)
        assert all(0.05 - 1e-9 <= one <= 0.4 + 1e-9 for one in found.values())
    table = next(
        item for item in audit(Round(RunFolder(folder), "A", 1, 2)) if isinstance(item, Table)
    )
    assert {"dataset_size", "model_divergence"} <= {*table.frame.columns}


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"cap": 0.2}, "the caps sum to 4 × 0.2 = 0.8, less than 1; a round has 4 clients"),
        ({"floor": 0.3}, "the floors sum to 4 × 0.3 = 1.2, more than 1"),
        ({"cap": 0.1, "floor": 0.2}, "the floor 0.2 is above the cap 0.1"),
    ],
)
def test_a_policy_that_no_round_can_meet_is_refused_before_the_run(
    bounds: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        cw.run(config(bounds), tmp_path / "run")
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_policy_does_not_change_within_a_run(tmp_path: Path) -> None:
    folder = cw.run(config({"cap": 0.3}), tmp_path / "run").folder
    with pytest.raises(RunError, match=r"bounds\.cap = 0\.5 \(was 0\.3\).*another name"):
        cw.run(config({"cap": 0.5}, rounds=5), folder, resume=True, accept_changes=True)


def test_check_says_which_criteria_are_claims() -> None:
    lines = describe(load_experiment(config({"cap": 0.5})))
    (line,) = [line for line in lines if line.startswith("criteria")]
    assert line.split(None, 1)[1] == (
        "claimed by the clients: dataset_size; measured by the server: model_divergence"
    )
