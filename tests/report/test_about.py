"""What was run, in what runs differ, and the list of runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.record.run import RunFolder
from clientwise.report.about import about, differences
from clientwise.report.page import report_sections
from clientwise.report.results import Results
from clientwise.report.terminal import list_runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    config: dict[str, Any] = {
        "name": "small",
        "rounds": 1,
        "device": "cpu",
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "hostile": [{"clients": [2], "attack": "wrong_labels"}],
        "methods": ["FedAvg"],
    }
    parent = tmp_path_factory.mktemp("runs")
    changed = config | {
        "seeds": [1, 2],
        "methods": ["FedAvg", "FedYogi"],
        "training": {"learning_rate": 0.5},
    }
    return [cw.run(config, parent / "first").folder, cw.run(changed, parent / "second").folder]


def test_a_report_says_what_was_run(folders: list[Path]) -> None:
    said = dict(about(RunFolder(folders[0])))
    assert said["data"] == "digits; iid (clients 3)"
    assert (
        said["clients"] == "3 with 383 to 384 training samples each; cohort: all clients; 1 hostile"
    )
    assert said["model"].startswith("mlp (hidden 4)")
    assert "learning_rate 0.1" in said["training"]
    assert (said["methods"], said["seeds"], said["rounds"]) == ("FedAvg", "1", "1")
    assert "torch " in said["versions"]
    assert said["started"][:2] == "20"
    found = report_sections(Results([RunFolder(folders[0])]))
    assert [*found][1] == "What was run"
    assert ["training.learning_rate", "0.1"] in found["Config"][-1].texts()


def test_what_differs_and_nothing_else(folders: list[Path], tmp_path: Path) -> None:
    found = differences([RunFolder(folder) for folder in folders]).texts()
    rows = {row[0]: row[1:] for row in found}
    assert rows == {
        "seeds": ["1", "1, 2"],
        "training.learning_rate": ["0.1", "0.5"],
        "methods.FedYogi": ["–", "present"],
        "data of seed 2": ["–", rows["data of seed 2"][1]],
    }
    same = differences(
        [RunFolder(folders[0]), RunFolder(Path(shutil.copytree(folders[0], tmp_path / "copy")))]
    )
    assert (same.texts(), same.note[:25]) == ([], "No differences: config, v")


@pytest.mark.parametrize(
    "config", ["", "data = 3\nmodel = []\ntraining = 1\nfederation = 'x'\nmethods = {}", "\xff["]
)
def test_a_config_of_anybody_takes_no_page_down(
    config: str, folders: list[Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders[0], tmp_path / "run"))
    (folder / "config.toml").write_text(config, encoding="latin-1")
    (folder / "versions.json").write_text("[1, 2")
    said = dict(about(RunFolder(folder)))
    assert said["methods"] == "FedAvg"
    if not config.startswith("data"):
        assert (said["data"], said["training"]) == ("unknown", "unknown")
    assert report_sections(Results([RunFolder(folder)]))
    assert report_sections(Results([RunFolder(folder), RunFolder(folders[0])]))
    assert len(list_runs(tmp_path).frame)
