"""Counts what a round would ask of a GPU, on a machine without one.

Tensors that come from the model are marked, and so is everything that is computed from them, until it is copied
to the CPU. An operation on a marked tensor is a launch of a kernel on a GPU, a copy of one to the CPU makes the
CPU wait for it. CUDA graphs are not simulated: their steps count one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal")


class DeviceWork(TorchDispatchMode):
    """Marks tensors, and counts the launches and the waits that they cause."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._marked: dict[int, torch.UntypedStorage] = {}  # kept, so that none takes their place

    def mark(self, value: Tensor) -> Tensor:
        """Let a tensor count as one of the GPU."""
        storage = value.untyped_storage()
        self._marked[storage._cdata] = storage
        return value

    def is_marked(self, value: object) -> bool:
        """Whether a tensor would be on the GPU."""
        return isinstance(value, Tensor) and value.untyped_storage()._cdata in self._marked

    def synchronize(self) -> None:
        """As of a stream: wait for copies that did not."""
        self.waits["synchronize"] += 1

    def fetch(self, value: Tensor, how: str) -> Tensor:
        """A copy on the CPU; `how` may be empty where nobody waits for it."""
        if not self.is_marked(value):
            return value
        if how:
            self.waits[how] += 1
        with torch.utils._python_dispatch._disable_current_modes():
            return value.detach().clone()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and count it."""
        given = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, Tensor)]
        result = func(*args, **(kwargs or {}))
        if not any(map(self.is_marked, given)):
            return result
        name = func._schema.name.removeprefix("aten::")
        by_mask = name == "index" and any(
            self.is_marked(one) and one.dtype == torch.bool for one in given[1:]
        )
        if name in WAITS or by_mask:
            self.waits[name] += 1
        changes = any(one.alias_info and one.alias_info.is_write for one in func._schema.arguments)
        is_view = bool(func._schema.returns) and func._schema.returns[0].alias_info is not None
        if changes or not is_view:
            self.launches[name] += 1
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self.mark(one)
        return result


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceWork]:
    """Count what the block does; in it, marked tensors say that they are on a GPU."""
    work = DeviceWork()
    cpu, tolist, to = Tensor.cpu, Tensor.tolist, Tensor.to

    def moved(value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # By name: an engine of a CPU moves tensors to its own device, which would be the GPU
        how = "" if kwargs.get("non_blocking") else "to"
        return to(work.fetch(value, how) if args[:1] == ("cpu",) else value, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "is_cuda", property(work.is_marked))
        patch.setattr(Tensor, "cpu", lambda value: cpu(work.fetch(value, "cpu")))
        patch.setattr(Tensor, "tolist", lambda value: tolist(work.fetch(value, "tolist")))
        patch.setattr(Tensor, "to", moved)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: work)
        with work:
            yield work
