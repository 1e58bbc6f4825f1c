"""Run folders of other formats are refused, and folders that cannot be written to are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import clientwise as cw
import processes
from clientwise.errors import RunError
from clientwise.record import database
from clientwise.record.reading.reader import is_finished
from clientwise.record.schema import SCHEMA_VERSION
from clientwise.record.writer import Store


@pytest.mark.parametrize("version", [8, SCHEMA_VERSION + 1])  # of 0.2.0, and of a later release
def test_a_folder_of_another_format_is_refused_in_one_line(
    version: int, altered: Callable[..., Path]
) -> None:
    folder = altered("CREATE TABLE of_that_version (x)", f"PRAGMA user_version = {version}")
    before = (folder / "run.sqlite").read_bytes()
    refused = rf"written by another version of clientwise \(format {version}; .*\)\. Use that version, or run the"
    for use in (cw.Run, Store):
        with pytest.raises(RunError, match=refused):
            use(folder)
    with pytest.raises(RunError, match=refused):
        cw.run(folder / "config.toml", folder, resume=True)
    assert not is_finished(folder)
    done = processes.run(processes.COMMAND, "show", folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Use that version" in done.stderr
    assert (folder / "run.sqlite").read_bytes() == before


def rewrite_header(path: Path, change: Callable[[dict[str, str]], object]) -> None:
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    change(header)
    save_file(load_file(path), path, header)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda header: header.update(version="3"),
            r"newer version of clientwise \(checkpoint version 3; .* Upgrade",
        ),
        (
            lambda header: header.update(version="new"),
            r"not a checkpoint of clientwise \(version 'new'\); delete it",
        ),
        (lambda header: header.pop("fingerprint"), "damaged .it is not as it was written"),
    ],
)
def test_checkpoints_have_a_version(
    change: Callable[[dict[str, str]], object], reason: str, altered: Callable[..., Path]
) -> None:
    folder = altered()
    config = cw.Run(folder).config
    path = folder / "checkpoints" / "lane-1.safetensors"
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["version"] == "2"
    rewrite_header(path, change)
    before = path.read_bytes()
    with pytest.raises(RunError, match=reason):
        cw.run(config | {"rounds": 4}, folder, resume=True)
    with pytest.raises(RunError, match=reason):
        cw.Run(folder).trained("FedAvg", 1)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_to_is_read(
    finished: Path, altered: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cw.Run(finished).summary()
    monkeypatch.setattr(database.os, "access", lambda path, mode: False)
    assert cw.Run(altered()).summary() == wanted
