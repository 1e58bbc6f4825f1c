"""Bounds: a cap and a floor on every client's weight."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Lt, doc
from torch import Tensor

from ..registry import OpenShare

NONE = 1e-300  # a smaller weight counts as zero: the factor that would lift it is not finite
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bounds:
    """Every weight is at least `floor` and at most `cap`; weights in between keep their proportions.

    w_a ← clamp(t·w_a, floor, cap), with the t that makes them sum to 1. A floor also lifts weights of 0.

    Args:
        cap: largest weight of an accepted client.
        floor: smallest weight of an accepted client.

    Example:
        >>> Bounds(cap=0.4).apply(torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))[0]
        tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """

    # The config's [methods.bounds] table is made from these fields.
    cap: Annotated[
        OpenShare, doc("Largest weight of a client, as a share of the total. 1: no cap.")
    ] = 1.0
    floor: Annotated[
        float,
        Ge(0),
        Lt(1),
        doc("Smallest weight of an accepted client, as a share of the total. 0: no floor."),
    ] = 0.0

    def check(self, num_clients: int) -> None:
        """ValueError if the bounds are infeasible for a cohort of so many clients."""
        if self.cap * num_clients < 1 - ROUNDING:
            raise ValueError(
                f"cap = {self.cap:g} is infeasible for {num_clients} clients: it must be at least 1/n"
            )
        if self.floor * num_clients > 1 + ROUNDING:
            raise ValueError(
                f"floor = {self.floor:g} is infeasible for {num_clients} clients: it must be at most 1/n"
            )

    def apply(self, weights: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Bring weights within the bounds.

        Args:
            weights: sum to 1, [n].

        Returns:
            The bounded weights [n], and a note if the bounds are infeasible for these clients.
        """
        try:
            self.check(len(weights))
        except ValueError as error:
            equal = torch.full_like(weights, 1 / len(weights))
            return equal, (f"bounds: {error}; the weights are equal",)
        some = weights > NONE
        limits = torch.cat([self.floor / weights[some], self.cap / weights[some]])
        factors = sorted(limits.tolist())  # at each of them, one client reaches a bound
        index = bisect_left(
            factors, 1.0, key=lambda factor: float(self._scaled(weights, factor).sum())
        )
        if index == len(factors):
            # All clients that have weight are at the cap, and the sum is below 1
            return self._with_rest(some)
        below = factors[index - 1] if index else 0.0
        bounded = self._scaled(weights, (factors[index] + below) / 2)
        # The same anywhere between these two factors
        free = (bounded > self.floor) & (bounded < self.cap)
        factor = (1 - bounded[~free].sum()) / weights[free].sum()
        return torch.where(free, self._scaled(weights, float(factor)), bounded), ()

    def _scaled(self, weights: Tensor, factor: float) -> Tensor:
        return (factor * weights).clamp(self.floor, self.cap)

    def _with_rest(self, some: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The cap for clients that have weight; the rest in equal parts for the others."""
        count = int(some.sum())
        others = int((~some).sum())
        if not others:  # n·cap is 1
            return torch.full(some.shape, 1 / count, dtype=torch.float64), ()
        rest = torch.tensor((1 - self.cap * count) / others, dtype=torch.float64)
        rest = rest.clamp(self.floor, self.cap)
        note = f"bounds: only {count} clients have weight, too few for cap = {self.cap:g}: the others get the rest"
        return torch.where(some, self.cap, rest), (note,)
