"""2×2 max pooling with the ReLU behind it.

PyTorch's keeps 64-bit positions and was the largest part of a small convolutional network's step; here a byte says
which of the four was the maximum. The bias of the convolution before comes in here too: added to the maximum it
is a quarter of the work.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from . import triton

BLOCK = 1024

if triton is not None:
    import triton.language as tl

    @triton.jit
    def _pool(  # type: ignore[no-untyped-def]
        values, bias, results, winners, total, per_model, width, channels,
        HAS_BIAS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = index < total
        channel, rest = index % channels, index // channels
        column, rest = rest % (width // 2), rest // (width // 2)  # rest: image and row together
        corner = (2 * rest * width + 2 * column) * channels + channel
        best = tl.load(values + corner, mask=inside)
        winner = tl.zeros_like(index)
        for which in tl.static_range(1, 4):
            other = tl.load(
                values + corner + ((which // 2) * width + which % 2) * channels, mask=inside
            )
            # The first of equals, as PyTorch; NaN stays visible
            larger = (other > best) | (other != other)
            best = tl.where(larger, other, best)
            winner = tl.where(larger, which, winner)
        if HAS_BIAS:
            best += tl.load(bias + index // per_model * channels + channel, mask=inside)
        if RELU:
            best = tl.where(best <= 0, 0.0, best)
        tl.store(results + index, best, mask=inside)
        tl.store(winners + index, winner.to(tl.uint8), mask=inside)

    @triton.jit
    def _unpool(gradient, winners, results, total, width, channels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = index < total
        channel, rest = index % channels, index // channels
        column, rest = rest % (width // 2), rest // (width // 2)
        corner = (2 * rest * width + 2 * column) * channels + channel
        value = tl.load(gradient + index, mask=inside)
        winner = tl.load(winners + index, mask=inside)
        for which in tl.static_range(4):
            target = results + corner + ((which // 2) * width + which % 2) * channels
            tl.store(target, tl.where(winner == which, value, 0.0), mask=inside)


@functools.cache
def can_build() -> bool:
    """Whether Triton is there and works: without a compiler, or a folder to write to, it does not."""
    if triton is None:
        return False
    try:
        pool(torch.zeros(1, 1, 2, 2, 1, device="cuda"), None, relu=False)
    except Exception as error:  # of the compiler, of the file system, of Triton itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton cannot build its kernels here, PyTorch's slower ones are used: {reason}",
            stacklevel=2,
        )
        return False
    return True


def can_run(values: Tensor) -> bool:
    """Whether the kernel takes these images [g, B, H, W, C]."""
    even = values.dim() == 5 and values.shape[2] % 2 == 0 and values.shape[3] % 2 == 0
    on_gpu = values.device.type == "cuda"
    return on_gpu and even and values.is_contiguous() and can_build()


def pool(values: Tensor, bias: Tensor | None, *, relu: bool) -> tuple[Tensor, Tensor]:
    """Maxima [g, B, H/2, W/2, C] of images that lie channels last, plus biases [G, C]; and where they were."""
    models, batch, height, width, channels = values.shape
    results = values.new_empty(models, batch, height // 2, width // 2, channels)
    winners = torch.empty_like(results, dtype=torch.uint8)
    total, per_model = results.numel(), results[0].numel()
    kernel: Any = _pool[(triton.cdiv(total, BLOCK),)]
    kernel(
        values,
        bias,
        results,
        winners,
        total,
        per_model,
        width,
        channels,
        bias is not None,
        relu,
        BLOCK,
    )
    return results, winners


def unpool(gradient: Tensor, winners: Tensor) -> Tensor:
    """The gradient by the images."""
    models, batch, height, width, channels = gradient.shape
    results = gradient.new_empty(models, batch, 2 * height, 2 * width, channels)
    total = gradient.numel()
    kernel: Any = _unpool[(triton.cdiv(total, BLOCK),)]
    kernel(gradient, winners, results, total, 2 * width, channels, BLOCK)
    return results
