"""Losses that clients train with. A loss travels with the task and is kept in checkpoints.

`LOSSES` has a function for every kind of loss, which makes it from its options. A new kind is a class
`Loss` and such a function, registered under the `kind` of the class. Its record is then written and
read without further code.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...registry import NonNegativeFloat, PositiveFloat, Registry, needs

ClassWeights = tuple[float, ...] | None  # κ of P3 Eq. 2, one per class; None: all 1
# As an option: a list with a weight for each class, or the inverse of its frequency
Weights: TypeAlias = list[float] | Literal["balanced"] | None
BALANCED = "balanced"

# A loss is made from the training samples of each class over all clients [C], None where they are not
# known, and from its options.
MakeLoss = Callable[..., "Loss"]
LOSSES: Registry[MakeLoss] = Registry("loss", "losses", "Losses that clients train with")
UNREDUCED = "none"  # the `reduction` of a loss of PyTorch that gives a loss per sample


@dataclass(frozen=True)
class LossRecord:
    """A loss as it is written into requests and checkpoints: its name in `LOSSES`, and its options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def loss(self) -> Loss:
        """The loss that was written; ValueError where there is no such loss."""
        if self.kind not in LOSSES:
            raise ValueError(f"unknown loss {self.kind!r}")
        try:
            return LOSSES.get(self.kind)(None, **self.options)
        except TypeError:
            raise ValueError(f"loss {self.kind!r} does not take these options") from None


