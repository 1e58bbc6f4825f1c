"""The machine: its device, what it can do, and settings of the whole process."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from ..errors import ClientwiseError

Mode = Literal["auto", "loop", "graph", "stacked"]
Precision = Literal["auto", "float32", "tf32", "bf16"]


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClientwiseError(f"device: {name!r} was asked for, but PyTorch sees no GPU here; use 'cpu' or 'auto'")
    if device.index and device.index != torch.cuda.current_device():  # graphs and kernels are of the current one
        raise ClientwiseError(
            f"device: {name!r} is not the GPU this process begins with; "
            f"set CUDA_VISIBLE_DEVICES={device.index} and use 'cuda'"
        )
    return device


def refuse_impossible(mode: Mode, precision: Precision, device: torch.device) -> None:
    """What a CPU cannot do."""
    if device.type == "cuda":
        return
    if mode == "graph":
        raise ClientwiseError("mode: 'graph' is about CUDA graphs, and this is a CPU; use 'auto' or 'loop'")
    if precision == "tf32":
        raise ClientwiseError("precision: 'tf32' is a GPU's, and this is a CPU; use 'auto', 'float32' or 'bf16'")


@contextmanager
def threads_for(num_parameters: int) -> Iterator[None]:
    """One thread for small networks, whose layers are too small to share; PyTorch's own choice for the others.

    On a busy machine threads that wait for each other make small layers many times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_parameters < 500_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Blocks of megabytes stay with the process when they are freed, as far as Linux's usual allocator can be told so.

    To give them back and fetch them anew, page by page, takes a tenth of a round. Who sets the allocator's own
    variables (MALLOC_..., GLIBC_TUNABLES) is left alone.
    """
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if sys.platform == "linux" and not told and hasattr(allocator := ctypes.CDLL(None), "mallopt"):
        allocator.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: smaller blocks are not fetched one by one
        allocator.mallopt(-1, 2**28)  # M_TRIM_THRESHOLD: so much may lie idle, per thread


def set_precision(wanted: Precision, device: torch.device) -> Precision:
    """What products are computed in: all of float32 on a CPU, its faster form TF32 on a GPU, unless asked otherwise."""
    # Two runs of one config must agree to the bit, or a resumed one would not be the same run.
    torch.backends.cudnn.deterministic = True
    precision: Precision = wanted if wanted != "auto" else "tf32" if device.type == "cuda" else "float32"
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    elif platform.machine() in ("aarch64", "arm64"):
        # Measured: for layers of this size oneDNN costs more than it gains on ARM, and it ignores the thread setting.
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    return precision
