"""Kinds of problem: what a model predicts, and how predictions are scored, counted and reported.

Everything that differs between classification, regression, survival, multi-label and segmentation is stated here. Other
files ask the problem; none of them compares its kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from ...registry import Need
from ..types import Evaluation
from .loss import (
    BinaryCrossEntropy,
    CoxLoss,
    CrossEntropy,
    Loss,
    PixelCrossEntropy,
    RobustLoss,
    class_scores,
    cox_losses,
    pixel_scores,
)
from .metrics import (
    METRICS,
    confusion,
    error_sums,
    label_counts,
    measured,
    pair_counts,
    pixel_counts,
)

PREDICTED: tuple[Need, ...] = ("classes", "numbers", "times", "labels", "masks")
NEAR_ZERO = (
    0.01  # of the mean size of the targets: relative errors are then a hundred times as large
)
MOST_CLASSES = 2_000  # of a constant prediction's metric: a confusion matrix has their square
Judged = tuple[Tensor, Tensor, Tensor]  # losses, values and counts; see `Problem.judge`


class EvaluatedSamples(Protocol):
    """The N test samples of K clients, client after client."""

    @property
    def sizes(self) -> Tensor:
        """Number of samples of every client [K]."""

    @property
    def owner(self) -> Tensor:
        """Row of the client that holds each sample [N]."""

    @property
    def targets_on_cpu(self) -> Tensor:
        """Targets of all samples [N, ...]."""


@dataclass(frozen=True)
class Problem(ABC):
    """What the model learns to predict.

    Args:
        size: number of classes, of labels or of the classes of masks; 0 for numbers and times.
        scored_by: the metric (`evaluation.metric`) where it is not the usual one.
        missing: classes that the samples at hand lack; the loss leaves them out.
    """

    size: int = 0
    scored_by: str = field(default="", kw_only=True)
    missing: tuple[int, ...] = field(default=(), kw_only=True)

    kind: ClassVar[str]  # as texts call it
    predicts: ClassVar[Need]  # what parts can need of a problem
    unit: ClassVar[str] = ""  # of `size`
    usual_metric: ClassVar[str]  # of a problem that names none, as run folders have it
    default_metric: ClassVar[str] = ""  # of a config that names none; empty: the usual one
    loss: ClassVar[Loss]  # before a method adapts it
    cells: ClassVar[
        tuple[int, ...]
    ]  # shape of the counts of one model; 0: one for each class or label
    counts_dtype: ClassVar[torch.dtype] = torch.float64
    shows: ClassVar[tuple[str, ...]] = ()  # columns of the record that only this kind fills
    is_dense: ClassVar[bool] = False  # outputs are as large as images: few are held at a time
    adds_up: ClassVar[bool] = False  # the values of a sample are counts; see `judge`
    column: ClassVar[str] = "prediction"  # of a table of predictions

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 where the targets are not classes."""
        return self.size if self.predicts == "classes" else 0

    @property
    def described(self) -> str:
        """What is predicted, for the user."""
        return f"{self.kind} of {self.size} {self.unit}" if self.unit else self.kind

    @property
    def metric(self) -> str:
        """Name of the metric that test sets are scored with."""
        return self.scored_by or self.usual_metric

    @property
    def weighed_by(self) -> str:
        """Name of the metric by which criteria judge models, unless they name another."""
        if self.scored_by and self.scored_by == self.default_metric:
            return self.scored_by
        return self.usual_metric

    def by(self, metric: str | None) -> Self:
        """The same problem, scored by the metric of a config; None: by the default."""
        wanted = metric or self.default_metric
        return replace(self, scored_by="" if wanted == self.usual_metric else wanted)

    def on(self, targets: Tensor) -> Self:
        """The same problem for samples with these targets: without the classes that they lack."""
        present = self.classes_in(targets)
        return replace(self, missing=tuple((~present).nonzero().flatten().tolist()))

    def classes_in(self, targets: Tensor) -> Tensor:
        """Whether each class, or label, occurs in targets [N, ...] [C]; empty where there are none."""
        if not self.size:
            return torch.ones(0, dtype=torch.bool)
        return torch.bincount(targets.flatten().long().cpu(), minlength=self.size) > 0

    @property
    def known_loss(self) -> Loss:
        """The loss over the classes that are not missing."""
        return self.loss.without(self.missing)

    def unfit_for(self, metric: str, targets: Tensor) -> str | None:
        """Why values of a metric would mean nothing for these targets, and what to use; None if they fit."""
        return None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of `metric` is better."""
        return not measured(self.metric).is_error

    @property
    def is_share(self) -> bool:
        """Whether `metric` is shown in percent."""
        return measured(self.metric).is_share

    def lacks(self, needs: frozenset[Need]) -> Need | None:
        """What a part needs to be predicted and this problem does not predict; None if it fits."""
        others = (need for need in PREDICTED if need in needs and need != self.predicts)
        return next(others, None)

    # Evaluation -------------------------------------------------------------------------------

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """Shape of the counts of one model."""
        return tuple(cells or self.size for cells in self.cells)

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Score the outputs of c models on one batch.

        Args:
            outputs: of every model and sample, [c, B, ...].
            targets: [B, ...].

        Returns:
            Losses [c, B], values [c, B, ...] that `evaluation` reads, counts [c, *counts_shape].
        """
        truths = targets.expand(len(outputs), *targets.shape)
        losses = self.known_loss.per_sample(outputs.flatten(0, 1), truths.flatten(0, 1))
        values, counts = self.scored(outputs, truths)
        return losses.view(len(outputs), -1), values, counts

    @abstractmethod
    def scored(self, outputs: Tensor, truths: Tensor) -> tuple[Tensor, Tensor]:
        """Values [c, B, ...] and counts [c, *counts_shape] of outputs and targets [c, B, ...].

        Where they add up (`adds_up`), values are the counts of every sample; else what `counted` reads.
        """

    def counted(self, targets: Tensor, values: Tensor) -> Tensor:
        """Counts [c, *counts_shape] of targets [n, ...] and values [c, n, ...] that do not add up."""
        raise NotImplementedError

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Evaluation of c models, client by client.

        Args:
            judged: what `judge` returned, batches joined: losses and values [c, N, ...] as float64 on the
                CPU, counts summed over the batches.
            samples: the samples, and which client holds each.
        """
        losses, values, counts = judged
        return Evaluation(
            samples.sizes,
            self._by_client(values, samples).double(),
            _client_means(losses, samples),
            counts,
            right=self.right(values, samples.targets_on_cpu),
            sample_losses=losses,
        )

    def right(self, values: Tensor, targets: Tensor) -> Tensor | None:
        """Whether each sample is classified correctly [c, N]; None where there are no classes."""
        return None

    def _by_client(self, values: Tensor, samples: EvaluatedSamples) -> Tensor:
        """The metric of every client [c, K]."""
        metric = METRICS.get(self.metric)
        if self.adds_up:
            sums = _client_sums(values, samples)
            return metric(sums.reshape(*sums.shape[:2], *self.counts_shape))
        found = []
        for mine, targets in _split_by_client(values, samples):
            if measured(self.metric).from_scores:
                found.append(metric(mine, targets))
            else:
                found.append(metric(self.counted(targets, mine)))
        return torch.stack(found, 1)

    def values_per_sample(self, target_shape: torch.Size) -> int:
        """How many values one sample adds to the counts."""
        return target_shape.numel()

    @property
    def values_kept(self) -> int:
        """How many values of a sample are kept until `evaluation`."""
        return math.prod(self.counts_shape) if self.adds_up else max(1, self.size)

    def check_counts(self, counts: Tensor, num_samples: float, values_per_sample: int = 1) -> None:
        """ValueError where counts [c, *counts_shape] cannot be those of `num_samples` samples."""
        counted = self.sample_counts(counts)
        are_whole = torch.equal(counted, counted.round())
        if not are_whole or bool((counted.sum(-1) != num_samples * values_per_sample).any()):
            raise ValueError(f"counts that do not add up to {num_samples:.12g} samples")

    def sample_counts(self, counts: Tensor) -> Tensor:
        """Whole numbers [c, ..., cells] that add up to the number of samples, or of their values."""
        return counts[:, :1]

    # Networks and targets ---------------------------------------------------------------------

    def predictions(self, outputs: Tensor) -> Tensor:
        """Predictions of a network's outputs [N, ...]: probabilities [N, C], numbers or risks."""
        return outputs

    def decided(self, predictions: Tensor) -> Tensor:
        """Predictions as `run.predict` gives them: classes [N], numbers, risks, labels or masks."""
        return predictions.squeeze(1) if predictions.shape[1:] == (1,) else predictions

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """Predictions as columns of a table, with the names of the classes where there are any."""
        return {self.column: predictions.flatten().tolist()}

    @property
    def num_logits(self) -> int:
        """One per class; two classes take one, the logit of the second."""
        return 1 if self.size == 2 else self.size

    def num_outputs(self, target_shape: torch.Size) -> int:
        """How many outputs the network has for a sample with a target of this shape."""
        return target_shape.numel()

    def takes(self, output_shape: torch.Size, target_shape: torch.Size) -> bool:
        """Whether a network's output for a sample has a shape that fits."""
        return output_shape.numel() == self.num_outputs(target_shape)

    @abstractmethod
    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """Why targets [N, ...] need their number of outputs, and what to do where they may be meant otherwise."""

    def classes_of(self, targets: Tensor) -> Tensor:
        """Class of every sample [N]; all zero where there are no classes."""
        return torch.zeros(len(targets), dtype=torch.int64)

    def mirrored(self, targets: Tensor) -> Tensor:
        """Targets [N, ...] mirrored within their range, as an attacker relabels them: C − 1 − y."""
        return self.size - 1 - targets


