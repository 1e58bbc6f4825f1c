"""Kernels of our own for GPUs, for what a library does in several passes over memory.

Triton comes with PyTorch's builds for CUDA, and builds the kernels with a C compiler when they first run. Where that
does not work the layers run as PyTorch has them.
"""

from __future__ import annotations

try:
    import triton
except ImportError:
    triton = None

__all__ = ["triton"]
