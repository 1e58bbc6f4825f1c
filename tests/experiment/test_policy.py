"""A policy on weights: checked before the run, kept in every round, recorded, changed only where that is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.errors import ConfigError, RunError
from clientwise.experiment.checks.describe import describe
from clientwise.experiment.config.named import merge
from clientwise.experiment.load import load_experiment
from clientwise.record.run import RunFolder
from clientwise.report.audit import audit
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
    folder = cw.run(config(bounds), tmp_path / "run")
    for round_num in (1, 2, 3):
        found = weights(folder, round_num)
        assert sum(found.values()) == pytest.approx(1)
        assert all(0.05 - 1e-9 <= one <= 0.4 + 1e-9 for one in found.values())
    assert [one["cap"] for one in cw.Run(folder).frame("rounds")["policy"]] == [0.4] * 3
    _, table, *_, bounds = audit(RunFolder(folder), "A", 1, 2, details=True)
    assert bounds == "Bounds: cap 40%, floor 5%."
    assert {"dataset_size", "model_divergence"} <= {*table.columns}


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


def test_a_policy_changes_only_where_that_is_accepted(tmp_path: Path) -> None:
    folder = cw.run(config({"cap": 0.3}), tmp_path / "run")
    longer = config({"cap": 0.5}, rounds=5)
    with pytest.raises(RunError, match=r"bounds\.cap = 0\.5 \(was 0\.3\).*--accept-changes"):
        cw.run(longer, folder, resume=True)
    cw.run(longer, folder, resume=True, accept_changes=True)
    policies = cw.Run(folder).frame("rounds")["policy"]
    assert [one["cap"] for one in policies] == [0.3] * 3 + [0.5] * 2
    assert max(weights(folder, 3).values()) == pytest.approx(0.3)
    assert max(weights(folder, 4).values()) > 0.3
    run = cw.Run(folder)
    assert [*audit(RunFolder(run.folder), "A", 1, 3, details=True)][-1] == "Bounds: cap 30%."
    assert "Bounds: cap 50%." in [*audit(RunFolder(run.folder), "A", 1, 5, details=True)]
    (change,) = run.facts.changes
    assert (change.rounds, change.what) == (3, ["methods.A.bounds.cap = 0.5 (was 0.3)"])
    other = merge(longer, {"training": {"epochs": 2}, "rounds": 6})
    with pytest.raises(RunError, match=r"training\.epochs"):
        cw.run(other, folder, resume=True, accept_changes=True)


def test_bounds_that_only_the_file_has_do_not_end_a_run(tmp_path: Path) -> None:
    """As after a crash between writing the file and the database."""
    folder = cw.run(config({"cap": 0.3}), tmp_path / "run")
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("cap = 0.3", "cap = 0.5"))
    longer = config({"cap": 0.5}, rounds=4)
    with pytest.raises(RunError, match=r"bounds\.cap = 0\.5 \(was 0\.3\).*--accept-changes"):
        cw.run(longer, folder, resume=True)
    cw.run(longer, folder, resume=True, accept_changes=True)
    assert [one["cap"] for one in cw.Run(folder).frame("rounds")["policy"]] == [0.3] * 3 + [0.5]


def test_check_says_which_criteria_are_claims() -> None:
    lines = describe(load_experiment(config({"cap": 0.5})))
    (line,) = [line for line in lines if line.startswith("criteria")]
    assert line.split(None, 1)[1] == (
        "claimed by the clients: dataset_size; measured by the server: model_divergence"
    )


def test_a_policy_is_recorded_as_it_was_given(tmp_path: Path) -> None:
    folder = cw.run(config({"cap": 0.5}) | {"rounds": 1}, tmp_path / "run")
    assert cw.Run(folder).frame("rounds")["policy"].iloc[0] == {
        "cap": 0.5,
        "floor": 0.0,
    }
