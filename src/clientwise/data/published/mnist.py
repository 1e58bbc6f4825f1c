"""MNIST from its idx files, and the writer of every digit from QMNIST's."""

from __future__ import annotations

import math
from pathlib import Path

import numpy

from ...core.objective.problem import Classification
from ..cache import Writer, cached
from ..federated import DATASETS, Samples
from ..folder import DataError, find, read_file

PARTS = {"train": 60_000, "t10k": 10_000}
CLASS_COUNTS = {  # so that a file of the right size with other digits in it is noticed
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "t10k": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
WRITER_FILES = ("qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int")
MOST_BYTES = 64 * 2**20  # of a file: 60,000 images are 47 million
_TYPES = {0x08: ">u1", 0x0C: ">i4"}


@DATASETS.register("mnist")
def mnist(data_dir: Path | None) -> Samples:
    """70,000 handwritten digits of 28×28 pixels (60,000 + official test 10,000), from the idx files of MNIST.

    With QMNIST's label files beside them, each writer is an id.
    """
    get = "put the four files of the MNIST database there"
    images = [_file(data_dir, f"{part}-images-idx3-ubyte", get) for part in PARTS]
    labels = [_file(data_dir, f"{part}-labels-idx1-ubyte", get) for part in PARTS]
    writers = _writer_files(images[0].parent)

    def build(arrays: Writer) -> None:
        inputs, targets = [_read_idx(path) for path in images], [_read_idx(path) for path in labels]
        for index, part in enumerate(PARTS):
            _check(images[index], labels[index], part, inputs[index], targets[index])
        arrays.save("inputs", numpy.concatenate(inputs)[:, None])
        arrays.save("targets", numpy.concatenate(targets).astype(numpy.int64))
        if writers:
            pairs = zip(writers, targets, strict=True)
            arrays.save(
                "ids", numpy.concatenate([_read_writers(path, known) for path, known in pairs])
            )

    arrays = cached("mnist", [*images, *labels, *writers], build)
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        Classification(10),
        scale=1 / 255,
        ids=arrays.get("ids"),
        test_from=PARTS["train"],
    )


def _file(data_dir: Path | None, name: str, get: str) -> Path:
    return find(data_dir, "mnist", [f"mnist/{name}.gz", f"mnist/{name}"], get)


def _writer_files(folder: Path) -> list[Path]:
    """QMNIST's files, if both are there; each may be packed or not, or both."""
    found = []
    for name in WRITER_FILES:
        there = [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]
        if not there:
            return []
        found.append(there[0])
    return found


def _check(
    pictures: Path, names: Path, part: str, images: numpy.ndarray, labels: numpy.ndarray
) -> None:
    count = PARTS[part]
    if images.shape != (count, 28, 28) or images.dtype != numpy.uint8:
        raise DataError(
            f"{pictures}: expected {count:,} images of 28×28 bytes, found {images.shape}; get it again"
        )
    if labels.shape != (count,) or labels.dtype != numpy.uint8:
        raise DataError(
            f"{names}: expected {count:,} labels of one byte, found {labels.shape}; get the file again"
        )
    if numpy.bincount(labels, minlength=10).tolist() != CLASS_COUNTS[part]:
        raise DataError(f"{names}: the labels of {part} are not those of MNIST; get the file again")


def _read_writers(path: Path, labels: numpy.ndarray) -> numpy.ndarray:
    """The writer of every digit: the third column. QMNIST's test set has more rows, MNIST's digits first."""
    rows = _read_idx(path)
    if (
        rows.ndim != 2
        or rows.shape[1] < 3
        or len(rows) < len(labels)
        or (rows[: len(labels), 0] != labels).any()
    ):
        raise DataError(
            f"{path}: is not about these digits; put QMNIST's extended labels there, or nothing"
        )
    return rows[: len(labels), 2].astype(numpy.int64)


def _read_idx(path: Path) -> numpy.ndarray:
    """An array from an idx file: two zero bytes, type, number of dimensions, the dimensions, the values."""
    content = read_file(path, MOST_BYTES)
    if (
        len(content) < 4
        or content[:2] != b"\x00\x00"
        or content[2] not in _TYPES
        or len(content) < 4 + 4 * content[3]
    ):
        raise DataError(f"{path}: not an idx file of bytes or integers; get the file again")
    kind, start = numpy.dtype(_TYPES[content[2]]), 4 + 4 * content[3]
    shape = numpy.frombuffer(content, ">u4", count=content[3], offset=4).tolist()
    wanted, found = math.prod(shape), len(content) - start
    if wanted * kind.itemsize != found:
        raise DataError(
            f"{path}: cut off; it should hold {wanted:,} values and has {found:,} bytes; get it again"
        )
    return numpy.frombuffer(content, kind, offset=start).reshape(shape)
