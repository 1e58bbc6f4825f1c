"""Losses, as they travel with a task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """The loss of one round, as it travels with the task."""

    kind: Literal["cross_entropy", "robust", "cox"]
    class_weights: tuple[float, ...] | None = None  # κ of P3 Eq. 2
    shape: float = 2.0  # α of the general robust loss; 2 is the squared error
    scale: float = 1.0  # c of the general robust loss: where outliers begin

    @property
    def compares_samples(self) -> bool:
        """Whether the loss of a sample depends on the others of its batch: then batches cannot be joined."""
        return self.kind == "cox"

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of every sample [N]."""
        if self.kind == "cox":
            return cox_losses(outputs.reshape(targets.shape), targets)
        if self.kind == "robust":
            errors = (outputs.reshape(targets.shape) - targets).reshape(len(targets), -1)
            return robust_loss(errors, self.shape, self.scale).mean(1)
        losses = functional.cross_entropy(class_scores(outputs), targets, reduction="none")
        if self.class_weights is None:
            return losses
        return losses * torch.tensor(self.class_weights, dtype=losses.dtype, device=losses.device)[targets]

    @torch.no_grad()
    def with_gradient(self, outputs: Tensor, targets: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of every sample [N], and the gradient of Σ share · loss by the outputs."""
        on_cpu, several = outputs.device.type == "cpu", outputs.shape[-1] > 1
        if on_cpu and several and self.kind == "cross_entropy" and not self.class_weights:
            # Written out: PyTorch's softmax and autograd take a CPU three times as long where classes are few.
            shifted, rows = outputs - outputs.amax(1, keepdim=True), targets[:, None]
            chosen = shifted.gather(1, rows)
            powers = shifted.exp_()
            totals = powers.sum(1, keepdim=True)
            slopes = powers.div_(totals).scatter_add_(1, rows, -torch.ones_like(totals)).mul_(shares[:, None])
            return (totals.log() - chosen)[:, 0], slopes
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.per_sample(outputs, targets)
        (gradient,) = torch.autograd.grad(losses, outputs, shares)
        return losses.detach(), gradient

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """P3 Eq. 2: the mean over the samples, *not* divided by the sum of κ."""
        return self.per_sample(outputs, targets).mean()


def class_scores(outputs: Tensor) -> Tensor:
    """Logits [N, C]. A single output is the logit of class 1 against 0 (P1's CelebA network)."""
    return torch.cat([torch.zeros_like(outputs), outputs], dim=-1) if outputs.shape[-1] == 1 else outputs


def cox_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Cox's negative partial log-likelihood, event by event [..., N]; 0 for who had none. Ties as Breslow has them.

    Targets [N] are times, negative (or −0) where nothing happened until then. An event costs the log of Σ exp(score)
    over all who were still watched at that time, less its own score.
    """
    times = targets.abs()
    latest_first, order = times.sort(descending=True)
    watched = scores[..., order].logcumsumexp(-1)
    last = torch.searchsorted(-latest_first, -times, right=True) - 1  # of those who were watched as long
    # Rounding must not make a loss negative: a server refuses that.
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
