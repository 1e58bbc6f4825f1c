"""Loss adapters: how the server changes the loss of the next round (P3's second feedback loop).

A loss adapter is a function of this round's loss and the evaluation of the new model on the server's set.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from ...registry import Declaration, PositiveFloat, Registry
from ..types import Evaluation
from .loss import (
    CrossEntropy,
    FocalLoss,
    Loss,
    RobustLoss,
    SquaredError,
    robust_loss,
)
from .metrics import (
    mae,
    mse,
    per_class_f1,
    per_class_recall,
)


@dataclass(frozen=True)
class Adapted:
    """The loss of the next round, and notes for the record."""

    loss: Loss
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdapterDeclaration(Declaration):
    """What a loss adapter declares beside its needs."""

    takes: tuple[str, ...] = ()  # the losses that it can adapt; empty: any
    sets_class_weights: bool = False


LossAdapter = Callable[..., Adapted]
LOSS_ADAPTERS: Registry[LossAdapter] = Registry(
    "loss adapter", "adapt_loss", "Changes of the next round's loss"
)


@LOSS_ADAPTERS.register(
    "class_weights",
    AdapterDeclaration(
        frozenset({"classes", "server_set"}),
        takes=(CrossEntropy.kind, FocalLoss.kind),
        sets_class_weights=True,
    ),
)
def class_weights(
    loss: Loss,
    evaluation: Evaluation,
    *,
    epsilon: PositiveFloat = 0.1,
    by: Literal["f1", "recall"] = "f1",
) -> Adapted:
    """κ_c = 1/(F1_c + ε) from the aggregated model's F1, or recall, on the server's set (P3 III.A; classification).

    If the set has no sample of a class, its κ is 1 and the record says so.

    Args:
        loss: of this round: cross-entropy or focal. Its class weights are replaced.
        evaluation: of the new model; its counts are a confusion matrix [1, C, C].
        epsilon: ε; κ is at most 1/ε.
        by: the quality of a class: its F1 or its recall.

    Returns:
        The loss with the class weights κ [C].
    """
    counts = evaluation.counts[0]
    lacking = counts.sum(-1) == 0
    quality = per_class_f1(counts) if by == "f1" else per_class_recall(counts)
    kappa = torch.where(lacking, 1.0, 1.0 / (quality + epsilon))
    adapted = loss.weighted(tuple(kappa.tolist()))
    missing = ", ".join(map(str, lacking.nonzero().flatten().tolist()))
    if not missing:
        return Adapted(adapted)
    return Adapted(
        adapted, (f"the server's set has no sample of class {missing}: its class weight is 1",)
    )


@LOSS_ADAPTERS.register(
    "robust_shape",
    AdapterDeclaration(
        frozenset({"numbers", "server_set"}), takes=(RobustLoss.kind, SquaredError.kind)
    ),
)
def robust_shape(loss: Loss, evaluation: Evaluation, *, scale: PositiveFloat = 1.0) -> Adapted:
    """Shape α of the general robust loss from the tails of the model's errors on the server's set (P3 III.B).

    The papers leave the rule open; this is the method of moments. α is the shape whose density,
    proportional to exp(−ρ(x, α)), has the same ratio of mean absolute error to root mean squared error
    as the residuals. Gaussian residuals give α = 2, the squared error. Heavier tails give a smaller α, so
    that outliers have less effect.

    Args:
        loss: the robust loss of this round.
        evaluation: of the new model; its counts are error sums [1, 7].
        scale: c, beyond which errors count as outliers.

    Returns:
        The robust loss with the new shape, between 0.2 and 2.
    """
    counts = evaluation.counts[0]
    root_mean_square = float(mse(counts)) ** 0.5
    ratio = float(mae(counts)) / root_mean_square if root_mean_square > 0 else 1.0
    shapes, ratios = _moment_ratios()
    nearest = min(range(len(shapes)), key=lambda index: abs(ratios[index] - ratio))
    return Adapted(RobustLoss(shapes[nearest], scale))


@functools.cache
def _moment_ratios() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """E|x| / √E[x²] under the density exp(−ρ(x, α)) for a grid of shapes α, by numerical integration."""
    # 0.2 to 2.0: all moments exist above 0
    shapes = tuple(round(0.2 + 0.1 * step, 1) for step in range(19))
    # One half of a symmetric density; tails can be long
    x = torch.logspace(-4, 12, 40_001, dtype=torch.float64)
    ratios = []
    for shape in shapes:
        density = torch.exp(-robust_loss(x, shape) / 2)
        moments = [float(torch.trapezoid(density * x**power, x)) for power in (0, 1, 2)]
        total, first, second = moments
        ratios.append(first / total / math.sqrt(second / total))
    return shapes, tuple(ratios)
