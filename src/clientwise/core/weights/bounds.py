"""Bounds: the cap and the floor of a client's weight."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Lt, doc

from ...registry import OpenShare

if TYPE_CHECKING:  # readers of recorded bounds need no PyTorch
    from torch import Tensor

NO_WEIGHT = 1e-100  # a smaller weight counts as zero
ALMOST_NONE = 1e-200  # stands for a weight of zero: it counts only where no other weight is left
ROUNDING = 1e-9


class InfeasibleError(ValueError):
    """No weights meet the bounds. The text has the arithmetic."""


@dataclass(frozen=True)
class Bounds:
    """The weights nearest to the given ones (least Kullback-Leibler divergence) within a cap and a floor.

    w_a ← clamp(t·w_a, floor, cap), with the t that makes them sum to 1: weights in between keep their
    proportions. A floor also lifts weights of 0; where clients with a weight cannot have all of it, the
    others share the rest equally.

    Args:
        cap: largest weight of an accepted client.
        floor: smallest weight of an accepted client.

    Example:
        >>> import torch
        >>> Bounds(cap=0.4).apply(torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))[0]
        tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """

    # The config's [methods.bounds] table is made from these fields.
    cap: Annotated[
        OpenShare, doc("Largest weight of a client, as a share of the total. 1: no cap.")
    ] = 1.0
    floor: Annotated[
        Annotated[float, Ge(0), Lt(1)],
        doc("Smallest weight of an accepted client, as a share of the total. 0: no floor."),
    ] = 0.0

    def check(self, clients: int) -> None:
        """InfeasibleError, with the arithmetic, where no weights of so many clients meet the bounds."""
        if self.floor > self.cap:
            raise InfeasibleError(f"the floor {self.floor:g} is above the cap {self.cap:g}")
        floors = clients * self.floor
        if floors > 1 + ROUNDING:
            given = f"{clients} × {self.floor:g} = {floors:g}"
            raise InfeasibleError(f"the floors sum to {given}, more than 1")
        caps = clients * self.cap
        if caps < 1 - ROUNDING:
            given = f"{clients} × {self.cap:g} = {caps:g}"
            raise InfeasibleError(f"the caps sum to {given}, less than 1")

    def apply(self, weights: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The bounded weights [n] of weights [n] that sum to 1, and notes; InfeasibleError as `check`."""
        self.check(len(weights))
        nothing = weights < NO_WEIGHT
        positive = weights.masked_fill(nothing, ALMOST_NONE)
        bounded = (self._factor(positive) * positive).clamp(self.floor, self.cap)
        bounded[nothing & (bounded < NO_WEIGHT)] = 0.0
        if not bool((nothing & (bounded > self.floor + ROUNDING)).any()):
            return bounded, ()
        count = int((~nothing).sum())
        some = "1 client" if count == 1 else f"{count} clients"
        return bounded, (
            f"bounds: weight of {some} alone cannot meet them: the others get the rest",
        )

    def _factor(self, weights: Tensor) -> float:
        """The t for which the clamped weights sum to 1: exact, on a line between two of its points."""

        def total(factor: float) -> float:
            return float((factor * weights).clamp(self.floor, self.cap).sum())

        # Where a client reaches a bound, the sum changes its slope
        points: list[float] = sorted(
            {*(self.floor / weights).tolist(), *(self.cap / weights).tolist()}
        )
        index = bisect_left(points, 1.0, key=total)
        if index in (0, len(points)):  # the sum is 1 at an end, but for rounding
            return points[min(index, len(points) - 1)]
        start, end = points[index - 1], points[index]
        return start + (end - start) * (1 - total(start)) / (total(end) - total(start))
