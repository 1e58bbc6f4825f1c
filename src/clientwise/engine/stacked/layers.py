"""The layers of a stacked network: each runs for G models at once, forwards and backwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.func import functional_call

from ...models.modules import CountedDropout, keep

# Parameter-free, and blind to what else is in the batch.
PLAIN = (
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SiLU,
    nn.Softplus,
    nn.Identity,
)
# Output pixels per model from which on one convolution after the other fills a GPU
LARGE_CONVOLUTION = 32_768
FEW = 64  # values in a patch


@dataclass
class DropoutDraws:
    """What dropout draws from, one key for every model."""

    keys: Tensor  # [G]
    step: Tensor  # []
    on: bool = True  # whether layers drop anything while they train


class Parameter:
    """One tensor of all models."""

    def __init__(self, matrix: Tensor, value: Tensor) -> None:
        self.matrix = matrix  # [G, rows, columns]
        self.value = value  # [G, ...], the same memory
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


class StackedLayer(ABC):
    """One layer of all models. `forward` keeps what `backward` needs; both work on the first g models."""

    def __init__(
        self, module: nn.Module, parameters: Sequence[Parameter], draws: DropoutDraws
    ) -> None:
        self.module = module
        self.parameters = parameters
        self.draws = draws
        self.kept = 0  # values of the last outputs
        self.alike = False  # whether all models have the same parameters now

    @abstractmethod
    def forward(self, values: Tensor, training: bool) -> Tensor:
        """[g, B, ...] to [g, B, ...]."""

    @abstractmethod
    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Learn, and hand on the gradient by the inputs if it is wanted."""


class Dense(StackedLayer):
    """`nn.Linear`: batched matrix products."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """x·Wᵀ + b."""
        rows = values.reshape(len(values), -1, values.shape[-1])
        if training:
            self._rows = rows
            self._shape = values.shape
        kernel = self.parameters[0].value[: len(values)].to(values.dtype).transpose(1, 2)
        if self.alike:  # one large product instead of many small ones
            rows = rows.flatten(0, 1)[None]
            kernel = kernel[:1]
        return _affine(rows, kernel, self.parameters[1:]).view(*values.shape[:-1], -1)

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The gradient by the inputs comes first: the weights change in place."""
        gradient = gradient.reshape(len(gradient), -1, gradient.shape[-1])
        before = gradient
        if wanted:
            kernel = self.parameters[0].value[: len(gradient)].to(gradient.dtype)
            slopes = gradient
            if self.alike:
                slopes = gradient.flatten(0, 1)[None]
                kernel = kernel[:1]
            before = torch.bmm(slopes, kernel).view(self._shape)
        self.parameters[0].learn_product(gradient.transpose(1, 2), self._rows, learning_rate)
        for bias in self.parameters[1:]:
            bias.learn(gradient.sum(1), learning_rate)
        return before


