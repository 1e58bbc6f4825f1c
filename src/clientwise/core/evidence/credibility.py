"""Credibility of clients whose labels may be wrong (FOCUS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .protocol import EVIDENCE, Evidence

LARGEST = 1e6  # a loss that is not finite counts as this


@EVIDENCE.register("credibility", needs("models", "server_set", criteria=["start_loss"]))
@dataclass(frozen=True)
class Credibility(Evidence):
    """Prior · C with C = 1 − softmax(α·E), E the mutual cross-entropy (FOCUS, Chen et al., 2020).

    E_k = loss of client k's model on the server's set + loss of the global model on client k's
    samples. Wrong labels raise both. The softmax is over the clients of the round, so the
    credibilities of n clients sum to n − 1: of n clients with equal losses, each keeps its prior.

    Reads the criterion `start_loss`, which is the client's claim.

    Args:
        alpha: α; the larger, the more the highest E alone loses its weight.
    """

    judges_all: ClassVar[bool] = True

    alpha: PositiveFloat = 1.0  # α

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        models = gathered.global_model + gathered.updates
        on_server_set = gathered.judge(models).overall_loss().to(prior)
        on_own_samples = gathered.criteria["start_loss"].to(prior)
        weights = to_weights(prior * credibility(on_server_set + on_own_samples, self.alpha))
        if weights.any():
            return Posterior(weights)
        note = "no client of the round has credibility: the weights are those of the score"
        return Posterior(prior, notes=(note,))


def credibility(mutual: Tensor, alpha: float) -> Tensor:
    """1 − exp(αE_k)/Σ_i exp(αE_i) [n], for mutual cross-entropies E [n].

    >>> credibility(torch.tensor([1.0, 1.0, 1.0, 9.0]), alpha=1.0)
    tensor([0.9997, 0.9997, 0.9997, 0.0010])
    """
    finite = mutual.nan_to_num(nan=LARGEST, posinf=LARGEST).clamp(max=LARGEST)
    return 1 - torch.softmax(alpha * finite, dim=0)
