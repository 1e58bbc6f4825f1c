"""What the loaders share: files with limits, and one kind of error."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy
import pytest
from PIL import Image
from small_files import picture, write_files

from clientwise.data.folder import Archive, DataError, read_file


def test_a_file_is_read_packed_or_not(tmp_path: Path) -> None:
    for name, content in (("plain", b"x" * 100), ("packed.gz", gzip.compress(b"x" * 100))):
        (tmp_path / name).write_bytes(content)
        assert read_file(tmp_path / name) == b"x" * 100
    with pytest.raises(DataError, match=r"cannot be read .*Is a directory.*; get the file again"):
        read_file(tmp_path)


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    disguised = io.BytesIO()
    Image.new("RGB", (4, 4)).save(disguised, "EPS")  # which Pillow hands to another program
    small = picture(numpy.zeros((4, 4, 3), numpy.uint8))
    files = {"a.png": small, "b.png": b"no", "c.png": disguised.getvalue()}
    write_files(tmp_path / "all", files)
    archive = Archive(tmp_path / "all.zip")
    assert archive.image("a.png", None).shape == (3, 4, 4)
    for wrong in ("b.png", "c.png", "d.png"):
        with pytest.raises(DataError, match=f"{wrong} is not an image .*; get it again"):
            archive.image(wrong, 4)
