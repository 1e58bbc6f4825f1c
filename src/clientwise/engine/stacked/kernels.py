"""Kernels of our own for GPUs, for what a library does in several passes over memory.

Triton comes with PyTorch's builds for CUDA, and builds the kernels with a C compiler when they first run. Where that
does not work the layers run as PyTorch has them.

Dense layers on few samples: their time is that of reading and writing the weights. Backward reads them once, for the
gradient by the inputs and for the step of plain SGD.

2×2 max pooling with the ReLU behind it: PyTorch's keeps 64-bit positions and was the largest part of a small
convolutional network's step; here a byte says which of the four was the maximum. The bias of the convolution before
comes in here too: added to the maximum it is a quarter of the work.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import torch
from torch import Tensor

try:
    import triton
except ImportError:
    triton = None

MOST_ROWS = 32  # samples of a model up to which a dense layer's time is that of its weights
MOST_OUTPUTS = 64  # of a dense layer that one block computes
ENOUGH = 64  # blocks to keep a GPU busy
SHORT = 1024  # inputs that one block sums up in no time

if triton is not None:
    import triton.language as tl

    @triton.jit
    def _dense_forward(  # type: ignore[no-untyped-def]
        rows, weights, bias, results, count, units, outputs,
        HAS_BIAS: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, INS: tl.constexpr, OUTS: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        inputs = units * UNIT
        model = tl.program_id(1).to(tl.int64)
        row = tl.arange(0, ROWS)[None, :]
        output = (tl.program_id(0) * OUTS + tl.arange(0, OUTS))[:, None]
        total = tl.zeros((OUTS, ROWS), dtype=tl.float32)
        for first in range(0, inputs, INS):
            column = first + tl.arange(0, INS)
            along, down = column[None, :], column[:, None]
            # Fmt: skip
            weight = tl.load(
                weights + (model * outputs + output) * inputs + along,
                mask=(output < outputs) & (along < inputs),
                other=0.0,
            )
            value = tl.load(
                rows + (model * count + row) * inputs + down,
                mask=(row < count) & (down < inputs),
                other=0.0,
            )
            total = tl.dot(weight.to(value.dtype), value, total)
        if HAS_BIAS:
            total += tl.load(bias + model * outputs + output, mask=output < outputs, other=0.0)
        tl.store(
            results + (model * count + row) * outputs + output,
            total,
            mask=(row < count) & (output < outputs),
        )

    @triton.jit
    def _dense_backward(  # type: ignore[no-untyped-def]
        gradient, rows, weights, bias, before, rate, count, units, outputs,
        WANTED: tl.constexpr, HAS_BIAS: tl.constexpr,  # noqa: N803
        UNIT: tl.constexpr, ROWS: tl.constexpr, INS: tl.constexpr, OUTS: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        inputs = units * UNIT
        model = tl.program_id(1).to(tl.int64)
        row, column = (
            tl.arange(0, ROWS)[:, None],
            (tl.program_id(0) * INS + tl.arange(0, INS))[None, :],
        )
        real = (row < count) & (column < inputs)
        value = tl.load(rows + (model * count + row) * inputs + column, mask=real, other=0.0)
        total = tl.zeros((ROWS, INS), dtype=tl.float32)
        for first in range(0, outputs, OUTS):
            output = first + tl.arange(0, OUTS)
            # Fmt: skip
            slope = tl.load(
                gradient + (model * count + row) * outputs + output[None, :],
                mask=(row < count) & (output[None, :] < outputs),
                other=0.0,
            )
            address = weights + (model * outputs + output[:, None]) * inputs + column
            inside = (output[:, None] < outputs) & (column < inputs)
            weight = tl.load(address, mask=inside, other=0.0)
            if WANTED:
                total = tl.dot(slope, weight.to(slope.dtype), total)
            change = tl.dot(tl.trans(slope), value)
            tl.store(address, weight - rate * change, mask=inside)
            if HAS_BIAS and tl.program_id(0) == 0:
                mine = bias + model * outputs + output
                sums = tl.sum(slope.to(tl.float32), axis=0)
                tl.store(
                    mine, tl.load(mine, mask=output < outputs) - rate * sums, mask=output < outputs
                )
        if WANTED:
            tl.store(before + (model * count + row) * inputs + column, total, mask=real)


def can_run(rows: Tensor, outputs: int) -> bool:
    """Whether the kernels take a dense layer's inputs [g, n, k], and gain by it.

    Samples must be few, and rounded as matrix units do it; and there must be blocks enough to keep the GPU busy.
    """
    models, count, inputs = rows.shape
    rounded = rows.dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32
    busy = inputs <= SHORT or models * -(-outputs // MOST_OUTPUTS) >= ENOUGH
    return (
        rows.device.type == "cuda"  # where it lies; `is_cuda` can be simulated
        and rounded
        and busy
        and count <= MOST_ROWS
        and rows.is_contiguous()
        and can_build()
    )


def forward(rows: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b for rows [g, n, k], float32 weights [G, m, k] and biases [G, m] of the first g models."""
    (models, count, inputs), outputs = rows.shape, weights.shape[1]
    results = rows.new_empty(models, count, outputs)
    cut = _cut(rows, outputs, most=MOST_OUTPUTS)
    kernel: Any = _dense_forward[(triton.cdiv(outputs, cut["OUTS"]), models)]
    kernel(
        rows,
        weights,
        bias,
        results,
        count,
        inputs // cut["UNIT"],
        outputs,
        bias is not None,
        **cut,
        num_stages=4,
    )
    return results


def backward(
    gradient: Tensor,
    rows: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rate: float,
    *,
    wanted: bool,
) -> Tensor | None:
    """A step of SGD on weights and biases, in place; the gradient by the rows if it is wanted."""
    (models, count, inputs), outputs = rows.shape, weights.shape[1]
    before = torch.empty_like(rows) if wanted else None
    cut = _cut(rows, outputs, most=32)
    kernel: Any = _dense_backward[(triton.cdiv(inputs, cut["INS"]), models)]
    # Fmt: skip
    kernel(
        gradient,
        rows,
        weights,
        bias,
        before,
        rate,
        count,
        inputs // cut["UNIT"],
        outputs,
        wanted,
        bias is not None,
        **cut,
        num_stages=3 if wanted else 1,
        num_warps=2 if wanted else 4,
    )
    return before


def _cut(rows: Tensor, outputs: int, most: int) -> dict[str, int]:
    """A layer in blocks: powers of two, no smaller than matrix units want them, and as measured on an H200.

    UNIT tells the compiler by what rows can be divided: it then reads several numbers at a time.
    """
    _, count, inputs = rows.shape
    wishes = {"ROWS": (count, MOST_ROWS), "INS": (inputs, 64), "OUTS": (outputs, most)}
    blocks = {
        name: min(limit, max(16, triton.next_power_of_2(size)))
        for name, (size, limit) in wishes.items()
    }
    return {"UNIT": math.gcd(inputs, 8), **blocks}


BLOCK = 1024

if triton is not None:

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


def can_pool(values: Tensor) -> bool:
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
