"""Kinds of problem: what a model predicts, and how predictions are scored, counted and reported.

Everything that differs between classification, regression, survival, multi-label and segmentation is stated here. Other
files ask the problem; none of them compares its kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
    relative_error,
)

PREDICTED: tuple[Need, ...] = ("classes", "numbers", "times", "labels", "masks")
NEAR_ZERO = (
    0.01  # of the mean size of the targets: relative errors are then a hundred times as large
)
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
        num_classes: number of classes; 0 where the targets are not classes.
        scored_by: the metric (`evaluation.metric`) where it is not the usual one.
        missing: classes that the samples at hand lack; the loss leaves them out.
    """

    num_classes: int = field(default=0, init=False)
    scored_by: str = field(default="", kw_only=True)
    missing: tuple[int, ...] = field(default=(), kw_only=True)

    kind: ClassVar[str]  # as texts call it
    predicts: ClassVar[Need]  # what parts can need of a problem
    usual_metric: ClassVar[str]  # of a problem that names none, as run folders have it
    default_metric: ClassVar[str] = ""  # of a config that names none; empty: the usual one
    loss: ClassVar[Loss]  # before a method adapts it
    counts_dtype: ClassVar[torch.dtype] = torch.float64
    shows: ClassVar[tuple[str, ...]] = ()  # columns of the record that only this kind fills
    is_dense: ClassVar[bool] = False  # outputs are as large as images: few are held at a time

    @property
    def recorded(self) -> str:
        """The text by which run folders know it: do not change it, or no folder can be resumed."""
        sums = getattr(self, "sums", False)
        return (
            f"Problem(kind={self.kind!r}, num_classes={self.num_classes}, "
            f"sums={sums}, scored_by={self.scored_by!r})"
        )

    @property
    def described(self) -> str:
        """What is predicted, for the user."""
        return self.kind

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
        return torch.ones(0, dtype=torch.bool)

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
        for need in PREDICTED:
            if need in needs and need != self.predicts:
                return need
        return None

    @property
    @abstractmethod
    def counts_shape(self) -> tuple[int, ...]:
        """Shape of the counts of one model."""

    @abstractmethod
    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Score the outputs of c models on one batch.

        Args:
            outputs: of every model and sample, [c, B, ...].
            targets: [B, ...].

        Returns:
            Losses [c, B], values [c, B] or [c, B, C] that `evaluation` reads, counts [c, *counts_shape].
        """

    @abstractmethod
    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Evaluation of c models, client by client.

        Args:
            judged: what `judge` returned, batches joined: losses and values [c, N, ...] as float64 on the
                CPU, counts summed over the batches.
            samples: the samples, and which client holds each.
        """

    def predictions(self, outputs: Tensor) -> Tensor:
        """Predictions of a network's outputs [N, ...]: probabilities [N, C], numbers or risks."""
        return outputs

    def decided(self, predictions: Tensor) -> Tensor:
        """Predictions as `run.predict` gives them: classes [N], numbers, risks, labels or masks."""
        return predictions.squeeze(1) if predictions.shape[1:] == (1,) else predictions

    @abstractmethod
    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """Predictions as columns of a table, with the names of the classes where there are any."""

    def values_per_sample(self, target_shape: torch.Size) -> int:
        """How many values one sample adds to the counts."""
        return target_shape.numel()

    @property
    def values_kept(self) -> int:
        """How many values of a sample are kept until `evaluation`."""
        return self.counts_shape[-1] if self.scored_by else 1

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

    @abstractmethod
    def mirrored(self, targets: Tensor) -> Tensor:
        """Targets [N, ...] mirrored within their range, as an attacker relabels them."""

    def check_counts(self, counts: Tensor, num_samples: float, values_per_sample: int = 1) -> None:
        """ValueError where counts [c, *counts_shape] cannot be those of `num_samples` samples."""
        counted = self._sample_counts(counts, values_per_sample)
        are_whole = torch.equal(counted, counted.round())
        if not are_whole or bool((counted.sum(1) != num_samples).any()):
            raise ValueError(f"counts that do not add up to {num_samples:.12g} samples")

    def _sample_counts(self, counts: Tensor, values_per_sample: int) -> Tensor:
        """Whole numbers [c, cells] that add up to the number of samples."""
        return counts[:, :1] / values_per_sample


