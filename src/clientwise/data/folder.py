"""Files: the data folder, images in a folder or a zip archive, and the cache of decoded arrays.

Reading a file ends in its content or in a DataError that names the file. A damaged file may make a library
raise anything, so every exception is caught where a file is read.

The first load of a dataset reads and checks its published files and writes NumPy arrays into the cache folder
($CLIENTWISE_CACHE, or the user's cache folder); later loads map those into memory. An entry belongs to its
source files: when one of them changes, the entry is written again.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import shutil
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

log = logging.getLogger("clientwise")
FORMAT = 2  # increase it when a loader writes other arrays than before
MOST_BYTES = 2**30  # of a file that is read as a whole, unpacked


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
    paths = [Path(data_dir) / candidate for candidate in candidates]
    try:
        for path in paths:
            if path.exists():
                return path
    except OSError as error:
        folder = shortened(str(data_dir))
        raise DataError(
            f"{dataset}: the data folder cannot be read ({error.strerror}): {folder}"
        ) from None
    also = f" (or {' or '.join(candidates[1:])})" if len(candidates) > 1 else ""
    why = "" if Path(data_dir).is_dir() else f" ({data_dir} is not a folder)"
    raise DataError(f"{paths[0]}{also} is missing{why}; {get}")


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file of at most `most` bytes, unpacked if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({reason(error)}); get the file again") from None
    if len(content) > most:
        raise DataError(f"{path}: has more than {most:,} bytes; get the file again")
    return content


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
    """Images in a folder or in a zip archive."""

    MOST_PIXELS = 4096 * 4096  # of one picture

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path) if path.is_file() else None
            names = self._zip.namelist() if self._zip else map(str, path.rglob("*"))
        except Exception as error:
            raise DataError(
                f"{path}: cannot be read ({reason(error)}); get the file again"
            ) from None
        self.pictures = sorted(name for name in names if name.lower().endswith((".jpg", ".png")))
        self._paths = {PurePosixPath(name).name: name for name in self.pictures}

    def image(self, name: str, size: int | None) -> numpy.ndarray:
        """An image by its path or file name, as bytes [3, height, width], resized to `size`×`size`, if given."""
        path = self._paths.get(name, name)
        with needing("images", f"{self.path}: an image"):
            from PIL import Image
        try:
            content = self._zip.read(path) if self._zip else Path(path).read_bytes()
            # No format that starts other programs
            picture = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
            if picture.width * picture.height > self.MOST_PIXELS:
                raise ValueError(f"{picture.width}×{picture.height} pixels")
            colours = picture.convert("RGB")
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
    origin = _digest([str(source.resolve()) for source in sources], options)
    stamps = _digest([FORMAT], [_stamp(source) for source in sources])
    folder = cache_folder() / f"{name}-{origin}-{stamps}"
    if (found := _read(folder)) is not None:
        return found
    try:
        _write(folder, build)
    except OSError as error:
        where = Path(error.filename or folder)
        is_source = any(where.is_relative_to(source) for source in sources)
        hint = "" if is_source else f"; set CLIENTWISE_CACHE to a folder with room for {name}"
        raise DataError(f"{where}: {error.strerror or error}{hint}") from None
    for stale in cache_folder().glob(f"{name}-{origin}-*"):
        if stale != folder:
            shutil.rmtree(stale, ignore_errors=True)
    found = _read(folder)
    assert found is not None
    return found


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


def _read(folder: Path) -> dict[str, Tensor] | None:
    """The arrays of an entry; None if there is none or it is damaged."""
    if not folder.is_dir():
        return None
    try:
        return {path.stem: mapped(path) for path in sorted(folder.glob("*.npy"))}
    except (ValueError, EOFError, OSError):
        log.warning("%s: damaged, so it is written again", folder)
        shutil.rmtree(folder)
        return None


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


def _stamp(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of a file, or of every file in a folder."""
    files = [source] if source.is_file() else sorted(filter(Path.is_file, source.rglob("*")))
    stamps = []
    for path in files:
        facts = path.stat()
        stamps.append((str(path.relative_to(source.parent)), facts.st_size, facts.st_mtime_ns))
    return stamps


def _digest(*parts: Sequence[Any]) -> str:
    return hashlib.blake2b(repr([list(part) for part in parts]).encode(), digest_size=6).hexdigest()