class Convolution(StackedLayer):
    """`nn.Conv2d`: as matrix products over patches, all models at once; large ones model by model."""

    def __init__(
        self, module: nn.Module, parameters: Sequence[Parameter], draws: DropoutDraws
    ) -> None:
        super().__init__(module, parameters, draws)
        assert isinstance(module, nn.Conv2d)
        self._kernel = module.kernel_size
        self._stride = module.stride
        named = {"same": [(size - 1) // 2 for size in self._kernel], "valid": [0, 0]}
        self._padding = (
            named[module.padding] if isinstance(module.padding, str) else list(module.padding)
        )
        reaches = all(
            size > padding for size, padding in zip(self._kernel, self._padding, strict=True)
        )
        self._can_cut = self._stride == (1, 1) and reaches
        self._patches: Tensor | None = None

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        """Whether it is an ordinary convolution."""
        symmetric = module.padding != "same" or all(size % 2 for size in module.kernel_size)
        return (
            module.groups == 1
            and module.dilation == (1, 1)
            and module.padding_mode == "zeros"
            and symmetric
        )

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """Patches times kernels, or one convolution per model."""
        self._patches = None
        self._values = values
        height, width = self._size_after(values)
        per_patch = self.parameters[0].matrix.shape[2]
        is_large = per_patch > FEW and values.shape[1] * height * width > LARGE_CONVOLUTION
        if is_large or not self._can_cut or not _cuts_patches(values):
            return _stacked([self._convolve(values, model) for model in range(len(values))])
        self._patches = self._cut(values, height, width, self._padding)
        kernel = self.parameters[0].matrix[: len(values)].to(values.dtype).transpose(1, 2)
        return _affine(self._patches, kernel, self.parameters[1:]).view(
            *values.shape[:2], height, width, -1
        )

    def _size_after(self, values: Tensor) -> list[int]:
        """Height and width of the outputs."""
        return [
            (size + 2 * padding - kernel) // stride + 1
            for size, padding, kernel, stride in zip(
                values.shape[2:4], self._padding, self._kernel, self._stride, strict=True
            )
        ]

    def _cut(self, values: Tensor, height: int, width: int, padding: Sequence[int]) -> Tensor:
        """Every patch the kernel sees as a row [g, B·height·width, kernel·C]; in it rows of the image lie whole."""
        (rows, columns), channels, count = self._kernel, values.shape[-1], len(values)
        values = values[:1] if values.stride(0) == 0 else values
        padded = functional.pad(values, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        high, along = padded.shape[2:4]
        models, images, down = (
            values.shape[1] * high * along * channels,
            high * along * channels,
            along * channels,
        )
        shape: tuple[int, ...] = (*values.shape[:2], height, width, rows, columns * channels)
        # Written out, since PyTorch may say anything about the stride of a single channel.
        strides: tuple[int, ...] = (models, images, down, channels, down, 1)
        if channels * values.element_size() % 16 == 0:
            # Copy 16 bytes at a time: a third of the time
            wide = 16 // values.element_size()
            shape = (*shape[:-1], shape[-1] // wide)
            strides = (*(stride // wide for stride in strides[:-1]), 1)
            patches = (
                padded.contiguous()
                .view(torch.complex128)
                .as_strided(shape, strides)
                .contiguous()
                .view(values.dtype)
            )
        else:
            patches = padded.contiguous().as_strided(shape, strides)
        return patches.reshape(len(values), -1, rows * columns * channels).expand(count, -1, -1)

    def _convolve(self, values: Tensor, model: int) -> Tensor:
        kernel, *bias = (parameter.value[model].to(values.dtype) for parameter in self.parameters)
        image = values[model].permute(0, 3, 1, 2)  # channels last in memory
        result = functional.conv2d(
            image, kernel, bias[0] if bias else None, self._stride, self._padding
        )
        return result.permute(0, 2, 3, 1)

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """As `forward` went; the gradient by the inputs is a convolution with the kernels turned around."""
        if self._patches is None:
            return self._backward_one_by_one(gradient, learning_rate, wanted)
        models, batch, high, along, _ = self._values.shape
        before = gradient
        if wanted:
            patches = self._cut(gradient, high, along, self._margins())
            before = torch.bmm(patches, self._turned(gradient)).view(self._values.shape)
        rows = gradient.reshape(models, -1, gradient.shape[-1])
        if self._patches.shape[-1] > FEW:
            self.parameters[0].learn_product(rows.transpose(1, 2), self._patches, learning_rate)
        else:  # a long product with few results: image by image first, or most of the GPU would have nothing to do
            left = rows.reshape(models * batch, -1, rows.shape[-1]).transpose(1, 2)
            right = self._patches.reshape(models * batch, -1, self._patches.shape[-1])
            product = torch.bmm(left, right).view(
                models, batch, *self.parameters[0].matrix.shape[1:]
            )
            self.parameters[0].learn_matrix(product.sum(1), learning_rate)
        for bias in self.parameters[1:]:
            bias.learn(rows.sum(1), learning_rate)
        return before

    def _margins(self) -> list[int]:
        """The padding of the convolution that makes the gradient by the inputs."""
        return [
            size - 1 - padding for size, padding in zip(self._kernel, self._padding, strict=True)
        ]

    def _turned(self, gradient: Tensor) -> Tensor:
        """Its kernels [g, patch, C]."""
        turned = self.parameters[0].value[: len(gradient)].flip(3, 4).permute(0, 3, 4, 1, 2)
        return turned.reshape(len(gradient), -1, turned.shape[-1]).to(gradient.dtype)

    def _backward_one_by_one(
        self, gradient: Tensor, learning_rate: float | None, wanted: bool
    ) -> Tensor:
        results = []
        for model in range(len(gradient)):
            results.append(
                torch.ops.aten.convolution_backward(
                    gradient[model].permute(0, 3, 1, 2),
                    self._values[model].permute(0, 3, 1, 2),
                    self.parameters[0].value[model].to(gradient.dtype),
                    [gradient.shape[-1]] if len(self.parameters) > 1 else None,
                    self._stride,
                    self._padding,
                    (1, 1),
                    False,
                    (0, 0),
                    1,
                    (wanted, True, len(self.parameters) > 1),
                )
            )
        for index, parameter in enumerate(self.parameters):
            parameter.learn(_stacked([result[1 + index] for result in results]), learning_rate)
        if not wanted:
            return gradient
        return _stacked([result[0].permute(0, 2, 3, 1) for result in results])


class Pooling(StackedLayer):
    """`nn.MaxPool2d`, alone or with the ReLU behind it.

    It adds the bias of the convolution before it: added to the maximum of four it is a quarter of the work.
    """

    def __init__(
        self, module: nn.Module, parameters: Sequence[Parameter], draws: DropoutDraws
    ) -> None:
        super().__init__(module, parameters, draws)
        self._relu = type(module) is nn.Sequential
        self._plain = Plain(next(module.children()) if self._relu else module, (), draws)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether it pools, with a ReLU behind it or without."""
        if type(module) is nn.Sequential:
            return [type(part) for part in module] == [nn.MaxPool2d, nn.ReLU]
        return type(module) is nn.MaxPool2d

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """The maxima."""
        results = self._plain.forward(values, training)
        for bias in self.parameters:
            results = results + bias.value[: len(values), None, None, None].to(values.dtype)
        self._results = results.relu() if self._relu else results
        return self._results

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The gradient where the maxima were."""
        if self._relu:
            gradient = torch.ops.aten.threshold_backward(gradient, self._results, 0)
        for bias in self.parameters:
            bias.learn(gradient.sum((1, 2, 3)), learning_rate)
        return self._plain.backward(gradient, learning_rate, wanted)


class Rectifier(StackedLayer):
    """`nn.ReLU`."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """max(0, x)."""
        self._values = values.relu()
        return self._values

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The gradient where the output is above zero."""
        before: Tensor = torch.ops.aten.threshold_backward(gradient, self._values, 0)
        return before


class Flattening(StackedLayer):
    """`nn.Flatten`: in the module's order, channels first."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """[g, B, ...] to [g, B, F]."""
        self._shape = channels_first(values).shape
        return channels_first(values).flatten(2)

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Back to images."""
        return channels_last(gradient.view(self._shape))


class Dropping(StackedLayer):
    """`CountedDropout`: the masks are those every model would draw alone."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """Values times masks."""
        module = self.module
        draws = self.draws
        assert isinstance(module, CountedDropout)
        self._mask = None
        if not training or module.p == 0 or not self.draws.on:
            return values
        shape = channels_first(values).shape[1:]
        draw = torch.vmap(lambda key: keep(shape, module.p, module.layer, key, draws.step))
        self._mask = channels_last(draw(draws.keys[: len(values)]).to(values.dtype))
        return values * self._mask

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """The same masks."""
        return gradient if self._mask is None else gradient * self._mask


class Plain(StackedLayer):
    """A layer without parameters, which models and samples pass through alike; its backward is autograd's."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """The module on [g·B, ...]."""
        self._inputs = channels_first(values).flatten(0, 1).detach().requires_grad_(training)
        with torch.set_grad_enabled(training):
            self._outputs = self.module(self._inputs)
        return channels_last(
            self._outputs.detach().view(*values.shape[:2], *self._outputs.shape[1:])
        )

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Through the module."""
        (before,) = torch.autograd.grad(
            self._outputs, self._inputs, channels_first(gradient).flatten(0, 1)
        )
        return channels_last(before.view(*gradient.shape[:2], *before.shape[1:]))


class Vmapped(StackedLayer):
    """Any other module: `torch.vmap` over the models, autograd for its backward."""

    def forward(self, values: Tensor, training: bool) -> Tensor:
        """The module, once per model."""
        draws = self.draws
        module = self.module.train(training and draws.on)
        count = len(values)
        names = [name for name, _ in module.named_parameters()]
        dropouts = [
            name for name, part in module.named_modules() if isinstance(part, CountedDropout)
        ]
        keys = {f"{name}.key": draws.keys[:count] for name in dropouts}
        steps = {f"{name}.step": draws.step for name in dropouts}

        def one(inputs: Tensor, parameters: dict[str, Tensor], keys: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(module, {**parameters, **keys, **steps}, (inputs,))
            return result

        learns = training and values.is_floating_point()  # token ids have no gradient
        self._inputs = channels_first(values).contiguous().detach().requires_grad_(learns)
        # Copies, since autograd does not let layers further on learn in place in the memory it still needs.
        self._used = [
            parameter.value[:count].clone().requires_grad_(training)
            for parameter in self.parameters
        ]
        with torch.set_grad_enabled(training):
            dtype = values.dtype if values.is_floating_point() else torch.float32
            cast = [parameter.to(dtype) for parameter in self._used]
            self._outputs = torch.vmap(one)(self._inputs, dict(zip(names, cast, strict=True)), keys)
        return channels_last(self._outputs.detach())

    def backward(self, gradient: Tensor, learning_rate: float | None, wanted: bool) -> Tensor:
        """Through the module."""
        leaves = [*self._used, self._inputs] if wanted else self._used
        slopes = channels_first(gradient).to(self._outputs.dtype)
        gradients = torch.autograd.grad(self._outputs, leaves, slopes)
        for parameter, one in zip(self.parameters, gradients[: len(self._used)], strict=True):
            parameter.learn(one, learning_rate)
        return channels_last(gradients[-1]) if wanted else gradient


def make_layer(
    module: nn.Module, parameters: Sequence[Parameter], draws: DropoutDraws
) -> StackedLayer:
    """The rule that fits a module; `torch.vmap` where there is none."""
    rules: list[tuple[type[StackedLayer], bool]] = [
        (Dense, type(module) is nn.Linear),
        (Convolution, type(module) is nn.Conv2d and Convolution.fits(module)),
        (Rectifier, type(module) is nn.ReLU),
        (Flattening, type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)),
        (Dropping, type(module) is CountedDropout),
        (Pooling, Pooling.fits(module)),
        (Plain, isinstance(module, PLAIN)),
    ]
    rule = next((rule for rule, fits in rules if fits), Vmapped)
    return rule(module, parameters, draws)


def _affine(rows: Tensor, kernel: Tensor, bias: Sequence[Parameter]) -> Tensor:
    """rows [g, n, k] · kernel [g, k, m], plus the bias [g, m] if there is one."""
    if not bias:
        return torch.bmm(rows, kernel)
    return torch.baddbmm(bias[0].value[: len(rows), None].to(rows.dtype), rows, kernel)


def _cuts_patches(values: Tensor) -> bool:
    """Whether products over patches can be faster than PyTorch's convolutions: on a GPU."""
    return values.is_cuda


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """As `torch.stack`; one tensor is not copied."""
    return values[0][None] if len(values) == 1 else torch.stack(list(values))


def channels_last(values: Tensor) -> Tensor:
    """[g, B, C, H, W] to [g, B, H, W, C]; anything else as it is."""
    return values.permute(0, 1, 3, 4, 2).contiguous() if values.dim() == 5 else values


def channels_first(values: Tensor) -> Tensor:
    """The reverse, as a view."""
    return values.permute(0, 1, 4, 2, 3) if values.dim() == 5 else values
