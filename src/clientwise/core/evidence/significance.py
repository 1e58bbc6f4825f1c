"""Innocent until proven guilty: weights fall only by what is significant on data nobody trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from ...registry import PositiveFloat, needs
from ..types import Evaluation, Gathered, Posterior
from .protocol import EVIDENCE

LEAST_WITNESSES = 8  # with fewer held-out samples, or judges, nothing is known
LARGEST_LOSS = (
    1e3  # of one witness, in units of the mean's own loss: one that sees a model explode is one witness still
)
POSSIBLE_LIARS = 0.3  # of the judges, where clients judge


@EVIDENCE.register("significance", needs("server_set"))
@dataclass(frozen=True)
class Significance:
    """A client loses weight where its direction makes held-out samples worse by more than chance.

    Δ_k are the updates, clipped to the cohort's median norm, Δ̄ their weighted mean. Seen from the mean, a small step
    towards client k changes the loss of sample i by d_ik = ℓ_i(Θ + Δ̄ + step·(Δ_k − Δ̄)) − ℓ_i(Θ + Δ̄). With the mean of
    d_ik over the samples (every class counts alike) and its standard error, z_k = mean / error, and

        log w_k ← log w_k − strength · (z_k − threshold)   where z_k > threshold.

    That is remembered from round to round. A client that harmed earns its weight back only where it helps as
    significantly, z_k < −threshold, and never more than the weight its criteria gave it. All candidates are evaluated
    in one pass, one more than AdaFed evaluates.

    Where clients judge instead of a server's set, the witnesses are the judges, each with its mean loss. A share
    `liars` of the witnesses may lie, together: a client is found harmful only if it is so without the share that speaks
    worst of it, and helpful only without the share that speaks best of it. Default: none of the server's samples, 30%
    of the judges.
    """

    threshold: Annotated[float, Ge(0), Le(100)] = 3.0
    strength: PositiveFloat = 0.5
    step: Annotated[float, Gt(0), Le(1)] = 0.1
    liars: Annotated[float, Ge(0), Lt(0.5)] | None = None

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """Nobody has harmed anybody."""
        return {"log_odds": torch.zeros(num_clients, dtype=torch.float64)}

    def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Posterior:
        """See the class."""
        rows = torch.tensor(gathered.client_ids, dtype=torch.int64)
        log_odds = memory["log_odds"][rows]
        updates = clipped_to_median(gathered.updates)
        start = moved(prior, log_odds)
        mean = (start.to(updates.device, torch.float64) @ updates.double()).float()
        models = gathered.global_model + mean + self.step * torch.cat([updates - mean, torch.zeros_like(mean)[None]])
        z = self._z(gathered.judge(models))
        if z is None:
            note = f"fewer than {LEAST_WITNESSES} held-out samples or judges: no evidence, the weights stay"
            return Posterior(start, memory, None, (note,))
        significant = z - z.clamp(-self.threshold, self.threshold)
        log_odds = (log_odds - self.strength * significant).clamp(max=0)
        after = memory["log_odds"].clone()
        after[rows] = log_odds
        return Posterior(moved(prior, log_odds), {"log_odds": after}, z)

    def _z(self, evaluation: Evaluation) -> Tensor | None:
        """What speaks against each client [n], in standard errors; None where too few witnesses are there."""
        by_sample = evaluation.sample_losses is not None
        losses = evaluation.sample_losses if by_sample else evaluation.losses[:, evaluation.num_samples > 0]
        assert losses is not None
        if losses.shape[1] < LEAST_WITNESSES or not bool(losses[-1].isfinite().all()):
            return None
        most = LARGEST_LOSS * (1 + losses[-1].mean())
        found = losses[:-1].nan_to_num(nan=float(most)).clamp(max=most) - losses[-1]  # [n, N]
        liars = (0.0 if by_sample else POSSIBLE_LIARS) if self.liars is None else self.liars
        return z_despite(found, liars) if liars else z_values(found, evaluation.sample_classes)


def clipped_to_median(updates: Tensor) -> Tensor:
    """No update [n, d] longer than the median one."""
    norms = torch.stack([torch.linalg.vector_norm(update.double()) for update in updates])
    factors = (norms.median() / norms.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    return updates * factors.to(updates.dtype)[:, None]


def moved(prior: Tensor, log_odds: Tensor) -> Tensor:
    """The prior weights, each times exp(log_odds); whom the prior gives nothing gets nothing."""
    result = prior * (log_odds - log_odds[prior > 0].max()).exp()
    return result / result.sum()


def z_values(found: Tensor, classes: Tensor | None) -> Tensor:
    """Mean over standard error of each row [n, N]; every class counts alike, whatever its number of samples.

    So a client with a class that few others have is judged by what it does to that class as much as to any other.
    Of a class with few samples the spread is hardly known: the spread over all samples counts as one more.
    """
    groups = classes if classes is not None else torch.zeros(found.shape[1], dtype=torch.int64)
    group = torch.searchsorted(torch.unique(groups), groups)
    count = torch.bincount(group).double()  # [C]
    member = torch.nn.functional.one_hot(group, len(count)).double()  # [N, C]
    means = found @ member / count  # [n, C]
    residuals = (found - means @ member.T).square()
    overall = residuals.mean(1, keepdim=True)
    variance = (residuals @ member + overall) / count  # [n, C] of one sample
    error = (variance / count).sum(1).sqrt() / len(count)
    return torch.where(error > 0, means.mean(1) / error.clamp(min=torch.finfo(torch.float64).tiny), 0.0)


def z_despite(found: Tensor, liars: float) -> Tensor:
    """z of each row [n, N] that holds whichever share of the witnesses lies; zero where that is for none."""
    ordered, count = found.sort(1).values, round(liars * found.shape[1])
    without_worst = _median_z(ordered[:, : found.shape[1] - count])
    without_best = _median_z(ordered[:, count:])
    return without_worst.clamp(min=0) + without_best.clamp(max=0)


def _median_z(found: Tensor) -> Tensor:
    """Median over its standard error, by the median deviation: liars that are left can say what they like."""
    median = found.median(1, keepdim=True).values
    deviation = 1.4826 * (found - median).abs().median(1).values  # of a normal distribution, its standard deviation
    error = 1.2533 * deviation / found.shape[1] ** 0.5
    return torch.where(error > 0, median[:, 0] / error.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
