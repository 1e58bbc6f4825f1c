"""Work of a GPU that is the same every time, as one launch: a CPU could not keep up with hundreds of small ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


@functools.cache
def _scratch() -> Any:
    """Where recordings keep what they forget: one place for all, since none begins before the last has ended."""
    return torch.cuda.graph_pool_handle()


class Recording:
    """Work on tensors that stay where they are, recorded once as a CUDA graph: one launch instead of hundreds.

    What the work makes on its way is lost with the next recording that runs; results belong into tensors made before.
    """

    def __init__(self, work: Callable[[], object], changes: Sequence[Tensor]) -> None:
        before = [value.detach().clone() for value in changes]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose their kernels and reserve their memory; that is no training
                work()
                for value, kept in zip(changes, before, strict=True):
                    value.detach().copy_(kept)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Recorded, not done. Other threads may use the GPU meanwhile: one writes down what the last round gave.
        with torch.cuda.graph(self._graph, pool=_scratch(), capture_error_mode="thread_local"):
            work()

    def __call__(self) -> None:
        """Do it again."""
        self._graph.replay()
