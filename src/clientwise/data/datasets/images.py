"""Published images: CIFAR-10, faces, and cells under the microscope."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy
import torch
from annotated_types import Gt, Le
from torch import Tensor

from ...core.objective.problem import Regression
from ...registry import Pixels, suggest
from ..federated import DATASETS, FederatedData, Given, Holdings, Samples
from ..folder import Archive, DataError, Writer, cached, expect, find, read_file
from ..table import parse_csv
from .handwriting import pictures

# CIFAR-10
FILES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
RECORDS = 10_000  # per file, each one byte of label and 3·32·32 bytes of colour
RECORD = 1 + 3 * 32 * 32
PER_CLASS = (5000, 1000)  # to train and to test on

# Malaria
CLASSES = ("Uninfected", "Parasitized")
PER_KIND, PATIENTS = 13_779, 200
# C100P61ThinF_IMG_..._cell_162: slide 100, patient 61
SLIDE = re.compile(r"C([0-9]{1,9})[AB]?(?:P([0-9]{1,9}))?")
HEALTHY = 1000  # slides without a patient's number are of healthy people, one each: HEALTHY + slide

# VGG cells: images, their width and height, fewest and most cells
COUNT, SIZE, LEAST, MOST = 200, 256, 74, 317
Side = Annotated[int, Gt(0), Le(256)]
SIGMA, DENSITY = 1.0, 100.0  # of the Gaussian for each cell in pixels, and its sum


@DATASETS.register("cifar10")
def cifar10(data_dir: Path | None) -> Samples:
    """60,000 colour images of 32×32 pixels in 10 classes (50,000 + official test 10,000), binary version."""
    get = "unpack the binary version of CIFAR-10 there (cifar-10-binary.tar.gz)"
    names = [f"cifar-10-batches-bin/{name}" for name in FILES]
    paths = find(data_dir, "cifar10", get, *names)

    def build(arrays: Writer) -> None:
        contents = [numpy.frombuffer(read_file(path), numpy.uint8) for path in paths]
        wanted = RECORDS * RECORD
        for path, content in zip(paths, contents, strict=True):
            said = f"{wanted:,} bytes expected, found {content.size:,}"
            expect(content.size == wanted, path, said)
        records = numpy.concatenate(contents).reshape(-1, RECORD)
        labels = records[:, 0].astype(numpy.int64)
        for part, count in zip(numpy.split(labels, [-RECORDS]), PER_CLASS, strict=True):
            is_whole = numpy.bincount(part, minlength=10).tolist() == [count] * 10
            expect(is_whole, paths[0].parent, f"there are not {count:,} images of every class")
        arrays.save(inputs=records[:, 1:].reshape(-1, 3, 32, 32), targets=labels)

    arrays = cached("cifar10", paths, build)
    return pictures(arrays, 10, test_from=(len(FILES) - 1) * RECORDS)


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
    names = ("img_align_celeba.zip", "list_attr_celeba.txt", "identity_CelebA.txt")
    source, attributes, identities = find(data_dir, "celeba", get, *names)

    # A line with N, a line with the names of the attributes, N lines
    known = parse_csv(attributes, sep=r"\s+", skiprows=1, nrows=0).columns.tolist()
    if target not in known:
        raise DataError(f"{attributes}: no attribute {target!r}{suggest(target, known)}")

    def build(arrays: Writer) -> None:
        announced = parse_csv(attributes, header=None, nrows=1).iloc[0, 0]
        rows = parse_csv(attributes, sep=r"\s+", skiprows=1, index_col=None)
        is_whole = announced == len(rows) and rows.isin([-1, 1]).all(axis=None)
        said = f"{announced} images of attributes -1 and 1 announced, {len(rows):,} lines"
        expect(is_whole, attributes, said)
        whose = parse_csv(identities, sep=r"\s+", names=["image", "id"]).set_index("image")["id"]
        is_known = (
            whose.index.is_unique and whose.dtype.kind == "i" and rows.index.isin(whose.index).all()
        )
        expect(is_known, identities, "has no identity for every image")
        ids = whose[rows.index].to_numpy()
        arrays.save(attributes=rows.to_numpy(numpy.int8), ids=ids)
        _save_images(arrays, Archive(source), rows.index.tolist(), size)

    arrays = cached("celeba", [attributes, identities, source], build, size)
    facts = {name: arrays["attributes"][:, column] for column, name in enumerate(known)}
    is_so = (facts[target] > 0).long()
    return pictures({**arrays, "targets": is_so}, 2, sample_attributes=facts)


def _save_images(arrays: Writer, archive: Archive, names: Sequence[str], size: int) -> None:
    inputs = arrays.create("inputs", (len(names), 3, size, size), numpy.uint8)
    for index, name in enumerate(names):
        inputs[index] = archive.image(name, size)


@DATASETS.register("malaria")
def malaria(data_dir: Path | None, *, size: Pixels = 64) -> Samples:
    """27,558 images of blood cells of size×size pixels, half of them with parasites (NIH malaria).

    Each of the 200 people is an id.

    Args:
        data_dir: the data folder.
        size: width and height to which images are resized.
    """
    get = "it is the cell image dataset of the NIH (National Library of Medicine) malaria screener, cell_images.zip"
    (source,) = find(data_dir, "malaria", get, "cell_images.zip")

    def build(arrays: Writer) -> None:
        archive = Archive(source)
        names: list[str] = []
        for kind in CLASSES:
            names += [name for name in archive.pictures if PurePosixPath(name).parent.name == kind]
        found = [SLIDE.match(PurePosixPath(name).name) for name in names]
        slides = [one.groups() for one in found if one]  # others are no ids, and are counted below
        ids = [int(patient) if patient else HEALTHY + int(slide) for slide, patient in slides]
        said = f"{2 * PER_KIND:,} images of {PATIENTS} people expected, found {len(ids):,} of {len({*ids})}"
        expect(
            (len(names), len(ids), len({*ids})) == (2 * PER_KIND, 2 * PER_KIND, PATIENTS),
            source,
            said,
        )
        _save_images(arrays, archive, names, size)
        targets = numpy.repeat(numpy.arange(2), PER_KIND)
        arrays.save(targets=targets, ids=numpy.array(ids))

    arrays = cached("malaria", [source], build, size)
    return pictures(arrays, 2)


@DATASETS.register("vgg_cells")
def vgg_cells(data_dir: Path | None, *, size: Side = SIZE, augment: bool = True) -> Samples:
    """200 synthetic microscope images (VGG cells); the target is an image whose sum is 100 × number of cells.

    It has a Gaussian for each cell, with a standard deviation of one pixel.

    Args:
        data_dir: the data folder.
        size: width and height to which images are resized.
        augment: whether every image comes in eight rotations and reflections (P3 3.B). All eight have
            the same holder.
    """
    get = "it is the synthetic fluorescence cell dataset of the VGG group (Lempitsky and Zisserman), cells.zip"
    (source,) = find(data_dir, "vgg_cells", get, "cells.zip")

    def build(arrays: Writer) -> None:
        from scipy.ndimage import gaussian_filter

        archive = Archive(source)
        numbers = [f"{number + 1:03}" for number in range(COUNT)]
        _save_images(arrays, archive, [f"{number}cell.png" for number in numbers], size)
        dots = [archive.image(f"{number}dots.png", SIZE)[0] for number in numbers]  # red ones
        marked = numpy.stack(dots) > 0
        counts = marked.sum((1, 2))
        found = (int(counts.min()), int(counts.max()))
        said = f"{LEAST} to {MOST} cells per image expected, found {found[0]} to {found[1]}"
        expect(found == (LEAST, MOST), source, said)
        targets = arrays.create("targets", (COUNT, size, size), numpy.float32)
        for index, image in enumerate(marked):
            rows, columns = (places * size // SIZE for places in numpy.nonzero(image))
            target = numpy.zeros((size, size))
            numpy.add.at(target, (rows, columns), DENSITY)
            # Reflected at the border, so that no part of a cell is lost and the sum stays what it is.
            targets[index] = gaussian_filter(target, SIGMA, mode="reflect")
        arrays.save(count=counts.astype(float), given=marked)

    arrays = cached("vgg_cells", [source], build, size, SIGMA, DENSITY)
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        Regression(sums=True),
        scale=1 / 255,
        sample_attributes={"count": arrays["count"]},
        after_partition=_augmented if augment else None,
        each_alone=True,
        given=Given((arrays["inputs"], arrays["given"])),
    )


def _augmented(data: FederatedData) -> FederatedData:
    """Every sample in eight orientations: sample n becomes the samples 8n to 8n + 7, of the same holder."""
    samples = data.samples
    eightfold = torch.arange(len(samples.targets)).repeat_interleave(8)

    def expanded(held: Holdings) -> Holdings:
        indices = (8 * held.indices[:, None] + torch.arange(8)).flatten()
        return Holdings(indices, eight_ways(held.targets), 8 * held.offsets)

    many = samples.picked(eightfold, eight_ways(samples.inputs))
    many = replace(many, targets=eight_ways(samples.targets))
    return replace(data.changed(expanded), samples=many)


def eight_ways(images: Tensor) -> Tensor:
    """Images [n, ..., H, H] turned by 0°, 90°, 180°, 270°, and the same reflected: [8n, ..., H, H].

    >>> eight_ways(torch.tensor([[[1, 2], [3, 4]]])).flatten(1).unique(dim=0).shape
    torch.Size([8, 4])
    """
    turned = [torch.rot90(images, turns, (-2, -1)) for turns in range(4)]
    return torch.stack([*turned, *(image.flip(-1) for image in turned)], 1).flatten(0, 1)
