"""Metrics from counts: a confusion matrix, sums of errors, or pairs. Counts of clients add up: no sample need travel.

Every metric takes counts with any leading dimensions and returns one value for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..registry import Declaration, Need, Registry

Metric = Callable[..., Tensor]
METRICS: Registry[Metric] = Registry("metric", "metrics", "How well a model did, from counts")


@dataclass(frozen=True)
class Measure(Declaration):
    """Declared by a metric."""

    is_error: bool = False  # less is better
    is_share: bool = True  # its values are shown as percentages
    from_scores: bool = False  # computed from the scores and targets of all samples, not from counts


def measure(of: Need, *, is_error: bool = False, is_share: bool = True, from_scores: bool = False) -> Measure:
    """The declaration of a metric of problems that have `of` to predict."""
    return Measure(frozenset({of}), is_error=is_error, is_share=is_share, from_scores=from_scores)


def measured(name: str) -> Measure:
    """What a metric declares; one of the user's own may have declared a need alone."""
    declared = METRICS.declared(name)
    return declared if isinstance(declared, Measure) else Measure(declared.needs)


OF_CLASSES = measure("classes")
SMALLEST_ERROR = 1e-6  # added to an error before it is inverted
MOST_PAIRS = 2**22  # looked at together


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
    """Sums [..., 4] over N samples: how many, |e|, e², |e|/|y|."""
    error = (predictions - targets).double().abs()
    return torch.stack(
        [torch.ones_like(error), error, error.square(), relative_error(targets, predictions)], dim=-1
    ).sum(-2)


def relative_error(targets: Tensor, predictions: Tensor) -> Tensor:
    """|e|/|y|; where y is zero |e|/ε with ε = 10⁻⁶, so that a wrong answer there is not a right one."""
    return (predictions - targets).double().abs() / targets.double().abs().clamp(min=1e-6)


