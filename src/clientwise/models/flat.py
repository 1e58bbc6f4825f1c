"""A network as one flat float32 vector: that is how models travel, are averaged and are saved.

Frozen parameters are not part of it: all clients and the server have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..core.types import Layer, ModelSpec


def flattened(module: nn.Module) -> Tensor:
    """A copy of a module as one vector [d], laid out as `FlatModel` does."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    tensors = [*(one for one in module.parameters() if one.requires_grad), *buffers]
    return torch.cat([tensor.detach().flatten().float() for tensor in tensors])


def frozen_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that do not learn, by name."""
    return {name: one for name, one in module.named_parameters() if not one.requires_grad}


def frozen_digest(module: nn.Module) -> str:
    """SHA-256 of the frozen parameters as float32; empty where there are none."""
    frozen = frozen_parameters(module)
    if not frozen:
        return ""
    digest = hashlib.sha256()
    for name, parameter in frozen.items():
        digest.update(name.encode())
        digest.update(parameter.detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def fill(module: nn.Module, tensors: Mapping[str, Tensor], frozen: str = "") -> nn.Module:
    """Put tensors by name into a module, all of them and nowhere but there; ValueError where they do not fit.

    Args:
        module: the network.
        tensors: its trained parameters and buffers; frozen parameters may be missing.
        frozen: the digest that the frozen parameters must have; empty: any.
    """
    if frozen and frozen_digest(module) != frozen:
        raise ValueError(
            "its frozen parameters are not those of the run: load the same pretrained weights"
        )
    counters = {name for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
    try:
        missing, unknown = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[-1].strip()) from None
    if wrong := [*(set(missing) - counters - frozen_parameters(module).keys()), *unknown]:
        raise ValueError(f"it has, or lacks, {', '.join(sorted(wrong)[:5])}")
    return module


class FlatModel:
    """A module whose parameters, gradients and floating-point buffers are views of flat vectors.

    Loading a model is one copy, and an optimizer sees a single parameter, so a step is a handful of kernels whatever
    the number of layers. Parameters come first, then the buffers that matter (running statistics of batch norm).
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        parameters = [
            (name, parameter)
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        ]
        buffers = [
            (name, buffer)
            for name, buffer in self.module.named_buffers()
            if buffer.is_floating_point()
        ]
        layers, start = [], 0
        for name, tensor in [*parameters, *buffers]:
            layers.append(Layer(name, tuple(tensor.shape), start, start + tensor.numel()))
            start += tensor.numel()
        num_parameters = sum(tensor.numel() for _, tensor in parameters)
        self.spec = ModelSpec(tuple(layers), num_parameters, start)

        self.vector = torch.zeros(start, device=device)
        self.parameter = nn.Parameter(self.vector[:num_parameters])  # shares memory with the vector
        self.parameter.grad = torch.zeros(num_parameters, device=device)
        for layer, (_, tensor) in zip(layers, [*parameters, *buffers], strict=True):
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
