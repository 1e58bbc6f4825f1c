"""The registry of datasets, and what their loaders share: the data folder, files in a folder or a zip, images.

Whatever is in a file, reading it ends in its content or in a DataError that names it: a damaged or hostile one may make
the libraries that read it raise anything, and may unpack to more than there is memory. So everything is caught where a
file is read, and every reader knows how many bytes its dataset can have.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy

from ..errors import ClientwiseError, shortened
from ..limits import gigabytes, memory
from ..registry import Registry

if TYPE_CHECKING:
    from PIL.Image import Image

    from .federated import Samples

Loader = Callable[..., "Samples"]
DATASETS: Registry[Loader] = Registry("dataset", "datasets", "Where the samples come from")


class DataError(ClientwiseError, ValueError):
    """Data that is missing or not what it should be, and what to do about it."""


def find(data_dir: Path | None, dataset: str, candidates: list[str], get: str) -> Path:
    """The first of the `candidates`, paths within the data folder, that exists; `get` says where it comes from."""
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
    why = "" if data_dir.is_dir() else f" ({data_dir} is no folder)"
    raise DataError(f"{data_dir / candidates[0]}{also} is missing{why}; {get}")


def read_file(path: Path, most: int) -> bytes:
    """The content of a file, unpacked where it ends in .gz: `most` bytes at most."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most + 1)
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); get the file again") from None
    if len(content) > most:
        raise DataError(f"{path}: has more than {most:,} bytes, which is not what it should be; get the file again")
    return content


def read_npz(path: Path) -> dict[str, numpy.ndarray]:
    """The arrays of a NumPy file (.npz): numbers, and no more of them than fit into memory beside a copy."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if 2 * unpacked > memory():
            raise ValueError(f"{gigabytes(unpacked)} unpacked, of {gigabytes(memory())} of memory")
        with numpy.load(path) as file:
            arrays = dict(file)
        if wrong := [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise ValueError(f"{wrong[0]} is of type {arrays[wrong[0]].dtype}, not of numbers")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:
        raise DataError(
            f"{path}: not a NumPy file of arrays ({reason(error)}); numpy.savez writes such a file"
        ) from None
    return arrays


def reason(error: Exception) -> str:
    """What an error says, or else what it is, in a few words."""
    return shortened(str(error), 200) or type(error).__name__


class Archive:
    """Pictures in a folder or in a zip: read alike. All of them together have `most` bytes at most."""

    MOST_PIXELS = 4096 * 4096  # of one picture

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path) if path.is_file() else None
            sizes = (
                {member.filename: member.file_size for member in self._zip.infolist()}
                if self._zip
                else {
                    file.relative_to(path).as_posix(): file.stat().st_size for file in path.rglob("*") if file.is_file()
                }
            )
        except Exception as error:
            raise DataError(f"{path}: cannot be read ({reason(error)}); get the file again") from None
        self.pictures = sorted(name for name in sizes if name.lower().endswith((".jpg", ".png")))
        if (total := sum(sizes[name] for name in self.pictures)) > most:
            raise DataError(f"{path}: has {total:,} bytes of pictures, {most:,} at most expected; get it again")

    def places(self) -> dict[str, str]:
        """Where in the archive every picture lies, by its file name."""
        return {PurePosixPath(name).name: name for name in self.pictures}

    def image(self, name: str, size: int | None) -> numpy.ndarray:
        """A picture as colours [3, height, width] in bytes, resized to `size`×`size`."""
        try:
            content = self._zip.read(name) if self._zip else (self.path / name).read_bytes()
        except Exception as error:
            raise DataError(f"{self.path}: {name} cannot be read ({reason(error)}); get it again") from None
        try:
            colours = self._decode(content)
        except Exception as error:
            raise DataError(f"{self.path}: {name} is no picture ({reason(error)}); get it again") from None
        if size is not None and colours.size != (size, size):
            colours = colours.resize((size, size))
        return numpy.asarray(colours).transpose(2, 0, 1)

    def _decode(self, content: bytes) -> Image:
        from PIL import Image

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is below Pillow's
            picture = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))  # no format that starts other programs
        with picture:
            if picture.width * picture.height > self.MOST_PIXELS:
                raise ValueError(f"{picture.width}×{picture.height} pixels")
            return picture.convert("RGB")
