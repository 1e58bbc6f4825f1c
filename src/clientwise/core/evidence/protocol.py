"""What evidence is to the round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from ...registry import Registry
from ..types import Gathered, Posterior


class Evidence(Protocol):
    """Prior weights in, posterior weights out. A class whose constructor has the options."""

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """What it remembers of all clients, each [K], before the first round."""
        ...

    def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Posterior:
        """The weights [n] that the evidence leaves."""
        ...


EVIDENCE: Registry[Any] = Registry("evidence", "evidence", "What moves the weights of the score")
