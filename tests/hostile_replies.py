"""Hostile updates for every host: arrays by name and metrics, of which anything may be wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn

GLOBAL = {
    "kernel": numpy.zeros((2, 2), "float32"),
    "bias": numpy.zeros(2, "float32"),
    "steps": numpy.array(3),
}
NUMBERS: list[Any] = [
    0,
    1,
    -1,
    0.5,
    1e12,
    1e13,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    10**400,
    2**63,
    1e-320,
]
NAMES = [
    "dataset_size",
    "size",
    "num-examples",
    "label_diversity",
    "model_divergence",
    "accuracy",
    "loss",
    "clientwise-weight",
    "",
    "é",
]
TYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int64",
    "uint64",
    "bool",
    "complex64",
    "U3",
    "S2",
    "datetime64[s]",
]
SHAPES = [(2, 2), (2,), (), (1, 2), (4,), (0,), (2, 2, 1), (3, 3)]


class Net(nn.Module):
    """A network whose state the floating-point arrays are."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(2, 2))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.kernel + self.bias


def server_samples() -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets) for `Net`."""
    inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.argmax(1)


class Garbage(bytes):
    """Not even an array."""


def hostile_array(chance: random.Random) -> numpy.ndarray | Garbage:
    if chance.random() < 0.2:
        return Garbage(chance.randbytes(chance.choice([0, 10, 200])))
    value = chance.choice([0, 1, 1e30, float("nan"), float("inf"), -3])
    with numpy.errstate(all="ignore"):
        return numpy.full(chance.choice(SHAPES), value).astype(chance.choice(TYPES))


def hostile_arrays(chance: random.Random) -> dict[str, Any]:
    arrays: dict[str, Any] = dict(GLOBAL)
    for name in chance.sample([*arrays, "more"], chance.randint(0, 3)):
        arrays[name] = hostile_array(chance)
    if chance.random() < 0.2:
        del arrays[chance.choice(list(arrays))]
    return arrays


def hostile_metrics(chance: random.Random) -> dict[str, Any]:
    metrics: dict[str, Any] = {"size": 1.0, "num-examples": 10, "loss": 1.0, "dataset_size": 10}
    for name in chance.sample(NAMES, chance.randint(0, 4)):
        metrics[name] = chance.choice([*NUMBERS, [], [1.0], [float("nan"), 2.0], [1, 2]])
    for name in chance.sample(list(metrics), chance.randint(0, 1)):
        del metrics[name]
    return metrics
