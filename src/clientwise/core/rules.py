"""Aggregation rules: how weighted updates become one.

A rule is a function of the cohort's updates [n, d], their weights [n], which sum to 1, and what it left behind in the
round before. A client of weight w counts as w·n clients of equal weight would. The mean is the default; it alone needs
no more than sums, so that models can be folded in as they arrive (`aggregate.py`). All others declare that they need
the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..registry import Registry, needs


@dataclass(frozen=True)
class Ruled:
    """What a rule makes of the updates."""

    update: Tensor  # [d]
    influence: Tensor  # [n] the share of the result that came from each client: what the rule did to it
    state: Mapping[str, Tensor] = field(default_factory=dict)  # what it wants to find again in the next round


State = Mapping[str, Tensor]
Rule = Callable[..., Ruled]
RULES: Registry[Rule] = Registry("rule", "rules", "How the weighted updates become one")

NOTHING: State = {}
COLUMNS = 2**16  # coordinates sorted at once, so that memory for it does not grow with the model
TIE = 1e-12  # cumulative weights this close to one half are one half


@RULES.register("mean")
def mean(updates: Tensor, weights: Tensor, state: State = NOTHING) -> Ruled:
    """Σ_a w_a·Δ_a, the weighted mean (P1 Eq. 4).

    >>> mean(torch.tensor([[1.0], [5.0]]), torch.tensor([0.75, 0.25])).update
    tensor([2.])
    """
    update = weights.to(updates.device, torch.float64) @ updates.double()
    return Ruled(update.to(updates.dtype), weights)


@RULES.register("median", needs("models"))
def median(updates: Tensor, weights: Tensor, state: State = NOTHING) -> Ruled:
    """Weighted median of every coordinate: half of the weight lies below it, half above (Yin et al., 2018).

    >>> median(torch.tensor([[1.0], [2.0], [900.0]]), torch.tensor([0.3, 0.3, 0.4])).update
    tensor([2.])
    """
    weights = weights.to(updates.device, torch.float64)
    medians, counts = [], torch.zeros_like(weights)
    for columns in torch.split(updates, COLUMNS, dim=1):
        value, low, high = _median(columns, weights)
        medians.append(value)
        counts += torch.bincount(torch.cat([low, high]), minlength=len(weights))
    return Ruled(torch.cat(medians), (counts / counts.sum()).cpu())


def _median(columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the weight below is exactly one half, the middle between the two neighbours, as for an even number."""
    values, order = columns.sort(0)
    below = weights[order].cumsum(0)  # [n, columns]
    last = len(values) - 1
    low = (below < 0.5 - TIE).sum(0).clamp(max=last)
    high = (below <= 0.5 + TIE).sum(0).clamp(max=last)
    value = (values.gather(0, low[None]) + values.gather(0, high[None]))[0] / 2
    return value, order.gather(0, low[None])[0], order.gather(0, high[None])[0]
