"""Transforms: random changes of every training batch (data augmentation). Evaluation does not use them.

A transform is a function of the inputs of a batch [B, ...], as the network gets them. It may draw from
PyTorch's default generator, from `numpy.random` and from `random`: all three are seeded for every client
and round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..registry import Declaration, PositiveFloat, PositiveInt, Registry

Transform = Callable[..., Any]
TRANSFORMS: Registry[Transform] = Registry(
    "transform", "transforms", "Random changes of training batches (data augmentation)"
)


@dataclass(frozen=True)
class TransformDeclaration(Declaration):
    """What the config must know about a transform."""

    moves_pixels: bool = False  # inputs must be images, and targets must not


@TRANSFORMS.register("flip", TransformDeclaration(moves_pixels=True))
def flip(inputs: Tensor) -> Tensor:
    """Mirror each image horizontally with probability 1/2.

    Args:
        inputs: images [B, ..., height, width].
    """
    _refuse_no_images("flip", inputs)
    mirrored = torch.rand(len(inputs), device=inputs.device) < 0.5
    return torch.where(_per_sample(mirrored, inputs), inputs.flip(-1), inputs)


@TRANSFORMS.register("shift", TransformDeclaration(moves_pixels=True))
def shift(inputs: Tensor, *, pixels: PositiveInt = 4) -> Tensor:
    """Shift each image by up to `pixels` in both directions; the border becomes 0 (a random crop).

    Args:
        inputs: images [B, ..., height, width].
        pixels: the largest shift.
    """
    _refuse_no_images("shift", inputs)
    batch, device = len(inputs), inputs.device
    height, width = inputs.shape[-2:]
    padded = torch.nn.functional.pad(inputs, (pixels,) * 4)
    down, right = torch.randint(2 * pixels + 1, (2, batch, 1), device=device)
    rows = (down + torch.arange(height, device=device)).view(batch, height, 1)
    columns = (right + torch.arange(width, device=device)).view(batch, 1, width)
    images = padded.reshape(batch, -1, *padded.shape[-2:])
    samples = torch.arange(batch, device=device).view(batch, 1, 1)
    cut = images.movedim(1, -1)[samples, rows, columns]  # [B, height, width, channels]
    return cut.movedim(-1, 1).reshape(inputs.shape)


@TRANSFORMS.register("noise")
def noise(inputs: Tensor, *, deviation: PositiveFloat = 0.1) -> Tensor:
    """Add Gaussian noise.

    Args:
        inputs: [B, ...].
        deviation: standard deviation, in units of the inputs.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise ValueError("noise needs samples of floats, one array of them")
    return inputs + deviation * torch.randn_like(inputs)


def applied(transform: Transform, inputs: Any) -> Any:
    """What a transform makes of a batch; ValueError where the network cannot take it as a batch."""
    changed = transform(inputs)
    if changed is None:
        raise ValueError("the transform returned None: it must return the changed batch")
    if isinstance(inputs, Tensor) and not isinstance(changed, Tensor):
        found = type(changed).__name__
        raise ValueError(f"the transform must return a tensor, as it gets one; it returned {found}")
    if isinstance(inputs, Tensor) and changed.dtype != inputs.dtype:
        # As the network takes them: an array of NumPy in between makes float64
        return changed.to(inputs.dtype)
    return changed


def _refuse_no_images(name: str, inputs: object) -> None:
    if not isinstance(inputs, Tensor):
        raise ValueError(f"{name} needs one array of images, and the network takes several inputs")
    if inputs.ndim < 3:
        shape = tuple(inputs.shape[1:])
        raise ValueError(f"{name} needs images (..., height, width), got samples of shape {shape}")


def _per_sample(values: Tensor, inputs: Tensor) -> Tensor:
    """Values [B] in a shape that applies to inputs [B, ...]."""
    return values.view(-1, *[1] * (inputs.ndim - 1))
