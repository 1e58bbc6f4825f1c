"""Weights that follow whoever is worst off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..types import Gathered, Posterior
from ..weighting import to_weights
from .protocol import EVIDENCE


@EVIDENCE.register("agnostic", needs("models", criteria=["start_loss"]))
@dataclass(frozen=True)
class Agnostic:
    """λ ← λ + γ·loss, projected onto the simplex: weighs for the worst mixture of clients (AFL, Mohri et al., 2019).

    λ is remembered of all clients and starts equal, whatever the score says. A round weighs by the λ it began with; of
    clients that were not asked it rises by nothing, so with small cohorts it is late.
    """

    step: PositiveFloat = 0.1  # γ

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """All alike."""
        return {"lambda": torch.full((num_clients,), 1 / num_clients, dtype=torch.float64)}

    def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Posterior:
        """See the class."""
        asked, known = list(gathered.client_ids), memory["lambda"]
        risen = known.clone()
        risen[asked] += self.step * gathered.criteria["start_loss"]
        weights = to_weights(known[asked])
        nobody = "λ is zero for all that answered: they weigh as by the score" if not weights.any() else None
        return Posterior(
            prior if nobody else weights, {"lambda": onto_simplex(risen)}, notes=(nobody,) if nobody else ()
        )


def onto_simplex(values: Tensor) -> Tensor:
    """The nearest point with coordinates of zero or more that sum to 1 (Duchi et al., 2008).

    >>> onto_simplex(torch.tensor([0.9, 0.5, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    excess = values.sort(descending=True).values.cumsum(0) - 1
    thresholds = excess / torch.arange(1, len(values) + 1)
    return (values - thresholds.max()).clamp(min=0)
