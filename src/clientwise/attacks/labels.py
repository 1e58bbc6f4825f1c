"""Wrong labels: the client trains honestly on samples that it calls otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ..core.problem import Problem
from ..data.federated import Samples
from ..registry import Share, needs
from .attack import ATTACKS, Attack

ClassNumber = Annotated[int, Ge(0), Le(10**4)]


def check_class(number: int, problem: Problem, option: str) -> None:
    """ValueError where there is no such class."""
    if number >= problem.num_classes:
        raise ValueError(f"{option} = {number}, but the classes are 0 to {problem.num_classes - 1}")


def chosen_share(count: int, fraction: float, random: torch.Generator) -> Tensor:
    """So many of `count` places, drawn at random."""
    return torch.randperm(count, generator=random)[: round(count * fraction)]


@ATTACKS.register("wrong_labels")
@dataclass(frozen=True)
class WrongLabels(Attack):
    """A `fraction` of the client's labels is wrong (P3 1.C); values and times are mirrored in their range."""

    fraction: Share = 1.0

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """Every chosen label becomes another one, each with equal chance."""
        chosen = chosen_share(len(targets), self.fraction, random)
        if not problem.num_classes:
            return _mirrored(targets, chosen, problem)
        result = targets.clone()
        shift = torch.randint(1, problem.num_classes, (len(chosen),), generator=random)
        result[chosen] = (targets[chosen] + shift) % problem.num_classes
        return result


@ATTACKS.register("mirrored_labels")
@dataclass(frozen=True)
class MirroredLabels(Attack):
    """A `fraction` of the labels y is called C − 1 − y (9 − y of ten digits); values are mirrored in their range."""

    fraction: Share = 1.0

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """C − 1 − y."""
        return _mirrored(targets, chosen_share(len(targets), self.fraction, random), problem)


@ATTACKS.register("one_label", needs("classes"))
@dataclass(frozen=True)
class OneLabel(Attack):
    """A `fraction` of the client's samples is called `target`, whatever they are."""

    target: ClassNumber = 0
    fraction: Share = 1.0

    def check(self, samples: Samples) -> None:
        """There must be such a class."""
        check_class(self.target, samples.problem, "target")

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """The target."""
        result = targets.clone()
        result[chosen_share(len(targets), self.fraction, random)] = self.target
        return result


def _mirrored(targets: Tensor, chosen: Tensor, problem: Problem) -> Tensor:
    """The chosen labels mirrored: in all classes, or between a client's smallest and largest value or time."""
    result = targets.clone()
    result[chosen] = problem.mirrored(targets)[chosen]
    return result
