"""Kinds of problem: what a model predicts, and how predictions are scored, counted and reported.

Everything that differs between classification, regression and survival is stated here, once. Other
files ask the problem; none of them compares its kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ...registry import Need
from ..types import Evaluation
from .loss import (
    CoxLoss,
    CrossEntropy,
    Loss,
    RobustLoss,
    class_scores,
    cox_losses,
)
from .metrics import (
    METRICS,
    confusion,
    error_sums,
    measured,
    pair_counts,
    relative_error,
)

PREDICTED: tuple[Need, ...] = ("classes", "numbers", "times")
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
    """

    num_classes: int = field(default=0, init=False)
    scored_by: str = field(default="", kw_only=True)

    kind: ClassVar[str]  # as texts call it
    predicts: ClassVar[Need]  # what parts can need of a problem
    usual_metric: ClassVar[str]
    loss: ClassVar[Loss]  # before a method adapts it
    counts_dtype: ClassVar[torch.dtype] = torch.float64
    shows: ClassVar[tuple[str, ...]] = ()  # columns of the record that only this kind fills

    @property
    def recorded(self) -> str:
        """The text by which run folders know it: do not change it, or no folder can be resumed."""
        sums = getattr(self, "sums", False)
        return (
            f"Problem(kind={self.kind!r}, num_classes={self.num_classes}, "
            f"sums={sums}, scored_by={self.scored_by!r})"
        )

    @property
    def metric(self) -> str:
        """Name of the metric that test sets are scored with."""
        return self.scored_by or self.usual_metric

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

    @abstractmethod
    def named(self, predictions: Tensor, classes: Sequence[str]) -> dict[str, list[Any]]:
        """Predictions as columns of a table, with the names of the classes where there are any."""

    def values_per_sample(self, target_shape: torch.Size) -> int:
        """How many values one sample adds to the counts."""
        return target_shape.numel()

    def num_outputs(self, target_shape: torch.Size) -> int:
        """How many outputs the network has for a sample with a target of this shape."""
        return target_shape.numel()

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
    def counts_shape(self) -> tuple[int, ...]:
        """A confusion matrix [C, C]."""
        return self.num_classes, self.num_classes

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are right or wrong [c, B]; the scores [c, B, C] where another metric needs them."""
        losses = _losses(self.loss, outputs, targets)
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

    def classes_of(self, targets: Tensor) -> Tensor:
        """The targets."""
        return targets

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
    """One or more numbers a sample. Counted by error sums: samples, |e|, e², |e|/|y|.

    Args:
        sums: the prediction is the sum of an image, as a density sums to a count (P3 3.B).
    """

    sums: bool = False

    kind = "regression"
    predicts = "numbers"
    usual_metric = "mape"
    loss = RobustLoss()

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """Error sums [4]."""
        return (4,)

    def judge(self, outputs: Tensor, targets: Tensor) -> Judged:
        """Values are relative errors [c, B]; the error sums [c, B, 4] where another metric needs them."""
        count = len(outputs)
        losses = _losses(self.loss, outputs, targets)
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


def named_problem(kind: str, num_classes: int) -> Problem:
    """The problem that texts call `kind`; ValueError where there is none.

    >>> named_problem("classification", 3).num_classes
    3
    """
    known: dict[str, Callable[[], Problem]] = {
        Classification.kind: lambda: Classification(num_classes),
        Regression.kind: Regression,
        Survival.kind: Survival,
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
