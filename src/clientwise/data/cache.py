"""Datasets as memory-mapped arrays, so that they load fast and may be larger than memory.

The first load of a dataset reads and checks its published files and writes NumPy arrays into the cache folder
($CLIENTWISE_CACHE, or the user's cache folder); later loads map those. An entry belongs to its source files: when
one of them changes, the entry is written again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from ..limits import memory
from .folder import DataError

log = logging.getLogger("clientwise")
FORMAT = 1  # increase it when a loader writes other arrays than before


class Writer:
    """Writes the arrays of a loader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, name: str, array: numpy.ndarray) -> None:
        """Write an array that is in memory."""
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
    name: str, sources: Sequence[Path], build: Callable[[Writer], None], options: Sequence[Any] = ()
) -> dict[str, Tensor]:
    """The arrays of a dataset by name, memory-mapped.

    Args:
        name: of the dataset.
        sources: the files that the arrays are made from.
        build: makes the arrays, if they are not in the cache.
        options: what else the arrays depend on.
    """
    parent = cache_folder()
    origin = _digest([str(source.resolve()) for source in sources], options)
    folder = parent / f"{name}-{origin}-{_digest([FORMAT], [_stamp(source) for source in sources])}"
    found = _read(folder)
    if found is None:
        try:
            _write(folder, build)
        except OSError as error:
            where = Path(error.filename or folder)
            ours = not any(where.is_relative_to(source) for source in sources)
            room = f"; set CLIENTWISE_CACHE to a folder with room for {name}"
            hint = room if ours else ""
            raise DataError(f"{where}: {error.strerror or error}{hint}") from None
        for stale in parent.glob(f"{name}-{origin}-*"):
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
    files = (
        [source]
        if source.is_file()
        else sorted(path for path in source.rglob("*") if path.is_file())
    )
    return [
        (str(path.relative_to(source.parent)), (facts := path.stat()).st_size, facts.st_mtime_ns)
        for path in files
    ]


def _digest(*parts: Sequence[Any]) -> str:
    return hashlib.blake2b(repr([list(part) for part in parts]).encode(), digest_size=6).hexdigest()
