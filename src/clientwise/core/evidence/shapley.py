"""What each client adds to a model made without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import NonNegativeFloat, needs
from ..seeding import generator
from ..types import Gathered, Posterior
from ..weighting import to_weights
from .protocol import EVIDENCE

AT_ONCE = 64  # models judged together
RUINED = 10.0  # times the loss: worse is not told apart, or one client that ruins all would drown the others' values


@EVIDENCE.register("shapley", needs("models", "server_set"))
@dataclass(frozen=True)
class Shapley:
    """Weights ∝ max(0, φ_a), the Shapley value of a client's update on the server's set (Wang et al., 2020).

    The worth of a coalition is how far the mean of its updates, weighted by the score, lowers the loss. Up to `exact`
    clients all coalitions are judged, 2^n models. Of more, random orders are drawn, and an order is cut short where
    what is still to gain is below `tolerance` of the whole (truncated Monte-Carlo, Ghorbani & Zou, 2019).
    """

    exact: Annotated[int, Ge(0), Le(12)] = 6
    orders: Annotated[int, Ge(1), Le(10_000)] = 10
    tolerance: NonNegativeFloat = 0.01

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """Nothing is remembered."""
        return {}

    def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Posterior:
        """See the class."""
        weights = to_weights(self.values(gathered, prior).clamp(min=0))
        if not weights.any():
            return Posterior(prior, notes=("no client lowers the loss: they weigh as by the score",))
        return Posterior(weights)

    def values(self, gathered: Gathered, prior: Tensor) -> Tensor:
        """φ [n]: they sum to the worth of all together."""
        return self._exact(gathered, prior) if len(prior) <= self.exact else self._sampled(gathered, prior)

    def _exact(self, gathered: Gathered, prior: Tensor) -> Tensor:
        """Σ_S |S|!·(n−|S|−1)!/n! · (v(S ∪ a) − v(S))."""
        count = len(prior)
        codes = torch.arange(2**count)
        members = codes[:, None] >> torch.arange(count) & 1  # [2^n, n] who is in which coalition
        worth, sizes = _worth(gathered, prior, members), members.sum(1)
        values = []
        for client in range(count):
            without = codes[members[:, client] == 0]
            shares = torch.tensor([1 / (count * comb(count - 1, size)) for size in sizes[without].tolist()])
            values.append(shares.double() @ (worth[without + 2**client] - worth[without]))
        return torch.stack(values)

    def _sampled(self, gathered: Gathered, prior: Tensor) -> Tensor:
        count = len(prior)
        whole = float(_worth(gathered, prior, torch.ones(1, count, dtype=torch.int64)))
        values, random = torch.zeros(count, dtype=torch.float64), generator(gathered.seed, "shapley")
        for _ in range(self.orders):
            coalition, before = torch.zeros(1, count, dtype=torch.int64), 0.0
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
    losses = [
        gathered.judge(gathered.global_model + some.to(gathered.updates) @ gathered.updates).overall_loss()
        for some in torch.split(weights, AT_ONCE)
    ]
    start = gathered.judge(gathered.global_model[None]).overall_loss()
    return start - torch.cat(losses).nan_to_num(torch.inf).minimum(RUINED * start)
