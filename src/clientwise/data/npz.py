"""NumPy files (.npz), read with limits: damaged or hostile ones end in a DataError that names them."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy
from numpy.lib import format as npy

from ..limits import gigabytes, memory
from .folder import DataError, reason

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path) -> dict[str, numpy.ndarray]:
    """The arrays of a file by name: numbers, at most as many as fit into memory beside a copy.

    Every array's header is checked against the size of its data before anything is allocated.
    """
    if path.exists() and not path.is_file():  # a device may never end
        raise DataError(f"{path}: not a file; numpy.savez writes one")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(member.file_size for member in members)
            if 2 * unpacked > memory():
                raise ValueError(
                    f"{gigabytes(unpacked)} unpacked, of {gigabytes(memory())} of memory"
                )
            for member in members:
                with archive.open(member) as file:
                    _check_header(member, file)
        with path.open("rb") as raw, numpy.load(raw) as arrays:
            return {name: _native(arrays[name]) for name in arrays.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # the content decides what the libraries raise
        raise DataError(
            f"{path}: not a NumPy file of arrays ({reason(error)}); numpy.savez writes such a file"
        ) from None


def inputs_and_targets(
    arrays: Mapping[str, numpy.ndarray], parts: Sequence[str], path: str | Path
) -> dict[str, tuple[numpy.ndarray, numpy.ndarray]]:
    """The arrays `{part}_inputs` and `{part}_targets` of every part.

    DataError where one is missing, or where a part has not as many targets as inputs.
    """
    names = [f"{part}_{kind}" for part in parts for kind in ("inputs", "targets")]
    if missing := [name for name in names if name not in arrays]:
        raise DataError(
            f"{path}: has no array {', '.join(missing)}; numpy.savez writes such a file"
        )
    for name in names:
        if not arrays[name].ndim:
            raise DataError(f"{path}: {name} is a single number; give one row for every sample")
    pairs = {part: (arrays[f"{part}_inputs"], arrays[f"{part}_targets"]) for part in parts}
    for part, (inputs, targets) in pairs.items():
        if len(inputs) != len(targets):
            found = f"{len(inputs):,} {part}_inputs, but {len(targets):,} {part}_targets"
            raise DataError(f"{path}: {found}; give as many of both")
    return pairs


def check_attributes(
    attributes: Mapping[str, numpy.ndarray], num_samples: int, path: str | Path
) -> None:
    """DataError unless every attribute has one value for every training sample."""
    for name, values in attributes.items():
        if values.shape != (num_samples,):
            raise DataError(
                f"{path}: {name} has shape {values.shape}, but there are {num_samples:,} training samples; "
                "give one number for each"
            )


def _check_header(member: zipfile.ZipInfo, file: IO[bytes]) -> None:
    """ValueError unless the member holds as many numbers as its header says."""
    name = member.filename.removesuffix(".npy")
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"{name} is of an unknown version of the format")
    shape, _, dtype = HEADERS[version](file)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"{name} is of type {dtype}, not of numbers of at most 8 bytes")
    expected = math.prod(shape) * dtype.itemsize
    found = member.file_size - file.tell()
    if found != expected:
        raise ValueError(f"{name} has {found:,} bytes of values, its header says {expected:,}")


def _native(array: numpy.ndarray) -> numpy.ndarray:
    """The array in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)
