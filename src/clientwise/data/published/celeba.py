"""CelebA: faces, their forty attributes and whose they are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy

from ...core.objective.problem import Classification
from ...errors import shortened
from ...registry import Pixels, suggest
from ..cache import Writer, cached
from ..federated import DATASETS, Samples
from ..folder import (
    Archive,
    DataError,
    find,
    read_file,
)

ALL_IMAGES, ALL_IDENTITIES = 202_599, 10_177
MOST_TEXT, MOST_PICTURES = 2**26, 2**32  # bytes: published are 27 million and 1.4 billion
_NUMBER = re.compile("[0-9]{1,9}")


@DATASETS.register("celeba")
def celeba(data_dir: Path | None, *, target: str = "Smiling", size: Pixels = 64) -> Samples:
    """Faces of celebrities (CelebA, aligned) of size×size pixels; one of 40 attributes is the target.

    All attributes are sample attributes, -1 or 1. Each celebrity is an id.

    Args:
        data_dir: the data folder.
        target: the attribute to predict.
        size: width and height to which images are resized.
    """
    get = "it belongs to the CelebA dataset (aligned and cropped images, attribute and identity annotations)"
    pictures = find(
        data_dir, "celeba", ["celeba/img_align_celeba", "celeba/img_align_celeba.zip"], get
    )
    attributes = find(data_dir, "celeba", ["celeba/list_attr_celeba.txt"], get)
    identities = find(data_dir, "celeba", ["celeba/identity_CelebA.txt"], get)

    def build(arrays: Writer) -> None:
        names, values = _read_attributes(attributes)
        arrays.save("attributes", values)
        arrays.save("ids", _read_identities(identities, names))
        archive = Archive(pictures, MOST_PICTURES)
        there = archive.paths_by_name()
        if missing := [name for name in names if name not in there]:
            raise DataError(
                f"{pictures}: {len(missing):,} of {len(names):,} images are missing, {missing[0]} for one; {get}"
            )
        inputs = arrays.create("inputs", (len(names), 3, size, size), numpy.uint8)
        for index, name in enumerate(names):
            inputs[index] = archive.image(there[name], size)

    known = _attribute_names(attributes)
    if target not in known:
        hint = suggest(target, known) or "; get the file again"
        raise DataError(f"{attributes}: no attribute {target!r}{hint}")
    arrays = cached("celeba", [attributes, identities, pictures], build, [size])
    facts = {
        name: arrays["attributes"][:, column] for column, name in enumerate(known)
    }  # -1 or 1, as published
    return Samples(
        arrays["inputs"],
        (facts[target] > 0).long(),
        Classification(2),
        scale=1 / 255,
        sample_attributes=facts,
        ids=arrays["ids"],
    )


def _lines(path: Path) -> list[str]:
    try:
        return read_file(path, MOST_TEXT).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file of CelebA; get it again") from None


def _attribute_names(path: Path) -> list[str]:
    return "".join(_lines(path)[1:2]).split()


def _read_attributes(path: Path) -> tuple[list[str], numpy.ndarray]:
    """File names [N] and attributes [N, A]: a line with N, a line with the names of the attributes, N lines."""
    count, attributes, *lines = _lines(path)
    rows = [line.split() for line in lines]
    width = len(attributes.split())
    if (
        count.strip() != str(len(rows))
        or {len(row) for row in rows} != {width + 1}
        or len(rows) > ALL_IMAGES
    ):
        announced = f"{shortened(count, 20)!r} images of {width} attributes announced"
        raise DataError(
            f"{path}: {announced}, {len(rows):,} lines, {ALL_IMAGES:,} at most; get it again"
        )
    if {value for row in rows for value in row[1:]} - {"-1", "1"}:
        raise DataError(f"{path}: an attribute is neither -1 nor 1; get the file again")
    return [row[0] for row in rows], numpy.array([row[1:] for row in rows], numpy.int8)


def _read_identities(path: Path, names: list[str]) -> numpy.ndarray:
    """Whose face is on every image [N]."""
    whose = {name: identity for name, _, identity in (line.partition(" ") for line in _lines(path))}
    missing = [name for name in names if not _NUMBER.fullmatch(whose.get(name, "").strip())]
    if missing:
        raise DataError(
            f"{path}: has no identity for {missing[0]} and {len(missing) - 1:,} others; get it again"
        )
    ids = numpy.array([int(whose[name]) for name in names], numpy.int64)
    if len(names) == ALL_IMAGES and len(numpy.unique(ids)) != ALL_IDENTITIES:
        raise DataError(
            f"{path}: {ALL_IDENTITIES:,} identities expected, found {len(numpy.unique(ids)):,}"
        )
    return ids
