"""All datasets by name; importing this registers them. Nothing is downloaded.

They come with a package, or are read, as published, from the data folder. This file has a user's own arrays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...registry import PositiveFloat
from .. import table  # noqa: F401  it registers
from ..arrays import problem_of
from ..federated import DATASETS, Samples
from ..folder import DataError, find, mapped, reason
from . import images  # noqa: F401  it registers
from .handwriting import digits, mnist5k
from .tables import diabetes

__all__ = ["DATASETS", "DataError", "arrays", "diabetes", "digits", "mnist5k"]

Kind = Literal["classification", "regression", "survival", "multilabel", "segmentation"]
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TYPES = (*INTEGERS, torch.float16, torch.float32, torch.float64)
GET = "numpy.save writes such a file"


@DATASETS.register("arrays")
def arrays(
    data_dir: Path | None,
    *,
    folder: Path,
    scale: PositiveFloat = 1.0,
    problem: Kind | None = None,
) -> Samples:
    """Your own arrays, memory-mapped: `inputs.npy`, `targets.npy` and, optionally, `clients.npy`.

    Integer targets [N] are classes, [N, H, W] masks. Floats are values to predict, and [N, L] of 0 and 1 labels.

    Args:
        data_dir: the data folder.
        folder: the folder of the files, within the data folder.
        scale: the network is given inputs · scale; 1/255 for bytes of images.
        problem: what the targets are, where they do not show it.

    Returns:
        Samples with inputs [N, ...]; with `clients.npy` [N], the partition `by_id` divides them.
    """
    paths = find(data_dir, folder, GET, "inputs.npy", "targets.npy")
    clients = paths[0].with_name("clients.npy")
    paths += [clients] if clients.exists() else []
    inputs, truths, *ids = map(numbers_in, paths)
    for path, rows in zip(paths[1:], [truths, *ids], strict=True):
        if len(rows) != len(inputs):
            counts = f"{len(rows):,} rows, but inputs.npy has {len(inputs):,}"
            raise DataError(f"{path}: has {counts}; give one for each sample")
    try:
        targets, predicted = problem_of(truths, problem=problem)
    except ValueError as error:
        raise DataError(f"{paths[1]}: {error}") from None
    owners = ids[0].long() if ids else None
    samples = Samples(inputs, targets, predicted, scale=scale, ids=owners)
    samples.check_finite()
    return samples


def numbers_in(path: Path) -> Tensor:
    """The numbers in a file, one row for every sample, memory-mapped."""
    try:
        values = mapped(path)
        if values.dtype not in TYPES:
            raise TypeError(f"values of type {values.dtype}")
        if not values.ndim:
            raise ValueError("a single number, not one row for every sample")
    except Exception as error:  # the content decides what NumPy raises
        raise DataError(f"{path}: not an array of numbers ({reason(error)}); {GET}") from None
    return values
