"""Forged models: attacks that need nothing but what the client itself has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..registry import NonNegativeFloat, needs
from .attack import ATTACKS, Attack, Knowledge


@ATTACKS.register("sign_flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends the opposite of its update, `strength` times as large: Θ − strength·(Θ_a − Θ).

    Args:
        strength: factor, at least 0.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> SignFlip(2.0).forge(Knowledge(one, zero, torch.Generator()))
        tensor([-2., -2.])
    """

    strength: NonNegativeFloat = 1.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ − strength·(Θ_a − Θ)."""
        return known.global_model - self.strength * (known.model - known.global_model)


@ATTACKS.register("scaling")
@dataclass(frozen=True)
class Scaling(Attack):
    """Sends its update `factor` times as large: Θ + factor·(Θ_a − Θ).

    Args:
        factor: at least 0.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> Scaling(3.0).forge(Knowledge(one, zero, torch.Generator()))
        tensor([3., 3.])
    """

    factor: NonNegativeFloat = 10.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + factor·(Θ_a − Θ)."""
        return known.global_model + self.factor * (known.model - known.global_model)


@ATTACKS.register("noise")
@dataclass(frozen=True)
class Noise(Attack):
    """Sends the global model with Gaussian noise: Θ + deviation·ξ with standard normal ξ.

    Args:
        deviation: standard deviation of the noise, at least 0.
    """

    deviation: NonNegativeFloat = 1.0

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + noise."""
        return known.global_model + self.deviation * _gaussian(known)


@ATTACKS.register("free_rider", needs("last_model"))
@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends the global model with noise as large as the last round's change, untrained (Lin et al. 2019).

    Θ + factor·|Θ − Θ'|·ξ with standard normal ξ, where Θ' is the global model of the round before.

    Args:
        factor: at least 0.
        first: takes the place of |Θ − Θ'| in the first round, which has no Θ'.
    """

    factor: NonNegativeFloat = 1.0
    first: NonNegativeFloat = 1e-3

    def forge(self, known: Knowledge) -> Tensor:
        """Θ + factor·|Θ − Θ'|·ξ."""
        now, before = known.global_model, known.last_model
        change = (
            torch.full_like(now, self.first) if before is None else (now - before.to(now)).abs()
        )
        return now + self.factor * change * _gaussian(known)


@ATTACKS.register("broken")
@dataclass(frozen=True)
class Broken(Attack):
    """Sends a model of NaN, as a client whose training diverged does.

    Example:
        >>> Broken().forge(Knowledge(torch.ones(2), torch.zeros(2), torch.Generator()))
        tensor([nan, nan])
    """

    def forge(self, known: Knowledge) -> Tensor:
        """NaN everywhere."""
        return torch.full_like(known.model, torch.nan)


def _gaussian(known: Knowledge) -> Tensor:
    """Standard normal noise [d], the same on every device."""
    return torch.randn(len(known.model), generator=known.random).to(known.model.device)
