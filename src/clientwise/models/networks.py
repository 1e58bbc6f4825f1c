"""Networks by name. Each takes the shape of a sample and the number of outputs; what else it takes are options."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from ..registry import PositiveInt, Registry

Network = Callable[..., nn.Module]
MODELS: Registry[Network] = Registry("model", "models", "The network every client trains")


@MODELS.register("linear")
def linear(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """One linear layer: logistic or linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs))


@MODELS.register("mlp")
def mlp(input_shape: tuple[int, ...], num_outputs: int, *, hidden: Sequence[PositiveInt] = (200, 200)) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise([math.prod(input_shape), *hidden]):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([math.prod(input_shape), *hidden][-1], num_outputs))


@MODELS.register("cnn")
def cnn(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    channels: Sequence[PositiveInt] = (32, 64),
    kernel: PositiveInt = 5,
    dense: PositiveInt = 512,
    activation: bool = True,
) -> nn.Module:
    """Convolutions, each with 2×2 pooling, and a dense layer; the default is P1's MNIST CNN (1,663,370 parameters).

    `activation = false` leaves out the ReLU after the convolutions, as the papers' code does.
    """
    if len(input_shape) != 3:
        raise ValueError(f"model cnn needs images (channels, height, width), got samples of shape {input_shape}")
    depth, height, width = input_shape
    if min(height, width) < 2 ** len(channels):
        raise ValueError(f"{len(channels)} times 2×2 pooling leaves nothing of images of {height}×{width}")
    layers: list[nn.Module] = []
    for before, after in pairwise([depth, *channels]):
        layers.append(nn.Conv2d(before, after, kernel, padding="same"))
        layers += [nn.ReLU(), nn.MaxPool2d(2)] if activation else [nn.MaxPool2d(2)]
        height, width = height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear([depth, *channels][-1] * height * width, dense), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(dense, num_outputs))
