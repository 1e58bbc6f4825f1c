"""The mean of the best models on the server's set (FedGreed)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...registry import needs
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .protocol import EVIDENCE, Evidence


@EVIDENCE.register("greedy", needs("models", "server_set"))
@dataclass(frozen=True)
class Greedy(Evidence):
    """From the best model on the server's set, adds the next best while their mean improves (FedGreed, 2025).

    Both this mean and the result are weighted by the score. Clients that are not chosen have weight 0.
    Source: Kritharakis et al., 2025.
    """

    judges_all: ClassVar[bool] = True

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        losses = gathered.judge(gathered.global_model + gathered.updates).overall_loss()
        candidates = [row for row in losses.argsort(stable=True).tolist() if prior[row] > 0]
        chosen = torch.zeros_like(prior)
        lowest = torch.inf
        for row in candidates:
            larger = chosen.clone()
            larger[row] = prior[row]
            mean = to_weights(larger).to(gathered.updates) @ gathered.updates
            loss = float(gathered.judge((gathered.global_model + mean)[None]).overall_loss())
            if not loss < lowest:
                break
            chosen = larger
            lowest = loss
        if chosen.any():
            return Posterior(to_weights(chosen))
        note = "no model has a finite loss on the server's set: the weights are those of the score"
        return Posterior(prior, notes=(note,))
