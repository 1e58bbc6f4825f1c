"""One kernel of our own for GPUs: 2×2 max pooling with the ReLU behind it, in one pass each way.

PyTorch's pooling keeps 64-bit places and takes several passes, which made it the largest part of a small convolutional
network's step. Here a byte says where the maximum was, or that the ReLU cut it off. Triton comes with PyTorch's builds
for CUDA; without it the layers run as PyTorch has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 1024

if triton is not None:

    @triton.jit
    def _forward(values, results, places, total, height, width, channels, RELU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = number < total
        channel, rest = number % channels, number // channels
        column, rest = rest % (width // 2), rest // (width // 2)  # rest: image and row together
        corner = (2 * rest * width + 2 * column) * channels + channel
        best = tl.load(values + corner, mask=inside)
        place = tl.zeros_like(number)
        for which in tl.static_range(1, 4):
            other = tl.load(values + corner + ((which // 2) * width + which % 2) * channels, mask=inside)
            larger = (other > best) | (other != other)  # the first of equals, as PyTorch; NaN stays visible
            best = tl.where(larger, other, best)
            place = tl.where(larger, which, place)
        if RELU:
            cut = best <= 0
            best = tl.where(cut, 0.0, best)
            place = tl.where(cut, 4, place)
        tl.store(results + number, best, mask=inside)
        tl.store(places + number, place.to(tl.uint8), mask=inside)

    @triton.jit
    def _backward(gradient, places, results, total, width, channels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = number < total
        channel, rest = number % channels, number // channels
        column, rest = rest % (width // 2), rest // (width // 2)
        corner = (2 * rest * width + 2 * column) * channels + channel
        value = tl.load(gradient + number, mask=inside)
        place = tl.load(places + number, mask=inside)
        for which in tl.static_range(4):
            target = results + corner + ((which // 2) * width + which % 2) * channels
            tl.store(target, tl.where(place == which, value, 0.0), mask=inside)


def can_pool(values: Tensor) -> bool:
    """Whether the kernel takes these images [g, B, H, W, C]."""
    even = values.dim() == 5 and values.shape[2] % 2 == 0 and values.shape[3] % 2 == 0
    return triton is not None and values.is_cuda and even


def pool(values: Tensor, *, relu: bool) -> tuple[Tensor, Tensor]:
    """Maxima [g, B, H/2, W/2, C] of images that lie channels last, and where they were."""
    models, batch, height, width, channels = values.shape
    results = values.new_empty(models, batch, height // 2, width // 2, channels)
    places = torch.empty_like(results, dtype=torch.uint8)
    total = results.numel()
    kernel: Any = _forward[(triton.cdiv(total, BLOCK),)]
    kernel(values, results, places, total, height, width, channels, relu, BLOCK)
    return results, places


def unpool(gradient: Tensor, places: Tensor) -> Tensor:
    """The gradient by the images."""
    models, batch, height, width, channels = gradient.shape
    results = gradient.new_empty(models, batch, 2 * height, 2 * width, channels)
    total = gradient.numel()
    kernel: Any = _backward[(triton.cdiv(total, BLOCK),)]
    kernel(gradient, places, results, total, 2 * width, channels, BLOCK)
    return results
