from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
import torch

from clientwise.data.folder import DataError, Writer, cache_folder, cached


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "source.txt"
    path.write_text("1")
    return path


class Builder:
    """Builds from one file, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path, self.built = path, 0

    def __call__(self, arrays: Writer) -> None:
        self.built += 1
        arrays.save(small=numpy.full(3, int(self.path.read_text())))
        arrays.create("large", (4, 2), numpy.uint8)[:] = 7


def test_built_once_and_mapped_afterwards(source: Path) -> None:
    build = Builder(source)
    first, second = cached("set", [source], build), cached("set", [source], build)
    assert build.built == 1
    assert first["small"].tolist() == second["small"].tolist() == [1, 1, 1]
    assert torch.equal(second["large"], torch.full((4, 2), 7, dtype=torch.uint8))
    second["large"][0] = 0  # a private copy of that page: the file stays as it is
    assert int(cached("set", [source], build)["large"].min()) == 7


def test_a_changed_source_is_read_again(source: Path) -> None:
    build = Builder(source)
    cached("set", [source], build)
    source.write_text("23")
    assert cached("set", [source], build)["small"].tolist() == [23, 23, 23]
    os.utime(source, ns=(1, 1))
    cached("set", [source], build)
    assert build.built == 3
    cached("set", [source], build, "an option")
    assert build.built == 4


def test_a_damaged_entry_is_named_and_a_failed_one_leaves_nothing(source: Path) -> None:
    build = Builder(source)
    cached("set", [source], build)
    (entry,) = cache_folder().iterdir()
    (entry / "large.npy").write_bytes((entry / "large.npy").read_bytes()[:-3])
    with pytest.raises(DataError, match=f"{entry}: damaged .*; delete this folder"):
        cached("set", [source], build)

    def fail(arrays: Writer) -> None:
        arrays.save(small=numpy.zeros(3))
        raise DataError("cut off")

    with pytest.raises(DataError, match="cut off"):
        cached("other", [source], fail)
    assert [path.name[:4] for path in cache_folder().iterdir()] == ["set-"]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room cannot be reserved here")
def test_an_array_has_its_room_before_it_is_filled(tmp_path: Path) -> None:
    array = Writer(tmp_path).create("images", (1000, 1000), numpy.uint8)
    assert (tmp_path / "images.npy").stat().st_blocks * 512 >= array.nbytes
