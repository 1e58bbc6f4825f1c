"""FEMNIST as LEAF writes it: JSON files of users and what they wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy

from ...core.objective.problem import Classification
from ..cache import Writer, cached
from ..federated import DATASETS, Samples
from ..folder import (
    DataError,
    find,
    read_file,
    reason,
)

NUM_CLASSES, PIXELS = 62, 28 * 28
MOST_BYTES = 2**29  # of a file, which LEAF fills with a hundred writers
GET = (
    "you need your own copy: LEAF's data/femnist/preprocess.sh writes it (train/ and test/ with "
    "-t sample, all_data/ without a split)"
)


@DATASETS.register("femnist")
def femnist(data_dir: Path | None) -> Samples:
    """Handwritten letters and digits of 28×28 pixels in 62 classes, from your own copy of LEAF's JSON files.

    Each writer is an id.
    """
    train = find(
        data_dir,
        "femnist",
        ["femnist/train", "femnist/data/train", "femnist/all_data", "femnist/data/all_data"],
        GET,
    )
    test = train.with_name("test")
    folders = [train, test] if train.name == "train" and test.is_dir() else [train]

    def build(arrays: Writer) -> None:
        writers: dict[str, int] = {}  # numbers in the order of appearance
        parts = [_read_folder(folder, writers) for folder in folders]
        for index, name in enumerate(("inputs", "targets", "ids")):
            arrays.save(name, numpy.concatenate([part[index] for part in parts]))
        arrays.save("sizes", numpy.array([len(part[1]) for part in parts]))

    arrays = cached("femnist", folders, build)
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        Classification(NUM_CLASSES),
        scale=1 / 255,
        ids=arrays["ids"],
        test_from=int(arrays["sizes"][0]) if len(folders) > 1 else None,
    )


def _read_folder(folder: Path, writers: dict[str, int]) -> list[numpy.ndarray]:
    """Images, classes and writers of all files; every user must have as many samples as the file announces."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: has no JSON files; {GET}")
    images, labels, ids = [], [], []
    for path in files:
        text = read_file(path, MOST_BYTES)
        try:
            content = json.loads(text)
            announced = zip(content["users"], content["num_samples"], strict=True)
            for user, count in announced:
                own = content["user_data"][user]
                if count == 0 and own == {"x": [], "y": []}:  # a writer of the other split alone
                    continue
                pixels = numpy.array(own["x"], numpy.float32)
                classes = numpy.array(own["y"], numpy.int64)
                if pixels.shape != (count, PIXELS) or classes.shape != (count,):
                    raise ValueError(
                        f"{user} should have {count} images of {PIXELS} pixels and as many classes"
                    )
                if count and (classes.min() < 0 or classes.max() >= NUM_CLASSES):
                    raise ValueError(f"{user} has a class that is not 0 to {NUM_CLASSES - 1}")
                if not ((pixels >= 0) & (pixels <= 1)).all():
                    raise ValueError(f"{user} has a pixel that is not between 0 and 1")
                images.append((255 * pixels).round().astype(numpy.uint8).reshape(-1, 1, 28, 28))
                labels.append(classes)
                ids.append(numpy.full(count, writers.setdefault(user, len(writers)), numpy.int64))
        except Exception as error:  # whatever JSON holds instead of users, numbers and arrays
            raise DataError(
                f"{path}: not a data file of LEAF ({reason(error)}); get it again"
            ) from None
    if not sum(map(len, labels)):
        raise DataError(f"{folder}: its files hold no samples; {GET}")
    return [numpy.concatenate(part) for part in (images, labels, ids)]
