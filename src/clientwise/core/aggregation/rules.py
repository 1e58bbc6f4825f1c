"""Aggregation rules: how weighted updates become one.

A rule is a function of the cohort's updates Δ [n, d], their weights w [n], which sum to 1, and its own
state of the round before. A client of weight w counts as w·n clients of equal weight would. The mean is
the default. It needs only sums, so models can be folded in as they arrive (`sums.py`). All other
rules declare that they need the models.

`hostile`, h in the formulas, is the share of the weight that a rule must withstand. With n equal weights
it stands for f = h·n clients. A client at the edge of a share counts in part, so that rules also work for
small cohorts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from ...registry import (
    PositiveFloat,
    Registry,
    needs,
)
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
    """Result of a rule."""

    update: Tensor  # [d] the aggregate
    influence: Tensor  # [n] each client's share of the aggregate
    state: Mapping[str, Tensor] = field(default_factory=dict)  # for the next round
    residual: float | None = None  # of adapters: the share of the mean that their rank leaves out


State = Mapping[str, Tensor]
Rule = Callable[..., Ruled]
RULES: Registry[Rule] = Registry("rule", "rules", "Aggregation of the weighted updates")

NOTHING: State = {}


@RULES.register("mean")
def mean(updates: Tensor, weights: Tensor, state: State = NOTHING) -> Ruled:
    """Σ_a w_a·Δ_a, the weighted mean (P1 Eq. 4).

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> mean(torch.tensor([[1.0], [5.0]]), torch.tensor([0.75, 0.25])).update
    tensor([2.])
    """
    return _combined(weights, updates)


@RULES.register("median", needs("models", "single_values"))
def median(updates: Tensor, weights: Tensor, state: State = NOTHING) -> Ruled:
    """Weighted median of every coordinate: half of the weight lies below it, half above (Yin et al., 2018).

    Where exactly half lies below, it is the mean of the two neighbours, as for an even number of clients.

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> median(torch.tensor([[1.0], [2.0], [900.0]]), torch.tensor([0.3, 0.3, 0.4])).update
    tensor([2.])
    """

    def middle(columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        low, high = middle_edges(columns, weights, 0.5)
        holders = _holders(columns, weights, low) + _holders(columns, weights, high)
        return (low + high)[0] / 2, holders / 2

    return _by_coordinate(middle, updates, weights)


@RULES.register("trimmed_mean", needs("models", "single_values"))
def trimmed_mean(
    updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2
) -> Ruled:
    """Mean of every coordinate without the lowest and the highest share h of the weight (Yin et al., 2018).

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.
        hostile: h, the share of the weight that the rule must withstand.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.5000])
    """

    def trimmed(columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        low, high = middle_edges(columns, weights, hostile)
        # Counts `hostile` too much at each edge
        clipped = weights @ columns.clamp(low, high).double()
        kept = 1 - 2 * hostile
        value = (clipped - hostile * (low.double() + high)[0]) / kept
        upper = total_within(columns, weights, high, 1 - hostile)
        lower = total_within(columns, weights, low, hostile)
        return value.to(columns.dtype), (upper - lower) / kept

    return _by_coordinate(trimmed, updates, weights)


@RULES.register("geometric_median", needs("models", "products"))
def geometric_median(
    updates: Tensor,
    weights: Tensor,
    state: State = NOTHING,
    *,
    smoothing: PositiveFloat = 1e-6,
    steps: Annotated[int, Gt(0), Le(1000)] = 100,
) -> Ruled:
    """The point z with the least Σ_a w_a·‖Δ_a − z‖, by smoothed Weiszfeld steps from 0 (Pillutla et al., 2022).

    Each step is z ← Σ_a b_a·Δ_a / Σ b with b_a = w_a / max(‖Δ_a − z‖, smoothing). As z is always a mean of
    the updates, the products of all pairs are enough for the steps.

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.
        smoothing: smallest distance that a step divides by.
        steps: number of Weiszfeld steps.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> geometric_median(torch.tensor([[1.0], [2.0], [900.0]]), torch.full((3,), 1 / 3)).update
    tensor([2.])
    """
    weights = weights.to(updates.device, torch.float64)
    products = gram(updates)
    shares = torch.zeros_like(weights)
    for _ in range(steps):
        squares = products.diag() - 2 * (products @ shares) + shares @ products @ shares
        shares = weights / squares.clamp(min=0).sqrt().clamp(min=smoothing)
        shares = shares / shares.sum()
    return _combined(shares, updates)


@RULES.register("krum", needs("models", "pairs"))
def krum(
    updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2
) -> Ruled:
    """The update of the client that is nearest to the share 1 − h of the weight around it (Blanchard et al., 2017).

    The least Σ_b v_b·‖Δ_a − Δ_b‖² wins. v is the weight of the clients nearest to a, itself first, up to
    1 − h. With n equal weights these are its n − f − 1 nearest neighbours. Of winners that tie, the result
    is the weighted mean.

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.
        hostile: h, the share of the weight that the rule must withstand.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> krum(torch.tensor([[1.0], [2.0], [2.5], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.])
    """
    scores = _krum_scores(updates, weights, hostile)
    weights = weights.cpu().double()
    best = weights * (scores == scores[weights > 0].min())
    return _combined(best / best.sum(), updates)


@RULES.register("multi_krum", needs("models", "pairs"))
def multi_krum(
    updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2
) -> Ruled:
    """The mean of the clients that Krum ranks first, up to the share 1 − h of the weight (Blanchard et al., 2017).

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.
        hostile: h, the share of the weight that the rule must withstand.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> multi_krum(torch.tensor([[1.0], [2.0], [3.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.])
    """
    scores = _krum_scores(updates, weights, hostile)
    weights = weights.cpu().double()
    kept = lowest(scores[:, None], weights, 1 - hostile)[:, 0]
    return _combined(kept / (1 - hostile), updates)


def _krum_scores(updates: Tensor, weights: Tensor, hostile: float) -> Tensor:
    """Krum's score [n]: Σ_b v_b·‖Δ_a − Δ_b‖² over the nearest share 1 − h; in float32, so that ties are exact."""
    squares = squared_distances(updates)
    nearest = lowest(squares, weights.to(squares), 1 - hostile)
    return (nearest * squares).sum(0).float().cpu()


@RULES.register("centred_clipping", needs("models", "single_values"))
def centred_clipping(
    updates: Tensor,
    weights: Tensor,
    state: State = NOTHING,
    *,
    radius: PositiveFloat | None = None,
    steps: Annotated[int, Gt(0), Le(100)] = 1,
) -> Ruled:
    """v ← v + Σ_a w_a·clip(Δ_a − v), with v the last result, 0 at first (Karimireddy et al., 2021).

    A client's influence is its weight times the fraction that clipping left. What is missing to 1 is the
    last result's.

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: `centre`, the last result v [d].
        radius: largest norm of a difference; None takes the weighted median of ‖Δ_a − v‖.
        steps: number of iterations; each reads all updates.

    Returns:
        The aggregate [d], every client's influence [n], and the aggregate as `centre` for the next round.

    >>> ruled = centred_clipping(torch.tensor([[1.0], [2.0], [900.0]]), torch.full((3,), 1 / 3), radius=3.0)
    >>> ruled.update, ruled.influence
    (tensor([2.]), tensor([0.3333, 0.3333, 0.0011], dtype=torch.float64))
    """
    weights = weights.to(updates.device, torch.float64)
    centre = state.get("centre", torch.zeros_like(updates[0]))
    influence = torch.zeros_like(weights)
    for _ in range(steps):
        distances = distances_to(centre, updates)
        allowed = weighted_median(distances, weights) if radius is None else radius
        shares = weights * (allowed / distances).clamp(max=1).nan_to_num(1.0)
        centre = combine(shares, updates) + (1 - shares.sum()).float() * centre
        influence = influence * (1 - shares.sum()) + shares
    return Ruled(centre, influence.cpu(), {"centre": centre})


@RULES.register("dnc", needs("models", "pairs"))
def dnc(
    updates: Tensor, weights: Tensor, state: State = NOTHING, *, hostile: Minority = 0.2
) -> Ruled:
    """The mean without the share h of the weight with the largest outlier scores (Shejwalkar and Houmansadr, 2021).

    The score is ⟨Δ_a − μ, v⟩², along the direction v in which the updates vary most about their mean μ. The
    paper searches v in randomly drawn coordinates. Here the products of all pairs give it for all
    coordinates at once.

    Args:
        updates: one update per row, [n, d].
        weights: zero or more, sum to 1, [n].
        state: unused; the rule keeps no state.
        hostile: h, the share of the weight that the rule must withstand.

    Returns:
        The aggregate [d] and every client's influence [n].

    >>> dnc(torch.tensor([[1.0], [2.0], [3.0], [900.0]]), torch.full((4,), 0.25), hostile=0.25).update
    tensor([2.])
    """
    weights = weights.to(updates.device, torch.float64)
    products = gram(updates)
    to_mean = products @ weights
    centred = products - to_mean[:, None] - to_mean + weights @ to_mean  # ⟨Δ_a − μ, Δ_b − μ⟩
    centred = centred / centred.diag().max().clamp(min=torch.finfo().tiny)
    roots = weights.sqrt()
    vectors = torch.linalg.eigh(roots[:, None] * centred * roots).eigenvectors
    scores = (centred @ (roots * vectors[:, -1])).square()  # v is Σ_a √w_a·u_a·(Δ_a − μ)
    kept = lowest(scores[:, None], weights, 1 - hostile)[:, 0]
    return _combined(kept / (1 - hostile), updates)


def _combined(shares: Tensor, updates: Tensor) -> Ruled:
    """The mean with these shares [n], which are each client's influence."""
    return Ruled(combine(shares, updates), shares.double().cpu())


def _holders(columns: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """In how many columns each client [n] has the value [1, c]; clients that tie count by their weights."""
    at = (columns == value).double()
    return weights * (at @ (weights @ at).reciprocal())


def _by_coordinate(
    rule: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], updates: Tensor, weights: Tensor
) -> Ruled:
    """Apply a rule for columns [n, c], which gives values [c] and every client's part in them [n], to all columns."""
    weights = weights.to(updates.device, torch.float64)
    values = []
    influence = torch.zeros_like(weights)
    for columns in column_blocks(updates):
        value, shares = rule(columns, weights)
        values.append(value)
        influence += shares
    return Ruled(torch.cat(values), (influence / updates.shape[1]).cpu())
