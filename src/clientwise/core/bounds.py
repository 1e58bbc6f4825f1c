"""Bounds on a client's share of the weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Bounds:
    """Every accepted client has at least `floor` and at most `cap` of the weight; the others keep their proportions."""

    cap: float = 1.0
    floor: float = 0.0

    def apply(self, weights: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The weights within the bounds, and a note where so few clients cannot keep them."""
        raise NotImplementedError