@dataclass(frozen=True)
class Classification(Problem):
    """One of `num_classes` classes a sample. Counted by a confusion matrix (true, predicted class)."""

    num_classes: int = field()

    kind = "classification"
    predicts = "classes"
    usual_metric = "accuracy"
    loss = CrossEntropy()
    counts_dtype = torch.int64
    shows = ("macro_f1", "per_class_f1")

    @property
    def described(self) -> str:
        """With the number of classes."""
        return f"{self.kind} of {self.num_classes} classes"

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """A confusion matrix [C, C]."""
        return self.num_classes, self.num_classes

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are right or wrong [c, B]; the scores [c, B, C] where another metric needs them."""
        losses = _losses(self.known_loss, outputs, targets)
        scores = class_scores(outputs)
        predictions = scores.argmax(-1)
        values = scores if self.scored_by else predictions == targets
        truths = targets.expand(len(outputs), *targets.shape)
        return losses, values, confusion(truths, predictions, self.num_classes)

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Accuracy of every client, or the metric that was chosen."""
        losses, values, counts = judged
        if self.scored_by:
            right = values.argmax(-1) == samples.targets_on_cpu
            by_client = self._scored(values, samples)
        else:
            right = values.bool()
            by_client = _client_means(values, samples)
        mean_losses = _client_means(losses, samples)
        return Evaluation(
            samples.sizes, by_client, mean_losses, counts, right=right, sample_losses=losses
        )

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes [N, C]."""
        return class_scores(outputs).softmax(-1)

    def decided(self, predictions: Tensor) -> Tensor:
        """The most probable class [N]."""
        return predictions.argmax(1)

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The most probable class, and the probability of each."""
        chosen = [classes[index] for index in predictions.argmax(-1).tolist()]
        columns = predictions.T.tolist()
        probabilities = zip(classes, columns, strict=True)
        return {"prediction": chosen} | {
            f"probability of {name}": one for name, one in probabilities
        }

    def num_outputs(self, target_shape: torch.Size) -> int:
        """One per class; two classes take one output, the logit of the second (see `class_scores`)."""
        return 1 if self.num_classes == 2 else self.num_classes

    def takes(self, output_shape: torch.Size, target_shape: torch.Size) -> bool:
        """Two classes may have an output each."""
        return output_shape.numel() in (self.num_outputs(target_shape), self.num_classes)

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

    def classes_in(self, targets: Tensor) -> Tensor:
        """Those of the targets."""
        return torch.bincount(targets.cpu(), minlength=self.num_classes) > 0

    def mirrored(self, targets: Tensor) -> Tensor:
        """C − 1 − y."""
        return self.num_classes - 1 - targets

    def _sample_counts(self, counts: Tensor, values_per_sample: int) -> Tensor:
        return counts.flatten(1)

    def _scored(self, scores: Tensor, samples: EvaluatedSamples) -> Tensor:
        """The chosen metric, client by client [c, K], of scores [c, N, C]."""
        metric = METRICS.get(self.metric)
        from_scores = measured(self.metric).from_scores
        values = []
        for mine, targets in _by_client(scores, samples):
            if from_scores:
                values.append(metric(mine, targets))
            else:
                values.append(metric(confusion(targets, mine.argmax(-1), self.num_classes)))
        return torch.stack(values, 1).double()