@dataclass(frozen=True)
class Classification(Problem):
    """One of `size` classes a sample. Counted by a confusion matrix (true, predicted class)."""

    kind = "classification"
    predicts = "classes"
    unit = "classes"
    cells = (0, 0)
    usual_metric = "accuracy"
    loss = CrossEntropy()
    counts_dtype = torch.int64
    shows = ("macro_f1", "per_class_f1")

    def scored(self, outputs: Tensor, truths: Tensor) -> tuple[Tensor, Tensor]:
        """Values are right or wrong [c, B]; the scores [c, B, C] where another metric needs them."""
        scores = class_scores(outputs)
        predictions = scores.argmax(-1)
        values = scores if self.scored_by else predictions == truths
        return values, confusion(truths, predictions, self.size)

    def counted(self, targets: Tensor, values: Tensor) -> Tensor:
        """Of scores."""
        return confusion(targets, values.argmax(-1), self.size)

    def right(self, values: Tensor, targets: Tensor) -> Tensor:
        """Whether the class with the largest score is the target."""
        return values.argmax(-1) == targets if self.scored_by else values.bool()

    def _by_client(self, values: Tensor, samples: EvaluatedSamples) -> Tensor:
        if self.scored_by:
            return super()._by_client(values, samples)
        return _client_means(values, samples)

    @property
    def values_kept(self) -> int:
        """One, where only right and wrong count."""
        return self.size if self.scored_by else 1

    def sample_counts(self, counts: Tensor) -> Tensor:
        """All cells."""
        return counts.flatten(1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes [N, C]."""
        return class_scores(outputs).softmax(-1)

    def decided(self, predictions: Tensor) -> Tensor:
        """The most probable class [N]."""
        return predictions.argmax(1)

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The most probable class, and the probability of each."""
        chosen = [classes[index] for index in predictions.argmax(-1).tolist()]
        return {"prediction": chosen} | _probabilities(predictions, classes)

    def num_outputs(self, target_shape: torch.Size) -> int:
        """A logit per class (see `class_scores`)."""
        return self.num_logits

    def takes(self, output_shape: torch.Size, target_shape: torch.Size) -> bool:
        """Two classes may have an output each."""
        return output_shape.numel() in (self.num_logits, self.size)

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """The labels."""
        least, largest = int(targets.min()), int(targets.max())
        if least == 1:
            return "labels begin at 1: subtract 1 from all of them"
        if least == largest:
            return f"all labels are {least}"
        hint = "; for numbers to predict, pass floats" if returned == 1 else ""
        return f"labels are integers from {least} to {largest}, which are classes{hint}"

    def classes_of(self, targets: Tensor) -> Tensor:
        """The targets."""
        return targets


@dataclass(frozen=True)
class Regression(Problem):
    """One or more numbers a sample. Counted by error sums, see `error_sums`.

    Args:
        sums: the prediction is the sum of an image, as a density sums to a count (P3 3.B).
    """

    sums: bool = False

    kind = "regression"
    predicts = "numbers"
    cells = (7,)
    usual_metric = "mape"
    default_metric = "rmse"
    loss = RobustLoss()
    adds_up = True

    def unfit_for(self, metric: str, targets: Tensor) -> str | None:
        """A relative error means nothing where targets come near zero, or lie on both sides of it."""
        declared = measured(metric)
        if not (declared.is_error and declared.is_share) or not len(targets):
            return None
        truths = targets.flatten(1).sum(1) if self.sums else targets.flatten()
        sizes = truths.double().abs()
        mean = float(sizes.mean())
        near = int((sizes < NEAR_ZERO * mean).sum())
        instead = f"{metric} divides by the target; use 'rmse' or 'mae'"
        if near or not mean:
            return f"{near:,} of {len(sizes):,} targets are near 0 (the mean size is {mean:.3g}), and {instead}"
        if bool((truths > 0).any()) and bool((truths < 0).any()):
            return f"targets go from {float(truths.min()):.3g} to {float(truths.max()):.3g}, and {instead}"
        return None

    def scored(self, outputs: Tensor, truths: Tensor) -> tuple[Tensor, Tensor]:
        """Values are the error sums of every sample [c, B, 7]."""
        predictions = outputs.reshape(truths.shape)
        if self.sums:
            truths = truths.flatten(2).sum(2)
            predictions = predictions.flatten(2).sum(2)
        sample = (*truths.shape[:2], -1)
        by_sample = error_sums(truths.reshape(sample), predictions.reshape(sample))
        return by_sample, by_sample.sum(1)

    def values_per_sample(self, target_shape: torch.Size) -> int:
        """One where an image is summed, otherwise one per number."""
        return 1 if self.sums else target_shape.numel()

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """One per number."""
        return (
            f"targets are floats of shape {tuple(targets.shape)}; for classes, pass integers from 0"
        )

    def mirrored(self, targets: Tensor) -> Tensor:
        """min + max − y."""
        return targets.min() + targets.max() - targets if len(targets) else targets


@dataclass(frozen=True)
class Survival(Problem):
    """The time until an event, negative where it was censored. Counted by pairs: samples, comparable, concordant.

    The model predicts a risk: the higher, the sooner the event.
    """

    kind = "survival"
    predicts = "times"
    cells = (3,)
    usual_metric = "concordance"
    loss = CoxLoss()
    column = "risk"

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Losses and counts need all samples of a client: see `evaluation`."""
        risks, counts = self.scored(outputs, targets.expand(len(outputs), *targets.shape))
        return torch.zeros_like(risks), risks, counts

    def scored(self, outputs: Tensor, truths: Tensor) -> tuple[Tensor, Tensor]:
        """Values are the risks [c, B]."""
        return outputs.reshape(truths.shape), outputs.new_zeros(len(outputs), *self.counts_shape)

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Concordance of every client, or the metric that was chosen; samples of one client are compared."""
        held = _split_by_client(judged[1], samples)
        losses = torch.cat([cox_losses(mine, targets) for mine, targets in held], 1)
        counts = torch.stack([pair_counts(targets, mine) for mine, targets in held], 1)
        by_client = METRICS.get(self.metric)(counts).double()
        means = _client_means(losses, samples)
        return Evaluation(samples.sizes, by_client, means, counts.sum(1), sample_losses=losses)

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """One risk."""
        return "one risk for each sample"

    def mirrored(self, targets: Tensor) -> Tensor:
        """Times mirrored between the smallest and the largest; whether the event happened stays."""
        if not len(targets):
            return targets
        times = targets.abs()
        return (times.min() + times.max() - times).copysign(targets)

    def check_counts(self, counts: Tensor, num_samples: float, values_per_sample: int = 1) -> None:
        """Also refuse more pairs than so many samples have."""
        super().check_counts(counts, num_samples, values_per_sample)
        pairs, right = counts[:, 1], counts[:, 2]
        most = num_samples * (num_samples - 1) / 2
        if bool(((pairs > most) | (right > pairs)).any()):
            raise ValueError(f"more pairs than {num_samples:.12g} samples have")


@dataclass(frozen=True)
class Multilabel(Problem):
    """Any of `size` labels a sample, [N, L] of 0 and 1. Counted by label: right or wrong, there or not."""

    kind = "multilabel"
    predicts = "labels"
    unit = "labels"
    cells = (0, 4)
    usual_metric = "average_precision"
    loss = BinaryCrossEntropy()
    counts_dtype = torch.int64

    @property
    def weighed_by(self) -> str:
        """Of counts, and above 0 for a model that predicts no label yet."""
        return "label_accuracy"

    def scored(self, outputs: Tensor, truths: Tensor) -> tuple[Tensor, Tensor]:
        """Values are the scores [c, B, L]."""
        scores = outputs.reshape(truths.shape)
        return scores, label_counts(truths, scores)

    def counted(self, targets: Tensor, values: Tensor) -> Tensor:
        """Of scores."""
        return label_counts(targets, values)

    def sample_counts(self, counts: Tensor) -> Tensor:
        """Every label counts all samples."""
        return counts

    def values_per_sample(self, target_shape: torch.Size) -> int:
        """A sample counts once for every label."""
        return 1

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of the labels [N, L]."""
        return outputs.sigmoid()

    def decided(self, predictions: Tensor) -> Tensor:
        """Labels [N, L]: 1 above a probability of 50%, as `label_counts` counts them."""
        return (predictions > 0.5).long()

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The probability of each label."""
        labels = classes or [f"label {number}" for number in range(predictions.shape[1])]
        return _probabilities(predictions, labels)

    def classes_in(self, targets: Tensor) -> Tensor:
        """Labels that some sample has."""
        return (targets > 0).any(0).cpu()

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """One per label."""
        return f"targets of shape {tuple(targets.shape)} are labels, each 0 or 1, with a logit each"

    def mirrored(self, targets: Tensor) -> Tensor:
        """1 − y."""
        return 1 - targets


@dataclass(frozen=True)
class Segmentation(Problem):
    """One of `size` classes for every pixel, masks [N, H, W]. Counted by class: see `pixel_counts`."""

    kind = "segmentation"
    predicts = "masks"
    unit = "classes, 0 (background) included"
    cells = (0, 3)
    usual_metric = "dice"
    loss = PixelCrossEntropy()
    counts_dtype = torch.int64
    is_dense = True
    adds_up = True

    def scored(self, outputs: Tensor, truths: Tensor) -> tuple[Tensor, Tensor]:
        """Values are the counts of every sample [c, B, 3·C]: outputs are not kept."""
        scores = pixel_scores(outputs.flatten(0, 1), truths.shape[2:])
        predictions = scores.argmax(1).view(*truths.shape[:2], -1)
        masks = truths[0].flatten(1).long().expand(len(outputs), -1, -1)
        by_sample = pixel_counts(masks, predictions, self.size)
        return by_sample.flatten(2), by_sample.sum(1)

    def sample_counts(self, counts: Tensor) -> Tensor:
        """All pixels have a class, and one is predicted for all of them [c, 2, C]."""
        return counts[..., :2].mT

    def check_counts(self, counts: Tensor, num_samples: float, values_per_sample: int = 1) -> None:
        """Also refuse more right pixels than there are."""
        super().check_counts(counts, num_samples, values_per_sample)
        held, said, both = counts.unbind(-1)
        if bool(((both > torch.minimum(held, said)) | (both != both.round())).any()):
            raise ValueError(f"counts that do not add up to {num_samples:.12g} samples")

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes [N, C, H, W]."""
        return pixel_scores(outputs, outputs.shape[-2:]).softmax(1)

    def decided(self, predictions: Tensor) -> Tensor:
        """Masks [N, H, W]: the most probable class of every pixel."""
        return predictions.argmax(1)

    def num_outputs(self, target_shape: torch.Size) -> int:
        """A logit per class and pixel."""
        return self.num_logits * target_shape.numel()

    def takes(self, output_shape: torch.Size, target_shape: torch.Size) -> bool:
        """[C, H, W]; of two classes also [1, H, W] or [H, W]."""
        allowed = [(self.size, *target_shape)]
        if self.size == 2:
            allowed += [(1, *target_shape), tuple(target_shape)]
        return tuple(output_shape) in allowed

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """A logit per class and pixel."""
        shape = ", ".join(["N", str(self.size), *map(str, targets.shape[1:])])
        given = tuple(targets.shape)
        return f"masks of shape {given} with {self.size} classes take outputs [{shape}]"


def named_problem(kind: str, size: int) -> Problem:
    """The problem that texts call `kind`; ValueError where there is none.

    >>> named_problem("classification", 3).num_classes
    3
    """
    for one in (Classification, Regression, Survival, Multilabel, Segmentation):
        if one.kind == kind:
            return one(size if one.unit else 0)
    raise ValueError(f"unknown kind of problem {kind!r}")


def _probabilities(predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
    """A column for each class or label of predictions [N, C]."""
    columns = zip(classes, predictions.T.tolist(), strict=True)
    return {f"probability of {name}": column for name, column in columns}


def _client_means(values: Tensor, samples: EvaluatedSamples) -> Tensor:
    """Mean over the samples of every client [c, K] of values [c, N]."""
    return _client_sums(values, samples) / samples.sizes.clamp(min=1)


def _client_sums(values: Tensor, samples: EvaluatedSamples) -> Tensor:
    """Sum over the samples of every client [c, K, ...] of values [c, N, ...]."""
    shape = (len(values), len(samples.sizes), *values.shape[2:])
    return torch.zeros(shape, dtype=torch.float64).index_add_(1, samples.owner, values)


def _split_by_client(values: Tensor, samples: EvaluatedSamples) -> list[tuple[Tensor, Tensor]]:
    """Values [c, n, ...] and targets [n, ...] of every client."""
    sizes = samples.sizes.tolist()
    targets = torch.split(samples.targets_on_cpu, sizes)
    return list(zip(torch.split(values, sizes, 1), targets, strict=True))


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
