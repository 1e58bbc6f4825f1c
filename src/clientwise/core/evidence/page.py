"""Page's test: evidence is summed over the rounds, and what exceeds a threshold moves weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ..types import LookBack, Posterior

StandardErrors = Annotated[float, Ge(0), Le(100)]
Strength = Annotated[float, Gt(0), Le(100)]


@dataclass(frozen=True)
class PageTest:
    """Two sums per client, against it and in its favour, and its factor on the weight by the score.

    With z_k the evidence of a round against client k in standard errors (CUSUM test, Page, 1954):

        against_k ← max(0, against_k + z_k − slack),    favour_k ← max(0, favour_k − z_k − slack)
        log f_k ← min(0, log f_k − strength · (against_k − threshold)₊ + strength · (favour_k − threshold)₊)

    Both sums are cut at the threshold once they have had their effect.
    """

    threshold: float
    slack: float
    strength: float

    @staticmethod
    def first(num_clients: int) -> dict[str, Tensor]:
        """No evidence on any client."""
        names = ("against", "favour", "log_odds")
        return {name: torch.zeros(num_clients, dtype=torch.float64) for name in names}

    def posterior(
        self,
        rows: Tensor,
        prior: Tensor,
        z: Tensor | None,
        memory: Mapping[str, Tensor],
        past: LookBack,
    ) -> Posterior:
        """The weights after a round.

        Args:
            rows: the n clients of the round.
            prior: weights by the score, sum to 1, [n].
            z: evidence against each client [n]; None: there is none in this round.
            memory: as `first` or the last call left it.
            past: what the directions of the updates tell.

        Returns:
            Weights [n] and memory; its z is `against`, or −`favour` if that is larger.
        """
        log_odds = memory["log_odds"][rows]
        after = past.kept_in(memory)
        if z is None:
            return Posterior(past.counted_once(moved(prior, log_odds)), after, look_back=past)
        against = (memory["against"][rows] + z - self.slack).clamp(min=0)
        favour = (memory["favour"][rows] - z - self.slack).clamp(min=0)
        beyond = (against - self.threshold).clamp(min=0) - (favour - self.threshold).clamp(min=0)
        log_odds = (log_odds - self.strength * beyond).clamp(max=0)
        after["against"][rows] = against.clamp(max=self.threshold)
        after["favour"][rows] = favour.clamp(max=self.threshold)
        after["log_odds"][rows] = log_odds
        return Posterior(
            weights=past.counted_once(moved(prior, log_odds)),
            memory=after,
            z=torch.where(against >= favour, against, -favour),
            look_back=past,
        )


def moved(prior: Tensor, log_odds: Tensor) -> Tensor:
    """The prior weights [n], each times exp(log_odds), divided by their sum; a prior of 0 stays 0."""
    result = prior * (log_odds - log_odds[prior > 0].max()).exp()
    return result / result.sum()
