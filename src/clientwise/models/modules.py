"""Any network: how it is called, a user's own one, what it takes, and its dropout."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping

import numpy
import torch
from torch import Tensor, nn

from ..core.seeding import mixed
from ..limits import gigabytes, memory
from .flat import flattened


def outputs_of(module: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """What a network predicts for a batch.

    Inputs by name are keyword arguments of `forward`, or one dictionary where `forward` has no such arguments.
    Predictions are what it returns, or the `logits` of that, as Hugging Face's networks have them.

    Example:
        >>> import torch
        >>> class Two(nn.Module):
        ...     def forward(self, left, right):
        ...         return {"logits": left + right}
        >>> outputs_of(Two(), {"left": torch.ones(1), "right": torch.ones(1)})
        tensor([2.])
    """
    if isinstance(inputs, Tensor):
        returned = module(inputs)
    elif _takes(module, **inputs):
        returned = module(**inputs)
    elif _takes(module, inputs):
        returned = module(dict(inputs))
    else:
        wanted = ", ".join(inspect.signature(module.forward).parameters)
        there = ", ".join(inputs)
        raise TypeError(f"its forward takes {wanted}, and the samples have the inputs {there}")
    if isinstance(returned, Mapping):
        returned = returned.get("logits", returned)
    found = getattr(returned, "logits", returned)
    if not isinstance(found, Tensor):
        kind = type(returned).__name__
        raise TypeError(
            f"must return a tensor, or `logits` in an object or dictionary, returned {kind}"
        )
    return found


def _takes(module: nn.Module, *inputs: object, **named: object) -> bool:
    """Whether `forward` can be called so."""
    try:
        inspect.signature(module.forward).bind(*inputs, **named)
    except TypeError:
        return False
    return True


OwnNetwork = nn.Module | Callable[..., nn.Module]


class OwnModel:
    """Called like a network by name. A module is copied, numbers and all; a function or class is called anew."""

    def __init__(self, model: OwnNetwork, start: Tensor | None = None) -> None:
        """Take a network.

        Args:
            model: the network, or what makes it.
            start: the parameters that every seed begins with, as one vector; None: those of the module, or those
                that are drawn by the seed.
        """
        self._model = model
        self.start = start
        named = type(model) if isinstance(model, nn.Module) else model
        self.name: str = getattr(named, "__name__", type(named).__name__)

    def parameters(self) -> Tensor | None:
        """The parameters of the module, as one vector; None of a function, which draws them by the seed."""
        return flattened(self._model).cpu() if isinstance(self._model, nn.Module) else None

    def starting_from(self, start: Tensor) -> OwnModel:
        """The same, where every seed begins with these parameters."""
        return OwnModel(self._model, start)

    def __call__(self, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """The network for such samples; ValueError where it cannot be made."""
        if isinstance(self._model, nn.Module):
            return copy.deepcopy(self._model)
        made: object = self._model(*self._arguments(input_shape, num_outputs))
        if not isinstance(made, nn.Module):
            raise ValueError(f"{self.name} must give a torch.nn.Module, gave {type(made).__name__}")
        return made

    def _arguments(self, *shapes: object) -> tuple[object, ...]:
        """What it asks for: nothing, or the two shapes."""
        if not callable(self._model):
            raise ValueError(f"must be a module or make one, got {self.name}")
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        given = inspect.signature(self._model).parameters.values()
        required = [
            one.name for one in given if one.default is one.empty and one.kind not in several
        ]
        if len(required) not in (0, 2):
            wanted = "must be called with nothing, or with the shape of a sample and the number of outputs"
            raise ValueError(f"{self.name} {wanted}; it asks for {', '.join(required)}")
        return shapes if required else ()


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

    To evaluate, batches are cut (`engine.jobs`). `sample` is one sample [1, ...], or its inputs by name.
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
