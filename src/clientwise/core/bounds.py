"""Bounds on a client's share of the weight."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Lt, doc
from torch import Tensor

from ..registry import OpenShare

NONE = 1e-300  # a weight below it is none: what it would have to be multiplied by is no number
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bounds:
    """Every accepted client has at least `floor` and at most `cap` of the weight; the others keep their proportions.

    w_a ← clamp(t·w_a, floor, cap), with the one t that makes them sum to 1. A floor lifts a weight of 0 as well: it
    means that everyone accepted has a say.

    >>> Bounds(cap=0.4).apply(torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))[0]
    tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """

    # The config's [methods.bounds] table is made from these fields.
    cap: Annotated[OpenShare, doc("Largest weight of a client, as a share of the total. 1: no cap.")] = 1.0
    floor: Annotated[
        float,
        Ge(0),
        Lt(1),
        doc("Smallest weight of an accepted client, as a share of the total. 0: no floor."),
    ] = 0.0

    def check(self, num_clients: int) -> None:
        """ValueError where a cohort of so many clients cannot keep the bounds."""
        if self.cap * num_clients < 1 - ROUNDING:
            raise ValueError(f"cap = {self.cap:g} leaves {num_clients} clients less than the whole weight")
        if self.floor * num_clients > 1 + ROUNDING:
            raise ValueError(f"floor = {self.floor:g} gives {num_clients} clients more than the whole weight")

    def apply(self, weights: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The weights [n] within the bounds, and a note where so few clients cannot keep them."""
        try:
            self.check(len(weights))
        except ValueError as error:
            return torch.full_like(weights, 1 / len(weights)), (f"bounds: {error}: all have the same",)
        some = weights > NONE
        limits = torch.cat([self.floor / weights[some], self.cap / weights[some]])
        factors = sorted(limits.tolist())  # a client meets a bound at each
        index = bisect_left(factors, 1.0, key=lambda factor: float(self._scaled(weights, factor).sum()))
        if index == len(factors):  # all that have weight are at the cap, and still it is not enough
            return self._with_rest(some)
        between = (factors[index] + (factors[index - 1] if index else 0.0)) / 2
        bounded = self._scaled(weights, between)
        free = (bounded > self.floor) & (bounded < self.cap)  # the same ones anywhere between these two factors
        factor = (1 - bounded[~free].sum()) / weights[free].sum()
        return torch.where(free, self._scaled(weights, float(factor)), bounded), ()

    def _scaled(self, weights: Tensor, factor: float) -> Tensor:
        return (factor * weights).clamp(self.floor, self.cap)

    def _with_rest(self, some: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The cap for those that have weight; the others share what that leaves in equal parts."""
        count, others = int(some.sum()), int((~some).sum())
        if not others:  # n·cap is 1
            return torch.full(some.shape, 1 / count, dtype=torch.float64), ()
        rest = torch.tensor((1 - self.cap * count) / others, dtype=torch.float64).clamp(self.floor, self.cap)
        note = f"bounds: {count} clients have weight, too few for cap = {self.cap:g}: the others share the rest"
        return torch.where(some, self.cap, rest), (note,)
