"""Weights and a scale of the model, learned on the server's set (FedLAW)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..types import Gathered, Posterior
from .protocol import EVIDENCE, Evidence


@EVIDENCE.register("law", needs("models", "server_samples"))
@dataclass(frozen=True)
class Law(Evidence):
    """Learns the γ and λ for which γ·Σ λ_a·Θ_a has the least loss on the server's set (FedLAW, Li et al., 2023).

    λ = softmax(x) starts at the weights of the score and γ = exp(s) at 1. Both are optimised by Adam. The
    gradient by λ_a is γ·⟨∇, Θ_a⟩, so a step costs one pass over the server's set, whatever the number of
    clients.

    Args:
        steps: number of Adam steps.
        learning_rate: of Adam.
    """

    steps: Annotated[int, Ge(1), Le(1_000)] = 50
    learning_rate: PositiveFloat = 0.01

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        count = gathered.spec.num_parameters
        logits = prior.log()
        log_scale = torch.zeros(1, dtype=torch.float64)
        adam = torch.optim.Adam([logits, log_scale], lr=self.learning_rate)
        for _ in range(self.steps):
            weights = logits.softmax(0)
            scale = log_scale.exp()
            mean = gathered.global_model + weights.to(gathered.updates) @ gathered.updates
            model = mean.clone()
            model[:count] *= float(scale)
            slope = gathered.gradient(model)
            of_updates = (gathered.updates @ slope).double().cpu()
            along = of_updates + float(gathered.global_model @ slope)  # ⟨∇, Θ_a⟩ [n]
            logits.grad = scale * weights * (along - weights @ along)
            log_scale.grad = scale * (weights @ along)
            adam.step()
        return Posterior(logits.softmax(0), scale=float(log_scale.exp()))
