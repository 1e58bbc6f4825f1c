"""Losses that clients train with. A loss travels with the task and is kept in checkpoints.

A new kind is a class `Loss`, registered under its `kind`. Its keyword-only fields are its options in TOML, and its
record is written and read without further code.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...registry import NonNegativeFloat, PositiveFloat, Registry, needs

# κ of P3 Eq. 2, one per class, or the inverse of each class's frequency; None: all 1
ClassWeights: TypeAlias = Sequence[float] | Literal["balanced"] | None
BALANCED = "balanced"
LOSSES: Registry[Callable[..., Loss]] = Registry(
    "loss", "losses", "Losses that clients train with", passes=True
)
UNREDUCED = "none"  # the `reduction` of a loss of PyTorch that gives a loss per sample


@dataclass(frozen=True)
class LossRecord:
    """A loss as it is written into requests and checkpoints: its name in `LOSSES`, and its options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def loss(self) -> Loss:
        """The loss that was written; ValueError where there is no such loss."""
        try:
            return make_loss(self.kind, self.options)
        except TypeError:
            raise ValueError(f"loss {self.kind!r} does not take these values") from None


def make_loss(kind: str, options: Mapping[str, Any], counts: Tensor | None = None) -> Loss:
    """A registered loss with its options.

    Args:
        kind: its name in `LOSSES`.
        options: its options.
        counts: training samples of each class over all clients [C], for balanced class weights.

    Raises:
        ValueError: there is no such loss, or it does not take these options.
    """
    if kind not in LOSSES:
        raise ValueError(f"unknown loss {kind!r}")
    if not options.keys() <= {option.name for option in LOSSES.options(kind)}:
        raise ValueError(f"loss {kind!r} does not take these options")
    loss = LOSSES.get(kind)(**options)
    if loss.class_weights is None:
        return loss
    return loss.weighted(_numbers(loss.class_weights, counts))


@dataclass(frozen=True)
class Loss(ABC):
    """The loss of one round."""

    missing: tuple[int, ...] = ()  # classes that the samples at hand lack; they are left out
    class_weights: ClassWeights = None

    kind = ""  # its name in `LOSSES`
    # A sample's loss depends on its batch, so batches cannot be joined
    compares_samples = False
    # Whether a CUDA graph can repeat it; code of a user may read values on the CPU
    can_be_captured = True

    @abstractmethod
    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of every sample [N], from outputs [N, ...] and targets [N, ...]."""

    def record(self) -> LossRecord:
        """How the loss is written into requests and checkpoints: its kind and the fields of its class."""
        options = dict(vars(self))
        del options["missing"]  # of the server's own computations alone
        if self.class_weights is None:
            del options["class_weights"]
        return LossRecord(self.kind, options)

    def weighted(self, class_weights: ClassWeights) -> Loss:
        """The same loss with these class weights instead of its own."""
        return replace(self, class_weights=class_weights)

    def unweighted(self) -> Loss:
        """The same loss with all class weights 1."""
        return self.weighted(None)

    def without(self, missing: tuple[int, ...]) -> Loss:
        """The same loss over the other classes alone, for samples that lack some."""
        return replace(self, missing=missing)

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


@dataclass(frozen=True, kw_only=True)
class ClassLoss(Loss):
    """A loss of logits [N, C] by the cross-entropy of the true class, times its weight κ (P3 Eq. 2)."""

    class_weights: ClassWeights = None

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """κ_y · the loss of −log softmax(outputs)_y."""
        scores = left_out(class_scores(outputs), self.missing)
        losses = self.of_entropies(functional.cross_entropy(scores, targets, reduction="none"))
        if self.class_weights is None:
            return losses
        weights = torch.tensor(self.class_weights, dtype=losses.dtype, device=losses.device)
        return losses * weights[targets]

    def of_entropies(self, entropies: Tensor) -> Tensor:
        """The losses of cross-entropies [N]."""
        return entropies


@LOSSES.register("cross_entropy", needs("classes"))
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(ClassLoss):
    """Cross-entropy (the default of classification).

    Args:
        class_weights: a weight for each class, or "balanced": N/(C·n_c), so that all classes count the same.
    """

    kind = "cross_entropy"

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


@LOSSES.register("focal", needs("classes"))
@dataclass(frozen=True, kw_only=True)
class FocalLoss(ClassLoss):
    """Focal loss: cross-entropy times (1 − p)^gamma, so that easy samples count less (Lin et al., 2017).

    Args:
        gamma: γ; 0 is cross-entropy.
        class_weights: a weight for each class, or "balanced": N/(C·n_c), so that all classes count the same.
    """

    kind = "focal"
    gamma: NonNegativeFloat = 2.0

    def of_entropies(self, entropies: Tensor) -> Tensor:
        """−(1 − p_y)^γ · log p_y."""
        # 1 − p; above zero, since the slope of x^γ at zero is infinite for γ < 1
        missed = (-torch.expm1(-entropies)).clamp(min=torch.finfo(entropies.dtype).tiny)
        return missed.pow(self.gamma) * entropies


class NumberLoss(Loss):
    """A loss of errors, mean over the numbers of a sample."""

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of ρ(outputs − targets)."""
        errors = (outputs.reshape(targets.shape) - targets).reshape(len(targets), -1)
        return self.of_errors(errors).mean(1)

    @abstractmethod
    def of_errors(self, errors: Tensor) -> Tensor:
        """ρ of every error [N, V]."""


