"""Lies: about what a client measures of itself, and about the models of others where clients judge them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from ..core.criteria import ANY
from ..core.metrics import concordance
from ..core.problem import Classification, Problem, Regression, Survival
from ..core.types import Evaluation
from ..registry import NonNegativeFloat, Share, needs
from .attack import ATTACKS, Attack, Knowledge


@ATTACKS.register("boast")
@dataclass(frozen=True)
class Boast(Attack):
    """Reports every measurement `factor` times as large as it is."""

    factor: NonNegativeFloat = 100.0

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """factor · truth."""
        return {name: value * self.factor for name, value in measurements.items()}


@ATTACKS.register("exaggerate", needs("whole_cohort"))
@dataclass(frozen=True)
class Exaggerate(Attack):
    """Reports the largest plausible measurements: nothing in them shows that they are lies.

    Where a criterion has an upper end, that; otherwise the given quantile of what the honest clients of the round
    report. Never less than the truth.
    """

    quantile: Share = 1.0

    def claim(self, measurements: Mapping[str, Tensor], known: Knowledge) -> Mapping[str, Tensor]:
        """The upper end, or the quantile."""
        honest = known.honest
        return {
            name: truth.clamp(min=self._plausible(honest.measurements[name], honest.highest[name]))
            for name, truth in measurements.items()
        }

    def _plausible(self, values: Tensor, highest: float) -> float:
        return highest if highest < ANY else float(torch.quantile(values, self.quantile))


@ATTACKS.register("lying_judge", needs("whole_cohort", "judgements"))
@dataclass(frozen=True)
class LyingJudge(Attack):
    """Asked to judge models, calls those of its kind perfect and inverts what it found of the others (P3 III.C).

    Right answers, and pairs of survival in the right order, become wrong ones and wrong ones right. In regression it
    calls the errors of the others ten times as large.
    """

    def judge(self, truth: Evaluation, own: Tensor, problem: Problem) -> Evaluation:
        """Counts, values and losses that fit each other: nothing in them shows that they are lies."""
        return _lies(problem, truth, own)


@singledispatch
def _lies(problem: Problem, truth: Evaluation, own: Tensor) -> Evaluation:
    """What a lying judge says of models [c], of which `own` [c] are of its kind."""
    raise NotImplementedError(type(problem))


@_lies.register
def _(problem: Classification, truth: Evaluation, own: Tensor) -> Evaluation:
    mine = own[:, None]
    held = truth.counts.sum(2)  # [c, C] samples of every class
    right = truth.counts.diagonal(dim1=1, dim2=2)
    claimed = torch.where(mine, held, held - right)
    wrong = torch.diag_embed(held - claimed).roll(1, dims=2)  # as the class after their own
    return replace(
        truth,
        values=torch.where(mine, 1.0, 1 - truth.values),  # of whatever metric
        losses=torch.where(mine, 0.0, _turned(truth.losses) + math.log(problem.num_classes)),
        counts=torch.diag_embed(claimed) + wrong,
    )


@_lies.register
def _(problem: Regression, truth: Evaluation, own: Tensor) -> Evaluation:
    factor = torch.where(own, 0.0, 10.0).double()[:, None]
    counts = truth.counts * torch.cat([torch.ones_like(factor), factor, factor.square(), factor], 1)
    losses = truth.losses * factor.square()
    return replace(truth, values=truth.values * factor, losses=losses, counts=counts)


@_lies.register
def _(problem: Survival, truth: Evaluation, own: Tensor) -> Evaluation:
    samples, pairs, right = truth.counts.unbind(1)
    counts = torch.stack([samples, pairs, torch.where(own, pairs, pairs - right)], 1)
    losses = torch.where(own[:, None], 0.0, _turned(truth.losses) + samples[:, None].log1p())
    return replace(truth, values=concordance(counts)[:, None], losses=losses, counts=counts)


def _turned(losses: Tensor) -> Tensor:
    """The losses of models [c, 1] in the same range, the best called the worst."""
    return losses.max() + losses.min() - losses
