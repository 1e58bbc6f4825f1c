"""The device, settings of the whole process, and repeated GPU work as one CUDA graph."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ClientwiseError

Mode = Literal["auto", "loop", "graph", "stacked"]
Precision = Literal["auto", "float32", "tf32", "bf16"]
# What each thread's cuBLAS handle keeps for its products: 1 MiB, and 128 KiB for small ones. Every
# lane has a thread, and cuBLAS's default of 32 MiB for each was most of the memory of a run.
CUBLAS_WORKSPACE = ":1024:1:16:8"
SMALL = 500_000  # parameters of a network

KEPT_BYTES = 2**27  # that an allocator may keep of what a thread has freed

_gpu_fraction = 1.0  # of the GPU's memory, which this process may use


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClientwiseError(f"device = {name!r}: PyTorch finds no GPU here; use 'cpu' or 'auto'")
    if device.index and device.index != torch.cuda.current_device():
        # Graphs and kernels are of the current one
        raise ClientwiseError(
            f"device = {name!r}: only the first visible GPU can be used; "
            f"set CUDA_VISIBLE_DEVICES={device.index} and use 'cuda'"
        )
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    return device


def share_gpu(processes: int) -> None:
    """Use at most one of so many equal parts of the GPU's memory."""
    global _gpu_fraction
    _gpu_fraction = 1 / processes
    torch.cuda.set_per_process_memory_fraction(_gpu_fraction)


def gpu_memory(device: torch.device) -> int:
    """The bytes of the GPU that this process may use: free ones and its own, at most its fraction."""
    free, total = torch.cuda.mem_get_info(device)
    return min(free + torch.cuda.memory_reserved(device), int(_gpu_fraction * total))


@contextmanager
def memory_errors_explained() -> Iterator[None]:
    """Raise a ClientwiseError that says what to do where the memory of the GPU is exhausted."""
    try:
        yield
    except RuntimeError as error:  # PyTorch's own kind of it, or an error of CUDA as text
        text = str(error)
        if "CUDA" not in text or "out of memory" not in text:
            raise
        raise ClientwiseError(
            f"the GPU's memory is exhausted ({text.splitlines()[0]}). End other programs that use "
            "it, run fewer jobs at once, reduce federation.clients_per_round or "
            "training.batch_size, or use device = 'cpu'; then resume the run."
        ) from error


def refuse_impossible(mode: Mode, precision: Precision, device: torch.device) -> None:
    """Raise a ClientwiseError for settings that need a GPU, on a CPU."""
    if device.type == "cuda":
        return
    if mode == "graph":
        raise ClientwiseError(
            "mode = 'graph': CUDA graphs need a GPU, and this is a CPU; use 'auto' or 'loop'"
        )
    if precision == "tf32":
        raise ClientwiseError(
            "precision = 'tf32': needs a GPU, and this is a CPU; use 'auto', 'float32' or 'bf16'"
        )


@contextmanager
def threads_for(num_parameters: int) -> Iterator[None]:
    """One thread for small networks; PyTorch's own choice for the others.

    On a busy machine, threads that wait for each other make small layers many times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(thread_count(num_parameters))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_count(num_parameters: int) -> int:
    """The threads of `threads_for`."""
    return 1 if num_parameters < SMALL else torch.get_num_threads()


def keep_freed_memory() -> None:
    """Make glibc's allocator keep freed blocks of megabytes, instead of returning them to the system.

    To return and request them again, page by page, takes a tenth of a round. Nothing is changed where
    the allocator's own variables (MALLOC_..., GLIBC_TUNABLES) are set.
    """
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if sys.platform == "linux" and not told and hasattr(allocator := ctypes.CDLL(None), "mallopt"):
        allocator.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: smaller blocks are not fetched one by one
        allocator.mallopt(-1, KEPT_BYTES)  # M_TRIM_THRESHOLD: so much may lie idle, per thread


def set_precision(wanted: Precision, device: torch.device) -> Precision:
    """Set the precision of matrix products: by default float32 on a CPU, and its faster form TF32 on a GPU."""
    # Two runs of one config must agree to the bit, or a resumed one would not be the same run.
    torch.backends.cudnn.deterministic = True
    precision = wanted
    if wanted == "auto":
        precision = "tf32" if device.type == "cuda" else "float32"
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            precision != "float32"
        )
    elif platform.machine() in ("aarch64", "arm64"):
        # Measured: for layers of this size oneDNN costs more than it gains on ARM, and it ignores the thread setting.
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    return precision


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Capture the work of the block on the stream that all graphs share.

    Python's garbage collector waits until the end: to free another graph would invalidate the capture.
    Other threads may use the GPU meanwhile: one records the last round.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(
            graph, pool=pool, stream=_stream(), capture_error_mode="thread_local"
        ):
            yield
    finally:
        if collects:
            gc.enable()


@functools.cache
def _stream() -> torch.cuda.Stream:
    """The one stream of all warm-ups and captures.

    The allocator and cuBLAS keep memory for every stream: another stream per graph would multiply it.
    """
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@functools.cache
def _scratch() -> torch.cuda.CUDAGraph:
    """An empty graph whose memory pool all graphs share for temporary tensors; they never run at once.

    It is kept, since the pool is freed with the last graph that uses it.
    """
    nothing = torch.cuda.CUDAGraph()
    with _capture(nothing):
        torch.zeros(1, device="cuda")
    return nothing


class CudaGraph:
    """Work on fixed tensors, captured once: one launch instead of hundreds.

    Temporary tensors are overwritten by the next graph that runs; results belong into tensors made before.
    """

    def __init__(self, work: Callable[[], object], changes: Sequence[Tensor]) -> None:
        before = [value.detach().clone() for value in changes]
        stream = _stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Libraries choose their kernels and reserve their memory; that is no training
            for _ in range(2):
                work()
                for value, kept in zip(changes, before, strict=True):
                    value.detach().copy_(kept)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        try:
            with _capture(self._graph, pool=_scratch().pool()):  # captured, not done
                work()
        except BaseException:
            # To PyTorch that memory is still being captured into: the next one needs another
            _scratch.cache_clear()
            raise

    def __call__(self) -> None:
        """Run the captured work."""
        self._graph.replay()
