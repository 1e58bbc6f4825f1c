"""Metrics, computed from counts: a confusion matrix, sums of errors, counts of pairs, labels or pixels.

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
        of: "classes", "numbers", "times", "labels" or "masks".
        is_error: lower values are better.
        is_share: values are in [0, 1], or a relative error, and shown in percent; otherwise they are numbers.
        from_scores: the metric receives all scores and targets instead of counts; for classes and labels alone.
    """
    if from_scores and of not in ("classes", "labels"):
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
    """Sums [..., 7] over N values: 1, |e|, e², |e|/|y|, max(y, 0), max(−y, 0), y².

    Predictions and targets are [..., N]. All sums are zero or more, so a claimed negative one is refused.

    >>> error_sums(torch.tensor([2.0, 4.0]), torch.tensor([3.0, 2.0])).tolist()
    [2.0, 3.0, 5.0, 1.0, 6.0, 0.0, 20.0]
    """
    error = (predictions - targets).double().abs()
    relative = relative_error(targets, predictions)
    truth = targets.double().expand(error.shape)
    above = truth.clamp(min=0)
    below = truth.neg().clamp(min=0)
    ones = torch.ones_like(error)
    sums = [ones, error, error.square(), relative, above, below, truth.square()]
    return torch.stack(sums, dim=-1).sum(-2)


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


def label_counts(targets: Tensor, scores: Tensor) -> Tensor:
    """Counts [..., L, 4] of samples by label: right and there, wrong and there, wrong and not there, right and not.

    Targets are [N, L] of 0 and 1, scores [..., N, L] logits. A label is predicted where its logit is above 0.

    >>> label_counts(torch.tensor([[1, 0], [1, 1]]), torch.tensor([[2.0, 1.0], [-1.0, 3.0]])).tolist()
    [[1, 1, 0, 0], [1, 0, 1, 0]]
    """
    there = targets > 0
    said = scores > 0
    cells = [there & said, there & ~said, ~there & said, ~there & ~said]
    return torch.stack([cell.sum(-2) for cell in cells], dim=-1)


def pixel_counts(targets: Tensor, predictions: Tensor, num_classes: int) -> Tensor:
    """Counts [..., C, 3] of pixels by class: in the mask, predicted, and both, of masks [..., P].

    >>> pixel_counts(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [[1, 2, 1], [2, 1, 1]]
    """

    def by_class(classes: Tensor, counted: Tensor) -> Tensor:
        sums = torch.zeros(
            *classes.shape[:-1], num_classes, dtype=torch.int64, device=classes.device
        )
        return sums.scatter_add_(-1, classes, counted)

    ones = torch.ones_like(predictions)
    both = (predictions == targets).long()
    return torch.stack(
        [by_class(targets, ones), by_class(predictions, ones), by_class(targets, both)], dim=-1
    )


