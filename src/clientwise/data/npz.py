"""NumPy files (.npz) of a federation's members: damaged ones end in a DataError that names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy

from .folder import DataError, reason

WRITES = "numpy.savez writes such a file"


def read_npz(path: Path) -> dict[str, numpy.ndarray]:
    """The arrays of a file by name: numbers, in this machine's byte order."""
    try:
        with path.open("rb") as raw, numpy.load(raw) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        for name, array in found.items():
            if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise ValueError(
                    f"{name} is of type {array.dtype}, not of numbers of at most 8 bytes"
                )
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # the content decides what the libraries raise
        raise DataError(f"{path}: not a NumPy file of arrays ({reason(error)}); {WRITES}") from None
    return {
        name: array.astype(array.dtype.newbyteorder("="), copy=False)
        for name, array in found.items()
    }


def inputs_and_targets(
    arrays: Mapping[str, numpy.ndarray], parts: Sequence[str], path: str | Path
) -> dict[str, tuple[numpy.ndarray, numpy.ndarray]]:
    """The arrays `{part}_inputs` and `{part}_targets` of every part, which have as many rows."""
    pairs = {}
    for part in parts:
        names = (f"{part}_inputs", f"{part}_targets")
        if missing := [name for name in names if name not in arrays]:
            raise DataError(f"{path}: has no array {', '.join(missing)}; {WRITES}")
        inputs, targets = (arrays[name] for name in names)
        if inputs.shape[:1] != targets.shape[:1] or not inputs.ndim:
            shapes = f"{names[0]} of shape {inputs.shape}, {names[1]} of {targets.shape}"
            raise DataError(f"{path}: has {shapes}; give one row for every sample")
        pairs[part] = (inputs, targets)
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
