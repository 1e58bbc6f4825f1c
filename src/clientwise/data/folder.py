"""Files: the data folder, images in a zip archive, NumPy files, and the cache of decoded arrays.

Reading a file ends in its content or in a DataError that names the file. A damaged file may make a library
raise anything, so every exception is caught where a file is read.

The first load of a dataset reads and checks its published files and writes NumPy arrays into the cache folder
($CLIENTWISE_CACHE, or the user's cache folder); later loads map those into memory. An entry belongs to its
source files: when one of them changes, another entry is written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from ..errors import ClientwiseError, needing, shortened
from ..limits import memory

FORMAT = 2  # increase it when a loader writes other arrays than before
WRITES = "numpy.savez writes such a file"


class DataError(ClientwiseError, ValueError):
    """Data that is missing or wrong; the message says what to do."""


def find(data_dir: Path | None, dataset: str | Path, get: str, *names: str) -> list[Path]:
    """The files of a dataset: in the folder of its name within the data folder. One may be packed, as NAME.gz.

    DataError if one is missing; `get` tells the user where they come from.
    """
    if data_dir is None:
        raise DataError(
            f"{dataset}: needs a data folder: set `data_dir` in the config, --data-dir or CLIENTWISE_DATA; "
            "docs/data.md says what is in it"
        )
    found = []
    for name in names:
        path = Path(data_dir) / dataset / name
        packed = path.with_name(f"{path.name}.gz")
        found.append(packed if packed.exists() else path)
        if not found[-1].exists():
            why = "" if Path(data_dir).is_dir() else f" ({data_dir} is not a folder)"
            raise DataError(f"{path} is missing{why}; {get}")
    return found


def read_file(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); get the file again") from None


def read_npz(path: Path) -> dict[str, numpy.ndarray]:
    """The arrays of a NumPy file (.npz) by name: numbers, in this machine's byte order."""
    try:
        with path.open("rb") as raw, numpy.load(raw) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        for name, array in found.items():
            if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise ValueError(
                    f"{name} is of type {array.dtype}, not of numbers of at most 8 bytes"
                )
    except Exception as error:  # the content decides what the libraries raise
        raise DataError(f"{path}: not a NumPy file of arrays ({reason(error)}); {WRITES}") from None
    return {
        name: array.astype(array.dtype.newbyteorder("="), copy=False)
        for name, array in found.items()
    }


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Path(found.origin).parent


def expect(is_so: object, path: Path, what: str) -> None:
    """DataError that says what is expected of a published file, where it is not so."""
    if not is_so:
        raise DataError(f"{path}: {what}; get it again")


def reason(error: Exception) -> str:
    """The message of an error in a few words, or its type."""
    return shortened(str(error), 200) or type(error).__name__


class Archive:
    """Images in a zip archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:
            raise DataError(
                f"{path}: cannot be read ({reason(error)}); get the file again"
            ) from None
        names = self._zip.namelist()
        self.pictures = sorted(name for name in names if name.lower().endswith((".jpg", ".png")))
        self._paths = {PurePosixPath(name).name: name for name in self.pictures}

    def image(self, name: str, size: int | None) -> numpy.ndarray:
        """An image by its path or file name, as bytes [3, height, width], resized to `size`×`size`, if given."""
        with needing("images", f"{self.path}: an image"):
            from PIL import Image
        try:
            content = io.BytesIO(self._zip.read(self._paths.get(name, name)))
            # No format that starts other programs
            colours = Image.open(content, formats=("JPEG", "PNG")).convert("RGB")
        except Exception as error:
            said = f"{self.path}: {name} is not an image ({reason(error)}); get it again"
            raise DataError(said) from None
        if size is not None and colours.size != (size, size):
            colours = colours.resize((size, size))
        return numpy.asarray(colours).transpose(2, 0, 1)


# The cache --------------------------------------------------------------------------------------------------------


class Writer:
    """Writes the arrays of a loader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, **arrays: numpy.ndarray) -> None:
        """Write arrays that are in memory."""
        for name, array in arrays.items():
            numpy.save(self._folder / f"{name}.npy", array)

    def create(self, name: str, shape: tuple[int, ...], dtype: type) -> numpy.ndarray:
        """An array on disk, to be filled piece by piece."""
        path = self._folder / f"{name}.npy"
        array = open_memmap(path, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):
            # Room for all of it now: on a full disk, to write to a page without room kills the process
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array


def cached(
    name: str, sources: Sequence[Path], build: Callable[[Writer], None], *options: Any
) -> Mapping[str, Tensor]:
    """The arrays of a dataset by name, memory-mapped.

    Args:
        name: of the dataset.
        sources: the files that the arrays are made from.
        build: makes the arrays, if they are not in the cache.
        options: what else the arrays depend on.
    """
    origin = repr((FORMAT, list(map(_stamps, sources)), options))
    digest = hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()
    folder = cache_folder() / f"{name}-{digest}"
    if not folder.is_dir():
        try:
            _write(folder, build)
        except OSError as error:
            said = f"{error.filename or folder}: {error.strerror or error}"
            hint = f"set CLIENTWISE_CACHE to a folder with room for {name}"
            raise DataError(f"{said}; {hint}") from None
    try:
        return {path.stem: mapped(path) for path in sorted(folder.glob("*.npy"))}
    except (ValueError, EOFError) as error:
        raise DataError(f"{folder}: damaged ({reason(error)}); delete this folder") from None


def mapped(path: Path) -> Tensor:
    """The array in a file, which is read where it is used.

    Copy on write: PyTorch wants memory it could write to, and the file must stay as it is. A file that
    might not fit into memory is mapped for reading alone, since Linux counts what could be written.
    """
    if 2 * path.stat().st_size <= memory():
        with suppress(OSError):  # too large beside what this process has already
            return torch.from_numpy(numpy.load(path, mmap_mode="c"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(numpy.load(path, mmap_mode="r"))


def cache_folder() -> Path:
    """$CLIENTWISE_CACHE, or clientwise in the user's cache folder."""
    if given := os.environ.get("CLIENTWISE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clientwise"


def _write(folder: Path, build: Callable[[Writer], None]) -> None:
    """Build an entry in a temporary folder and rename it; of two processes the first one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        whole = Path(temporary) / "entry"
        whole.mkdir()
        build(Writer(whole))
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def _stamps(source: Path) -> list[tuple[str, int, int]]:
    """Path, size and time of a file, or of every file in a folder."""
    files = [source] if source.is_file() else sorted(filter(Path.is_file, source.rglob("*")))
    facts = [(path.resolve(), path.stat()) for path in files]
    return [(str(path), found.st_size, found.st_mtime_ns) for path, found in facts]
