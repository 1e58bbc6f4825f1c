"""Aggregation rules: how weighted updates become one.

A rule is a function of the cohort's updates [n, d], their weights [n], which sum to 1, and what it left behind in the
round before. A client of weight w counts as w·n clients of equal weight would. The mean is the default; it alone needs
no more than sums, so that models can be folded in as they arrive (`aggregate.py`). All others declare that they need
the models.

`hostile` is the share of the weight that a rule is to bear, h below; at n equal weights it stands for f = h·n clients.
Who stands at the edge of a share counts in part, so that no cohort is too small for a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from ..registry import PositiveFloat, Registry, needs
from .robust import (
    Minority,
    column_blocks,
    combine,
    distances_to,
    gram,
    lowest,
    middle_edges,
    squared_distances,
    total_within,
    weighted_median,
)


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


@RULES.register("mean")
def mean(updates: Tensor, weights: Tensor, state: State = NOTHING) -> Ruled:
    """Σ_a w_a·Δ_a, the weighted mean (P1 Eq. 4).

    >>> mean(torch.tensor([[1.0], [5.0]]), torch.tensor([0.75, 0.25])).update
    tensor([2.])
    """
    return _combined(weights, updates)


@RULES.register("median", needs("models"))
def median(updates: Tensor, weights: Tensor, state: State = NOTHING) -> Ruled:
    """Weighted median of every coordinate: half of the weight lies below it, half above (Yin et al., 2018).

    Where exactly half lies below, it is the middle between the two neighbours, as for an even number of clients.

    >>> median(torch.tensor([[1.0], [2.0], [900.0]]), torch.tensor([0.3, 0.3, 0.4])).update
    tensor([2.])
    """

    def middle(columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        low, high = middle_edges(columns, weights, 0.5)
        return (low + high)[0] / 2, (_holders(columns, weights, low) + _holders(columns, weights, high)) / 2

    return _by_coordinate(middle, updates, weights)


@RULES.register("trimmed_mean", needs("models"))
def trimmed_mean(updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2) -> Ruled:
    """Mean of every coordinate without the lowest and the highest share h of the weight (Yin et al., 2018).

    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.5000])
    """

    def trimmed(columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        low, high = middle_edges(columns, weights, hostile)
        clipped = weights @ columns.clamp(low, high).double()  # what is too much in it is known: h at each edge
        upper, lower = total_within(columns, weights, high, 1 - hostile), total_within(columns, weights, low, hostile)
        value = (clipped - hostile * (low.double() + high)[0]) / (1 - 2 * hostile)
        return value.to(columns.dtype), (upper - lower) / (1 - 2 * hostile)

    return _by_coordinate(trimmed, updates, weights)


@RULES.register("meamed", needs("models"))
def meamed(updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2) -> Ruled:
    """Mean around the median: of every coordinate the share 1 − h of the weight nearest to it (Xie et al., 2018).

    >>> meamed(torch.tensor([[1.0], [2.0], [4.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.3333])
    """

    def around(columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        low, high = middle_edges(columns, weights, 0.5)
        distances = (columns - (low + high) / 2).abs()
        shares = lowest(distances, weights, 1 - hostile) / (1 - hostile)
        return (shares * columns).sum(0).to(columns.dtype), shares.sum(1)

    return _by_coordinate(around, updates, weights)


@RULES.register("geometric_median", needs("models"))
def geometric_median(
    updates: Tensor,
    weights: Tensor,
    state: State = NOTHING,
    *,
    smoothing: PositiveFloat = 1e-6,
    steps: Annotated[int, Gt(0), Le(1000)] = 100,
) -> Ruled:
    """The point z with the least Σ_a w_a·‖Δ_a − z‖, by smoothed Weiszfeld steps from 0 (Pillutla et al., 2022).

    Each step is z ← Σ_a b_a·Δ_a / Σ b with b_a = w_a / max(‖Δ_a − z‖, smoothing). As z is always a mean of the updates,
    the steps need no more than the products of all pairs, and cost nothing beside these.

    >>> geometric_median(torch.tensor([[1.0], [2.0], [900.0]]), torch.full((3,), 1 / 3)).update
    tensor([2.])
    """
    weights, products = weights.to(updates.device, torch.float64), gram(updates)
    shares = torch.zeros_like(weights)
    for _ in range(steps):
        squares = products.diag() - 2 * products @ shares + shares @ products @ shares
        shares = weights / squares.clamp(min=0).sqrt().clamp(min=smoothing)
        shares = shares / shares.sum()
    return _combined(shares, updates)


@RULES.register("krum", needs("models"))
def krum(updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2) -> Ruled:
    """The update of the client that is nearest to the share 1 − h of the weight around it (Blanchard et al., 2017).

    The least Σ_b v_b·‖Δ_a − Δ_b‖² wins, where v is the weight of those nearest to a, itself first, that sums to 1 − h.
    At n equal weights these are its n − f − 1 nearest neighbours. Winners that tie share the result.

    >>> krum(torch.tensor([[1.0], [2.0], [2.5], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.])
    """
    weights, scores = weights.cpu().double(), _krum_scores(updates, weights, hostile)
    best = weights * (scores == scores[weights > 0].min())
    return _combined(best / best.sum(), updates)


@RULES.register("multi_krum", needs("models"))
def multi_krum(updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2) -> Ruled:
    """The mean of those whom Krum would choose first, up to the share 1 − h of the weight (Blanchard et al., 2017).

    >>> multi_krum(torch.tensor([[1.0], [2.0], [3.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.])
    """
    weights, scores = weights.cpu().double(), _krum_scores(updates, weights, hostile)
    kept = lowest(scores[:, None], weights, 1 - hostile)[:, 0]
    return _combined(kept / (1 - hostile), updates)


def _krum_scores(updates: Tensor, weights: Tensor, hostile: float) -> Tensor:
    """How far the share 1 − h of the weight nearest to every client is from it, [n]; ties are exact in float32."""
    squares = squared_distances(updates)
    nearest = lowest(squares, weights.to(squares), 1 - hostile)
    return (nearest * squares).sum(0).float().cpu()


@RULES.register("centred_clipping", needs("models"))
def centred_clipping(
    updates: Tensor,
    weights: Tensor,
    state: State = NOTHING,
    *,
    radius: PositiveFloat | None = None,
    steps: Annotated[int, Gt(0), Le(100)] = 1,  # each reads all updates
) -> Ruled:
    """The last result v, moved by Σ_a w_a·clip(Δ_a − v), what clients differ from it (Karimireddy et al., 2021).

    Differences are clipped to the norm `radius`; without one to the weighted median of ‖Δ_a − v‖. In the first round v
    is 0. A client's influence is its weight times what clipping left of it; what is missing to 1 is the last result's.

    >>> ruled = centred_clipping(torch.tensor([[1.0], [2.0], [900.0]]), torch.full((3,), 1 / 3), radius=3.0)
    >>> ruled.update, ruled.influence
    (tensor([2.]), tensor([0.3333, 0.3333, 0.0011], dtype=torch.float64))
    """
    weights = weights.to(updates.device, torch.float64)
    centre, influence = state.get("centre", torch.zeros_like(updates[0])), torch.zeros_like(weights)
    for _ in range(steps):
        distances = distances_to(centre, updates)
        allowed = weighted_median(distances, weights) if radius is None else radius
        shares = weights * (allowed / distances).clamp(max=1).nan_to_num(1.0)
        centre = combine(shares, updates) + (1 - shares.sum()).float() * centre
        influence = influence * (1 - shares.sum()) + shares
    return Ruled(centre, influence.cpu(), {"centre": centre})


@RULES.register("dnc", needs("models"))
def dnc(updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2) -> Ruled:
    """The mean without the share h of the weight that sticks out most (Shejwalkar and Houmansadr, 2021).

    What sticks out is ⟨Δ_a − μ, v⟩², along the direction v in which the updates vary most about their mean μ. The paper
    looks for v in some coordinates drawn by chance; the products of all pairs give it for all coordinates at once.

    >>> dnc(torch.tensor([[1.0], [2.0], [3.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.])
    """
    weights, products = weights.to(updates.device, torch.float64), gram(updates)
    to_mean = products @ weights
    centred = products - to_mean[:, None] - to_mean + weights @ to_mean  # ⟨Δ_a − μ, Δ_b − μ⟩
    centred = centred / centred.diag().max().clamp(min=torch.finfo().tiny)
    roots = weights.sqrt()
    vectors = torch.linalg.eigh(roots[:, None] * centred * roots).eigenvectors  # v is Σ_a √w_a·u_a·(Δ_a − μ)
    scores = (centred @ (roots * vectors[:, -1])).square()
    kept = lowest(scores[:, None], weights, 1 - hostile)[:, 0]
    return _combined(kept / (1 - hostile), updates)


def _combined(shares: Tensor, updates: Tensor) -> Ruled:
    """The mean with these shares [n], which are then each client's influence."""
    return Ruled(combine(shares, updates), shares.double().cpu())


def _holders(columns: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """How often each client [n] holds the value [1, c] of a column; those that share it count by their weights."""
    at = (columns == value).double()
    return weights * (at @ (weights @ at).reciprocal())


def _by_coordinate(rule: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], updates: Tensor, weights: Tensor) -> Ruled:
    """All coordinates by a rule that gives the values [c] of columns [n, c], and what came from each client [n]."""
    weights = weights.to(updates.device, torch.float64)
    values, influence = [], torch.zeros_like(weights)
    for columns in column_blocks(updates):
        value, shares = rule(columns, weights)
        values.append(value)
        influence += shares
    return Ruled(torch.cat(values), (influence / updates.shape[1]).cpu())