class Loss(ABC):
    """The loss of one round."""

    kind: str  # its name in `LOSSES`
    class_weights: ClassWeights = None
    # A sample's loss depends on its batch, so batches cannot be joined
    compares_samples: bool = False
    # Whether a CUDA graph can repeat it; code of a user may read values on the CPU
    can_be_captured: bool = True

    @abstractmethod
    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of every sample [N], from outputs [N, ...] and targets [N, ...]."""

    def record(self) -> LossRecord:
        """How the loss is written into requests and checkpoints: its kind and the fields of its class."""
        options = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        options.pop("missing", None)  # of the server's own computations alone
        if options.get("class_weights") is None:
            options.pop("class_weights", None)
        return LossRecord(self.kind, options)

    def weighted(self, class_weights: ClassWeights) -> Loss:
        """The same loss with these class weights instead of its own."""
        return replace(self, class_weights=class_weights)  # type: ignore[type-var]

    def unweighted(self) -> Loss:
        """The same loss with all class weights 1."""
        return self if self.class_weights is None else self.weighted(None)

    def without(self, missing: tuple[int, ...]) -> Loss:
        """The same loss over the other classes alone, for samples that lack some; of other losses, the same."""
        if not missing or "missing" not in {one.name for one in fields(self)}:  # type: ignore[arg-type]
            return self
        return replace(self, missing=missing)  # type: ignore[type-var]

    @torch.no_grad()
    def with_gradient(
        self, outputs: Tensor, targets: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss of every sample [N], and the gradient of Σ share · loss by the outputs."""
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.per_sample(outputs, targets)
        (gradient,) = torch.autograd.grad(losses, outputs, shares)
        return losses.detach(), gradient

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """P3 Eq. 2: the mean over the samples, *not* divided by the sum of κ."""
        return self.per_sample(outputs, targets).mean()


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy of logits [N, C], times the weight κ of the sample's class (P3 Eq. 2)."""

    kind = "cross_entropy"
    class_weights: ClassWeights = None
    missing: tuple[int, ...] = ()

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """κ_y · −log softmax(outputs)_y."""
        scores = left_out(class_scores(outputs), self.missing)
        losses = functional.cross_entropy(scores, targets, reduction="none")
        return _times_class_weights(losses, self.class_weights, targets)

    @torch.no_grad()
    def with_gradient(
        self, outputs: Tensor, targets: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As of any loss, but quicker on a CPU."""
        on_cpu = outputs.device.type == "cpu"
        one_logit = outputs.shape[-1] == 1
        if not on_cpu or one_logit or self.class_weights or self.missing:
            return super().with_gradient(outputs, targets, shares)
        # Written out: PyTorch's softmax and autograd take a CPU three times as long where classes are few.
        rows = targets[:, None]
        shifted = outputs - outputs.amax(1, keepdim=True)
        chosen = shifted.gather(1, rows)
        powers = shifted.exp_()
        totals = powers.sum(1, keepdim=True)
        minus_ones = -torch.ones_like(totals)
        slopes = powers.div_(totals).scatter_add_(1, rows, minus_ones).mul_(shares[:, None])
        return (totals.log() - chosen)[:, 0], slopes


@dataclass(frozen=True)
class FocalLoss(Loss):
    """Cross-entropy times (1 − p)^γ, p the probability of the true class (Lin et al., 2017)."""

    kind = "focal"
    gamma: float = 2.0
    class_weights: ClassWeights = None
    missing: tuple[int, ...] = ()

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """κ_y · −(1 − p_y)^γ · log p_y."""
        scores = left_out(class_scores(outputs), self.missing)
        losses = functional.cross_entropy(scores, targets, reduction="none")
        # 1 − p; above zero, since the slope of x^γ at zero is infinite for γ < 1
        missed = (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny)
        return _times_class_weights(missed.pow(self.gamma) * losses, self.class_weights, targets)


class NumberLoss(Loss):
    """A loss of errors, mean over the numbers of a sample."""

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of ρ(outputs − targets)."""
        errors = (outputs.reshape(targets.shape) - targets).reshape(len(targets), -1)
        return self.of_errors(errors).mean(1)

    @abstractmethod
    def of_errors(self, errors: Tensor) -> Tensor:
        """ρ of every error [N, V]."""


@dataclass(frozen=True)
class RobustLoss(NumberLoss):
    """Barron's general robust loss; see `robust_loss`."""

    kind = "robust"
    shape: float = 2.0  # α; 2 is the squared error
    scale: float = 1.0  # c: errors beyond it count as outliers

    def of_errors(self, errors: Tensor) -> Tensor:
        """ρ(x, α, c)."""
        return robust_loss(errors, self.shape, self.scale)


@dataclass(frozen=True)
class SquaredError(NumberLoss):
    """The mean squared error."""

    kind = "mse"

    def of_errors(self, errors: Tensor) -> Tensor:
        """x²."""
        return errors.square()


@dataclass(frozen=True)
class AbsoluteError(NumberLoss):
    """The mean absolute error."""

    kind = "mae"

    def of_errors(self, errors: Tensor) -> Tensor:
        """|x|."""
        return errors.abs()


@dataclass(frozen=True)
class HuberLoss(NumberLoss):
    """Huber's loss (1964): quadratic up to `delta`, linear beyond."""

    kind = "huber"
    delta: float = 1.0

    def of_errors(self, errors: Tensor) -> Tensor:
        """x²/2 up to δ, δ·(|x| − δ/2) beyond."""
        return functional.huber_loss(
            errors, torch.zeros_like(errors), reduction="none", delta=self.delta
        )


@dataclass(frozen=True)
class CoxLoss(Loss):
    """Cox's negative partial log-likelihood; see `cox_losses`."""

    kind = "cox"
    compares_samples = True

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of every event, against the samples of the same batch."""
        return cox_losses(outputs.reshape(targets.shape), targets)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of logits [N, L] and labels [N, L] of 0 and 1, mean over the labels of a sample."""

    kind = "binary_cross_entropy"
    missing: tuple[int, ...] = ()

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean_l −log σ(±outputs_l)."""
        logits = outputs.reshape(targets.shape)
        losses = functional.binary_cross_entropy_with_logits(
            logits, targets.to(logits.dtype), reduction="none"
        )
        if self.missing:
            known = [label for label in range(losses.shape[1]) if label not in self.missing]
            losses = losses[:, known] if known else 0 * losses
        return losses.mean(1)


@dataclass(frozen=True)
class PixelCrossEntropy(Loss):
    """Cross-entropy of logits [N, C, H, W] and masks [N, H, W], mean over the pixels of a sample."""

    kind = "pixel_cross_entropy"
    missing: tuple[int, ...] = ()

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean over pixels of −log softmax(outputs)_y."""
        scores = left_out(pixel_scores(outputs, targets.shape[1:]), self.missing)
        losses = functional.cross_entropy(scores, targets.long(), reduction="none")
        return losses.flatten(1).mean(1)


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A loss that was given in Python: a function of outputs and targets.

    Args:
        kind: the name under which the function is registered.
        function: of outputs [N, ...] and targets [N, ...]. It returns a loss per sample [N], or several
            per sample [N, ...], of which the mean is taken.
        compares_samples: whether a sample's loss may depend on its batch.
    """

    kind: str
    function: Callable[[Tensor, Tensor], Tensor]
    compares_samples: bool = True
    can_be_captured = False

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of each sample's losses; ValueError where they are not one per sample."""
        if outputs.numel() == targets.numel():
            outputs = outputs.reshape(
                targets.shape
            )  # [N, 1] and [N] would be compared pair by pair
        if isinstance(self.function, torch.nn.Module):
            self.function.to(outputs.device)  # it may have class weights
        if targets.dtype == torch.uint8:  # masks, which losses of PyTorch take as int64
            targets = targets.long()
        losses = self.function(outputs, targets)
        if not isinstance(losses, Tensor):
            raise ValueError(f"{self._asked(targets)}, returned {type(losses).__name__}")
        if losses.shape[:1] != targets.shape[:1]:
            hint = 'use reduction="none"'
            if getattr(self.function, "reduction", None) == UNREDUCED:
                shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
                hint = f"it does not fit {shapes} of {str(targets.dtype).removeprefix('torch.')}"
            raise ValueError(f"{self._asked(targets)}, returned {tuple(losses.shape)}: {hint}")
        return losses.reshape(len(targets), -1).mean(1)

    def _asked(self, targets: Tensor) -> str:
        return f"{self.kind} must return a loss for each of {len(targets)} samples"

    def record(self) -> LossRecord:
        """Its name alone: whoever reads it must have the function."""
        return LossRecord(self.kind)


LabelCounts = Tensor | None  # training samples of each class over all clients [C]


@LOSSES.register(CrossEntropy.kind, needs("classes"))
def cross_entropy(counts: LabelCounts, *, class_weights: Weights = None) -> Loss:
    """Cross-entropy (the default of classification).

    Args:
        counts: training samples of each class [C].
        class_weights: a weight for each class, or "balanced": N/(C·n_c), so that all classes count the same.
    """
    return CrossEntropy(_weights(class_weights, counts))


@LOSSES.register(FocalLoss.kind, needs("classes"))
def focal(
    counts: LabelCounts, *, gamma: NonNegativeFloat = 2.0, class_weights: Weights = None
) -> Loss:
    """Focal loss: cross-entropy times (1 − p)^gamma, so that easy samples count less (Lin et al., 2017).

    Args:
        counts: training samples of each class [C].
        gamma: γ; 0 is cross-entropy.
        class_weights: a weight for each class, or "balanced": N/(C·n_c), so that all classes count the same.
    """
    return FocalLoss(gamma, _weights(class_weights, counts))


@LOSSES.register(SquaredError.kind, needs("numbers"))
def mse(counts: LabelCounts) -> Loss:
    """Squared error (the default of regression)."""
    return SquaredError()


@LOSSES.register(AbsoluteError.kind, needs("numbers"))
def mae(counts: LabelCounts) -> Loss:
    """Absolute error."""
    return AbsoluteError()


@LOSSES.register(HuberLoss.kind, needs("numbers"))
def huber(counts: LabelCounts, *, delta: PositiveFloat = 1.0) -> Loss:
    """Huber's loss: half the squared error up to `delta`, linear beyond (Huber, 1964).

    Args:
        counts: not used.
        delta: the error from which the loss is linear, in units of the target.
    """
    return HuberLoss(delta)


@LOSSES.register(RobustLoss.kind, needs("numbers"))
def robust(counts: LabelCounts, *, shape: float = 2.0, scale: PositiveFloat = 1.0) -> Loss:
    """Barron's general robust loss (2019).

    Args:
        counts: not used.
        shape: α. 2 is the squared error; with a smaller α, outliers have less effect.
        scale: c: errors beyond it count as outliers.
    """
    return RobustLoss(shape, scale)


@LOSSES.register(CoxLoss.kind, needs("times"))
def cox(counts: LabelCounts) -> Loss:
    """Cox's negative partial log-likelihood (the default of survival)."""
    return CoxLoss()


@LOSSES.register(BinaryCrossEntropy.kind, needs("labels"))
def binary_cross_entropy(counts: LabelCounts) -> Loss:
    """Binary cross-entropy of every label (the default of multi-label problems)."""
    return BinaryCrossEntropy()


@LOSSES.register(PixelCrossEntropy.kind, needs("masks"))
def pixel_cross_entropy(counts: LabelCounts) -> Loss:
    """Cross-entropy of every pixel (the default of segmentation)."""
    return PixelCrossEntropy()


def _weights(given: Weights, counts: LabelCounts) -> ClassWeights:
    """κ of every class. A class without training samples has weight 1 if weights are balanced."""
    if given is None:
        return None
    if not isinstance(given, str):
        return tuple(given)
    if counts is None:
        raise ValueError('class_weights = "balanced" needs the label counts of the clients')
    balanced = counts.sum() / (len(counts) * counts.clamp(min=1))
    return tuple(torch.where(counts > 0, balanced.double(), 1.0).tolist())


def _times_class_weights(losses: Tensor, weights: ClassWeights, classes: Tensor) -> Tensor:
    """Losses [N], each times the weight of its class."""
    if weights is None:
        return losses
    return losses * torch.tensor(weights, dtype=losses.dtype, device=losses.device)[classes]


def class_scores(outputs: Tensor) -> Tensor:
    """Logits [N, C]. A single output is the logit of class 1 against 0 (P1's CelebA network)."""
    return (
        torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
        if outputs.shape[-1] == 1
        else outputs
    )


def left_out(scores: Tensor, missing: tuple[int, ...]) -> Tensor:
    """Logits [N, C, ...] in which these classes have no probability.

    Samples that lack a class say nothing about it: over all classes, their loss would call every
    update harmful that teaches the class.

    >>> left_out(torch.tensor([[1.0, 2.0, 3.0]]), (1,))
    tensor([[1., -inf, 3.]])
    """
    if not missing:
        return scores
    scores = scores.clone()
    for one in missing:  # by numbers: a CUDA graph cannot capture a copy of their list
        scores[:, one] = -torch.inf
    return scores


def pixel_scores(outputs: Tensor, pixels: torch.Size) -> Tensor:
    """Logits [N, C, H, W] of outputs [N, ...]. A single channel is the logit of class 1 against 0."""
    scores = outputs.reshape(len(outputs), -1, *pixels)
    if scores.shape[1] > 1:
        return scores
    return torch.cat([torch.zeros_like(scores), scores], dim=1)


def cox_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Cox's negative partial log-likelihood of every sample [..., N], with Breslow's ties; 0 where censored.

    The loss of an event is log Σ exp(score) over the samples still observed at that time, minus its score.

    Args:
        scores: [..., N], larger at a higher risk.
        targets: times [N], negative (or −0) where censored.
    """
    times = targets.abs()
    latest_first, order = times.sort(descending=True)
    watched = scores[..., order].logcumsumexp(-1)
    # Of the samples observed as long
    last = torch.searchsorted(-latest_first, -times, right=True) - 1
    # Rounding must not make a loss negative: servers refuse negative losses.
    return torch.where(targets > 0, (watched[..., last] - scores).clamp(min=0), 0.0)


def robust_loss(errors: Tensor, shape: float, scale: float = 1.0) -> Tensor:
    """Barron's general robust loss ρ(x, α, c), times 2c² so that α = 2 is exactly the squared error.

    ρ = |α−2|/α · [((x/c)²/|α−2| + 1)^(α/2) − 1]; α = 0 is log((x/c)²/2 + 1), α = −∞ is 1 − exp(−(x/c)²/2).
    """
    squared = (errors / scale).square()
    if shape == 2:
        value = squared / 2
    elif shape == 0:
        value = torch.log1p(squared / 2)
    elif shape == -math.inf:
        value = -torch.expm1(-squared / 2)
    else:
        distance = abs(shape - 2)
        value = distance / shape * ((squared / distance + 1).pow(shape / 2) - 1)
    return 2 * scale**2 * value
