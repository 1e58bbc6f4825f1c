"""Repeated GPU work as one CUDA graph: launching hundreds of kernels one by one is too slow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Other threads may use the GPU meanwhile: one writes down what the last round gave.
_capture = functools.partial(torch.cuda.graph, capture_error_mode="thread_local")


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
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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
