"""Repeated GPU work as one CUDA graph: launching hundreds of kernels one by one is too slow."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


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
