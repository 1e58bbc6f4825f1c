"""Dropout whose masks are counted, not drawn: the same however many clients are trained together."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..core.seeding import mixed


class CountedDropout(nn.Dropout):
    """`nn.Dropout` with masks that are a function of the client's key, the step, the layer and the index of a value."""

    key: Tensor
    step: Tensor

    def __init__(self, p: float, layer: int, inplace: bool = False) -> None:
        super().__init__(p, inplace)
        self.layer = layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop values of a batch [B, ...] while training."""
        if not self.training or self.p == 0:
            return inputs
        mask = keep(inputs.shape, self.p, self.layer, self.key, self.step)
        return inputs.mul_(mask) if self.inplace else inputs * mask


def keep(shape: torch.Size, probability: float, layer: int, key: Tensor, step: Tensor) -> Tensor:
    """What a batch of `shape` [B, ...] is multiplied by: 0, or 1/(1 − p); `key` and `step` are single numbers."""
    features = math.prod(shape[1:])
    # [B]
    rows = mixed(mixed(key + step * 1009 + layer) + torch.arange(shape[0], device=key.device))
    values = mixed(rows[:, None] + torch.arange(features, device=key.device))  # [B, F]
    chance = (values >> 40).float() / 2**24 + 0.5  # uniform in [0, 1)
    scale = 1 / (1 - probability) if probability < 1 else 0.0
    return ((chance >= probability) * scale).reshape(shape)


def count_dropout(module: nn.Module) -> list[CountedDropout]:
    """Replace every `nn.Dropout` inside a module; returns the replacements, in order."""
    found: list[CountedDropout] = []
    for parent in list(module.modules()):
        # `named_children` leaves out a layer that occurs twice
        for name, child in list(parent._modules.items()):
            if type(child) is nn.Dropout:
                found.append(CountedDropout(child.p, len(found), child.inplace))
                found[-1].train(child.training)
                setattr(parent, name, found[-1])
    return found
