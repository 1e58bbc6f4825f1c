"""Handwritten digits from four sources."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ...core.objective.problem import Classification
from ...registry import Pixels, PositiveInt
from ..cache import Writer, cached
from ..federated import DATASETS, Given, Samples
from ..fingerprints import row_digests
from ..folder import DataError, find
from ..packaged import digits_8x8
from ..table import read_csv
from .mnist import mnist

DOMAINS = ("MNIST", "USPS", "Semeion", "scikit-learn")
USPS, SEMEION = {"zip.train": 7_291, "zip.test": 2_007}, 1_593  # digits
SIDE = 16  # of both, in pixels
MOST_BYTES = 2**26


@DATASETS.register("digit_domains")
def digit_domains(
    data_dir: Path | None, *, size: Pixels = 16, most: PositiveInt | None = None
) -> Samples:
    """Digits from four sources (MNIST, USPS, Semeion, scikit-learn) as images of size×size pixels.

    Each source is an id.

    Args:
        data_dir: the data folder.
        size: width and height to which images are resized.
        most: images of each source; all by default.
    """
    usps = [_usps_file(data_dir, name) for name in USPS]
    get = "it is the Semeion Handwritten Digit data of the UCI Machine Learning Repository"
    semeion = find(data_dir, "digit_domains", ["semeion/semeion.csv", "semeion/semeion.data"], get)
    originals = mnist(data_dir)

    def build(arrays: Writer) -> None:
        domains = [
            (originals.inputs / 255, originals.targets),
            _read_usps(usps),
            _read_semeion(semeion),
            _digits(),
        ]
        some = [_evenly(images, labels, most) for images, labels in domains]
        arrays.save("inputs", numpy.concatenate([_resized(images, size) for images, _ in some]))
        arrays.save("given", torch.cat([row_digests(images) for images, _ in some]).numpy())
        arrays.save("targets", numpy.concatenate([labels.numpy() for _, labels in some]))
        arrays.save(
            "ids", numpy.repeat(numpy.arange(len(DOMAINS)), [len(labels) for _, labels in some])
        )

    folder = find(
        data_dir, "digit_domains", ["mnist"], "put the four files of the MNIST database there"
    )
    arrays = cached("digit_domains", [folder, *usps, semeion], build, [size, most, "given"])
    problem = Classification(10)
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        problem,
        scale=1 / 255,
        ids=arrays["ids"],
        names=DOMAINS,
        given=Given((arrays["given"],)),
    )


def _usps_file(data_dir: Path | None, name: str) -> Path:
    get = "it belongs to the ZIP code data of The Elements of Statistical Learning"
    return find(data_dir, "digit_domains", [f"usps/{name}.gz", f"usps/{name}"], get)


def _read_usps(paths: list[Path]) -> tuple[Tensor, Tensor]:
    """Lines of a digit and 256 values from -1 to 1, with spaces between them and sometimes one at the end."""
    parts = [
        _numbers(path, count, 1 + SIDE**2, sep=r"\s+")
        for path, count in zip(paths, USPS.values(), strict=True)
    ]
    rows = numpy.concatenate(parts)
    if not numpy.isin(rows[:, 0], range(10)).all() or numpy.abs(rows[:, 1:]).max() > 1:
        raise DataError(
            f"{paths[0].parent}: not digits 0 to 9 and values from -1 to 1; get the files again"
        )
    return _images((rows[:, 1:] + 1) / 2), torch.from_numpy(rows[:, 0]).long()


def _read_semeion(path: Path) -> tuple[Tensor, Tensor]:
    """Rows of 256 bits and the class 1 to 10, 1 being the digit 0; or, as first published, ten bits for the digit."""
    separator = r"\s+" if path.suffix == ".data" else ","
    rows = _numbers(path, SEMEION, SIDE**2 + (10 if path.suffix == ".data" else 1), sep=separator)
    bits, last = rows[:, : SIDE**2], rows[:, SIDE**2 :]
    labels = last.argmax(1) if path.suffix == ".data" else last[:, 0] - 1
    if not numpy.isin(bits, (0, 1)).all() or not numpy.isin(labels, range(10)).all():
        raise DataError(f"{path}: not bits and classes; get the file again")
    return _images(bits), torch.from_numpy(labels).long()


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = digits_8x8()
    return images / 16, labels


def _numbers(path: Path, count: int, width: int, sep: str) -> numpy.ndarray:
    """The numbers [count, width] of a text file without head."""
    rows = read_csv(path, MOST_BYTES, sep=sep, header=None).dropna(axis="columns", how="all")
    if (
        rows.shape != (count, width)
        or any(kind.kind not in "if" for kind in rows.dtypes)
        or rows.isna().any(axis=None)
    ):
        found = f"{rows.shape[0]:,} rows of {rows.shape[1]}"
        raise DataError(
            f"{path}: {count:,} rows of {width} numbers expected, found {found}; get the file again"
        )
    numbers: numpy.ndarray = rows.to_numpy(numpy.float64)
    return numbers


def _images(pixels: numpy.ndarray) -> Tensor:
    return torch.from_numpy(pixels).float().reshape(-1, 1, SIDE, SIDE)


def _evenly(images: Tensor, labels: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """So many of them at most, taken at equal distances."""
    count = min(most or len(labels), len(labels))
    chosen = torch.arange(count) * len(labels) // count
    return images[chosen], labels[chosen]


def _resized(images: Tensor, size: int) -> numpy.ndarray:
    """Images [n, 1, size, size] in bytes."""
    parts = [
        interpolate(part, (size, size), mode="bilinear", antialias=True)
        for part in torch.split(images, 4096)
    ]
    return torch.cat(parts).mul(255).round().clamp(0, 255).byte().numpy()
