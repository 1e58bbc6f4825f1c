"""What a network takes, known before it is built or trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..limits import gigabytes, memory


def check_parameters(network: Callable[[], nn.Module], copies: int) -> None:
    """ValueError where `copies` of a network's parameters exceed the memory there is; none of them is allocated."""
    try:
        with torch.device("meta"):
            module = network()
    except Exception:  # a network that cannot be made without memory, or at all: what is wrong shows when it is made
        return
    count = sum(parameter.numel() for parameter in module.parameters())
    if (needed := 4 * copies * count) > memory():
        raise ValueError(
            f"has {count:,} parameters: training takes {copies} copies of them, {gigabytes(needed)}, "
            f"and there are {gigabytes(memory())}; make it smaller"
        )


def check_batches(module: nn.Module, sample: Tensor, *, trained: int, answered: int) -> None:
    """ValueError where the layers make more of a batch than fits: of `trained` samples all of it is kept, of `answered`
    ones what a layer makes. `sample` is one of them, [1, ...].
    """
    every, largest = values_per_sample(module, sample)
    if (needed := 4 * max(trained * every, answered * largest)) > memory():
        raise ValueError(
            f"makes {every:,} values of a sample: batches of {trained:,} to train on and {answered:,} to evaluate "
            f"take {gigabytes(needed)}, and there are {gigabytes(memory())}; make it or training.batch_size smaller"
        )


def values_per_sample(module: nn.Module, sample: Tensor) -> tuple[int, int]:
    """How many values the layers make of a sample [1, ...] on its way: all of them, and the most of one layer."""
    made: list[int] = []

    def count(layer: nn.Module, given: object, result: object) -> None:
        first = result[0] if isinstance(result, tuple) else result  # a recurrent layer also returns its state
        if isinstance(first, Tensor):
            made.append(first.numel())

    leaves = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    try:
        with torch.no_grad():
            module.eval()(sample)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(made), max(made, default=0)