@LOSSES.register("robust", needs("numbers"))
@dataclass(frozen=True, kw_only=True)
class RobustLoss(NumberLoss):
    """Barron's general robust loss (2019); see `robust_loss`.

    Args:
        shape: α. 2 is the squared error; with a smaller α, outliers have less effect.
        scale: c: errors beyond it count as outliers.
    """

    kind = "robust"
    shape: float = 2.0
    scale: PositiveFloat = 1.0

    def of_errors(self, errors: Tensor) -> Tensor:
        """ρ(x, α, c)."""
        return robust_loss(errors, self.shape, self.scale)


@LOSSES.register("mse", needs("numbers"))
@dataclass(frozen=True, kw_only=True)
class SquaredError(NumberLoss):
    """Squared error (the default of regression)."""

    kind = "mse"

    def of_errors(self, errors: Tensor) -> Tensor:
        """x²."""
        return errors.square()


@LOSSES.register("mae", needs("numbers"))
@dataclass(frozen=True, kw_only=True)
class AbsoluteError(NumberLoss):
    """Absolute error."""

    kind = "mae"

    def of_errors(self, errors: Tensor) -> Tensor:
        """|x|."""
        return errors.abs()


@LOSSES.register("cox", needs("times"))
@dataclass(frozen=True, kw_only=True)
class CoxLoss(Loss):
    """Cox's negative partial log-likelihood (the default of survival); see `cox_losses`."""

    kind = "cox"
    compares_samples = True

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of every event, against the samples of the same batch."""
        return cox_losses(outputs.reshape(targets.shape), targets)


@LOSSES.register("binary_cross_entropy", needs("labels"))
@dataclass(frozen=True, kw_only=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of every label, mean over the labels of a sample (the default of multi-label problems)."""

    kind = "binary_cross_entropy"

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


@LOSSES.register("pixel_cross_entropy", needs("masks"))
@dataclass(frozen=True, kw_only=True)
class PixelCrossEntropy(Loss):
    """Cross-entropy of every pixel, mean over the pixels of a sample (the default of segmentation)."""

    kind = "pixel_cross_entropy"

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean over pixels of −log softmax(outputs)_y."""
        scores = left_out(pixel_scores(outputs, targets.shape[1:]), self.missing)
        losses = functional.cross_entropy(scores, targets.long(), reduction="none")
        return losses.flatten(1).mean(1)


@dataclass(frozen=True, kw_only=True)
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


def _numbers(weights: Sequence[float] | str, counts: Tensor | None) -> tuple[float, ...]:
    """κ of every class; balanced by the label counts [C], where a class without training samples has weight 1."""
    if not isinstance(weights, str):
        return tuple(weights)
    if counts is None:
        raise ValueError('class_weights = "balanced" needs the label counts of the clients')
    balanced = counts.sum() / (len(counts) * counts.clamp(min=1))
    return tuple(torch.where(counts > 0, balanced.double(), 1.0).tolist())


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