@METRICS.register("accuracy", OF_CLASSES)
def accuracy(counts: Tensor) -> Tensor:
    """Share of samples classified correctly.

    P1 Eq. 10.

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
    return _over_involved(per_class_recall(counts), counts.sum(-1))


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
    return _over_involved(per_class_f1(counts), counts.sum(-1) + counts.sum(-2))


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
    all_samples = counts.sum((-2, -1)).unsqueeze(-1)
    true_negative = all_samples - true_positive - false_negative - false_positive
    right = (true_positive + 0.5) * (true_negative + 0.5)
    wrong = (false_positive + 0.5) * (false_negative + 0.5)
    return (right / wrong).mean(-1)


@METRICS.register("mape", measure("numbers", is_error=True))
def mape(counts: Tensor) -> Tensor:
    """Mean absolute percentage error, as a fraction (regression).

    Args:
        counts: error sums [..., 7].

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
        counts: error sums [..., 7].

    Returns:
        Values [...], zero or more.
    """
    return _ratio(counts[..., 1], counts[..., 0])


@METRICS.register("mse", measure("numbers", is_error=True, is_share=False))
def mse(counts: Tensor) -> Tensor:
    """Mean squared error (regression).

    Args:
        counts: error sums [..., 7].

    Returns:
        Values [...], zero or more.
    """
    return _ratio(counts[..., 2], counts[..., 0])


@METRICS.register("rmse", measure("numbers", is_error=True, is_share=False))
def rmse(counts: Tensor) -> Tensor:
    """Root mean squared error, in the unit of the targets (regression).

    Args:
        counts: error sums [..., 7].

    Returns:
        Values [...], zero or more.

    Example:
        >>> found = rmse(error_sums(torch.tensor([2.0, 4.0]), torch.tensor([5.0, 0.0])))
        >>> round(found.item() ** 2, 6)
        12.5
    """
    return mse(counts).sqrt()


@METRICS.register("r2", measure("numbers", is_share=False))
def r2(counts: Tensor) -> Tensor:
    """Coefficient of determination R² = 1 − Σe² / Σ(y − ȳ)² (regression).

    Of several numbers a sample, the sums are over all of them. Targets that are all equal have 0.

    Args:
        counts: error sums [..., 7].

    Returns:
        Values [...], at most 1; below 0 where the mean of the targets predicts better.

    Example:
        >>> r2(error_sums(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 3.0]))).item()
        0.5
    """
    total = counts[..., 4] - counts[..., 5]
    spread = counts[..., 6] - _ratio(total.square(), counts[..., 0])
    # A difference of large sums: what is left of equal targets is rounding
    varies = spread > 1e-12 * counts[..., 6]
    return torch.where(varies, 1 - counts[..., 2] / spread.clamp(min=1e-300), 0.0)


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


@METRICS.register("average_precision", measure("labels", from_scores=True))
def average_precision(scores: Tensor, targets: Tensor) -> Tensor:
    """Area under the precision-recall curve, mean over the labels that occur (macro PR-AUC); 0 where none does.

    The precision at the score of a sample that has the label, mean over these samples. It is for
    `evaluation.metric`; counts are not enough to compute it.

    Args:
        scores: logits [..., N, L].
        targets: labels [N, L], 0 or 1.

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> scores = torch.tensor([[0.9], [0.8], [0.1]])
        >>> round(average_precision(scores, torch.tensor([[1], [0], [1]])).item(), 6)
        0.833333
    """
    scores = scores.double().nan_to_num(nan=-torch.inf)
    areas = []
    for label in range(scores.shape[-1]):
        here = targets[:, label] > 0
        if not bool(here.any()):
            continue
        every = scores[..., label].sort(-1).values
        mine = scores[..., here, label].sort(-1).values
        as_high = every.shape[-1] - torch.searchsorted(every, mine)
        right = mine.shape[-1] - torch.searchsorted(mine, mine)
        areas.append((right.double() / as_high).mean(-1))
    if not areas:
        return torch.zeros(scores.shape[:-2], dtype=torch.float64)
    return torch.stack(areas).mean(0)


@METRICS.register("label_macro_f1", measure("labels"))
def label_macro_f1(counts: Tensor) -> Tensor:
    """Mean F1 over the labels that occur or were predicted (multi-label; a label is predicted above 50%).

    Args:
        counts: by label, see `label_counts`, [..., L, 4].

    Returns:
        Values [...] in [0, 1].
    """
    right, missed, false, _ = counts.unbind(-1)
    there_or_said = 2 * right + missed + false
    return _over_involved(_ratio(2 * right, there_or_said), there_or_said)


@METRICS.register("label_accuracy", measure("labels"))
def label_accuracy(counts: Tensor) -> Tensor:
    """Share of labels predicted right, there or not (1 − Hamming loss, multi-label).

    Args:
        counts: by label, see `label_counts`, [..., L, 4].

    Returns:
        Values [...] in [0, 1].
    """
    right = counts[..., 0] + counts[..., 3]
    return _ratio(right.sum(-1), counts.sum((-2, -1)))


@METRICS.register("dice", measure("masks"))
def dice(counts: Tensor) -> Tensor:
    """Dice coefficient 2·|A∩B| / (|A|+|B|), mean over the classes that occur or were predicted (segmentation).

    Class 0, often the background, counts as any other. Pixels of all samples of a holder are counted together.

    Args:
        counts: pixels by class, see `pixel_counts`, [..., C, 3].

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> dice(torch.tensor([[2, 2, 2], [4, 4, 2]])).item()
        0.75
    """
    held, said, both = counts.unbind(-1)
    return _over_involved(_ratio(2 * both, held + said), held + said)


@METRICS.register("iou", measure("masks"))
def iou(counts: Tensor) -> Tensor:
    """Intersection over union |A∩B| / |A∪B|, mean over the classes that occur or were predicted (segmentation).

    Class 0, often the background, counts as any other. Pixels of all samples of a holder are counted together.

    Args:
        counts: pixels by class, see `pixel_counts`, [..., C, 3].

    Returns:
        Values [...] in [0, 1].

    Example:
        >>> round(iou(torch.tensor([[2, 2, 2], [4, 4, 2]])).item(), 6)
        0.666667
    """
    held, said, both = counts.unbind(-1)
    return _over_involved(_ratio(both, held + said - both), held + said)


def _over_involved(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of values [..., C] over the classes that are counted [..., C]; the others have the value 0."""
    return values.sum(-1) / (counted > 0).sum(-1).clamp(min=1)


def per_class_f1(counts: Tensor) -> Tensor:
    """F1 of every class [..., C]; zero for a class that neither occurs nor is predicted."""
    return _ratio(2 * counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1) + counts.sum(-2))


def per_class_recall(counts: Tensor) -> Tensor:
    """Recall of every class [..., C]; zero for a class that does not occur."""
    return _ratio(counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1))


def performance(name: str, counts: Tensor) -> Tensor:
    """A metric as a quality, zero or more and higher where better: the metric, or 1/(error + 10⁻⁶).

    >>> performance("accuracy", torch.tensor([[3, 1], [0, 4]])).item()
    0.875
    """
    if measured(name).from_scores:
        raise ValueError(f"{name} needs the scores of all samples: it is for evaluation.metric")
    value = METRICS.get(name)(counts)
    if measured(name).is_error:
        return 1.0 / (value + SMALLEST_ERROR)
    return value.clamp(min=0)


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
