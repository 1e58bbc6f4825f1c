"""Aggregation rules: how weighted updates become one.

A rule is a function of the cohort's updates [n, d] and their weights [n], which sum to 1, and returns one update [d].
A client of weight w counts as w·n clients of equal weight would. The mean is the default; it alone needs no more than
sums, so that models can be folded in as they arrive (`aggregate.py`). All others declare that they need the models.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Registry, needs

Rule = Callable[..., Tensor]
RULES: Registry[Rule] = Registry("rule", "rules", "How the weighted updates become one")

COLUMNS = 2**16  # coordinates sorted at once, so that memory for it does not grow with the model
TIE = 1e-12  # cumulative weights this close to one half are one half


@RULES.register("mean")
def mean(updates: Tensor, weights: Tensor) -> Tensor:
    """Σ_a w_a·Δ_a, the weighted mean (P1 Eq. 4).

    >>> mean(torch.tensor([[1.0], [5.0]]), torch.tensor([0.75, 0.25]))
    tensor([2.])
    """
    return (weights.to(updates.device, torch.float64) @ updates.double()).to(updates.dtype)


@RULES.register("median", needs("models"))
def median(updates: Tensor, weights: Tensor) -> Tensor:
    """Weighted median of every coordinate: half of the weight lies below it, half above (Yin et al., 2018).

    >>> median(torch.tensor([[1.0], [2.0], [900.0]]), torch.tensor([0.3, 0.3, 0.4]))
    tensor([2.])
    """
    weights = weights.to(updates.device, torch.float64)
    return torch.cat([_median(columns, weights) for columns in torch.split(updates, COLUMNS, dim=1)])


def _median(columns: Tensor, weights: Tensor) -> Tensor:
    """Where the weight below is exactly one half, the middle between the two neighbours, as for an even number."""
    values, order = columns.sort(0)
    below = weights[order].cumsum(0)  # [n, columns]
    last = len(values) - 1
    low = (below < 0.5 - TIE).sum(0).clamp(max=last)
    high = (below <= 0.5 + TIE).sum(0).clamp(max=last)
    return (values.gather(0, low[None]) + values.gather(0, high[None]))[0] / 2
