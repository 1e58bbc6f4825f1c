"""What a model gets that has learned nothing: the metric of a constant prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .metrics import METRICS, confusion, error_sums, measured, pair_counts
from .problem import Problem

MOST_CLASSES = 2_000  # a confusion matrix has their square


def constant_metric(problem: Problem, targets: Tensor) -> float | None:
    """The metric of predicting the same for all samples; None where it cannot be computed.

    That is the most frequent class; for numbers their mean or median, whichever is better.

    Args:
        problem: what is predicted, and its metric.
        targets: [N].

    Example:
        >>> from .problem import Classification
        >>> constant_metric(Classification(3), torch.tensor([0, 2, 2, 1]))
        0.5
    """
    if targets.ndim != 1 or not len(targets):
        return None
    metric = METRICS.get(problem.metric)
    targets = targets.cpu()
    classes = problem.num_classes
    if problem.predicts == "times":
        found = [metric(pair_counts(targets, torch.zeros(len(targets))))]
    elif not classes:
        middles = (targets.double().mean(), targets.double().median())
        found = [metric(error_sums(targets, one.expand(len(targets)))) for one in middles]
    elif classes > MOST_CLASSES:
        return None
    elif measured(problem.metric).from_scores:
        found = [metric(torch.zeros(len(targets), classes), targets)]
    else:
        usual = targets.bincount(minlength=classes).argmax()
        found = [metric(confusion(targets, usual.expand(len(targets)), classes))]
    best = (max if problem.higher_is_better else min)(map(float, found))
    return best if math.isfinite(best) else None
