"""Shapley values of updates on the server's set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import NonNegativeFloat, needs
from ..contributions import all_coalitions, exact_shapley
from ..seeding import generator
from ..types import Gathered, Posterior
from ..weights.weighting import to_weights
from .protocol import EVIDENCE, Evidence

AT_ONCE = 64  # models judged together
RUINED = 10.0  # times the first loss: larger ones count as this much, or one client would dominate all values


@EVIDENCE.register("shapley", needs("models", "server_set"))
@dataclass(frozen=True)
class Shapley(Evidence):
    """Weights ∝ max(0, φ_a), the Shapley value of a client's update on the server's set (Wang et al., 2020).

    The worth v(S) of a coalition S is how far the mean of its updates, weighted by the score, lowers the
    loss. For cohorts of up to `exact` clients, all 2^n coalitions are evaluated. For larger ones, random
    orders are drawn (truncated Monte-Carlo, Ghorbani & Zou, 2019).

    Args:
        exact: largest cohort whose coalitions are all evaluated.
        orders: random orders that are drawn for larger cohorts.
        tolerance: an order ends once the remaining gain is below this fraction of the whole.
    """

    exact: Annotated[int, Ge(0), Le(12)] = 6
    orders: Annotated[int, Ge(1), Le(10_000)] = 10
    tolerance: NonNegativeFloat = 0.01

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        weights = to_weights(self.values(gathered, prior).clamp(min=0))
        if not weights.any():
            note = "no client lowers the loss: the weights are those of the score"
            return Posterior(prior, notes=(note,))
        return Posterior(weights)

    def values(self, gathered: Gathered, prior: Tensor) -> Tensor:
        """Shapley values φ [n]; exact ones sum to the worth of the whole cohort."""
        if len(prior) <= self.exact:
            return self._exact(gathered, prior)
        return self._sampled(gathered, prior)

    def _exact(self, gathered: Gathered, prior: Tensor) -> Tensor:
        """Of all coalitions."""
        return exact_shapley(_worth(gathered, prior, all_coalitions(len(prior))))

    def _sampled(self, gathered: Gathered, prior: Tensor) -> Tensor:
        """The mean gain of a client over random orders in which clients join."""
        count = len(prior)
        whole = float(_worth(gathered, prior, torch.ones(1, count, dtype=torch.int64)))
        values = torch.zeros(count, dtype=torch.float64)
        random = generator(gathered.seed, "shapley")
        for _ in range(self.orders):
            coalition = torch.zeros(1, count, dtype=torch.int64)
            before = 0.0
            for client in torch.randperm(count, generator=random).tolist():
                if abs(whole - before) < self.tolerance * abs(whole):
                    break
                coalition[0, client] = 1
                now = float(_worth(gathered, prior, coalition))
                values[client] += now - before
                before = now
        return values / self.orders


def _worth(gathered: Gathered, prior: Tensor, members: Tensor) -> Tensor:
    """How far each coalition [c, n] lowers the loss of the global model [c]; 0 for one whose score is zero."""
    weights = prior * members
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    losses = []
    for some in torch.split(weights, AT_ONCE):
        models = gathered.global_model + some.to(gathered.updates) @ gathered.updates
        losses.append(gathered.judge(models).overall_loss())
    start = gathered.judge(gathered.global_model[None]).overall_loss()
    return start - torch.cat(losses).nan_to_num(torch.inf).minimum(RUINED * start)
