"""Label attacks: the client trains honestly, on samples with wrong labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from ..core.objective.problem import Problem
from ..data.federated import Samples
from ..registry import Share, needs
from .attack import ATTACKS, Attack

ClassNumber = Annotated[int, Ge(0), Le(10**4)]


def check_class(number: int, problem: Problem, option: str) -> None:
    """Raise a ValueError if the problem has no such class."""
    if number >= problem.num_classes:
        raise ValueError(f"{option} = {number}, but the classes are 0 to {problem.num_classes - 1}")


def draw_some(count: int, fraction: float, random: torch.Generator) -> Tensor:
    """A random `fraction` of the numbers 0 to count − 1, in random order.

    Example:
        >>> draw_some(10, 0.3, torch.Generator().manual_seed(1)).shape
        torch.Size([3])
    """
    return torch.randperm(count, generator=random)[: round(count * fraction)]


@ATTACKS.register("wrong_labels")
@dataclass(frozen=True)
class WrongLabels(Attack):
    """Replaces a `fraction` of the labels by other classes, drawn uniformly (P3 1.C).

    Values and survival times are mirrored in the client's range instead, labels (multi-label) and masks as by
    `mirrored_labels`.

    Args:
        fraction: of the client's samples, 0 to 1.

    Example:
        >>> from clientwise.core.objective.problem import Classification
        >>> random = torch.Generator().manual_seed(1)
        >>> targets = torch.tensor([0, 1, 2])
        >>> bool((WrongLabels().relabel(targets, Classification(3), random) == targets).any())
        False
    """

    fraction: Share = 1.0

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """Every chosen label becomes another one, each with equal probability."""
        chosen = draw_some(len(targets), self.fraction, random)
        if not problem.num_classes:
            return _mirrored(targets, chosen, problem)
        result = targets.clone()
        shift = torch.randint(1, problem.num_classes, (len(chosen),), generator=random)
        result[chosen] = (targets[chosen] + shift) % problem.num_classes
        return result


@ATTACKS.register("mirrored_labels")
@dataclass(frozen=True)
class MirroredLabels(Attack):
    """Replaces a `fraction` of the labels y by C − 1 − y; values are mirrored in the client's range.

    Of multi-label targets and of masks, all labels or pixels of a sample are replaced.

    Args:
        fraction: of the client's samples, 0 to 1.

    Example:
        >>> from clientwise.core.objective.problem import Classification
        >>> random = torch.Generator().manual_seed(1)
        >>> MirroredLabels().relabel(torch.tensor([0, 1, 9]), Classification(10), random)
        tensor([9, 8, 0])
    """

    fraction: Share = 1.0

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """C − 1 − y."""
        return _mirrored(targets, draw_some(len(targets), self.fraction, random), problem)


@ATTACKS.register("one_label", needs("classes"))
@dataclass(frozen=True)
class OneLabel(Attack):
    """Labels a `fraction` of the client's samples `target`.

    Args:
        target: the class that they get.
        fraction: of the client's samples, 0 to 1.
    """

    target: ClassNumber = 0
    fraction: Share = 1.0

    def check(self, samples: Samples) -> None:
        """Raise a ValueError if there is no class `target`."""
        check_class(self.target, samples.problem, "target")

    def relabel(self, targets: Tensor, problem: Problem, random: torch.Generator) -> Tensor:
        """The chosen labels become `target`."""
        result = targets.clone()
        result[draw_some(len(targets), self.fraction, random)] = self.target
        return result


def _mirrored(targets: Tensor, chosen: Tensor, problem: Problem) -> Tensor:
    """The chosen labels mirrored in the range of all classes, or of the client's values or times."""
    result = targets.clone()
    result[chosen] = problem.mirrored(targets)[chosen]
    return result
