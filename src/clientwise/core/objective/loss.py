"""Losses that clients train with. A loss travels with the task and is kept in checkpoints."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor

ClassWeights = tuple[float, ...] | None  # κ of P3 Eq. 2, one per class; None: all 1


@dataclass(frozen=True)
class LossRecord:
    """A loss as it is written into requests and checkpoints: flat, the same keys for every kind."""

    kind: Literal["cross_entropy", "robust", "cox", "binary_cross_entropy", "pixel_cross_entropy"]
    class_weights: ClassWeights = None
    shape: float = 2.0
    scale: float = 1.0

    def loss(self) -> Loss:
        """The loss that was written."""
        if self.kind == "robust":
            return RobustLoss(self.shape, self.scale)
        if self.kind == "cox":
            return CoxLoss()
        if self.kind == "binary_cross_entropy":
            return BinaryCrossEntropy()
        if self.kind == "pixel_cross_entropy":
            return PixelCrossEntropy()
        return CrossEntropy(self.class_weights)


class Loss(ABC):
    """The loss of one round."""

    class_weights: ClassWeights = None
    # A sample's loss depends on its batch, so batches cannot be joined
    compares_samples: bool = False

    @abstractmethod
    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of every sample [N], from outputs [N, ...] and targets [N, ...]."""

    @abstractmethod
    def record(self) -> LossRecord:
        """How the loss is written into requests and checkpoints."""

    def unweighted(self) -> Loss:
        """The same loss with all class weights 1."""
        return self

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

    class_weights: ClassWeights = None

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """κ_y · −log softmax(outputs)_y."""
        losses = functional.cross_entropy(class_scores(outputs), targets, reduction="none")
        if self.class_weights is None:
            return losses
        return (
            losses
            * torch.tensor(self.class_weights, dtype=losses.dtype, device=losses.device)[targets]
        )

    def record(self) -> LossRecord:
        """With the class weights."""
        return LossRecord("cross_entropy", class_weights=self.class_weights)

    def unweighted(self) -> Loss:
        """Plain cross-entropy."""
        return CrossEntropy()

    @torch.no_grad()
    def with_gradient(
        self, outputs: Tensor, targets: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As of any loss, but quicker on a CPU."""
        on_cpu = outputs.device.type == "cpu"
        one_logit = outputs.shape[-1] == 1
        if not on_cpu or one_logit or self.class_weights:
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
class RobustLoss(Loss):
    """Barron's general robust loss, mean over the numbers of a sample; see `robust_loss`."""

    shape: float = 2.0  # α; 2 is the squared error
    scale: float = 1.0  # c: errors beyond it count as outliers

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """ρ(outputs − targets, α, c)."""
        errors = (outputs.reshape(targets.shape) - targets).reshape(len(targets), -1)
        return robust_loss(errors, self.shape, self.scale).mean(1)

    def record(self) -> LossRecord:
        """With shape and scale."""
        return LossRecord("robust", shape=self.shape, scale=self.scale)


@dataclass(frozen=True)
class CoxLoss(Loss):
    """Cox's negative partial log-likelihood; see `cox_losses`."""

    compares_samples = True

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of every event, against the samples of the same batch."""
        return cox_losses(outputs.reshape(targets.shape), targets)

    def record(self) -> LossRecord:
        """It has no options."""
        return LossRecord("cox")


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of logits [N, L] and labels [N, L] of 0 and 1, mean over the labels of a sample."""

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean_l −log σ(±outputs_l)."""
        logits = outputs.reshape(targets.shape)
        losses = functional.binary_cross_entropy_with_logits(
            logits, targets.to(logits.dtype), reduction="none"
        )
        return losses.mean(1)

    def record(self) -> LossRecord:
        """It has no options."""
        return LossRecord("binary_cross_entropy")


@dataclass(frozen=True)
class PixelCrossEntropy(Loss):
    """Cross-entropy of logits [N, C, H, W] and masks [N, H, W], mean over the pixels of a sample."""

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """mean over pixels of −log softmax(outputs)_y."""
        scores = pixel_scores(outputs, targets.shape[1:])
        losses = functional.cross_entropy(scores, targets.long(), reduction="none")
        return losses.flatten(1).mean(1)

    def record(self) -> LossRecord:
        """It has no options."""
        return LossRecord("pixel_cross_entropy")


def class_scores(outputs: Tensor) -> Tensor:
    """Logits [N, C]. A single output is the logit of class 1 against 0 (P1's CelebA network)."""
    return (
        torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
        if outputs.shape[-1] == 1
        else outputs
    )


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
