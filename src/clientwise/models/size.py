"""What a network takes, known before it is built or trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy
import torch
from torch import Tensor, nn

from ..limits import gigabytes, memory
from .call import outputs_of


def described(network: Callable[[], nn.Module]) -> nn.Module:
    """The network without numbers, for which no memory is needed."""
    try:
        with torch.device("meta"):
            return network()
    except Exception:
        # A user's network that needs real numbers while it is made; or what is wrong shows now
        return network()


def count_parameters(module: nn.Module) -> int:
    """How many parameters a network has; it may be without numbers."""
    return sum(parameter.numel() for parameter in module.parameters())


def zeros(network: Callable[[], nn.Module]) -> nn.Module:
    """The network with zeros for numbers, made in no time: to try whether it fits."""

    def zero(tensor: Tensor) -> Tensor:  # NumPy's zeros take memory only when they are read
        return torch.from_numpy(numpy.zeros(tensor.shape, numpy.float32)).to(tensor.dtype)

    module = described(network)
    module._apply(zero)  # type: ignore[no-untyped-call]
    return module


def check_parameters(module: nn.Module, copies: int) -> None:
    """ValueError where `copies` of the parameters, and one of those that are frozen, exceed the memory there is."""
    count = count_parameters(module)
    frozen = sum(one.numel() for one in module.parameters() if not one.requires_grad)
    if (needed := 4 * (copies * (count - frozen) + frozen)) > memory():
        raise ValueError(
            f"has {count:,} parameters: training takes {copies} copies of those that are not frozen, "
            f"{gigabytes(needed)} in all, and there are {gigabytes(memory())}; make it smaller"
        )


def check_batch(module: nn.Module, sample: Tensor | Mapping[str, Tensor], count: int) -> None:
    """ValueError where the layers make more of a batch of `count` samples to train on than fits into memory.

    To evaluate, batches are cut (`engine.evaluation`). `sample` is one sample [1, ...], or its inputs by name.
    """
    every, _ = values_per_sample(module, sample)
    if (needed := 4 * count * every) > memory():
        raise ValueError(
            f"makes {every:,} values of a sample: a batch of {count:,} to train on takes "
            f"{gigabytes(needed)}, and there are {gigabytes(memory())}; make it or training.batch_size smaller"
        )


def values_per_sample(module: nn.Module, sample: Tensor | Mapping[str, Tensor]) -> tuple[int, int]:
    """How many values the layers make of a sample [1, ...] on its way: all of them, and the most of one layer."""
    made: list[int] = []

    def count(layer: nn.Module, given: object, result: object) -> None:
        # A recurrent layer also returns its state
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, Tensor):
            made.append(first.numel())

    leaves = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    try:
        with torch.no_grad():
            outputs_of(module.eval(), sample)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(made), max(made, default=0)