@dataclass(frozen=True)
class Regression(Problem):
    """One or more numbers a sample. Counted by error sums, see `error_sums`.

    Args:
        sums: the prediction is the sum of an image, as a density sums to a count (P3 3.B).
    """

    sums: bool = False

    kind = "regression"
    predicts = "numbers"
    usual_metric = "mape"
    default_metric = "rmse"
    loss = RobustLoss()

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """Error sums [7]."""
        return (7,)

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

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are relative errors [c, B]; the error sums [c, B, 7] where another metric needs them."""
        count = len(outputs)
        losses = _losses(self.known_loss, outputs, targets)
        truths = targets.expand(count, *targets.shape)
        predictions = outputs.reshape(truths.shape)
        if self.sums:
            truths = truths.flatten(2).sum(2)
            predictions = predictions.flatten(2).sum(2)
        sample = (count, len(targets), -1)
        if self.scored_by:
            values = error_sums(truths.reshape(sample), predictions.reshape(sample))
        else:
            values = relative_error(truths, predictions).reshape(sample).mean(2)
        return losses, values, error_sums(truths.flatten(1), predictions.flatten(1))

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Mean relative error (MAPE) of every client, or the metric that was chosen."""
        losses, values, counts = judged
        if self.scored_by:
            by_client = METRICS.get(self.metric)(_client_sums(values, samples)).double()
        else:
            by_client = _client_means(values, samples)
        mean_losses = _client_means(losses, samples)
        return Evaluation(samples.sizes, by_client, mean_losses, counts, sample_losses=losses)

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The number, in the units of the training data."""
        return {"prediction": predictions.flatten().tolist()}

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
        if not len(targets):
            return targets
        return targets.min() + targets.max() - targets


@dataclass(frozen=True)
class Survival(Problem):
    """The time until an event, negative where it was censored. Counted by pairs: samples, comparable, concordant.

    The model predicts a risk: the higher, the sooner the event.
    """

    kind = "survival"
    predicts = "times"
    usual_metric = "concordance"
    loss = CoxLoss()

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """Counts of pairs [3]."""
        return (3,)

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are the risks [c, B]. Losses and counts need all samples of a client: see `evaluation`."""
        count = len(outputs)
        risks = outputs.reshape(count, len(targets))
        return torch.zeros_like(risks), risks, risks.new_zeros(count, *self.counts_shape)

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Concordance of every client, or the metric that was chosen; samples of one client are compared."""
        _, risks, _ = judged
        held = _by_client(risks, samples)
        losses = torch.cat([cox_losses(mine, targets) for mine, targets in held], 1)
        counts = torch.stack([pair_counts(targets, mine) for mine, targets in held], 1)
        by_client = METRICS.get(self.metric)(counts).double()
        mean_losses = _client_means(losses, samples)
        return Evaluation(
            samples.sizes, by_client, mean_losses, counts.sum(1), sample_losses=losses
        )

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The risk."""
        return {"risk": predictions.flatten().tolist()}

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
    """Any of `num_labels` labels a sample, [N, L] of 0 and 1. Counted by label: right or wrong, there or not."""

    num_labels: int = 0

    kind = "multilabel"
    predicts = "labels"
    usual_metric = "average_precision"
    loss = BinaryCrossEntropy()
    counts_dtype = torch.int64

    @property
    def recorded(self) -> str:
        """With the number of labels."""
        return (
            f"Problem(kind={self.kind!r}, labels={self.num_labels}, scored_by={self.scored_by!r})"
        )

    @property
    def described(self) -> str:
        """With the number of labels."""
        return f"{self.kind} of {self.num_labels} labels"

    @property
    def weighed_by(self) -> str:
        """Of counts, and above 0 for a model that predicts no label yet."""
        return "label_accuracy"

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """By label [L, 4], see `label_counts`."""
        return self.num_labels, 4

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are the scores [c, B, L]."""
        scores = outputs.reshape(len(outputs), *targets.shape)
        return _losses(self.known_loss, outputs, targets), scores, label_counts(targets, scores)

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Average precision of every client, or the metric that was chosen."""
        losses, scores, counts = judged
        metric = METRICS.get(self.metric)
        from_scores = measured(self.metric).from_scores
        values = []
        for mine, targets in _by_client(scores, samples):
            if from_scores:
                values.append(metric(mine, targets))
            else:
                values.append(metric(label_counts(targets, mine)))
        by_client = torch.stack(values, 1).double()
        mean_losses = _client_means(losses, samples)
        return Evaluation(samples.sizes, by_client, mean_losses, counts, sample_losses=losses)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of the labels [N, L]."""
        return outputs.sigmoid()

    def decided(self, predictions: Tensor) -> Tensor:
        """Labels [N, L]: 1 above a probability of 50%, as `label_counts` counts them."""
        return (predictions > 0.5).long()

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The probability of each label."""
        names = classes or [f"label {number}" for number in range(predictions.shape[1])]
        columns = zip(names, predictions.T.tolist(), strict=True)
        return {f"probability of {name}": column for name, column in columns}

    def values_per_sample(self, target_shape: torch.Size) -> int:
        """A sample counts once for every label."""
        return 1

    def classes_in(self, targets: Tensor) -> Tensor:
        """Labels that some sample has."""
        return (targets > 0).any(0).cpu()

    @property
    def values_kept(self) -> int:
        """The scores."""
        return self.num_labels

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """One per label."""
        return f"targets of shape {tuple(targets.shape)} are labels, each 0 or 1, with a logit each"

    def mirrored(self, targets: Tensor) -> Tensor:
        """1 − y."""
        return 1 - targets

    def check_counts(self, counts: Tensor, num_samples: float, values_per_sample: int = 1) -> None:
        """Every label counts all samples."""
        are_whole = torch.equal(counts, counts.round())
        if not are_whole or bool((counts.sum(-1) != num_samples).any()):
            raise ValueError(f"counts that do not add up to {num_samples:.12g} samples")


