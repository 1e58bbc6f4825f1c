"""The data folder: files of limited size, and images in a folder or a zip archive.

Reading a file ends in its content or in a DataError that names the file. A damaged or hostile file may
make a library raise anything, and may unpack to more than fits into memory. So every exception is caught
where a file is read, and every reader has a limit in bytes.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy

from ..errors import ClientwiseError, needing, shortened

if TYPE_CHECKING:
    from PIL.Image import Image


class DataError(ClientwiseError, ValueError):
    """Data that is missing or wrong; the message says what to do."""


def find(data_dir: Path | None, dataset: str, candidates: list[str], get: str) -> Path:
    """The first of the `candidates`, paths within the data folder, that exists.

    DataError if none does; `get` tells the user where the file comes from.
    """
    if data_dir is None:
        raise DataError(
            f"{dataset}: needs a data folder: set `data_dir` in the config, --data-dir or CLIENTWISE_DATA; "
            "docs/data.md says what is in it"
        )
    data_dir = Path(data_dir)
    try:
        for candidate in candidates:
            if (data_dir / candidate).exists():
                return data_dir / candidate
    except OSError as error:
        raise DataError(
            f"{dataset}: the data folder cannot be read ({error.strerror}): {shortened(str(data_dir))}"
        ) from None
    also = f" (or {' or '.join(candidates[1:])})" if len(candidates) > 1 else ""
    why = "" if data_dir.is_dir() else f" ({data_dir} is not a folder)"
    raise DataError(f"{data_dir / candidates[0]}{also} is missing{why}; {get}")


def read_file(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes, unpacked if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); get the file again") from None
    if len(content) > most:
        raise DataError(
            f"{path}: has more than {most:,} bytes, the most that this file can have; get the file again"
        )
    return content


def reason(error: Exception) -> str:
    """The message of an error in a few words, or its type."""
    return shortened(str(error), 200) or type(error).__name__


class Archive:
    """Images in a folder or in a zip archive, of at most `most` bytes together."""

    MOST_PIXELS = 4096 * 4096  # of one picture

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path) if path.is_file() else None
            sizes = (
                {member.filename: member.file_size for member in self._zip.infolist()}
                if self._zip
                else {
                    file.relative_to(path).as_posix(): file.stat().st_size
                    for file in path.rglob("*")
                    if file.is_file()
                }
            )
        except Exception as error:
            raise DataError(
                f"{path}: cannot be read ({reason(error)}); get the file again"
            ) from None
        self.pictures = sorted(name for name in sizes if name.lower().endswith((".jpg", ".png")))
        if (total := sum(sizes[name] for name in self.pictures)) > most:
            raise DataError(
                f"{path}: has {total:,} bytes of pictures, {most:,} at most expected; get it again"
            )

    def paths_by_name(self) -> dict[str, str]:
        """The path of every picture within the archive, by its file name."""
        return {PurePosixPath(name).name: name for name in self.pictures}

    def image(self, name: str, size: int | None) -> numpy.ndarray:
        """An image as bytes [3, height, width], resized to `size`×`size` unless `size` is None."""
        try:
            content = self._zip.read(name) if self._zip else (self.path / name).read_bytes()
        except Exception as error:
            raise DataError(
                f"{self.path}: {name} cannot be read ({reason(error)}); get it again"
            ) from None
        with needing("images", f"{self.path}: an image"):
            import PIL.Image  # noqa: F401
        try:
            colours = self._decode(content)
        except Exception as error:
            raise DataError(
                f"{self.path}: {name} is not an image ({reason(error)}); get it again"
            ) from None
        if size is not None and colours.size != (size, size):
            colours = colours.resize((size, size))
        return numpy.asarray(colours).transpose(2, 0, 1)

    def _decode(self, content: bytes) -> Image:
        from PIL import Image

        with warnings.catch_warnings():
            # Our limit is below Pillow's
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # No format that starts other programs
            picture = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        with picture:
            if picture.width * picture.height > self.MOST_PIXELS:
                raise ValueError(f"{picture.width}×{picture.height} pixels")
            return picture.convert("RGB")
