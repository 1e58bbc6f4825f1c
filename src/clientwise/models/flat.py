"""A network as one flat float32 vector: that is how models travel, are averaged and are saved.

Frozen parameters are not part of it: all clients and the server have them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ..core.types import Layer, ModelSpec

ROUNDING = 1e-6  # of a sum of frozen parameters, relative to its size


def flattened(module: nn.Module) -> Tensor:
    """A copy of a module as one vector [d], laid out as `FlatModel` does."""
    return torch.cat([one.detach().flatten().float() for one in _tensors(module).values()])


def spec_of(module: nn.Module) -> ModelSpec:
    """The layout of a module's vector: trained parameters first, then floating-point buffers."""
    layers = []
    start = num_parameters = 0
    for name, tensor in _tensors(module).items():
        layers.append(Layer(name, tuple(tensor.shape), start, start + tensor.numel()))
        start += tensor.numel()
        num_parameters = start if isinstance(tensor, nn.Parameter) else num_parameters
    return ModelSpec(tuple(layers), num_parameters, start)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """What a vector is made of: the parameters that learn, then floating-point buffers."""
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    return trained | {name: one for name, one in module.named_buffers() if one.is_floating_point()}


def frozen_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that do not learn, by name."""
    return {name: one for name, one in module.named_parameters() if not one.requires_grad}


def frozen_digest(module: nn.Module) -> str:
    """What tells frozen parameters apart, for `same_frozen`; empty where there are none.

    It is SHA-256 of the parameters as float32, then a sum of them and its size: parameters that a network draws
    or computes differ in their last bits between CPUs.
    """
    frozen = frozen_parameters(module)
    if not frozen:
        return ""
    digest = hashlib.sha256()
    total = 0.0
    squares = 0.0
    for name, parameter in frozen.items():
        values = parameter.detach().float().cpu().contiguous()
        digest.update(name.encode())
        digest.update(values.numpy().data)
        # By their positions, so that another order is another sum; of either sign, so that rounding cancels
        weighted = values.flatten().double() * (torch.arange(values.numel()) % 98 - 48.5)
        total += float(weighted.sum())
        squares += float(weighted.square().sum())
    return f"{digest.hexdigest()} {total!r} {squares**0.5!r}"


def same_frozen(one: str, other: str) -> bool:
    """Whether two digests are of the same frozen parameters, up to rounding.

    >>> same_frozen("ab 10.0 5.0", "cd 10.000001 5.0")
    True
    >>> same_frozen("ab 10.0 5.0", "cd 10.001 5.0")
    False
    """
    digest, *sums = one.split(" ")
    other_digest, *other_sums = other.split(" ")
    if digest == other_digest:
        return True
    if not sums or not other_sums:  # one has no frozen parameters
        return False
    total, size = map(float, sums)
    other_total, other_size = map(float, other_sums)
    return abs(total - other_total) <= ROUNDING * min(size, other_size)


def fill_flat(module: nn.Module, vector: Tensor) -> nn.Module:
    """Put a vector that `flattened` returned into a module; ValueError where it does not fit."""
    spec = spec_of(module)
    if vector.numel() != spec.size:
        raise ValueError(f"it has {spec.size:,} values, and the run began with {vector.numel():,}")
    for layer, tensor in zip(spec.layers, _tensors(module).values(), strict=True):
        values = vector[layer.start : layer.stop].view(layer.shape)
        tensor.data = values.to(tensor, copy=True)
    return module


def fill(module: nn.Module, tensors: Mapping[str, Tensor], frozen: str = "") -> nn.Module:
    """Put tensors by name into a module, all of them and nowhere but there; ValueError where they do not fit.

    Args:
        module: the network.
        tensors: its trained parameters and buffers; frozen parameters may be missing.
        frozen: the digest that the frozen parameters must have; empty: any.
    """
    if frozen and not same_frozen(frozen_digest(module), frozen):
        raise ValueError(
            "its frozen parameters are not those of the run: load the same pretrained weights"
        )
    try:
        missing, unknown = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[-1].strip()) from None
    if wrong := [*(set(missing) - _may_be_missing(module, tensors)), *unknown]:
        raise ValueError(f"it has, or lacks, {', '.join(sorted(wrong)[:5])}")
    return module


def _may_be_missing(module: nn.Module, names: Iterable[str]) -> set[str]:
    """Counters, frozen parameters, and other names of tensors that have one of these names."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    every: dict[str, Tensor] = {**parameters, **buffers}
    filled = {id(every[name]) for name in names if name in every}
    shared = {name for name, one in every.items() if id(one) in filled}
    counters = {name for name, one in buffers.items() if not one.is_floating_point()}
    frozen = {name for name, one in parameters.items() if not one.requires_grad}
    return shared | counters | frozen


def without_flattening(module: nn.Module) -> nn.Module:
    """The module; its recurrent layers leave their weights where they are.

    On a GPU, `nn.LSTM` and its kin move their weights to memory of their own, for cuDNN. They do so in `to` and again
    in the first pass after `functional_call`. The weights would no longer be views of the vector that learns.
    """
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = _stay  # type: ignore[method-assign]
            # cuDNN copies the weights in every pass, and warns of it
            warnings.filterwarnings("ignore", "RNN module weights are not part of single")
    return module


def _stay() -> None:
    """Instead of `flatten_parameters`; a function of this module, so that networks can be copied and pickled."""


class FlatModel:
    """A module whose parameters, gradients and floating-point buffers are views of flat vectors.

    Loading a model is one copy, and an optimizer sees a single parameter, so a step is a handful of kernels whatever
    the number of layers. Parameters come first, then the buffers that matter (running statistics of batch norm).
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = without_flattening(module).to(device)
        self.spec = spec_of(self.module)
        num_parameters = self.spec.num_parameters
        self.vector = torch.zeros(self.spec.size, device=device)
        self.parameter = nn.Parameter(self.vector[:num_parameters])  # shares memory with the vector
        self.parameter.grad = torch.zeros(num_parameters, device=device)
        for layer, tensor in zip(self.spec.layers, _tensors(self.module).values(), strict=True):
            view = self.vector[layer.start : layer.stop].view(layer.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            if layer.stop <= num_parameters:
                tensor.grad = self.parameter.grad[layer.start : layer.stop].view(layer.shape)

        counters = [buffer for buffer in self.module.buffers() if not buffer.is_floating_point()]
        self._counters = [(buffer, buffer.clone()) for buffer in counters]

    def load(self, vector: Tensor) -> None:
        """Put a flat vector [d] into the module; counters, which do not travel, start anew."""
        self.vector.copy_(vector)
        for buffer, initial in self._counters:
            buffer.copy_(initial)
