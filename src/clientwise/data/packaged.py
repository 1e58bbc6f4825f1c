"""Files that come with other packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch
from torch import Tensor

from ..errors import needing


def digits_8x8() -> tuple[Tensor, Tensor]:
    """The digits of scikit-learn: 1,797 images [n, 1, 8, 8] of 0 to 16 as bytes, and their classes.

    scikit-learn itself is not imported: that takes seconds.
    """
    with needing("datasets", "digits"):
        path = package_folder("sklearn") / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(numpy.loadtxt(path, numpy.uint8, delimiter=","))
    return rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].long()


def package_folder(name: str) -> Path:
    """The folder of an installed package."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Path(found.origin).parent
