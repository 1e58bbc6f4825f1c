"""What was run, in what runs differ, and the list of runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.errors import RunError
from clientwise.record.run import RunFolder
from clientwise.report.about import about, differences
from clientwise.report.run_list import chosen, list_runs
from clientwise.report.views import overview


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
    return [cw.run(config, parent / "first"), cw.run(changed, parent / "second")]


def test_a_report_says_what_was_run(folders: list[Path]) -> None:
    said = dict(about(RunFolder(folders[0])))
    assert said["data"] == "digits; iid (clients 3)"
    assert (
        said["clients"] == "3 with 383 to 384 training samples each; cohort: all clients; 1 hostile"
    )
    assert said["model"].startswith("mlp (hidden [4])")
    assert "learning_rate 0.1" in said["training"]
    assert (said["methods"], said["seeds"], said["rounds"]) == ("FedAvg", "1", "1")
    assert "torch " in said["versions"]
    assert said["started"][:2] == "20"
    document = overview([RunFolder(folders[0])])
    assert [document.sections[1].id, document.sections[-1].id] == ["about", "config"]
    assert ["training.learning_rate", "0.1"] in [
        list(row) for row in document.sections[-1].items[0].rows
    ]  # type: ignore[union-attr]


def test_what_differs_and_nothing_else(folders: list[Path], tmp_path: Path) -> None:
    rows = {row[0]: row[1:] for row in differences([RunFolder(folder) for folder in folders]).rows}
    assert rows == {
        "seeds": ["1", "1, 2"],
        "training.learning_rate": ["0.1", "0.5"],
        "methods.FedYogi": ["–", "present"],
        "data of seed 2": ["–", rows["data of seed 2"][1]],
    }
    same = differences(
        [RunFolder(folders[0]), RunFolder(Path(shutil.copytree(folders[0], tmp_path / "copy")))]
    )
    assert (list(same.rows), same.note[:25]) == ([], "No differences: config, v")


def test_runs_are_listed_found_and_sorted(folders: list[Path], tmp_path: Path) -> None:
    parent = Path(shutil.copytree(folders[0].parent, tmp_path / "runs"))
    (parent / "figures").mkdir()  # not a run
    runs = list_runs([parent])

    def names(*given: str | None) -> list[str]:
        return [row[0] for row in chosen(runs, *given).rows]

    assert names("fedyogi") == ["second"]
    assert names("nothing") == []
    assert names(None, "seeds") == ["second", "first"]
    assert names(None, "run") == ["first", "second"]
    with pytest.raises(RunError, match="no such column; did you mean 'seeds'"):
        names(None, "sedes")


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
    assert (said["data"], said["training"]) == ("unknown", "unknown")
    assert said["model"].startswith("unknown, ")
    assert overview([RunFolder(folder), RunFolder(folders[0])]).sections
    assert list_runs([tmp_path]).rows
