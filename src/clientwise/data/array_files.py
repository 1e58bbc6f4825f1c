"""Arrays of a user's own in NumPy files. They are memory-mapped, so they may be larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..registry import PositiveFloat
from .arrays import problem_of
from .cache import mapped
from .federated import DATASETS, Samples
from .folder import DataError, find, reason

Kind = Literal["classification", "regression", "survival", "multilabel", "segmentation"]
TYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
)
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
    inputs = _numbers(find(data_dir, "arrays", [f"{folder}/inputs.npy"], GET))
    found = _numbers(find(data_dir, "arrays", [f"{folder}/targets.npy"], GET))
    owners = Path(str(data_dir)) / folder / "clients.npy"
    ids = _numbers(owners).long() if owners.exists() else None
    for name, values in {"targets.npy": found, "clients.npy": ids}.items():
        if values is not None and len(values) != len(inputs):
            raise DataError(
                f"{owners.with_name(name)}: has {len(values):,} rows, but inputs.npy has "
                f"{len(inputs):,}; give one for each sample"
            )
    try:
        targets, predicted = problem_of(found, None, False, problem)
    except ValueError as error:
        raise DataError(f"{owners.with_name('targets.npy')}: {error}") from None
    samples = Samples(inputs, targets, predicted, scale=scale, ids=ids)
    samples.check_finite()
    return samples


def _numbers(path: Path) -> Tensor:
    """The numbers in a file, one row for every sample."""
    try:
        values = mapped(path)
        if values.dtype not in TYPES:
            raise TypeError(f"values of type {values.dtype}")
        if not values.ndim:
            raise ValueError("a single number, not one row for every sample")
    except Exception as error:  # the content decides what NumPy raises
        raise DataError(f"{path}: not an array of numbers ({reason(error)}); {GET}") from None
    return values
