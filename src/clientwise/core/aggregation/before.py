"""Steps before the rule: clipping, mixing, rescaling of updates.

A step is a function of `Gathered`, what the server holds of n clients, and their weights [n]. It returns
`Mixed`, new updates for the same clients. The weights stay. Δ_a is the update of client a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ...registry import (
    PositiveFloat,
    Registry,
    Share,
    needs,
)
from ..types import Gathered
from .robust import (
    Minority,
    combine,
    cosines_to,
    lowest,
    squared_distances,
    weighted_median,
)


@dataclass(frozen=True)
class Mixed:
    """New updates, and what they are made of."""

    updates: Tensor  # [n, d]
    # [n, n] how much of every client's update (column) is in every new one (row); [n]: its diagonal
    shares: Tensor

    def passed_on(self, influence: Tensor) -> Tensor:
        """The influence [n] of the new updates, as influence of the old ones [n]."""
        if self.shares.ndim == 1:
            return influence * self.shares
        return influence @ self.shares


Before = Callable[..., Mixed]
BEFORE: Registry[Before] = Registry(
    "step before the rule", "before", "Changes of the updates before the rule"
)


@BEFORE.register("nova", needs("models", criteria=["local_steps"]))
def nova(gathered: Gathered, weights: Tensor) -> Mixed:
    """Δ_a·τ̄/τ_a with τ̄ = Σ w_a·τ_a: more local steps give no larger update (FedNova, Wang et al., 2020).

    Args:
        gathered: the updates [n, d] and the criterion `local_steps` τ [n].
        weights: sum to 1, [n].

    Returns:
        The rescaled updates [n, d].
    """
    steps = gathered.criteria["local_steps"].clamp(min=1)
    return scaled(gathered, (weights @ steps) / steps)


@BEFORE.register("server_norm", needs("models", "server_samples"))
def server_norm(gathered: Gathered, weights: Tensor) -> Mixed:
    """Δ_a·‖Δ_s‖/‖Δ_a‖: all updates get the norm of the server's own update Δ_s (FLTrust, Cao et al., 2021).

    Args:
        gathered: the updates [n, d] and a server that trains on its samples.
        weights: unused.

    Returns:
        The rescaled updates [n, d].
    """
    own = gathered.server_update()[: gathered.spec.num_parameters].double()
    return scaled(gathered, own.norm().cpu() / _norms(gathered).clamp(min=1e-12))


@BEFORE.register("drag", needs("models", "server_samples"))
def drag(gathered: Gathered, weights: Tensor, *, pull: Share = 0.5) -> Mixed:
    """Δ_a ← (1 − λ_a)·Δ_a·‖Δ_s‖/‖Δ_a‖ + λ_a·Δ_s: drags updates towards the server's own (BR-DRAG).

    The divergence is λ_a = pull·(1 − cos(Δ_a, Δ_s)), with Δ_s, the update of training on the server's
    samples. With a pull of 0.5, an opposite update becomes Δ_s. Source: Xiao et al., 2026.

    Args:
        gathered: the updates [n, d] and a server that trains on its samples.
        weights: unused.
        pull: the paper's c.

    Returns:
        The dragged updates [n, d]. Of a new update, the server's part is no client's share.
    """
    count = gathered.spec.num_parameters
    own = gathered.server_update()[:count]
    divergence = pull * (1 - cosines_to(own, gathered.updates[:, :count]))
    norms = _norms(gathered)
    ratios = torch.where(norms > 0, own.double().norm().cpu() / norms, 0.0)
    dragged = scaled(gathered, (1 - divergence) * ratios)
    dragged.updates[:, :count] += divergence.to(own)[:, None] * own
    return dragged


@BEFORE.register("q_fair", needs("models", criteria=["start_loss"]))
def q_fair(
    gathered: Gathered, weights: Tensor, *, q: Annotated[float, Ge(0), Le(20)] = 1.0
) -> Mixed:
    """Δ_a·F_a^q / Σ w_b·(F_b^q + q·F_b^(q−1)·‖Δ_b‖²/η): high losses F count more (q-FedAvg, Li et al., 2020).

    Args:
        gathered: the updates [n, d], the criterion `start_loss` F [n], and the clients' learning rate η.
        weights: sum to 1, [n].
        q: fairness; 0 is FedAvg.

    Returns:
        The rescaled updates [n, d].
    """
    losses = gathered.criteria["start_loss"].clamp(min=1e-10)
    curvature = q * losses ** (q - 1) * _norms(gathered) ** 2 / gathered.training.rate
    return scaled(gathered, losses**q / (weights @ (losses**q + curvature)))


@BEFORE.register("clip")
def clip(
    gathered: Gathered,
    weights: Tensor,
    *,
    radius: PositiveFloat | None = None,
    times: PositiveFloat = 1.0,
    by_layer: bool = False,
) -> Mixed:
    """Δ_a ← Δ_a·min(1, r/‖Δ_a‖): no norm exceeds r, by default `times` the weighted median of all norms.

    With `by_layer`, every tensor of the model has its own norms and its own median.

    Args:
        gathered: the updates [n, d].
        weights: sum to 1, [n].
        radius: r; None takes it from the median.
        times: r over the weighted median of the norms, where `radius` is None.
        by_layer: clip every tensor of an update by itself.

    Returns:
        The clipped updates [n, d]. With `by_layer`, a client's share is ‖clipped‖/‖Δ_a‖.
    """

    def factors(moved: Tensor) -> Tensor:
        norms = _norms_of(moved)
        longest = times * weighted_median(norms, weights.cpu()) if radius is None else radius
        return (longest / norms).clamp(max=1).nan_to_num(1.0)

    count = gathered.spec.num_parameters
    if not by_layer:
        return scaled(gathered, factors(gathered.updates[:, :count]))
    updates = gathered.updates.clone()
    for layer in gathered.spec.layers:
        if layer.stop <= count:  # buffers are statistics of the data
            moved = updates[:, layer.start : layer.stop]
            moved *= factors(moved).to(moved)[:, None]
    left = _norms_of(updates[:, :count]) / _norms(gathered)
    return Mixed(updates, left.nan_to_num(1.0))


@BEFORE.register("nearest_neighbours", needs("single_values", "pairs"))
def nearest_neighbours(gathered: Gathered, weights: Tensor, *, hostile: Minority = 0.2) -> Mixed:
    """Δ_a ← the mean of the share 1 − h of the weight nearest to it, itself first (NNM; Allouah et al., 2023).

    Args:
        gathered: the updates [n, d].
        weights: sum to 1, [n].
        hostile: h, the share of the weight that may be hostile.

    Returns:
        Means of neighbours [n, d].
    """
    squares = squared_distances(gathered.updates)
    nearest = lowest(squares, weights.to(squares), 1 - hostile).T  # row a: the weight nearest to a
    return mixed(gathered, nearest / (1 - hostile))


def scaled(gathered: Gathered, factors: Tensor) -> Mixed:
    """The updates times a factor each [n]; buffers are statistics of the data and stay what they are."""
    updates = gathered.updates
    count = gathered.spec.num_parameters
    changed = updates * factors.to(updates)[:, None]
    if count < updates.shape[1]:
        changed[:, count:] = updates[:, count:]
    return Mixed(changed, factors.double().cpu())


def mixed(gathered: Gathered, shares: Tensor) -> Mixed:
    """Every update replaced by a mean of updates, with the shares [n, n] of its row."""
    return Mixed(combine(shares, gathered.updates), shares.double().cpu())


def _norms(gathered: Gathered) -> Tensor:
    """Norm of each client's update [n], without the buffers."""
    return _norms_of(gathered.updates[:, : gathered.spec.num_parameters])


def _norms_of(moved: Tensor) -> Tensor:
    """Norm of each row [n]."""
    # On a GPU one launch, on a CPU what fits its cache
    at_once = len(moved) if moved.is_cuda else 1
    pieces = torch.split(moved, at_once)
    norms = [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) for rows in pieces]
    return torch.cat(norms).cpu()
