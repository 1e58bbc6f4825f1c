"""What the loaders share: files with limits, and one kind of error."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import numpy
import pytest
from PIL import Image
from small_files import picture, write_files

from clientwise.data.folder import (
    Archive,
    DataError,
    find,
    read_file,
)
from clientwise.data.npz import read_npz


def test_a_file_has_as_many_bytes_as_its_dataset_can_have(tmp_path: Path) -> None:
    for name, content in (("plain", b"x" * 100), ("packed.gz", gzip.compress(b"x" * 100))):
        (tmp_path / name).write_bytes(content)
        assert read_file(tmp_path / name, 100) == b"x" * 100
        with pytest.raises(
            DataError, match=f"{name}: has more than 99 bytes, .* get the file again"
        ):
            read_file(tmp_path / name, 99)
    with pytest.raises(DataError, match=r"cannot be read .*Is a directory.*; get the file again"):
        read_file(tmp_path, 100)


def test_a_data_folder_whose_name_is_too_long() -> None:
    with pytest.raises(
        DataError, match=r"mnist: the data folder cannot be read \(File name too long\): xxx"
    ) as caught:
        find(Path("x" * 10_000), "mnist", ["mnist/a"], "get it")
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("zipped", [False, True])
def test_pictures_have_limits(
    tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = picture(numpy.zeros((4, 4, 3), numpy.uint8))
    disguised = io.BytesIO()
    Image.new("RGB", (4, 4)).save(disguised, "EPS")  # which Pillow hands to another program
    write_files(
        tmp_path / "all", {"a.png": small, "b.png": b"no", "c.png": disguised.getvalue()}, zipped
    )
    path = tmp_path / ("all.zip" if zipped else "all")
    total = len(small) + 2 + len(disguised.getvalue())
    archive = Archive(path, total)
    paths = archive.paths_by_name()
    assert archive.image(paths["a.png"], None).shape == (3, 4, 4)
    for wrong in ("b.png", "c.png"):
        with pytest.raises(DataError, match=f"{wrong} is not an image .*; get it again"):
            archive.image(paths[wrong], 4)
    monkeypatch.setattr(Archive, "MOST_PIXELS", 15)
    with pytest.raises(DataError, match=r"a\.png is not an image \(4×4 pixels\)"):
        archive.image(paths["a.png"], 4)
    with pytest.raises(
        DataError,
        match=f"has {total:,} bytes of pictures, {total - 1:,} at most expected; get it again",
    ):
        Archive(path, total - 1)


def test_arrays_of_numbers_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.npz"
    numpy.savez_compressed(path, inputs=numpy.zeros((1000, 100)), targets=numpy.arange(1000))
    arrays = read_npz(path)
    assert {name: array.shape for name, array in arrays.items()} == {
        "inputs": (1000, 100),
        "targets": (1000,),
    }
    monkeypatch.setattr(npz, "memory", lambda: 10**6)
    with pytest.raises(
        DataError, match=r"not a NumPy file of arrays \(0\.0 GB unpacked, of 0\.0 GB of memory\)"
    ):
        read_npz(path)
    monkeypatch.undo()
    numpy.savez(path, names=numpy.array(["a", "b"]))
    with pytest.raises(
        DataError, match=r"names is of type <U1, not of numbers.*; numpy\.savez writes such a file"
    ):
        read_npz(path)
    path.write_bytes(b"PK" + os.urandom(50))
    with pytest.raises(DataError, match=f"{path}: not a NumPy file of arrays"):
        read_npz(path)
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        read_npz(tmp_path / "none.npz")
