"""NIH malaria: blood cells with and without parasites, by patient."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import numpy

from ...core.objective.problem import Classification
from ...registry import Pixels
from ..cache import Writer, cached
from ..federated import DATASETS, Samples
from ..folder import Archive, DataError, find

CLASSES = ("Uninfected", "Parasitized")
PER_CLASS, PEOPLE = 13_779, 200
MOST_PICTURES = 2**30  # bytes: published are 340 million
# C100P61ThinF_IMG_..._cell_162: slide 100, patient 61
_SLIDE = re.compile(r"C([0-9]{1,9})[AB]?(?:P([0-9]{1,9}))?")
HEALTHY = 1000  # slides without a patient's number are of healthy people, one each: HEALTHY + slide


@DATASETS.register("malaria")
def malaria(data_dir: Path | None, *, size: Pixels = 64) -> Samples:
    """27,558 images of blood cells of size×size pixels, half of them with parasites (NIH malaria).

    Each of the 200 people is an id.

    Args:
        data_dir: the data folder.
        size: width and height to which images are resized.
    """
    get = "it is the cell image dataset of the NIH (National Library of Medicine) malaria screener, cell_images.zip"
    source = find(data_dir, "malaria", ["malaria/cell_images", "malaria/cell_images.zip"], get)

    def build(arrays: Writer) -> None:
        archive = Archive(source, MOST_PICTURES)
        by_class = [
            [name for name in archive.pictures if PurePosixPath(name).parent.name == kind]
            for kind in CLASSES
        ]
        for kind, names in zip(CLASSES, by_class, strict=True):
            if len(names) != PER_CLASS:
                raise DataError(
                    f"{source}: {PER_CLASS:,} images expected in {kind}/, found {len(names):,}; {get}"
                )
        names = [name for names in by_class for name in names]
        inputs = arrays.create("inputs", (len(names), 3, size, size), numpy.uint8)
        for index, name in enumerate(names):
            inputs[index] = archive.image(name, size)
        arrays.save("targets", numpy.repeat(numpy.arange(2), PER_CLASS))
        ids = numpy.array([_patient(source, name) for name in names], numpy.int64)
        if len(numpy.unique(ids)) != PEOPLE:
            raise DataError(
                f"{source}: {PEOPLE} people expected, found {len(numpy.unique(ids))}; {get}"
            )
        arrays.save("ids", ids)

    arrays = cached("malaria", [source], build, [size])
    return Samples(
        arrays["inputs"], arrays["targets"], Classification(2), scale=1 / 255, ids=arrays["ids"]
    )


def _patient(source: Path, name: str) -> int:
    """Whose cell it is, from the file's name."""
    found = _SLIDE.match(PurePosixPath(name).name)
    if found is None:
        raise DataError(
            f"{source}: {name} does not begin with slide and patient, as in C100P61ThinF; get it again"
        )
    slide, patient = found.groups()
    return int(patient) if patient else HEALTHY + int(slide)
