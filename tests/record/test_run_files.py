"""Files are written whole or not at all, and what goes wrong names the file."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import pytest

from clientwise import writing
from clientwise.record.files import read_whole
from clientwise.writing import replacing, write_atomically


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


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "predicted.csv"
    path.touch(0o600)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["predicted.csv"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "new", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == mode


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Of two that begin one after the other, the one that ends last wins, whole."""
    path = tmp_path / "predicted.csv"
    with replacing(path) as first:
        first.write_bytes(b"fir")
        with replacing(path) as second:
            second.write_bytes(b"second")
            assert sorted(tmp_path.iterdir()) == sorted([first, second])
        assert path.read_bytes() == b"second"
        with first.open("ab") as file:
            file.write(b"st")
    assert path.read_bytes() == b"first"
    assert [one for one in tmp_path.iterdir() if one.suffix == ".part"] == []


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
    written, folder = synced
    assert re.fullmatch(r".*/config\.toml\.\w+\.part", written)
    assert folder == str(tmp_path)
    assert (tmp_path / "config.toml").read_bytes() == b"new"


def test_what_is_too_long_to_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    path.write_bytes(b"1234")
    assert read_whole(path, 4) == b"1234"
    with pytest.raises(OSError, match="not a file of at most 3 bytes") as caught:
        read_whole(path, 3)
    assert caught.value.filename == str(path)