def pair_counts(targets: Tensor, scores: Tensor) -> Tensor:
    """Of N samples [..., 3]: how many, the pairs that can be compared, those in the right order (Harrell's C).

    Targets [N] are times, negative where nothing happened until then; scores [..., N] are larger at a higher risk. A
    pair can be compared if one had the event while the other was still watched. Equal scores are half right.
    """
    times, happened = targets.abs(), targets > 0
    counts = torch.zeros(*scores.shape[:-1], 3, dtype=torch.float64)
    counts[..., 0] = len(targets)
    for events in torch.split(happened.nonzero()[:, 0], max(1, MOST_PAIRS // max(1, scores.numel()))):
        first = times[events, None]
        later = (times > first) | ((times == first) & ~happened)
        mine, others = scores[..., events, None], scores[..., None, :]
        counts[..., 1] += later.sum()
        counts[..., 2] += ((mine > others) & later).sum((-2, -1)) + 0.5 * ((mine == others) & later).sum((-2, -1))
    return counts


@METRICS.register("accuracy", OF_CLASSES)
def accuracy(counts: Tensor) -> Tensor:
    """Share of samples classified correctly."""
    return _ratio(counts.diagonal(dim1=-2, dim2=-1).sum(-1), counts.sum((-2, -1)))


@METRICS.register("balanced_accuracy", OF_CLASSES)
def balanced_accuracy(counts: Tensor) -> Tensor:
    """Mean recall over the classes that occur."""
    return per_class_recall(counts).sum(-1) / (counts.sum(-1) > 0).sum(-1).clamp(min=1)


@METRICS.register("macro_f1", OF_CLASSES)
def macro_f1(counts: Tensor) -> Tensor:
    """Mean F1 over the classes that occur or were predicted."""
    involved = (counts.sum(-1) + counts.sum(-2)) > 0
    return per_class_f1(counts).sum(-1) / involved.sum(-1).clamp(min=1)


@METRICS.register("auc", measure("classes", from_scores=True))
def auc(scores: Tensor, targets: Tensor) -> Tensor:
    """Area under the ROC curve, of several classes the mean of one against the rest; ½ where there is one class only.

    Scores are [..., N, C] logits, targets [N]. It goes with `evaluation.metric`; from counts it cannot be known.
    """
    chances = scores.double().log_softmax(-1).nan_to_num(nan=-torch.inf)  # in order of the class's probability
    areas = []
    for label in range(scores.shape[-1]):
        here = targets == label
        if bool(here.any()) and not bool(here.all()):
            mine, others = chances[..., here, label].contiguous(), chances[..., ~here, label].sort(-1).values
            below = torch.searchsorted(others, mine) + torch.searchsorted(
                others, mine, right=True
            )  # ties are half right
            areas.append(below.double().mean(-1) / (2 * others.shape[-1]))
    return torch.stack(areas).mean(0) if areas else torch.full(scores.shape[:-2], 0.5, dtype=torch.float64)


@METRICS.register("diagnostic_odds_ratio", measure("classes", is_share=False))
def diagnostic_odds_ratio(counts: Tensor) -> Tensor:
    """(TP·TN)/(FP·FN), each cell plus ½ so that no error is not infinity; mean over classes, one against the rest."""
    counts = counts.double()
    true_positive = counts.diagonal(dim1=-2, dim2=-1)
    false_negative = counts.sum(-1) - true_positive
    false_positive = counts.sum(-2) - true_positive
    true_negative = counts.sum((-2, -1)).unsqueeze(-1) - true_positive - false_negative - false_positive
    odds = (true_positive + 0.5) * (true_negative + 0.5) / ((false_positive + 0.5) * (false_negative + 0.5))
    return odds.mean(-1)


@METRICS.register("mape", measure("numbers", is_error=True))
def mape(counts: Tensor) -> Tensor:
    """Mean absolute percentage error, as a fraction (regression)."""
    return _ratio(counts[..., 3], counts[..., 0])


@METRICS.register("mae", measure("numbers", is_error=True, is_share=False))
def mae(counts: Tensor) -> Tensor:
    """Mean absolute error (regression)."""
    return _ratio(counts[..., 1], counts[..., 0])


@METRICS.register("mse", measure("numbers", is_error=True, is_share=False))
def mse(counts: Tensor) -> Tensor:
    """Mean squared error (regression)."""
    return _ratio(counts[..., 2], counts[..., 0])


@METRICS.register("concordance", measure("times"))
def concordance(counts: Tensor) -> Tensor:
    """Share of comparable pairs in the right order (Harrell's C, survival); ½, as by chance, where there are none."""
    return torch.where(counts[..., 1] == 0, 0.5, _ratio(counts[..., 2], counts[..., 1]))


def per_class_f1(counts: Tensor) -> Tensor:
    """F1 of every class [..., C]; zero for a class that neither occurs nor is predicted."""
    return _ratio(2 * counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1) + counts.sum(-2))


def per_class_recall(counts: Tensor) -> Tensor:
    """Share of every class's samples that are recognised [..., C]; zero for a class that does not occur."""
    return _ratio(counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1))


def performance(name: str, counts: Tensor) -> Tensor:
    """A metric as a quality, the larger the better: itself, or 1/(error + 10⁻⁶)."""
    if measured(name).from_scores:
        raise ValueError(f"{name} needs the scores of all samples, not their counts: it is for evaluation.metric")
    value = METRICS.get(name)(counts)
    return 1.0 / (value + SMALLEST_ERROR) if measured(name).is_error else value


def highest_performance(name: str) -> float:
    """What `performance` is at most; infinity where the metric declares no range, as a user's own may not."""
    declared = METRICS.declared(name)
    if not isinstance(declared, Measure):
        return math.inf
    if declared.is_error:
        return 1.0 / SMALLEST_ERROR
    return 1.0 if declared.is_share else math.inf


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole == 0, 0.0, part.double() / whole.double())
