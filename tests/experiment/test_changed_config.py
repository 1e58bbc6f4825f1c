"""A run goes on with the config it began with. A refused resume changes no file of the run folder."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import clientwise as cw
from clientwise.errors import RunError
from clientwise.experiment.running import origin
from clientwise.experiment.running.origin import versions
from clientwise.experiment.trackers import Progress
from clientwise.record.files import read_table


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"rounds": 4, "checkpoint_seconds": 0.0, "methods": [{"name": "FedAvg"}]}


@pytest.fixture
def stopped(config: dict[str, Any], tmp_path: Path) -> Path:
    """A run with half of its rounds done."""

    def stop(_: cw.Run, progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cw.run(config, tmp_path / "stopped", on_round=stop)
    return tmp_path / "stopped"


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the config of a run folder by hand."""
    table = read_table(folder / "config.toml")
    change(table)
    (folder / "config.toml").write_text(tomli_w.dumps(table), encoding="utf-8")


def files_of(folder: Path) -> dict[str, bytes]:
    """All files; SQLite leaves none beside a database that was read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refused(folder: Path, config: Any, reason: str) -> None:
    """Resume, see it refused for this reason, and find every file as it was."""
    before = files_of(folder)
    with pytest.raises(RunError, match=reason):
        cw.run(config, folder, resume=True)
    assert files_of(folder) == before


def test_an_edited_learning_rate_is_refused(config: dict[str, Any], stopped: Path) -> None:
    edit(stopped, lambda table: table["training"].update(learning_rate=0.7))
    said = r"config.toml: changed since the run began: training.learning_rate = 0.7 \(was 0.1\)\. Restore"
    refused(stopped, stopped / "config.toml", said)
    refused(
        stopped, config, said
    )  # also with the original config: reports read the file in the folder
    edit(stopped, lambda table: table["training"].update(learning_rate=0.1))
    assert cw.Run(cw.run(config, stopped, resume=True)).finished


def test_all_edited_keys_are_named(stopped: Path) -> None:
    def change(table: dict[str, Any]) -> None:
        table["training"] |= {"epochs": 3, "optimizer": "adam"}
        table["hostile"] = [{"clients": 1, "attack": "broken"}]
        del table["federation"]["fraction"]

    edit(stopped, change)
    first = r"federation.fraction = none \(was 0.5\), hostile, "
    refused(
        stopped,
        stopped / "config.toml",
        rf"{first}training.epochs = 3 \(was 1\), training.optimizer = 'adam'",
    )


def test_an_edited_method_is_refused(stopped: Path) -> None:
    edit(stopped, lambda table: table["methods"][0].update(criteria=["label_diversity"]))
    refused(stopped, stopped / "config.toml", "methods.FedAvg.criteria.0.name = 'label_diversity'")


def test_an_added_method_and_more_rounds_are_run(stopped: Path) -> None:
    edit(stopped, lambda table: table["methods"].append({"name": "more", "criteria": ["uniform"]}))
    edit(stopped, lambda table: table.update(rounds=5))
    run = cw.Run(cw.run(stopped / "config.toml", stopped, resume=True))
    assert (run.methods, run.facts.rounds, run.finished) == (["FedAvg", "more"], 5, True)
    edit(
        stopped, lambda table: table["methods"][1].update(criteria=["dataset_size"])
    )  # recorded like the others
    refused(stopped, stopped / "config.toml", "methods.more.criteria.0.name")


def test_fewer_rounds_are_refused(config: dict[str, Any], stopped: Path) -> None:
    refused(stopped, config | {"rounds": 3}, r"rounds = 3 \(was 4\)\..*set rounds = 4 or more")
    edit(stopped, lambda table: table.update(rounds=3))
    said = r"config.toml: changed since the run began: rounds = 3 \(was 4\)\. Restore"
    refused(stopped, stopped / "config.toml", said)
    refused(stopped, config, said)


def test_a_renamed_method_and_a_removed_seed_are_refused(stopped: Path) -> None:
    edit(stopped, lambda table: table["methods"][0].update(name="renamed"))
    edit(stopped, lambda table: table.update(seeds=[7]))
    refused(stopped, stopped / "config.toml", "began: no method 'FedAvg', no seed 1. Restore")


def test_watching_may_be_edited(config: dict[str, Any], stopped: Path) -> None:
    edit(stopped, lambda table: table.update(checkpoint_seconds=2.0, workers=1))
    assert cw.Run(cw.run(stopped / "config.toml", stopped, resume=True)).finished


@pytest.mark.parametrize("rounds", [4, 9])
def test_a_refused_resume_changes_no_file(
    config: dict[str, Any], stopped: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    refused(
        stopped,
        config | {"rounds": rounds, "seeds": [1, 2], "training": {"epochs": 2}},
        "training.epochs = 2",
    )
    monkeypatch.setattr(origin, "versions", lambda: versions() | {"torch": "1.0"})
    refused(stopped, config | {"rounds": rounds, "seeds": [1, 2]}, r"torch 1\.0, not 2")


def test_a_record_that_cannot_be_read_is_refused(stopped: Path) -> None:
    for text in ("", "3", '"= ="', '"x = [' + "[" * 5_000 + '"', '"rounds = 0"'):
        with closing(sqlite3.connect(stopped / "run.sqlite")) as database, database:
            database.execute("UPDATE facts SET value = ? WHERE key = 'config'", (text,))
        refused(
            stopped, stopped / "config.toml", "its database is damaged .its config cannot be read"
        )


def test_no_plugin_is_imported_that_only_the_record_names(stopped: Path, tmp_path: Path) -> None:
    (tmp_path / "unasked_plugin.py").write_text("raise SystemExit('imported')")
    table = read_table(stopped / "config.toml") | {
        "plugins": ["unasked_plugin"],
        "plugin_dir": str(tmp_path),
    }
    with closing(sqlite3.connect(stopped / "run.sqlite")) as database, database:
        text = json.dumps(tomli_w.dumps(table))
        database.execute("UPDATE facts SET value = ? WHERE key = 'config'", (text,))
    refused(stopped, stopped / "config.toml", "changed since the run began: plugins")
    assert str(tmp_path) not in sys.path
