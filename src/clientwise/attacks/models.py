"""Forged models: attacks that need nothing but what the client itself has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from ..registry import NonNegativeFloat, needs
from .attack import ATTACKS, Attack, Knowledge

TURN_SEED = 11  # every attacker turns the same way, in every round


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


@ATTACKS.register("slow_turn")
@dataclass(frozen=True)
class SlowTurn(Attack):
    """Turns its update a little further every round, until it is a sign flip.

    Written against evidence from a client's own past (`evidence.history`): each update is close to the
    one before. The angle to the honest update Δ after t rounds is θ = min(180°, degrees·t). The turn
    goes through a direction e that is random, orthogonal to Δ and the same in every round:

        sent = (1 + (strength − 1)·θ/180°)·(cos θ·Δ + sin θ·‖Δ‖·e).

    Args:
        degrees: turn per round, above 0.
        strength: length of the sent update, in lengths of Δ, once it points the opposite way.

    Example:
        >>> zero, one = torch.zeros(2), torch.ones(2)
        >>> last = Knowledge(one, zero, torch.Generator(), active_rounds=18)
        >>> SlowTurn(degrees=10.0, strength=2.0).forge(last).round(decimals=4)
        tensor([-2., -2.])
    """

    degrees: Annotated[float, Gt(0), Le(180)] = 15.0
    strength: NonNegativeFloat = 2.0

    def forge(self, known: Knowledge) -> Tensor:
        """The update turned by θ."""
        angle = math.radians(min(180.0, self.degrees * known.active_rounds))
        update = known.model - known.global_model
        length = torch.linalg.vector_norm(update)
        same = torch.Generator().manual_seed(TURN_SEED)
        aside = torch.randn(len(update), generator=same).to(update)
        aside = aside - (aside @ update) / length.square().clamp(min=1e-30) * update
        aside = aside * (length / torch.linalg.vector_norm(aside).clamp(min=1e-30))
        scale = 1 + (self.strength - 1) * angle / math.pi
        turned = math.cos(angle) * update + math.sin(angle) * aside
        sent: Tensor = known.global_model + scale * turned
        return sent


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