@dataclass(frozen=True)
class Segmentation(Problem):
    """One of `mask_classes` classes for every pixel, masks [N, H, W]. Counted by class: see `pixel_counts`."""

    mask_classes: int = 2

    kind = "segmentation"
    predicts = "masks"
    usual_metric = "dice"
    loss = PixelCrossEntropy()
    counts_dtype = torch.int64
    is_dense = True

    @property
    def recorded(self) -> str:
        """With the number of classes."""
        return f"Problem(kind={self.kind!r}, classes={self.mask_classes}, scored_by={self.scored_by!r})"

    @property
    def described(self) -> str:
        """With the number of classes."""
        return f"{self.kind} of {self.mask_classes} classes, 0 (background) included"

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """Pixels by class [C, 3]: in the mask, predicted, and both."""
        return self.mask_classes, 3

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are the counts of every sample [c, B, 3·C]: outputs are not kept."""
        count = len(outputs)
        losses = _losses(self.known_loss, outputs, targets)
        scores = pixel_scores(outputs.flatten(0, 1), targets.shape[1:])
        predictions = scores.argmax(1).view(count, len(targets), -1)
        truths = targets.flatten(1).long().expand(count, -1, -1)
        by_sample = pixel_counts(truths, predictions, self.mask_classes)
        return losses, by_sample.flatten(2), by_sample.sum(1)

    def evaluation(self, judged: Judged, samples: EvaluatedSamples) -> Evaluation:
        """Dice coefficient of every client, over all its pixels, or the metric that was chosen."""
        losses, values, counts = judged
        sums = _client_sums(values, samples)
        by_client = sums.view(*sums.shape[:2], *self.counts_shape)
        measured_values = METRICS.get(self.metric)(by_client).double()
        mean_losses = _client_means(losses, samples)
        return Evaluation(samples.sizes, measured_values, mean_losses, counts, sample_losses=losses)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes [N, C, H, W]."""
        return pixel_scores(outputs, outputs.shape[-2:]).softmax(1)

    def decided(self, predictions: Tensor) -> Tensor:
        """Masks [N, H, W]: the most probable class of every pixel."""
        return predictions.argmax(1)

    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """The masks."""
        return {"mask": self.decided(predictions).tolist()}

    def classes_in(self, targets: Tensor) -> Tensor:
        """Classes of any pixel."""
        return torch.bincount(targets.flatten().long().cpu(), minlength=self.mask_classes) > 0

    @property
    def values_kept(self) -> int:
        """The counts of pixels."""
        return 3 * self.mask_classes

    def num_outputs(self, target_shape: torch.Size) -> int:
        """One per class and pixel; two classes take one, the logit of the second."""
        channels = 1 if self.mask_classes == 2 else self.mask_classes
        return channels * target_shape.numel()

    def takes(self, output_shape: torch.Size, target_shape: torch.Size) -> bool:
        """[C, H, W]; of two classes also [1, H, W] or [H, W]."""
        allowed = [(self.mask_classes, *target_shape)]
        if self.mask_classes == 2:
            allowed += [(1, *target_shape), tuple(target_shape)]
        return tuple(output_shape) in allowed

    def why_outputs(self, targets: Tensor, returned: int) -> str:
        """A logit per class and pixel."""
        shape = ["N", str(self.mask_classes), *map(str, targets.shape[1:])]
        return (
            f"masks of shape {tuple(targets.shape)} with {self.mask_classes} classes take outputs "
            f"[{', '.join(shape)}]"
        )

    def mirrored(self, targets: Tensor) -> Tensor:
        """C − 1 − y."""
        return self.mask_classes - 1 - targets

    def check_counts(self, counts: Tensor, num_samples: float, values_per_sample: int = 1) -> None:
        """All pixels have a class, and one is predicted for all of them."""
        pixels = num_samples * values_per_sample
        held, said, both = counts.unbind(-1)
        are_whole = torch.equal(counts, counts.round())
        add_up = bool((held.sum(-1) == pixels).all()) and bool((said.sum(-1) == pixels).all())
        if not are_whole or not add_up or bool((both > torch.minimum(held, said)).any()):
            raise ValueError(f"counts that do not add up to {num_samples:.12g} samples")


