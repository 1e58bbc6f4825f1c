"""Networks by name. Each takes the shape of a sample and the number of outputs; what else it takes are options.

A network is a function that makes a module, or the module's class itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le, MaxLen, MinLen
from torch import Tensor, nn

from ..core.seeding import seeded_default_generator
from ..registry import Decay, PositiveInt, Registry

Network = Callable[..., nn.Module]
MODELS: Registry[Network] = Registry("model", "models", "Networks that clients train", passes=True)

Width = Annotated[int, Gt(0), Le(1_000_000)]  # of a layer
Widths = Annotated[Sequence[Width], MaxLen(100)]
# For a layer and one sample: 400 MB, and a part of a second
MOST_VALUES, MOST_PRODUCTS = (
    10**8,
    5 * 10**9,
)


def initialised(network: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The network with the random parameters of a seed."""
    with seeded_default_generator(seed, "initial model"):
        return network()


@MODELS.register("linear")
def linear(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """One linear layer: logistic or linear regression.

    Args:
        input_shape: of a sample; it is flattened.
        num_outputs: classes, or values to predict.

    Example:
        >>> linear((1, 8, 8), 10)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs))


@MODELS.register("mlp")
def mlp(
    input_shape: tuple[int, ...], num_outputs: int, *, hidden: Widths = (200, 200)
) -> nn.Module:
    """Fully connected layers with ReLU between them.

    Args:
        input_shape: of a sample; it is flattened.
        num_outputs: classes, or values to predict.
        hidden: width of each hidden layer.

    Example:
        >>> mlp((4,), 3, hidden=[16])(torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise([math.prod(input_shape), *hidden]):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([math.prod(input_shape), *hidden][-1], num_outputs))


@MODELS.register("cnn")
def cnn(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    channels: Widths = (32, 64),
    kernel: Annotated[int, Gt(0), Le(15)] = 5,
    pool_every: PositiveInt = 1,
    padding: Literal["same", "valid"] = "same",
    dense: Width = 512,
    dropout: Decay = 0.0,
    dense_dropout: Decay = 0.0,
    activation: bool = True,
) -> nn.Module:
    """Convolutions with 2×2 pooling and a dense layer; the default is P1's MNIST CNN (1,663,370 parameters).

    The papers' other networks, with their numbers of parameters:

    - P1 CelebA: `kernel = 3` on 3×64×64 (8,409,025).
    - P2: `dense = 2048` with 62 classes (6,603,710).
    - P3 MNIST, the example of Keras: `kernel = 3, pool_every = 2, padding = "valid", dense = 128,
      dropout = 0.25, dense_dropout = 0.5` (1,199,882).
    - P3 malaria: `channels = [32, 32, 64, 64, 128, 128], kernel = 3, pool_every = 2, dense = 128,
      dropout = 0.15, dense_dropout = 0.15`.

    Args:
        input_shape: (channels, height, width) of an image.
        num_outputs: classes, or values to predict.
        channels: of each convolution.
        kernel: its width and height.
        pool_every: convolutions before each pooling.
        padding: of the convolutions: "same" keeps the image's size, "valid" does not pad.
        dense: width of the dense layer.
        dropout: probability after every pooling.
        dense_dropout: probability after the dense layer.
        activation: whether ReLU follows the convolutions; P1's and P2's code has none.

    Example:
        >>> cnn((1, 8, 8), 10, dense=16)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"model cnn needs images (channels, height, width), got samples of shape {input_shape}"
        )
    depth, height, width = input_shape
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise([depth, *channels]), start=1):
        if padding == "valid":
            height, width = height - kernel + 1, width - kernel + 1
        # Before it takes memory
        _check_layer(f"convolution {number}", after * height * width, before * kernel**2)
        layers += [
            nn.Conv2d(before, after, kernel, padding=padding),
            *([nn.ReLU()] if activation else []),
        ]
        if number % pool_every == 0:
            layers += [nn.MaxPool2d(2), *([nn.Dropout(dropout)] if dropout else [])]
            height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise ValueError(
                f"convolution {number} leaves nothing of images of {input_shape[1]}×{input_shape[2]}; "
                "use fewer convolutions or poolings"
            )
    layers += [nn.Flatten(), nn.Linear([depth, *channels][-1] * height * width, dense), nn.ReLU()]
    layers += [nn.Dropout(dense_dropout)] if dense_dropout else []
    return nn.Sequential(*layers, nn.Linear(dense, num_outputs))


@MODELS.register("fully_convolutional")
def fully_convolutional(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    channels: Annotated[Widths, MinLen(1)] = (32, 64, 128),
    middle: Annotated[Widths, MinLen(1)] = (512, 512),
) -> nn.Module:
    """An image to images of the same size: P3's counting network (3,727,105 parameters), or masks (segmentation).

    3×3 convolutions that halve the image, a middle, and as many that double it: the fully convolutional
    regression network of Xie, Noble and Zisserman (2016), with a second middle layer as in P3.

    Args:
        input_shape: (channels, height, width) of an image.
        num_outputs: height · width, times the number of images.
        channels: of the convolutions that halve the image.
        middle: of the convolutions between.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) % 2 ** len(channels):
        raise ValueError(
            f"model fully_convolutional halves images {len(channels)} times, got samples of shape {input_shape}"
        )
    images, rest = divmod(num_outputs, math.prod(input_shape[1:]))
    if rest or not images:
        raise ValueError(
            f"model fully_convolutional gives values for every pixel, but {num_outputs} are to be predicted"
        )

    def convolution(before: int, after: int, halved: int) -> list[nn.Module]:
        _check_layer("a convolution", after * math.prod(input_shape[1:]) // 4**halved, 9 * before)
        layer = nn.Conv2d(before, after, 3, padding="same", bias=False)
        return [layer, nn.BatchNorm2d(after), nn.ReLU()]

    layers: list[nn.Module] = []
    for halved, (before, after) in enumerate(pairwise([input_shape[0], *channels])):
        layers += [*convolution(before, after, halved), nn.MaxPool2d(2)]
    for before, after in pairwise([channels[-1], *middle]):
        layers += convolution(before, after, len(channels))
    for doubled, (before, after) in enumerate(pairwise([middle[-1], *reversed(channels)]), start=1):
        layers += [
            nn.Upsample(scale_factor=2),
            *convolution(before, after, len(channels) - doubled),
        ]
    return nn.Sequential(*layers, nn.Conv2d(channels[0], images, 1))


@MODELS.register("lstm")
def lstm(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    words: PositiveInt = 10_000,
    embedding: Width = 64,
    hidden: Width = 64,
) -> nn.Module:
    """Word vectors, two LSTM layers (P3 1.D), and a linear layer on the state after the last word.

    A sample is a row of word numbers; 0 is padding, on either side of the text.

    Args:
        input_shape: (length,) of a text.
        num_outputs: classes, or values to predict.
        words: size of the vocabulary; word numbers are below it.
        embedding: size of a word vector.
        hidden: size of the LSTM's state.

    Example:
        >>> lstm((6,), 2, words=50, embedding=4, hidden=4)(torch.ones(5, 6)).shape
        torch.Size([5, 2])
    """
    if len(input_shape) != 1:
        raise ValueError(
            f"model lstm needs rows of word numbers, got samples of shape {input_shape}"
        )
    _check_layer("a layer", 4 * hidden * input_shape[0], max(embedding, hidden) + hidden)
    return _Reader(words, embedding, hidden, num_outputs)


def _check_layer(layer: str, values: int, products: int) -> None:
    """Raise a ValueError if a layer needs too much memory or time for one sample."""
    if values > MOST_VALUES or values * products > MOST_PRODUCTS:
        raise ValueError(
            f"{layer} makes {values:,} values of a sample, of {products:,} products each: "
            f"{MOST_VALUES:,} values and {MOST_PRODUCTS:,} products at most; make it smaller"
        )


class _Reader(nn.Module):
    """Embedding, two LSTM layers, and an output from the state after the last word."""

    def __init__(self, words: int, embedding: int, hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding, padding_idx=0)
        self.recurrent = nn.LSTM(embedding, hidden, 2, batch_first=True)
        self.output = nn.Linear(hidden, num_outputs)

    def forward(self, samples: Tensor) -> Tensor:
        """Logits [N, C] of word numbers [N, T], which arrive as floats like all samples."""
        words = samples.long()
        states = self.recurrent(self.embedding(words))[0]  # [N, T, H]
        positions = torch.arange(words.shape[1], device=words.device)
        last = (positions * (words != 0)).amax(1)  # 0 for a text without words
        outputs: Tensor = self.output(states[torch.arange(len(words), device=words.device), last])
        return outputs
