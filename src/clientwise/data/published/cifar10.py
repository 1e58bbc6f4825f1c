"""CIFAR-10 in its binary version."""

from __future__ import annotations

from pathlib import Path

import numpy

from ...core.objective.problem import Classification
from ..cache import Writer, cached
from ..federated import DATASETS, Samples
from ..folder import DataError, find, read_file

FILES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
RECORDS = 10_000  # per file, each one byte of label and 3·32·32 bytes of colour
RECORD = 1 + 3 * 32 * 32
PER_CLASS = (5000, 1000)  # to train and to test on


@DATASETS.register("cifar10")
def cifar10(data_dir: Path | None) -> Samples:
    """60,000 colour images of 32×32 pixels in 10 classes (50,000 + official test 10,000), binary version."""
    get = "unpack the binary version of CIFAR-10 there (cifar-10-binary.tar.gz)"
    folders = ["cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"]
    folder = find(data_dir, "cifar10", folders, get)
    paths = [find(folder, "cifar10", [name], get) for name in FILES]

    def build(arrays: Writer) -> None:
        inputs = arrays.create("inputs", (len(FILES) * RECORDS, 3, 32, 32), numpy.uint8)
        targets = numpy.zeros((len(FILES), RECORDS), numpy.int64)
        for index, path in enumerate(paths):
            content = numpy.frombuffer(read_file(path, RECORDS * RECORD), numpy.uint8)
            if content.size != RECORDS * RECORD:
                raise DataError(
                    f"{path}: {RECORDS * RECORD:,} bytes expected, found {content.size:,}; get it again"
                )
            records = content.reshape(RECORDS, RECORD)
            targets[index] = records[:, 0]
            inputs[index * RECORDS : (index + 1) * RECORDS] = records[:, 1:].reshape(-1, 3, 32, 32)
        for part, per_class in zip((targets[:-1], targets[-1:]), PER_CLASS, strict=True):
            if numpy.bincount(part.flatten(), minlength=10).tolist() != [per_class] * 10:
                raise DataError(
                    f"{folder}: there are not {per_class:,} images of every class; get the files again"
                )
        arrays.save("targets", targets.flatten())

    arrays = cached("cifar10", paths, build)
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        Classification(10),
        scale=1 / 255,
        test_from=(len(FILES) - 1) * RECORDS,
    )
