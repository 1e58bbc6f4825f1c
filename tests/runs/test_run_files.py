"""Files are written whole or not at all, and what goes wrong names the file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
import processes
from clientwise import writing
from clientwise.record.files import read_whole
from clientwise.writing import naming, replacing, write_atomically


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")  # as writing raises it, without a name


def test_a_full_disk_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*report\.html'") as caught:
        write_atomically(path, b"new")
    assert (caught.value.filename, caught.value.errno) == (str(path), errno.ENOSPC)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("report.html", b"old")]


def test_a_file_keeps_its_mode_and_what_a_killed_process_left_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "predicted.csv"
    path.touch(0o600)
    (tmp_path / "predicted.csv.part").write_bytes(b"half")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["predicted.csv"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_what_interrupts_writing_leaves_the_old_file_alone(
    tmp_path: Path, stop: type[BaseException]
) -> None:
    path = tmp_path / "predicted.csv"
    path.write_bytes(b"old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise stop

    with pytest.raises(stop):
        write_half()
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(path.name, b"old")]


@pytest.mark.parametrize("there", ["link", "dangling", "pipe"])
def test_what_is_written_lies_where_it_was_asked_for(tmp_path: Path, there: str) -> None:
    path = tmp_path / "out.csv"
    (tmp_path / "other").write_bytes(b"other")
    if there == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("other" if there == "link" else "nowhere")
    write_atomically(path, b"new")
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"other"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads names of open files from /proc")
def test_a_file_and_its_name_outlast_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(
        writing.os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    write_atomically(tmp_path / "config.toml", b"new")
    assert synced == [str(tmp_path / "config.toml.part"), str(tmp_path)]
    assert (tmp_path / "config.toml").read_bytes() == b"new"


def test_a_file_that_is_named_already_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path / "other"):
        (tmp_path / "absent").read_bytes()
    assert caught.value.filename == str(tmp_path / "absent")


def test_what_is_too_long_to_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    path.write_bytes(b"1234")
    assert read_whole(path, 4) == b"1234"
    with pytest.raises(OSError, match="not a file of at most 3 bytes") as caught:
        read_whole(path, 3)
    assert caught.value.filename == str(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_report_on_a_full_disk_is_one_line_with_the_file(
    tiny: dict[str, Any], tmp_path: Path, request: Any
) -> None:
    folder = cw.run(tiny | {"rounds": 1}, tmp_path / "run")
    disk = request.getfixturevalue("small_disk")
    done = processes.run(processes.COMMAND, "report", folder, "--out", disk / "report")
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {disk}{os.sep}report{os.sep}"), done.stderr
    assert last.endswith(": No space left on device")
