"""Hostile and faulty clients, for simulation: what they do to their labels, their model and their measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .core.types import Problem
from .registry import NonNegativeFloat, Registry, Share


class Attack:
    """An honest client. An attack overrides what it does differently; `random` is the client's own generator."""

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """What the client calls its samples."""
        return targets

    def forge(self, model: Tensor, global_model: Tensor, random: torch.Generator) -> Tensor:
        """The model [d] the client sends instead of the one it trained."""
        return model

    def claim(self, measurements: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The measurements the client reports instead of the true ones."""
        return measurements


ATTACKS: Registry[Any] = Registry("attack", "attacks", "What a hostile or faulty client does")


@ATTACKS.register("wrong_labels")
@dataclass(frozen=True)
class WrongLabels(Attack):
    """A `fraction` of the client's labels is wrong (P3 1.C); in regression the values are mirrored in their range."""

    fraction: Share = 1.0

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """Every chosen label becomes another one, each with equal chance."""
        chosen = torch.randperm(len(targets), generator=random)[: round(len(targets) * self.fraction)]
        result = targets.clone()
        if problem.kind == "regression":
            result[chosen] = targets.min() + targets.max() - targets[chosen]
        else:
            shift = torch.randint(1, problem.num_classes, (len(chosen),), generator=random)
            result[chosen] = (targets[chosen] + shift) % problem.num_classes
        return result


@ATTACKS.register("sign_flip")
@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends the opposite of its update, `strength` times as large."""

    strength: NonNegativeFloat = 1.0

    def forge(self, model: Tensor, global_model: Tensor, random: torch.Generator) -> Tensor:
        """Θ − strength·(Θ_a − Θ)."""
        return global_model - self.strength * (model - global_model)


@ATTACKS.register("noise")
@dataclass(frozen=True)
class Noise(Attack):
    """Sends the global model with Gaussian noise of the given deviation instead of training."""

    deviation: NonNegativeFloat = 1.0

    def forge(self, model: Tensor, global_model: Tensor, random: torch.Generator) -> Tensor:
        """Θ + noise."""
        return global_model + self.deviation * torch.randn(len(model), generator=random).to(model.device)


@ATTACKS.register("broken")
@dataclass(frozen=True)
class Broken(Attack):
    """Sends a model of NaN, as a client whose training diverged does."""

    def forge(self, model: Tensor, global_model: Tensor, random: torch.Generator) -> Tensor:
        """NaN everywhere."""
        return torch.full_like(model, torch.nan)


@ATTACKS.register("boast")
@dataclass(frozen=True)
class Boast(Attack):
    """Reports every measurement `factor` times as large as it is."""

    factor: NonNegativeFloat = 100.0

    def claim(self, measurements: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """factor · truth."""
        return {name: value * self.factor for name, value in measurements.items()}


@dataclass(frozen=True)
class Hostile:
    """One hostile client: what it does, and whether it trains a model of its own instead of the global one."""

    attack: Attack
    ignore_global: bool = False
    name: str = "hostile"  # what the record calls it
