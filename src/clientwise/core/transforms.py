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
        inputs: images [B, ..., width].
    """
    mirrored = torch.rand(len(inputs), device=inputs.device) < 0.5
    return torch.where(_per_sample(mirrored, inputs), inputs.flip(-1), inputs)


@TRANSFORMS.register("shift", TransformDeclaration(moves_pixels=True))
def shift(inputs: Tensor, *, pixels: PositiveInt = 4) -> Tensor:
    """Shift each image by up to `pixels` in both directions; the border becomes 0 (a random crop).

    Args:
        inputs: images [B, ..., height, width].
        pixels: the largest shift.
    """
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
    return inputs + deviation * torch.randn_like(inputs)


def _per_sample(values: Tensor, inputs: Tensor) -> Tensor:
    """Values [B] in a shape that applies to inputs [B, ...]."""
    return values.view(-1, *[1] * (inputs.ndim - 1))
