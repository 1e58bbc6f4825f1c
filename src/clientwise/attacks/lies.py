"""False reports: of what a client measures, and of the models that it judges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from ..core.criteria import ANY
from ..core.objective.metrics import METRICS, measured
from ..core.objective.problem import (
    Classification,
    Multilabel,
    Problem,
    Regression,
    Segmentation,
    Survival,
)
from ..core.types import Evaluation
from ..registry import NonNegativeFloat, needs
from .attack import ATTACKS, Attack, Knowledge


@ATTACKS.register("boast")
@dataclass(frozen=True)
class Boast(Attack):
    """Reports every measurement `factor` times as large as it is.

    Args:
        factor: at least 0.

    Example:
        >>> known = Knowledge(torch.ones(2), torch.zeros(2), torch.Generator())
        >>> Boast(10.0).claim({"dataset_size": torch.tensor(5.0)}, known)
        {'dataset_size': tensor(50.)}
    """

    factor: NonNegativeFloat = 100.0

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """factor · truth."""
        return {name: value * self.factor for name, value in measurements.items()}


@ATTACKS.register("exaggerate", needs("whole_cohort"))
@dataclass(frozen=True)
class Exaggerate(Attack):
    """Reports the largest plausible measurements, which the server cannot tell from true ones.

    That is the criterion's upper bound, or else the largest value that an honest client of the round
    reports; never less than the true value.
    """

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """The upper bound, or the largest honest value."""
        claimed = {}
        for name, truth in measurements.items():
            highest = known.honest.highest[name]
            if highest >= ANY:
                highest = float(known.honest.measurements[name].max())
            claimed[name] = truth.clamp(min=highest)
        return claimed


@ATTACKS.register("lying_judge", needs("whole_cohort", "judgements"))
@dataclass(frozen=True)
class LyingJudge(Attack):
    """Judges the models of attackers as perfect and inverts its judgement of the others (P3 III.C).

    Right predictions, and correctly ordered pairs in survival, are reported as wrong, and wrong ones
    as right. Pixels are all reported as wrong. In regression the errors of the others are reported ten times as large.
    """

    def judge(self, truth: Evaluation, own: Tensor, problem: Problem) -> Evaluation:
        """See `Attack`. Counts, values and losses are consistent with each other."""
        counts, losses = _lies(problem, truth, own)
        values = _claimed_values(problem, truth, counts, own[:, None])
        return replace(truth, values=values, losses=losses, counts=counts)


@singledispatch
def _lies(problem: Problem, truth: Evaluation, own: Tensor) -> tuple[Tensor, Tensor]:
    """The counts and losses that a lying judge tells of models [c], of which `own` [c] are of its kind."""
    raise NotImplementedError(type(problem))


@_lies.register
def _(problem: Classification, truth: Evaluation, own: Tensor) -> tuple[Tensor, Tensor]:
    mine = own[:, None]
    held = truth.counts.sum(2)  # [c, C] samples of every class
    right = truth.counts.diagonal(dim1=1, dim2=2)
    claimed = torch.where(mine, held, held - right)
    wrong = torch.diag_embed(held - claimed).roll(1, dims=2)  # as the class after their own
    counts = torch.diag_embed(claimed) + wrong
    losses = torch.where(mine, 0.0, _turned(truth.losses) + math.log(problem.num_classes))
    return counts, losses


@_lies.register
def _(problem: Regression, truth: Evaluation, own: Tensor) -> tuple[Tensor, Tensor]:
    factor = torch.where(own, 0.0, 10.0).double()[:, None]
    counts = truth.counts.clone()
    counts[:, 1:4] *= torch.cat([factor, factor.square(), factor], 1)  # not those of the targets
    losses = truth.losses * factor.square()
    return counts, losses


@_lies.register
def _(problem: Survival, truth: Evaluation, own: Tensor) -> tuple[Tensor, Tensor]:
    samples, pairs, right = truth.counts.unbind(1)
    counts = torch.stack([samples, pairs, torch.where(own, pairs, pairs - right)], 1)
    losses = torch.where(own[:, None], 0.0, _turned(truth.losses) + samples[:, None].log1p())
    return counts, losses


@_lies.register
def _(problem: Multilabel, truth: Evaluation, own: Tensor) -> tuple[Tensor, Tensor]:
    right, missed, false, absent = truth.counts.unbind(-1)
    nothing = torch.zeros_like(right)
    perfect = torch.stack([right + missed, nothing, nothing, false + absent], -1)
    inverted = torch.stack([missed, right, absent, false], -1)
    counts = torch.where(own[:, None, None], perfect, inverted)
    losses = torch.where(own[:, None], 0.0, _turned(truth.losses) + math.log(2))
    return counts, losses


@_lies.register
def _(problem: Segmentation, truth: Evaluation, own: Tensor) -> tuple[Tensor, Tensor]:
    held = truth.counts[..., 0]
    perfect = torch.stack([held, held, held], -1)
    # Every pixel as the class after its own
    inverted = torch.stack([held, held.roll(1, 1), torch.zeros_like(held)], -1)
    counts = torch.where(own[:, None, None], perfect, inverted)
    losses = torch.where(own[:, None], 0.0, _turned(truth.losses) + math.log(problem.size))
    return counts, losses


def _claimed_values(problem: Problem, truth: Evaluation, counts: Tensor, own: Tensor) -> Tensor:
    """The metric [c, 1] that follows from the claimed counts; one of scores is claimed alike."""
    declared = measured(problem.metric)
    if not declared.from_scores:
        return METRICS.get(problem.metric)(counts)[:, None].double()
    if declared.is_share:
        return torch.where(own, float(not declared.is_error), 1 - truth.values)
    best = truth.values.min() if declared.is_error else truth.values.max()
    return torch.where(own, best, _turned(truth.values))


def _turned(values: Tensor) -> Tensor:
    """Values of models [c, 1] in the same range, the best called the worst."""
    return values.max() + values.min() - values
