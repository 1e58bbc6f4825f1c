"""VGG cells: synthetic microscope images, in which cells are to be counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ...core.objective.problem import Regression
from ..cache import Writer, cached
from ..federated import (
    DATASETS,
    FederatedData,
    Given,
    Holdings,
    Samples,
)
from ..fingerprints import row_digests
from ..folder import Archive, DataError, find

# Images, their width and height, fewest and most cells
COUNT, SIZE, LEAST, MOST = (
    200,
    256,
    74,
    317,
)
Side = Annotated[int, Gt(0), Le(SIZE)]
Spread = Annotated[float, Ge(0), Le(SIZE)]
MOST_PICTURES = 2**28  # bytes: published are 20 million


@DATASETS.register("vgg_cells")
def vgg_cells(
    data_dir: Path | None,
    *,
    size: Side = SIZE,
    sigma: Spread = 1.0,
    density: Annotated[float, Gt(0), Le(1e6)] = 100.0,
    augment: bool = True,
) -> Samples:
    """200 synthetic microscope images (VGG cells); the target is an image whose sum is `density` × number of cells.

    Args:
        data_dir: the data folder.
        size: width and height to which images are resized.
        sigma: standard deviation in pixels of the Gaussian for each cell; 0 makes it a dot.
        density: sum of the target for one cell.
        augment: whether every image comes in eight rotations and reflections (P3 3.B). All eight have
            the same holder.
    """
    get = "it is the synthetic fluorescence cell dataset of the VGG group (Lempitsky and Zisserman), cells.zip"
    source = find(data_dir, "vgg_cells", ["vgg_cells/cells", "vgg_cells/cells.zip"], get)

    def build(arrays: Writer) -> None:
        from scipy.ndimage import gaussian_filter

        archive = Archive(source, MOST_PICTURES)
        there = archive.paths_by_name()
        inputs = arrays.create("inputs", (COUNT, 3, size, size), numpy.uint8)
        targets = arrays.create("targets", (COUNT, size, size), numpy.float32)
        counts = numpy.zeros(COUNT)
        dotted = numpy.zeros((COUNT, SIZE, SIZE), bool)
        for index in range(COUNT):
            names = [f"{index + 1:03}{kind}.png" for kind in ("cell", "dots")]
            if missing := [name for name in names if name not in there]:
                raise DataError(f"{source}: {missing[0]} is missing; {get}")
            inputs[index] = archive.image(there[names[0]], size)
            red = archive.image(there[names[1]], None)[0]  # a red pixel per cell
            if red.shape != (SIZE, SIZE):
                raise DataError(f"{source}: {names[1]} is not {SIZE}×{SIZE} pixels; {get}")
            rows, columns = numpy.nonzero(red)
            counts[index] = len(rows)
            dotted[index] = red > 0
            dots = numpy.zeros((size, size))
            numpy.add.at(dots, (rows * size // SIZE, columns * size // SIZE), density)
            # Reflected at the border, so that no part of a cell is lost and the sum stays what it is.
            targets[index] = gaussian_filter(dots, sigma, mode="reflect") if sigma else dots
        if (counts.min(), counts.max()) != (LEAST, MOST):
            found = f"{counts.min():.0f} to {counts.max():.0f}"
            raise DataError(
                f"{source}: {LEAST} to {MOST} cells per image expected, found {found}; {get}"
            )
        arrays.save("count", counts)
        arrays.save("given", row_digests(torch.from_numpy(dotted)).numpy())

    arrays = cached("vgg_cells", [source], build, [size, sigma, density, "given"])
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

    def expanded(held: Holdings | None) -> Holdings | None:
        if held is None:
            return None
        indices = (8 * held.indices[:, None] + torch.arange(8)).flatten()
        return Holdings(indices, eight_ways(held.targets), 8 * held.offsets)

    train, test = expanded(data.train), expanded(data.test)
    assert train is not None
    assert test is not None
    assert samples.given is not None
    eightfold = torch.arange(len(samples.targets)).repeat_interleave(8)
    return replace(
        data,
        samples=replace(
            samples,
            inputs=eight_ways(samples.inputs),
            targets=eight_ways(samples.targets),
            sample_attributes={
                name: values.repeat_interleave(8)
                for name, values in samples.sample_attributes.items()
            },
            given=samples.given.of(eightfold),
        ),
        train=train,
        test=test,
        weigh=expanded(data.weigh),
        report=expanded(data.report),
    )


def eight_ways(images: Tensor) -> Tensor:
    """Images [n, ..., H, H] turned by 0°, 90°, 180°, 270°, and the same reflected: [8n, ..., H, H].

    >>> eight_ways(torch.tensor([[[1, 2], [3, 4]]])).flatten(1).unique(dim=0).shape
    torch.Size([8, 4])
    """
    turned = [torch.rot90(images, turns, (-2, -1)) for turns in range(4)]
    return torch.stack([*turned, *(image.flip(-1) for image in turned)], 1).flatten(0, 1)
