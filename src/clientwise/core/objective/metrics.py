"""Metrics, computed from counts: a confusion matrix, sums of errors, or counts of pairs.

Counts of several clients add up, so no sample leaves a client. Every metric takes counts with any leading
dimensions [...] and returns one value for each. `Problem` says which counts a kind of problem has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry import Declaration, Need, Registry

Metric = Callable[..., Tensor]
METRICS: Registry[Metric] = Registry("metric", "metrics", "Quality of a model, from counts")


@dataclass(frozen=True)
class Measure(Declaration):
    """Declared by a metric."""

    is_error: bool = False  # lower is better
    is_share: bool = True  # its values are shown as percentages, otherwise as numbers
    from_scores: bool = False  # computed from all scores and targets, not from counts


def measure(
    of: Need, *, is_error: bool = False, is_share: bool = True, from_scores: bool = False
) -> Measure:
    """The declaration of a metric for problems that predict `of`.

    Args:
        of: "classes", "numbers" or "times".
        is_error: lower values are better.
        is_share: values are in [0, 1], or a relative error, and shown in percent; otherwise they are numbers.
        from_scores: the metric receives all scores and targets instead of counts; for classes alone.
    """
    if from_scores and of != "classes":
        raise ValueError(f"a metric of {of} is computed from counts, not from scores")
    return Measure(frozenset({of}), is_error=is_error, is_share=is_share, from_scores=from_scores)


def measured(name: str) -> Measure:
    """What a metric declares; a custom metric may have declared no more than its needs."""
    declared = METRICS.declared(name)
    return declared if isinstance(declared, Measure) else Measure(declared.needs)


OF_CLASSES = measure("classes")
SMALLEST_ERROR = 1e-6  # added to an error before it is inverted
MOST_PAIRS = 2**22  # compared at once


def confusion(targets: Tensor, predictions: Tensor, num_classes: int) -> Tensor:
    """Confusion matrix [..., C, C] (row: true class, column: predicted class) of predictions [..., N].

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 2).tolist()
    [[1, 0], [1, 1]]
    """
    cells = targets * num_classes + predictions  # [..., N]
    counts = torch.zeros(*cells.shape[:-1], num_classes**2, dtype=torch.int64, device=cells.device)
    counts.scatter_add_(-1, cells, torch.ones_like(cells))
    return counts.reshape(*cells.shape[:-1], num_classes, num_classes)


def error_sums(targets: Tensor, predictions: Tensor) -> Tensor:
    """Sums [..., 4] over N values: 1, |e|, e², |e|/|y|, of predictions and targets [..., N].

    >>> error_sums(torch.tensor([2.0, 4.0]), torch.tensor([3.0, 2.0])).tolist()
    [2.0, 3.0, 5.0, 1.0]
    """
    error = (predictions - targets).double().abs()
    relative = relative_error(targets, predictions)
    return torch.stack([torch.ones_like(error), error, error.square(), relative], dim=-1).sum(-2)


def relative_error(targets: Tensor, predictions: Tensor) -> Tensor:
    """|e|/max(|y|, 10⁻⁶): finite where y is zero, and zero only for a right prediction."""
    return (predictions - targets).double().abs() / targets.double().abs().clamp(min=1e-6)


def pair_counts(targets: Tensor, scores: Tensor) -> Tensor:
    """Counts [..., 3] of samples, comparable pairs and concordant pairs (Harrell's C).

    A pair is comparable if one sample had the event while the other was still observed. It is concordant
    if the first has the higher score. Equal scores count one half.

    Args:
        targets: times [N], negative where censored.
        scores: [..., N], larger at a higher risk.

    Example:
        >>> pair_counts(torch.tensor([1.0, 2.0, -3.0]), torch.tensor([0.9, 0.1, 0.5])).tolist()
        [3.0, 3.0, 2.0]
    """
    times = targets.abs()
    happened = targets > 0
    counts = torch.zeros(*scores.shape[:-1], 3, dtype=torch.float64)
    counts[..., 0] = len(targets)
    at_once = max(1, MOST_PAIRS // max(1, scores.numel()))
    for events in torch.split(happened.nonzero()[:, 0], at_once):
        first = times[events, None]
        later = (times > first) | ((times == first) & ~happened)
        mine = scores[..., events, None]
        others = scores[..., None, :]
        right = ((mine > others) & later).sum((-2, -1))
        tied = ((mine == others) & later).sum((-2, -1))
        counts[..., 1] += later.sum()
        counts[..., 2] += right + 0.5 * tied
    return counts


@METRICS.register("accuracy", OF_CLASSES)
def accuracy(counts: Tensor) -> Tensor:
    """Share of samples classified correctly (P1 Eq. 10).

    Args:
        counts: confusion matrices [..., C, C] (row: true class, column: predicted class).

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> accuracy(torch.tensor([[3, 1], [0, 4]])).item()
        0.875
    """
    return _ratio(counts.diagonal(dim1=-2, dim2=-1).sum(-1), counts.sum((-2, -1)))


@METRICS.register("balanced_accuracy", OF_CLASSES)
def balanced_accuracy(counts: Tensor) -> Tensor:
    """Mean recall over the classes that occur.

    Args:
        counts: confusion matrices [..., C, C] (row: true class, column: predicted class).

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> balanced_accuracy(torch.tensor([[3, 1], [0, 2]])).item()
        0.875
    """
    occurring = (counts.sum(-1) > 0).sum(-1)
    return per_class_recall(counts).sum(-1) / occurring.clamp(min=1)


@METRICS.register("macro_f1", OF_CLASSES)
def macro_f1(counts: Tensor) -> Tensor:
    """Mean F1 over the classes that occur or were predicted.

    Args:
        counts: confusion matrices [..., C, C] (row: true class, column: predicted class).

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> macro_f1(torch.tensor([[2, 0], [0, 2]])).item()
        1.0
    """
    involved = (counts.sum(-1) + counts.sum(-2)) > 0
    return per_class_f1(counts).sum(-1) / involved.sum(-1).clamp(min=1)


@METRICS.register("auc", measure("classes", from_scores=True))
def auc(scores: Tensor, targets: Tensor) -> Tensor:
    """Area under the ROC curve, of several classes the mean of one against the rest; ½ where there is one class only.

    It is for `evaluation.metric`; counts are not enough to compute it.

    Args:
        scores: logits [..., N, C].
        targets: classes [N].

    Returns:
        Values [...] in [0, 1].
    """
    log_chances = scores.double().log_softmax(-1).nan_to_num(nan=-torch.inf)
    areas = []
    for label in range(scores.shape[-1]):
        here = targets == label
        if not bool(here.any()) or bool(here.all()):
            continue
        mine = log_chances[..., here, label].contiguous()
        others = log_chances[..., ~here, label].sort(-1).values
        below = torch.searchsorted(others, mine)
        up_to = torch.searchsorted(others, mine, right=True)
        # Ties count one half
        areas.append((below + up_to).double().mean(-1) / (2 * others.shape[-1]))
    if not areas:
        return torch.full(scores.shape[:-2], 0.5, dtype=torch.float64)
    return torch.stack(areas).mean(0)


@METRICS.register("diagnostic_odds_ratio", measure("classes", is_share=False))
def diagnostic_odds_ratio(counts: Tensor) -> Tensor:
    """(TP·TN)/(FP·FN) with ½ added to each cell; mean over classes, one against the rest.

    Args:
        counts: confusion matrices [..., C, C] (row: true class, column: predicted class).

    Returns:
        Values [...] above 0; 1 by chance.

    Example:
        >>> diagnostic_odds_ratio(torch.tensor([[4, 1], [1, 4]])).item()
        9.0
    """
    counts = counts.double()
    true_positive = counts.diagonal(dim1=-2, dim2=-1)
    false_negative = counts.sum(-1) - true_positive
    false_positive = counts.sum(-2) - true_positive
    true_negative = (
        counts.sum((-2, -1)).unsqueeze(-1) - true_positive - false_negative - false_positive
    )
    right = (true_positive + 0.5) * (true_negative + 0.5)
    wrong = (false_positive + 0.5) * (false_negative + 0.5)
    return (right / wrong).mean(-1)


@METRICS.register("mape", measure("numbers", is_error=True))
def mape(counts: Tensor) -> Tensor:
    """Mean absolute percentage error, as a fraction (regression).

    Args:
        counts: error sums [..., 4].

    Returns:
        Values [...], zero or more.

    Example:
        >>> mape(error_sums(torch.tensor([2.0, 4.0]), torch.tensor([3.0, 2.0]))).item()
        0.5
    """
    return _ratio(counts[..., 3], counts[..., 0])


@METRICS.register("mae", measure("numbers", is_error=True, is_share=False))
def mae(counts: Tensor) -> Tensor:
    """Mean absolute error (regression).

    Args:
        counts: error sums [..., 4].

    Returns:
        Values [...], zero or more.
    """
    return _ratio(counts[..., 1], counts[..., 0])


@METRICS.register("mse", measure("numbers", is_error=True, is_share=False))
def mse(counts: Tensor) -> Tensor:
    """Mean squared error (regression).

    Args:
        counts: error sums [..., 4].

    Returns:
        Values [...], zero or more.
    """
    return _ratio(counts[..., 2], counts[..., 0])


@METRICS.register("concordance", measure("times"))
def concordance(counts: Tensor) -> Tensor:
    """Share of comparable pairs in the right order (Harrell's C, survival); ½, as by chance, where there are none.

    Args:
        counts: samples, comparable pairs, concordant pairs [..., 3].

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> concordance(torch.tensor([3.0, 4.0, 3.0])).item()
        0.75
    """
    return torch.where(counts[..., 1] == 0, 0.5, _ratio(counts[..., 2], counts[..., 1]))


def per_class_f1(counts: Tensor) -> Tensor:
    """F1 of every class [..., C]; zero for a class that neither occurs nor is predicted."""
    return _ratio(2 * counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1) + counts.sum(-2))


def per_class_recall(counts: Tensor) -> Tensor:
    """Recall of every class [..., C]; zero for a class that does not occur."""
    return _ratio(counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1))


def performance(name: str, counts: Tensor) -> Tensor:
    """A metric as a quality, where higher is better: the metric, or 1/(error + 10⁻⁶).

    >>> performance("accuracy", torch.tensor([[3, 1], [0, 4]])).item()
    0.875
    """
    if measured(name).from_scores:
        raise ValueError(f"{name} needs the scores of all samples: it is for evaluation.metric")
    value = METRICS.get(name)(counts)
    return 1.0 / (value + SMALLEST_ERROR) if measured(name).is_error else value


def highest_performance(name: str) -> float:
    """The largest value of `performance`; infinity if the metric declares no range, as custom ones may."""
    declared = METRICS.declared(name)
    if not isinstance(declared, Measure):
        return math.inf
    if declared.is_error:
        return 1.0 / SMALLEST_ERROR
    return 1.0 if declared.is_share else math.inf


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole == 0, 0.0, part.double() / whole.double())
