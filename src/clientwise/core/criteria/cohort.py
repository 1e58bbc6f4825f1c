"""Criteria that the server measures by comparing the clients of a round with each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from .base import Arrivals, Outcome, criterion


class Trust:
    """trust ← 0.8·trust + 0.2·agreement; starts at 1. The agreement of a refused update is 0."""

    def first(self, num_clients: int) -> Tensor:
        """1 for every client [K]."""
        return torch.ones(num_clients)

    def after(self, remembered: Tensor, outcome: Outcome) -> Tensor:
        """The trust [K] of all clients after a round."""
        result = remembered.clone()
        rows = torch.tensor(outcome.client_ids, dtype=torch.int64)
        agreement = agreement_with_others(outcome.updates).clamp(0.0, 1.0)
        result[rows] = 0.8 * result[rows] + 0.2 * agreement.to(result)
        known = [client for client in outcome.refused if 0 <= client < len(result)]
        result[known] = 0.8 * result[known]
        return result


@criterion("trust", measured_by="server", high=1.0, memory=Trust())
def trust(arrivals: Arrivals) -> Tensor:
    """Running mean of the agreement between a client's updates and those of the others; starts at 1.

    After a round, trust ← 0.8·trust + 0.2·agreement. The agreement is the cosine between the client's
    update and the mean direction of the others'. It is 0 where the cosine is negative, and for refused
    updates. Every client has one vote, whatever the norm of its update or its weight.

    Returns:
        Values [n] in [0, 1].
    """
    return arrivals.memory["trust"]


def agreement_with_others(updates: Sequence[Tensor]) -> Tensor:
    """Cosine [n] between each update and the sum of the others' directions; 1 for a single client.

    >>> north, east = torch.tensor([0.0, 2.0]), torch.tensor([3.0, 0.0])
    >>> agreement_with_others([north, north, east])
    tensor([0.7071, 0.7071, 0.0000])
    """
    if len(updates) < 2:
        return torch.ones(len(updates))
    total = torch.zeros_like(updates[0], dtype=torch.float64)
    for update in updates:
        total += _direction(update)
    cosines = []
    for (
        update
    ) in updates:  # computed again: in float64, all directions take twice what the updates do
        mine = _direction(update)
        cosines.append(float(cosine_similarity(mine, total - mine, dim=0)))
    return torch.tensor(cosines)


def _direction(update: Tensor) -> Tensor:
    return normalize(update.double(), dim=0)
