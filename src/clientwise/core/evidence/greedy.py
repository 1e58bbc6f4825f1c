"""The best models, as long as another one helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import needs
from ..types import Gathered, Posterior
from ..weighting import to_weights
from .protocol import EVIDENCE


@EVIDENCE.register("greedy", needs("models", "server_set"))
@dataclass(frozen=True)
class Greedy:
    """From the best model on the server's set, adds the next best while their mean improves (FedGreed, 2025).

    The mean is weighted by the score, and so are the chosen; the others weigh nothing (Kritharakis et al.).
    """

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """Nothing is remembered."""
        return {}

    def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Posterior:
        """See the class."""
        losses = gathered.judge(gathered.global_model + gathered.updates).overall_loss()
        candidates = [row for row in losses.argsort(stable=True).tolist() if prior[row] > 0]
        chosen, lowest = torch.zeros_like(prior), torch.inf
        for row in candidates:
            larger = chosen.clone()
            larger[row] = prior[row]
            mean = to_weights(larger).to(gathered.updates) @ gathered.updates
            loss = float(gathered.judge((gathered.global_model + mean)[None]).overall_loss())
            if not loss < lowest:
                break
            chosen, lowest = larger, loss
        if not chosen.any():
            return Posterior(prior, notes=("no model has a loss on the server's set: they weigh as by the score",))
        return Posterior(to_weights(chosen))
