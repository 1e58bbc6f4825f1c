"""Weights for the worst mixture of clients (agnostic federated learning)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .protocol import EVIDENCE, Evidence


@EVIDENCE.register("agnostic", needs("models", criteria=["start_loss"]))
@dataclass(frozen=True)
class Agnostic(Evidence):
    """λ ← λ + γ·loss, projected onto the simplex: weighs for the worst mixture of clients (AFL, Mohri et al., 2019).

    λ is remembered for all clients and starts equal, whatever the score says. A round weighs by the λ of
    the round before. Clients that are not asked keep their λ, so with small cohorts λ lags behind.

    Reads the criterion `start_loss`.

    Args:
        step: γ, how far a loss of 1 raises λ before the projection.
    """

    step: PositiveFloat = 0.1  # γ

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """λ = 1/K for every client."""
        return {"lambda": torch.full((num_clients,), 1 / num_clients, dtype=torch.float64)}

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        rows = list(gathered.client_ids)
        before = memory["lambda"]
        risen = before.clone()
        risen[rows] += self.step * gathered.criteria["start_loss"]
        after = {"lambda": onto_simplex(risen)}
        weights = to_weights(before[rows])
        if weights.any():
            return Posterior(weights, after)
        note = "λ is zero for all clients of the round: the weights are those of the score"
        return Posterior(prior, after, notes=(note,))


def onto_simplex(values: Tensor) -> Tensor:
    """Project values [n] onto the simplex: coordinates of zero or more that sum to 1 (Duchi et al., 2008).

    >>> onto_simplex(torch.tensor([0.9, 0.5, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    excess = values.sort(descending=True).values.cumsum(0) - 1
    thresholds = excess / torch.arange(1, len(values) + 1)
    return (values - thresholds.max()).clamp(min=0)
