"""Many models of one architecture as one batched computation: every layer runs for G models at once.

The parameters of all models lie layer by layer in one vector, each layer's block [G, ...]. Backward passes are written
out for the layers that matter, so that plain SGD folds its step into the product that makes the gradient: the gradient
is never stored, and storing it is what limits small batches. Images are kept channels last, [G, B, H, W, C].

A layer without a rule in `layers.py` is run by `torch.vmap`; a network that `vmap` cannot run either cannot be stacked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...core.types import ModelSpec
from ...data.federated import Samples
from ...models.flat import FlatModel
from ...models.modules import outputs_of
from .layers import (
    Convolution,
    DropoutDraws,
    Parameter,
    Pooling,
    Vmapped,
    channels_first,
    channels_last,
    make_layer,
)

ALIGNMENT = 64  # numbers; matrix units want blocks that begin at round addresses


class NotStackableError(Exception):
    """Why the clients of a network must be trained one after the other."""


class StackedNetwork:
    """Up to `size` models of one architecture, side by side on one device."""

    def __init__(
        self,
        module: nn.Module,
        spec: ModelSpec,
        size: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if any(buffer.is_floating_point() for buffer in module.buffers()):
            raise NotStackableError("it keeps running statistics (batch norm)")
        if not all(parameter.requires_grad for parameter in module.parameters()):
            raise NotStackableError("some of its parameters are frozen")
        if any(map(_has_hooks, module.modules())):
            raise NotStackableError("its layers have hooks")
        leaves = list(_leaves("", module))
        if sum(len(list(leaf.parameters())) for _, leaf in leaves) > len(spec.layers):
            raise NotStackableError("some of its layers share parameters")
        self.size = size
        self.spec = spec
        self.dtype = dtype
        self._starts = []
        length = 0
        for layer in spec.layers:
            self._starts.append(length)
            length += -(-size * math.prod(layer.shape) // ALIGNMENT) * ALIGNMENT
        self.parameter = nn.Parameter(torch.zeros(length, device=device))
        self.draws = DropoutDraws(
            keys=torch.zeros(size, dtype=torch.int64, device=device),
            step=torch.zeros((), dtype=torch.int64, device=device),
        )
        self._parameters = [
            Parameter(block, natural) for block, natural in self._blocks(self.parameter.detach())
        ]
        by_name = {
            layer.name: parameter
            for layer, parameter in zip(spec.layers, self._parameters, strict=True)
        }
        self._layers = []
        for name, leaf in _reordered(leaves):
            prefix = f"{name}." if name else ""
            own = [by_name[prefix + key] for key, _ in leaf.named_parameters()]
            self._layers.append(make_layer(leaf, own, self.draws))
        for one, following in itertools.pairwise(self._layers):
            # Pooling adds the bias, see there
            if isinstance(one, Convolution) and isinstance(following, Pooling):
                following.parameters = one.parameters[1:]
                one.parameters = one.parameters[:1]
        learning = [index for index, layer in enumerate(self._layers) if layer.parameters]
        self._first_to_learn = min(learning, default=len(self._layers))

    def _blocks(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Per layer of the spec: its block as a matrix [G, rows, columns], and as the module has it [G, ...].

        The kernels of convolutions lie channels last, so that a patch of the image and a row of the matrix agree.
        """
        for start, layer in zip(self._starts, self.spec.layers, strict=True):
            block = vector[start : start + self.size * math.prod(layer.shape)]
            if len(layer.shape) == 4:
                outer, inner, *kernel = layer.shape
                natural = block.view(self.size, outer, *kernel, inner).permute(0, 1, 4, 2, 3)
            else:
                natural = block.view(self.size, *layer.shape)
            yield block.view(self.size, layer.shape[0] if layer.shape else 1, -1), natural

    def make_gradient(self) -> None:
        """Room for the gradients, for optimizers that need them; plain SGD does not."""
        self.parameter.grad = torch.zeros_like(self.parameter)
        for parameter, blocks in zip(
            self._parameters, self._blocks(self.parameter.grad), strict=True
        ):
            parameter.gradient_matrix, parameter.gradient = blocks

    def clip_gradients(self, limit: float) -> None:
        """Scale the gradient of every model down to a norm of `limit`."""
        gradients = [one.gradient_matrix for one in self._parameters]
        squares = torch.stack([one.square().flatten(1).sum(1) for one in gradients]).sum(0)
        norms = squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)
        factors = (limit / norms).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors[:, None, None])

    def load(self, models: Tensor) -> None:
        """Make models [g, d] the first g."""
        for parameter, layer in zip(self._parameters, self.spec.layers, strict=True):
            values = models[:, layer.start : layer.stop].view(len(models), *layer.shape)
            parameter.value[: len(models)].copy_(values)
        # A CUDA graph is the same for all steps
        self._set_alike(models.stride(0) == 0 and not models.is_cuda)

    def _set_alike(self, alike: bool) -> None:
        for layer in self._layers:
            layer.alike = alike

    def unload(self, rows: slice) -> Tensor:
        """Some of the models [g, d]."""
        return torch.cat(
            [parameter.value[rows].flatten(1) for parameter in self._parameters], dim=1
        )

    @property
    def has_convolutions(self) -> bool:
        """Whether any layer convolves."""
        return any(isinstance(layer, Convolution) for layer in self._layers)

    @property
    def is_written_out(self) -> bool:
        """Whether no layer needs `vmap`, which is slow on a CPU."""
        return not any(isinstance(layer, Vmapped) for layer in self._layers)

    @torch.no_grad()
    def try_out(self, flat: FlatModel, samples: Samples) -> int:
        """Whether this really is the module, on a few samples; returns how many values a sample leaves on its way.

        NotStackableError says what `vmap` could not do.
        """
        last = len(samples.inputs) - 1
        tried = torch.tensor([0, last // 3, last // 2, last], device=self.parameter.device)
        inputs = samples.network_inputs(tried.expand(self.size, -1))
        if not isinstance(inputs, Tensor):
            raise NotStackableError("it takes several inputs")
        try:
            # Changed, since a last layer of zeros would hide what the others do
            random = torch.Generator().manual_seed(0)
            change = 0.1 * torch.randn(len(flat.vector), generator=random).to(flat.vector.device)
            self.load((flat.vector + change).expand(self.size, -1))
            repeated = self.forward(inputs[:, :1].expand_as(inputs), training=True)
            trained = self.forward(inputs, training=True)
            self.backward(torch.zeros_like(trained), 0.0)
            self.load(flat.vector.expand(self.size, -1))
            outputs = self.forward(inputs, training=False)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            raise NotStackableError(str(error).splitlines()[0]) from None
        if not self._agree(repeated[:, 0], trained[:, 0]):
            # Batches are padded, and what pads them must not change anything
            raise NotStackableError("its outputs depend on the other samples of a batch")
        flat.module.eval()
        expected = outputs_of(flat.module, inputs[0])
        if outputs.shape[1:] != expected.shape or not self._agree(outputs[0], expected.float()):
            raise NotStackableError("stacked it gives other results")
        return sum(layer.kept // (self.size * len(tried)) for layer in self._layers)

    def _agree(self, one: Tensor, other: Tensor) -> bool:
        """Whether outputs are the same, up to the rounding of products: on a GPU they may be TF32 or bf16."""
        is_exact = self.dtype == torch.float32 and not one.is_cuda
        tolerance = 1e-3 if is_exact else 0.05
        return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)

    def forward(self, inputs: Tensor, *, training: bool) -> Tensor:
        """Outputs [g, B, ...] in float32 of the first g models for inputs [g, B, ...]."""
        values = inputs[:1] if inputs.stride(0) == 0 else inputs
        if values.is_floating_point():  # token ids stay integers
            values = values.to(self.dtype)
        values = channels_last(values)
        # Candidates see the same samples: kept once
        values = values.expand(len(inputs), *values.shape[1:])
        for layer in self._layers:
            values = layer.forward(values, training)
            values = values.to(self.dtype) if values.is_floating_point() else values
            layer.kept = values.numel()
        return channels_first(values).float()

    def backward(self, gradient: Tensor, learning_rate: float | None) -> None:
        """From the loss's gradient by the outputs: one step of plain SGD, or without a rate all gradients."""
        gradient = channels_last(gradient.to(self.dtype))
        for index in range(len(self._layers) - 1, self._first_to_learn - 1, -1):
            gradient = self._layers[index].backward(
                gradient, learning_rate, index > self._first_to_learn
            )
        self._set_alike(False)


def _leaves(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential`s in order; any other module is one layer."""
    if type(module) is nn.Sequential:
        # `named_children` leaves out a layer that occurs twice, such as one ReLU for all
        for key, child in module._modules.items():
            assert child is not None
            yield from _leaves(f"{name}.{key}" if name else key, child)
    else:
        yield name, module


def _has_hooks(module: nn.Module) -> bool:
    """Whether calling a module does more than its `forward`."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(hooks) or bool(module._backward_pre_hooks)


def _reordered(leaves: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Pool before ReLU, not after, and as one layer: the same values and gradients with a quarter of the work."""
    result: list[tuple[str, nn.Module]] = []
    for name, leaf in leaves:
        if result and type(leaf) is nn.MaxPool2d and type(result[-1][1]) is nn.ReLU:
            result[-1] = name, nn.Sequential(leaf, result[-1][1])
        else:
            result.append((name, leaf))
    return result
