"""Many models of one architecture as one batched computation: every layer runs for G models at once.

The parameters of all models lie layer by layer in one vector, each layer's block [G, ...]. Backward passes are written
out for the layers that matter, so that plain SGD folds its step into the product that makes the gradient: the gradient
is never stored, and storing it is what limits small batches. Images are kept channels last, [G, B, H, W, C].

A layer without a rule here is run by `torch.vmap`; a network that `vmap` cannot run either cannot be stacked.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.func import functional_call

from ..core.types import ModelSpec
from ..data.federated import Samples
from ..models.dropout import CountedDropout, keep
from ..models.flat import FlatModel
from . import kernels

# Parameter-free, and blind to what else is in the batch.
PLAIN = (
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU,
    nn.Softplus, nn.Identity,
)  # fmt: skip
ALIGNMENT = 64  # numbers; matrix units want blocks that begin at round addresses
LARGE_CONVOLUTION = 32_768  # output pixels per model from which on one convolution after the other fills a GPU
FEW = 64  # values in a patch


class NotStackableError(Exception):
    """Why the clients of a network must be trained one after the other."""


class StackedNetwork:
    """Up to `size` models of one architecture, side by side on one device."""

    def __init__(
        self, module: nn.Module, spec: ModelSpec, size: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        if any(buffer.is_floating_point() for buffer in module.buffers()):
            raise NotStackableError("it keeps running statistics (batch norm)")
        self.size, self.spec, self.dtype = size, spec, dtype
        self._starts, length = [], 0
        for place in spec.layers:
            self._starts.append(length)
            length += -(-size * math.prod(place.shape) // ALIGNMENT) * ALIGNMENT
        self.parameter = nn.Parameter(torch.zeros(length, device=device))
        self.keys = torch.zeros(size, dtype=torch.int64, device=device)  # of dropout, one per model
        self.step = torch.zeros((), dtype=torch.int64, device=device)  # of dropout
        self._parameters = [Parameter(block, natural) for block, natural in self._blocks(self.parameter.detach())]
        names = [place.name for place in spec.layers]
        by_name = dict(zip(names, self._parameters, strict=True))
        self._layers = [self._make_layer(name, leaf, by_name) for name, leaf in _reordered(list(_leaves("", module)))]
        for one, following in itertools.pairwise(self._layers):
            if isinstance(one, Convolution) and isinstance(following, Pooling):  # which adds the bias, see there
                one.parameters, following.parameters = one.parameters[:1], one.parameters[1:]
        learning = [place for place, layer in enumerate(self._layers) if layer.parameters]
        self._first_to_learn = min(learning, default=len(self._layers))

    def _blocks(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Per layer of the spec: its block as a matrix [G, rows, columns], and as the module has it [G, ...].

        The kernels of convolutions lie channels last, so that a patch of the image and a row of the matrix agree.
        """
        for start, place in zip(self._starts, self.spec.layers, strict=True):
            block = vector[start : start + self.size * math.prod(place.shape)]
            if len(place.shape) == 4:
                outer, inner, *kernel = place.shape
                natural = block.view(self.size, outer, *kernel, inner).permute(0, 1, 4, 2, 3)
            else:
                natural = block.view(self.size, *place.shape)
            yield block.view(self.size, place.shape[0] if place.shape else 1, -1), natural

    def _make_layer(self, name: str, module: nn.Module, parameters: dict[str, Parameter]) -> Layer:
        own = [parameters[f"{name}.{key}" if name else key] for key, _ in module.named_parameters()]
        rules: list[tuple[type[Layer], bool]] = [
            (Dense, type(module) is nn.Linear),
            (Convolution, type(module) is nn.Conv2d and Convolution.fits(module)),
            (Rectifier, type(module) is nn.ReLU),
            (Flattening, type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)),
            (Dropping, type(module) is CountedDropout),
            (Pooling, Pooling.fits(module)),
            (Plain, isinstance(module, PLAIN) or _pools_and_rectifies(module)),
        ]
        rule = next((rule for rule, fits in rules if fits), Vmapped)
        return rule(module, own, self)

    def make_gradient(self) -> None:
        """Room for the gradients, for optimizers that need them; plain SGD does not."""
        self.parameter.grad = torch.zeros_like(self.parameter)
        for parameter, blocks in zip(self._parameters, self._blocks(self.parameter.grad), strict=True):
            parameter.gradient_matrix, parameter.gradient = blocks

    def load(self, models: Tensor) -> None:
        """Put models [g, d] into the first g places."""
        for parameter, place in zip(self._parameters, self.spec.layers, strict=True):
            values = models[:, place.start : place.stop].view(len(models), *place.shape)
            parameter.value[: len(models)].copy_(values)

    def unload(self, rows: slice) -> Tensor:
        """The models [g, d] of some places."""
        return torch.cat([parameter.value[rows].flatten(1) for parameter in self._parameters], dim=1)

    @property
    def has_convolutions(self) -> bool:
        """Whether any layer convolves."""
        return any(isinstance(layer, Convolution) for layer in self._layers)

    @torch.no_grad()
    def try_out(self, flat: FlatModel, samples: Samples) -> int:
        """Whether this really is the module, on one sample; returns how many values a sample leaves on its way.

        NotStackableError says what `vmap` could not do.
        """
        numbers = torch.zeros(self.size, 1, dtype=torch.int64, device=self.parameter.device)
        self.load(flat.vector.expand(self.size, -1))
        inputs = samples.batch(numbers)
        try:
            outputs = self.forward(inputs, training=True)
            self.backward(torch.zeros_like(outputs), 0.0)
            outputs = self.forward(inputs, training=False)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raise NotStackableError(str(error).splitlines()[0]) from None
        flat.module.eval()
        expected = flat.module(inputs[0])
        if outputs.shape[1:] != expected.shape or not torch.allclose(
            outputs[0], expected.float(), rtol=0.05, atol=0.05
        ):
            raise NotStackableError("stacked it gives other results")
        return sum(layer.kept // self.size for layer in self._layers)

    def forward(self, inputs: Tensor, *, training: bool) -> Tensor:
        """Outputs [g, B, ...] in float32 of the first g models for inputs [g, B, ...]."""
        values = _channels_last((inputs[:1] if inputs.stride(0) == 0 else inputs).to(self.dtype))
        values = values.expand(len(inputs), *values.shape[1:])  # candidates see the same samples: kept once
        for layer in self._layers:
            values = layer.forward(values, training)
            layer.kept = values.numel()
        return _channels_first(values).float()

    def backward(self, gradient: Tensor, learning_rate: float | None) -> None:
        """From the loss's gradient by the outputs: one step of plain SGD, or without a rate all gradients."""
        gradient = _channels_last(gradient.to(self.dtype))
        for place in range(len(self._layers) - 1, self._first_to_learn - 1, -1):
            gradient = self._layers[place].backward(gradient, learning_rate, place > self._first_to_learn)


class Parameter:
    """One tensor of all models."""

    def __init__(self, matrix: Tensor, value: Tensor) -> None:
        self.matrix, self.value = matrix, value  # the same memory: [G, rows, columns] and [G, ...]
        self.gradient_matrix = self.gradient = torch.empty(0)

    def learn(self, gradient: Tensor, learning_rate: float | None) -> None:
        """Take the gradient [g, ...] of the first g models."""
        if learning_rate is None:
            self.gradient[: len(gradient)].copy_(gradient)
        else:
            self.value[: len(gradient)].add_(gradient, alpha=-learning_rate)

    def learn_matrix(self, gradient: Tensor, learning_rate: float | None) -> None:
        """The same, as a matrix [g, rows, columns]."""
        if learning_rate is None:
            self.gradient_matrix[: len(gradient)].copy_(gradient)
        else:
            self.matrix[: len(gradient)].add_(gradient, alpha=-learning_rate)

    def learn_product(self, left: Tensor, right: Tensor, learning_rate: float | None) -> None:
        """The same, as a product of [g, rows, k] and [g, k, columns], which need not be stored."""
        if learning_rate is None or left.dtype != self.matrix.dtype:
            self.learn_matrix(torch.bmm(left, right), learning_rate)
        else:
            self.matrix[: len(left)].baddbmm_(left, right, alpha=-learning_rate)


class Layer(ABC):
    """One layer of all models. `forward` keeps what `backward` needs; both work on the first g models."""

    def __init__(self, module: nn.Module, parameters: Sequence[Parameter], network: StackedNetwork) -> None:
        self.module, self.parameters, self.network = module, parameters, network
        self.kept = 0  # values of the last outputs

    @abstractmethod
    def forward(self, values: Tensor, training: bool) -> Tensor:
        """[g, B, ...] to [g, B, ...]."""

    @abstractmethod
    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Learn, and hand on the gradient by the inputs if it is wanted."""


class Dense(Layer):
    """`nn.Linear`: batched matrix products."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """x·Wᵀ + b."""
        rows = values.reshape(len(values), -1, values.shape[-1])
        if training:
            self._rows, self._shape = rows, values.shape
        if kernels.can_be_dense(rows, self.parameters[0].value.shape[1]):
            return kernels.dense(rows, *self._matrices()).view(*values.shape[:-1], -1)
        kernel = self.parameters[0].value[: len(values)].to(values.dtype).transpose(1, 2)
        return _affine(rows, kernel, self.parameters[1:]).view(*values.shape[:-1], -1)

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The gradient by the inputs comes first: the weights change in place."""
        gradient = gradient.reshape(len(gradient), -1, gradient.shape[-1])
        if learning_rate is not None and kernels.can_be_dense(self._rows, gradient.shape[-1]):
            before = kernels.learn_dense(
                gradient.contiguous(), self._rows, *self._matrices(), learning_rate, wanted=wanted
            )
            return gradient if before is None else before.view(self._shape)
        kernel = self.parameters[0].value[: len(gradient)].to(gradient.dtype)
        before = torch.bmm(gradient, kernel).view(self._shape) if wanted else gradient
        self.parameters[0].learn_product(gradient.transpose(1, 2), self._rows, learning_rate)
        for bias in self.parameters[1:]:
            bias.learn(gradient.sum(1), learning_rate)
        return before

    def _matrices(self) -> tuple[Tensor, Tensor | None]:
        """Weights [G, m, k] and biases [G, m] of all models."""
        return self.parameters[0].value, self.parameters[1].value if len(self.parameters) > 1 else None


class Convolution(Layer):
    """`nn.Conv2d`: as matrix products over patches, all models at once; large ones model by model."""

    def __init__(self, module: nn.Module, parameters: Sequence[Parameter], network: StackedNetwork) -> None:
        super().__init__(module, parameters, network)
        assert isinstance(module, nn.Conv2d)
        self._kernel, self._stride = module.kernel_size, module.stride
        named = {"same": [(size - 1) // 2 for size in self._kernel], "valid": [0, 0]}
        self._padding = named[module.padding] if isinstance(module.padding, str) else list(module.padding)
        reaches = all(size > padding for size, padding in zip(self._kernel, self._padding, strict=True))
        self._can_cut = self._stride == (1, 1) and reaches
        self._patches: Tensor | None = None

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        """Whether it is an ordinary convolution."""
        symmetric = module.padding != "same" or all(size % 2 for size in module.kernel_size)
        return module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros" and symmetric

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """Patches times kernels, or one convolution per model."""
        self._patches = None
        self._values = values
        height, width = (
            (size + 2 * padding - kernel) // stride + 1
            for size, padding, kernel, stride in zip(
                values.shape[2:4], self._padding, self._kernel, self._stride, strict=True
            )
        )
        per_patch = self.parameters[0].matrix.shape[2]
        if not self._can_cut or (per_patch > FEW and values.shape[1] * height * width > LARGE_CONVOLUTION):
            return torch.stack([self._convolve(values, place) for place in range(len(values))])
        self._patches = self._cut(values, height, width, self._padding)
        kernel = self.parameters[0].matrix[: len(values)].to(values.dtype).transpose(1, 2)
        return _affine(self._patches, kernel, self.parameters[1:]).view(*values.shape[:2], height, width, -1)

    def _cut(self, values: Tensor, height: int, width: int, padding: Sequence[int]) -> Tensor:
        """Every patch the kernel sees as a row [g, B·height·width, kernel·C]; in it rows of the image lie whole."""
        (rows, columns), channels, count = self._kernel, values.shape[-1], len(values)
        values = values[:1] if values.stride(0) == 0 else values
        padded = functional.pad(values, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        high, along = padded.shape[2:4]
        models, images, down = values.shape[1] * high * along * channels, high * along * channels, along * channels
        shape: tuple[int, ...] = (*values.shape[:2], height, width, rows, columns * channels)
        # Written out, since PyTorch may say anything about the stride of a single channel.
        strides: tuple[int, ...] = (models, images, down, channels, down, 1)
        if channels * values.element_size() % 16 == 0:  # copy 16 bytes at a time: a third of the time
            wide = 16 // values.element_size()
            shape = (*shape[:-1], shape[-1] // wide)
            strides = (*(stride // wide for stride in strides[:-1]), 1)
            patches = (
                padded.contiguous().view(torch.complex128).as_strided(shape, strides).contiguous().view(values.dtype)
            )
        else:
            patches = padded.contiguous().as_strided(shape, strides)
        return patches.reshape(len(values), -1, rows * columns * channels).expand(count, -1, -1)

    def _convolve(self, values: Tensor, place: int) -> Tensor:
        kernel, *bias = (parameter.value[place].to(values.dtype) for parameter in self.parameters)
        image = values[place].permute(0, 3, 1, 2)  # channels last in memory
        result = functional.conv2d(image, kernel, bias[0] if bias else None, self._stride, self._padding)
        return result.permute(0, 2, 3, 1)

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """As `forward` went; the gradient by the inputs is a convolution with the kernels turned around."""
        if self._patches is None:
            return self._backward_one_by_one(gradient, learning_rate, wanted)
        models, batch, high, along, channels = self._values.shape
        before = gradient
        if wanted:
            margins = [size - 1 - padding for size, padding in zip(self._kernel, self._padding, strict=True)]
            turned = self.parameters[0].value[:models].flip(3, 4).permute(0, 3, 4, 1, 2)
            turned = turned.reshape(models, -1, channels).to(gradient.dtype)
            before = torch.bmm(self._cut(gradient, high, along, margins), turned).view(self._values.shape)
        rows = gradient.reshape(models, -1, gradient.shape[-1])
        if self._patches.shape[-1] > FEW:
            self.parameters[0].learn_product(rows.transpose(1, 2), self._patches, learning_rate)
        else:  # a long product with few results: image by image first, or most of the GPU would have nothing to do
            left = rows.reshape(models * batch, -1, rows.shape[-1]).transpose(1, 2)
            right = self._patches.reshape(models * batch, -1, self._patches.shape[-1])
            product = torch.bmm(left, right).view(models, batch, *self.parameters[0].matrix.shape[1:])
            self.parameters[0].learn_matrix(product.sum(1), learning_rate)
        for bias in self.parameters[1:]:
            bias.learn(rows.sum(1), learning_rate)
        return before

    def _backward_one_by_one(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        results = []
        for place in range(len(gradient)):
            results.append(
                torch.ops.aten.convolution_backward(
                    gradient[place].permute(0, 3, 1, 2),
                    self._values[place].permute(0, 3, 1, 2),
                    self.parameters[0].value[place].to(gradient.dtype),
                    [gradient.shape[-1]] if len(self.parameters) > 1 else None,
                    self._stride, self._padding, (1, 1), False, (0, 0), 1,
                    (wanted, True, len(self.parameters) > 1),
                )
            )  # fmt: skip
        for number, parameter in enumerate(self.parameters):
            parameter.learn(torch.stack([result[1 + number] for result in results]), learning_rate)
        return torch.stack([result[0].permute(0, 2, 3, 1) for result in results]) if wanted else gradient


class Pooling(Layer):
    """`nn.MaxPool2d(2)`, alone or with the ReLU behind it: a kernel of our own on a GPU, otherwise PyTorch's.

    It adds the bias of the convolution before it: added to the maximum of four it is a quarter of the work.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[Parameter], network: StackedNetwork) -> None:
        super().__init__(module, parameters, network)
        self._relu = type(module) is nn.Sequential
        self._plain = Plain(next(module.children()) if self._relu else module, (), network)
        self._places: Tensor | None = None

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether it pools 2×2, with a ReLU behind it or without."""
        if type(module) is nn.Sequential:
            return len(module) == 2 and type(module[1]) is nn.ReLU and Pooling.fits(module[0])
        if type(module) is not nn.MaxPool2d:
            return False
        settings = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
        return settings == (2, 2, 0, 1, False)

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """The maxima."""
        bias = self.parameters[0].value if self.parameters else None
        self._places = None
        if kernels.can_pool(values):
            self._results, self._places = kernels.pool(values, bias, relu=self._relu)
            return self._results
        results = self._plain.forward(values, training)
        if bias is not None:
            results = results + bias[: len(values), None, None, None].to(values.dtype)
        self._results = results.relu() if self._relu else results
        return self._results

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The gradient where the maxima were."""
        if self._relu:
            gradient = torch.ops.aten.threshold_backward(gradient, self._results, 0)
        for bias in self.parameters:
            bias.learn(gradient.sum((1, 2, 3)), learning_rate)
        if self._places is None:
            return self._plain.backward(gradient, learning_rate, wanted)
        return kernels.unpool(gradient.contiguous(), self._places)


class Rectifier(Layer):
    """`nn.ReLU`."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """max(0, x)."""
        self._values = values.relu()
        return self._values

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The gradient where the output is above zero."""
        before: Tensor = torch.ops.aten.threshold_backward(gradient, self._values, 0)
        return before


class Flattening(Layer):
    """`nn.Flatten`: in the module's order, channels first."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """[g, B, ...] to [g, B, F]."""
        self._shape = _channels_first(values).shape
        return _channels_first(values).flatten(2)

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Back to images."""
        return _channels_last(gradient.view(self._shape))


class Dropping(Layer):
    """`CountedDropout`: the masks are those every model would draw alone."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """Values times masks."""
        module, network = self.module, self.network
        assert isinstance(module, CountedDropout)
        if not training or module.probability == 0:
            return values
        shape = _channels_first(values).shape[1:]
        draw = torch.vmap(lambda key: keep(shape, module.probability, module.layer, key, network.step))
        self._mask = _channels_last(draw(network.keys[: len(values)]).to(values.dtype))
        return values * self._mask

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The same masks."""
        assert isinstance(self.module, CountedDropout)
        return gradient * self._mask if self.module.probability else gradient


class Plain(Layer):
    """A layer without parameters, which models and samples pass through alike; its backward is autograd's."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """The module on [g·B, ...]."""
        self._inputs = _channels_first(values).flatten(0, 1).detach().requires_grad_(training)
        with torch.set_grad_enabled(training):
            self._outputs = self.module(self._inputs)
        return _channels_last(self._outputs.detach().view(*values.shape[:2], *self._outputs.shape[1:]))

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Through the module."""
        (before,) = torch.autograd.grad(self._outputs, self._inputs, _channels_first(gradient).flatten(0, 1))
        return _channels_last(before.view(*gradient.shape[:2], *before.shape[1:]))


class Vmapped(Layer):
    """Any other module: `torch.vmap` over the models, autograd for its backward."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """The module, once per model."""
        module, network, count = self.module.train(training), self.network, len(values)
        names = [name for name, _ in module.named_parameters()]
        dropouts = [name for name, part in module.named_modules() if isinstance(part, CountedDropout)]
        keys = {f"{name}.key": network.keys[:count] for name in dropouts}
        steps = {f"{name}.step": network.step for name in dropouts}

        def one(inputs: Tensor, parameters: dict[str, Tensor], keys: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(module, {**parameters, **keys, **steps}, (inputs,))
            return result

        self._inputs = _channels_first(values).contiguous().detach().requires_grad_(training)
        # Copies, since autograd does not let layers further on learn in place in the memory it still needs.
        self._used = [parameter.value[:count].clone().requires_grad_(training) for parameter in self.parameters]
        with torch.set_grad_enabled(training):
            cast = [parameter.to(values.dtype) for parameter in self._used]
            self._outputs = torch.vmap(one)(self._inputs, dict(zip(names, cast, strict=True)), keys)
        return _channels_last(self._outputs.detach())

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Through the module."""
        leaves = [*self._used, self._inputs] if wanted else self._used
        gradients = torch.autograd.grad(self._outputs, leaves, _channels_first(gradient))
        for parameter, one in zip(self.parameters, gradients[: len(self._used)], strict=True):
            parameter.learn(one, learning_rate)
        return _channels_last(gradients[-1]) if wanted else gradient


def _leaves(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential`s in order; any other module is one layer."""
    if type(module) is nn.Sequential:
        for key, child in module.named_children():
            yield from _leaves(f"{name}.{key}" if name else key, child)
    else:
        yield name, module


def _reordered(leaves: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Pool before ReLU, not after, and as one layer: the same values and gradients with a quarter of the work."""
    result: list[tuple[str, nn.Module]] = []
    for name, leaf in leaves:
        if result and type(leaf) is nn.MaxPool2d and type(result[-1][1]) is nn.ReLU:
            result[-1] = name, nn.Sequential(leaf, result[-1][1])
        else:
            result.append((name, leaf))
    return result


def _pools_and_rectifies(module: nn.Module) -> bool:
    return type(module) is nn.Sequential and [type(part) for part in module] == [nn.MaxPool2d, nn.ReLU]


def _affine(rows: Tensor, kernel: Tensor, bias: Sequence[Parameter]) -> Tensor:
    """rows [g, n, k] · kernel [g, k, m], plus the bias [g, m] if there is one."""
    if not bias:
        return torch.bmm(rows, kernel)
    return torch.baddbmm(bias[0].value[: len(rows), None].to(rows.dtype), rows, kernel)


def _channels_last(values: Tensor) -> Tensor:
    """[g, B, C, H, W] to [g, B, H, W, C]; anything else as it is."""
    return values.permute(0, 1, 3, 4, 2).contiguous() if values.dim() == 5 else values


def _channels_first(values: Tensor) -> Tensor:
    """The reverse, as a view."""
    return values.permute(0, 1, 4, 2, 3) if values.dim() == 5 else values
