"""Commands where the locale is "C": files and the terminal take ASCII only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from locales import in_ascii

CONFIG = {
    "name": "ascii",
    "rounds": 2,
    "seeds": [1, 2],  # a mean ± its interval
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "model": "linear",
    "methods": ["FedAvg", {"name": "prioritised ≻", "criteria": ["dataset_size"]}],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, and with the run that was made of it in this locale."""
    folder = tmp_path_factory.mktemp("ascii")
    (folder / "config.toml").write_text(tomli_w.dumps(CONFIG), encoding="utf-8")
    assert " ? " in clientwise(folder, "run", "config.toml", "--out", "run")
    return folder


def clientwise(folder: Path, *arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "clientwise", *arguments],
        cwd=folder,
        env=in_ascii(),
        capture_output=True,
        encoding="ascii",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("show", "run"),
        ("show", "run", "--round", "2", "--method", "FedAvg", "--seed", "1"),
        ("list",),
        ("check", "config.toml"),
        ("check", "config.toml", "--data"),
        ("list", "--schema"),
        ("report", "run"),
        ("export", "run", "--out", "models"),
    ],
    ids=" ".join,
)
def test_commands_work_where_only_ascii_can_be_printed(
    place: Path, command: tuple[str, ...]
) -> None:
    assert clientwise(place, *command)


def test_files_are_utf_8_all_the_same(place: Path) -> None:
    clientwise(place, "report", "run")
    table = place / "run" / "report" / "tables" / "summary.csv"
    assert "prioritised ≻" in table.read_text(encoding="utf-8")
    assert "prioritised ≻" in (place / "run" / "config.toml").read_text(encoding="utf-8")


def test_errors_are_printed_as_well(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clientwise", "run", "config.toml", "--set", 'methods=["≻"]'],
        cwd=place,
        env=in_ascii(),
        capture_output=True,
        encoding="ascii",
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
