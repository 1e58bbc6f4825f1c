"""What the loaders share: files with limits, and one kind of error."""

from __future__ import annotations

import gzip
import io
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


def test_a_file_has_as_many_bytes_as_its_dataset_can_have(tmp_path: Path) -> None:
    for name, content in (("plain", b"x" * 100), ("packed.gz", gzip.compress(b"x" * 100))):
        (tmp_path / name).write_bytes(content)
        assert read_file(tmp_path / name, 100) == b"x" * 100
        with pytest.raises(DataError, match=f"{name}: has more than 99 bytes; get the file again"):
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
    disguised = io.BytesIO()
    Image.new("RGB", (4, 4)).save(disguised, "EPS")  # which Pillow hands to another program
    small = picture(numpy.zeros((4, 4, 3), numpy.uint8))
    files = {"a.png": small, "b.png": b"no", "c.png": disguised.getvalue()}
    write_files(tmp_path / "all", files, zipped)
    archive = Archive(tmp_path / ("all.zip" if zipped else "all"))
    assert archive.image("a.png", None).shape == (3, 4, 4)
    for wrong in ("b.png", "c.png", "d.png"):
        with pytest.raises(DataError, match=f"{wrong} is not an image .*; get it again"):
            archive.image(wrong, 4)
    monkeypatch.setattr(Archive, "MOST_PIXELS", 15)
    with pytest.raises(DataError, match=r"a\.png is not an image \(4×4 pixels\)"):
        archive.image("a.png", 4)
