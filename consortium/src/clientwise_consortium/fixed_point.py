"""Weighted sums as integers: what a member adds, what the server reads, and which sums cannot be true.

A member with the score s and the clipped update Δ adds s and s·Δ, rounded to a step so small that n members cannot
overflow 64 bits. Of the sums the server knows three bounds; a round that breaks one is void:

    0 ≤ Σ s ≤ n·s_max,    ‖Σ s·Δ‖ ≤ C·Σ s,    0 ≤ Σ x ≤ n·high for every criterion x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .canonical import ConsortiumError

Fixed = Tensor  # int64: numbers in fixed point, so that a sum does not depend on its order
SUM_BITS = 62  # of the sum, so that a range check sees what would overflow
SLACK = 1e-6  # relative: rounding of floats


class Void(ConsortiumError):  # noqa: N818
    """A round whose sum cannot be used: the model stays as it was."""


@dataclass(frozen=True)
class Sums:
    """How the values of a round are added up.

    Args:
        members: n.
        most_score: the largest score s_max.
        clip: the largest norm C of an update.
        highs: the largest value of each criterion.
    """

    members: int
    most_score: float
    clip: float
    highs: Sequence[float]

    def criteria(self, values: Sequence[float]) -> Fixed:
        """What a member adds of its criteria; a value outside of its range is cut."""
        cut = [min(max(value, 0.0), high) for value, high in zip(values, self.highs, strict=True)]
        scaled = [value * self._scale(high) for value, high in zip(cut, self.highs, strict=True)]
        return torch.tensor([round(one) for one in scaled], dtype=torch.int64)

    def read_criteria(self, total: Fixed) -> list[float]:
        """The sums of the criteria; Void where one cannot be true."""
        sums = []
        for value, high in zip(total.tolist(), self.highs, strict=True):
            found = value / self._scale(high)
            if not 0 <= found <= self.members * high * (1 + SLACK):
                raise Void(
                    f"a criterion sums to {found:.4g}: 0 to {self.members * high:.4g} is possible"
                )
            sums.append(found)
        return sums

    def update(self, score: float, update: Tensor) -> Fixed:
        """What a member adds of its score and its update [d]: int64 [1 + d]."""
        score = min(max(score, 0.0), self.most_score)
        values = update.double()
        norm = float(torch.linalg.vector_norm(values))
        if not math.isfinite(norm):
            score, values = 0.0, torch.zeros_like(values)
        elif norm > self.clip:
            values = values * (self.clip / norm)
        scale = self._scale(self.most_score * self.clip)
        weighted = (score * values * scale).round().to(torch.int64)
        own = torch.tensor([round(score * self._scale(self.most_score))], dtype=torch.int64)
        return torch.cat([own, weighted])

    def read_update(self, total: Fixed) -> tuple[float, Tensor]:
        """Σ s, and the mean update Σ s·Δ / Σ s [d]; Void where they cannot be true."""
        score = int(total[0]) / self._scale(self.most_score)
        if not 0 < score <= self.members * self.most_score * (1 + SLACK):
            raise Void(
                f"the scores sum to {score:.4g}: up to {self.members * self.most_score:.4g} is possible"
            )
        weighted = total[1:].double() / self._scale(self.most_score * self.clip)
        norm = float(torch.linalg.vector_norm(weighted))
        rounding = (
            self.members * math.sqrt(len(weighted)) / self._scale(self.most_score * self.clip)
        )
        if not norm <= self.clip * score * (1 + SLACK) + rounding:
            raise Void(
                f"the mean update has norm {norm / score:.4g}: up to {self.clip:.4g} is possible"
            )
        return score, weighted / score

    def _scale(self, limit: float) -> float:
        """Steps per unit of values up to `limit`."""
        return 2.0**SUM_BITS / (self.members * limit)
