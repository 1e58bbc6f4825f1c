"""What happens to the updates before the rule: clipping, mixing, rescaling.

A step is a function of what the server has gathered and the weights [n], and returns the updates [n, d] that go on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import NonNegativeFloat, Registry, needs
from .types import Gathered

Before = Callable[..., Tensor]
BEFORE: Registry[Before] = Registry("step before the rule", "before", "What happens to the updates before the rule")


@BEFORE.register("nova", needs("models", criteria=["local_steps"]))
def nova(gathered: Gathered, weights: Tensor) -> Tensor:
    """Δ_a·τ̄/τ_a with τ̄ = Σ w_a·τ_a: who takes more local steps pulls no harder (FedNova, Wang et al., 2020)."""
    steps = gathered.criteria["local_steps"].clamp(min=1)
    return _scaled(gathered, (weights @ steps) / steps)


@BEFORE.register("server_norm", needs("models", "server_samples"))
def server_norm(gathered: Gathered, weights: Tensor) -> Tensor:
    """Δ_a·‖Δ_s‖/‖Δ_a‖: all as long as what the server's own training does to the model (FLTrust, Cao et al., 2021)."""
    trusted = gathered.server_update()[: gathered.spec.num_parameters].double().norm().cpu()
    return _scaled(gathered, trusted / _norms(gathered).clamp(min=1e-12))


@BEFORE.register("q_fair", needs("models", criteria=["start_loss"]))
def q_fair(gathered: Gathered, weights: Tensor, *, q: NonNegativeFloat = 1.0) -> Tensor:
    """Δ_a·F_a^q / Σ w_b·(F_b^q + q·F_b^(q−1)·‖Δ_b‖²/η): high losses F count more (q-FedAvg, Li et al., 2020)."""
    losses = gathered.criteria["start_loss"].clamp(min=1e-10)
    curvature = q * losses ** (q - 1) * _norms(gathered) ** 2 / gathered.training.learning_rate
    return _scaled(gathered, losses**q / (weights @ (losses**q + curvature)))


def _norms(gathered: Gathered) -> Tensor:
    """How far each client's parameters moved [n]; buffers do not count."""
    moved = gathered.updates[:, : gathered.spec.num_parameters]
    return torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64) for row in moved]).cpu()


def _scaled(gathered: Gathered, factors: Tensor) -> Tensor:
    """The updates times a factor each [n]; buffers are statistics of the data and stay what they are."""
    updates = gathered.updates.clone()
    updates[:, : gathered.spec.num_parameters] *= factors.to(updates)[:, None]
    return updates
