"""Kernels of our own for GPUs, for what a library does in several passes over memory.

Triton comes with PyTorch's builds for CUDA, and builds the kernels with a C compiler when they first run. Where that
does not work the layers run as PyTorch has them.
"""

from __future__ import annotations

import functools
import warnings

import torch

try:
    import triton
except ImportError:
    triton = None

__all__ = ["can_build", "triton"]


@functools.cache
def can_build() -> bool:
    """Whether Triton is there and works: without a compiler, or a folder to write to, it does not."""
    if triton is None:
        return False
    from . import pooling

    try:
        pooling.pool(torch.zeros(1, 1, 2, 2, 1, device="cuda"), None, relu=False)
    except Exception as error:  # of the compiler, of the file system, of Triton itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton cannot build its kernels here, PyTorch's slower ones are used: {reason}",
            stacklevel=2,
        )
        return False
    return True