def named_problem(kind: str, num_classes: int) -> Problem:
    """The problem that texts call `kind`; ValueError where there is none.

    >>> named_problem("classification", 3).num_classes
    3
    """
    known: dict[str, Callable[[], Problem]] = {
        Classification.kind: lambda: Classification(num_classes),
        Regression.kind: Regression,
        Survival.kind: Survival,
        Multilabel.kind: lambda: Multilabel(num_labels=num_classes),
        Segmentation.kind: lambda: Segmentation(mask_classes=num_classes),
    }
    if kind not in known:
        raise ValueError(f"unknown kind of problem {kind!r}")
    return known[kind]()


def _losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of every model and sample [c, B]."""
    truths = targets.expand(len(outputs), *targets.shape)
    return loss.per_sample(outputs.flatten(0, 1), truths.flatten(0, 1)).view(len(outputs), -1)


def _client_means(values: Tensor, samples: EvaluatedSamples) -> Tensor:
    """Mean over the samples of every client [c, K] of values [c, N]."""
    return _client_sums(values, samples) / samples.sizes.clamp(min=1)


def _client_sums(values: Tensor, samples: EvaluatedSamples) -> Tensor:
    """Sum over the samples of every client [c, K, ...] of values [c, N, ...]."""
    shape = (len(values), len(samples.sizes), *values.shape[2:])
    return torch.zeros(shape, dtype=torch.float64).index_add_(1, samples.owner, values)


def _by_client(values: Tensor, samples: EvaluatedSamples) -> list[tuple[Tensor, Tensor]]:
    """Values [c, n, ...] and targets [n, ...] of every client."""
    sizes = samples.sizes.tolist()
    targets = torch.split(samples.targets_on_cpu, sizes)
    return list(zip(torch.split(values, sizes, 1), targets, strict=True))


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
