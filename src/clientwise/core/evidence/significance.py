"""Innocent until proven guilty: weights fall only by what is significant on data nobody trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from ...registry import needs
from ..robust import combine
from ..types import Evaluation, Gathered, Posterior
from .history import History, LookBack, count_copies, larger, sketch
from .protocol import EVIDENCE

LEAST_WITNESSES = 8  # with fewer held-out samples, or judges, nothing is known
LARGEST_LOSS = 1e3  # of one witness, in units of the mean's own loss: who sees a model explode is one witness still
POSSIBLE_LIARS = 0.3  # of the judges, where clients judge
StandardErrors = Annotated[float, Ge(0), Le(100)]


@EVIDENCE.register("significance", needs("server_set"))
@dataclass(frozen=True)
class Significance:
    """A client loses weight where its direction makes held-out samples worse by more than chance.

    Δ_k are the updates, clipped to the cohort's median norm, Δ̄ their weighted mean. Seen from the mean, a small step
    towards client k changes the loss of sample i by d_ik = ℓ_i(Θ + Δ̄ + step·(Δ_k − Δ̄)) − ℓ_i(Θ + Δ̄). With the mean of
    d_ik over the samples and its standard error, z_k = mean / error. What speaks against a client, and for it, is
    summed over the rounds, less `slack` a round for what chance and differing data do (the test of Page, 1954):

        against_k ← max(0, against_k + z_k − slack),    favour_k ← max(0, favour_k − z_k − slack),

    and what goes beyond the threshold moves its weight, up to the weight that its criteria gave it:

        log w_k ← min(0, log w_k − strength · (against_k − threshold)₊ + strength · (favour_k − threshold)₊)

    So more than three standard errors in one round count, or more than two in each of two, and nothing that a client
    did well before excuses harm. Beyond the threshold nothing is summed up, since it has had its effect. All candidates
    are evaluated in one pass, one more than AdaFed evaluates.

    Where clients judge instead of a server's set, the witnesses are the judges, each with its mean loss. A share
    `liars` of the witnesses may lie, together: a client is found harmful only if it is so without the share that speaks
    worst of it, and helpful only without the share that speaks best of it. Default: none of the server's samples, 30%
    of the judges.
    """

    threshold: StandardErrors = 2.0
    slack: StandardErrors = 1.0
    strength: Annotated[float, Gt(0), Le(100)] = 0.5
    step: Annotated[float, Ge(1e-3), Le(1)] = 0.1  # a smaller one is lost in a model's rounding
    liars: Annotated[float, Ge(0), Lt(0.5)] | None = None
    history: bool = False
    copies: bool = False

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """Nobody has harmed anybody."""
        return {name: torch.zeros(num_clients, dtype=torch.float64) for name in ("against", "favour", "log_odds")}

    def __call__(self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]) -> Posterior:
        """See the class; z is what speaks against each client by now, or, below zero, for it."""
        rows = torch.tensor(gathered.client_ids, dtype=torch.int64)
        log_odds = memory["log_odds"][rows]
        start = moved(prior, log_odds)
        held_out, why_not = self._z(gathered.judge(self._candidates(gathered, start)))
        past = self._look_back(gathered, memory)
        z = larger(held_out, past.z)
        notes = () if held_out is not None else (f"{why_not}: no evidence from held-out samples",)
        if z is None:
            return Posterior(past.counted_once(start), past.keep(memory), None, notes, copies=past.copies)
        against = (memory["against"][rows] + z - self.slack).clamp(min=0)
        favour = (memory["favour"][rows] - z - self.slack).clamp(min=0)
        beyond = (against - self.threshold).clamp(min=0) - (favour - self.threshold).clamp(min=0)
        log_odds = (log_odds - self.strength * beyond).clamp(max=0)
        after = past.keep(memory)
        after["against"][rows] = against.clamp(max=self.threshold)
        after["favour"][rows] = favour.clamp(max=self.threshold)
        after["log_odds"][rows] = log_odds
        return Posterior(
            past.counted_once(moved(prior, log_odds)),
            after,
            z=torch.where(against >= favour, against, -favour),
            notes=notes,
            history_z=past.z,
            copies=past.copies,
        )

    def _look_back(self, gathered: Gathered, memory: Mapping[str, Tensor]) -> LookBack:
        if not self.history and not self.copies:
            return LookBack()
        sketches = sketch(gathered.updates[:, : gathered.spec.num_parameters])
        copies = count_copies(sketches) if self.copies else None
        if not self.history:
            return LookBack(copies=copies)
        history = History.read(memory).including(gathered.client_ids)
        rows = history.rows(gathered.client_ids)
        z = history.z(rows, sketches)
        return LookBack(z, copies, history.extended(rows, sketches, z))

    def _candidates(self, gathered: Gathered, weights: Tensor) -> Tensor:
        """A step from the mean of the clipped updates towards each of them, and the mean itself [n + 1, d].

        The updates are as large as all the models together: they are read three times, and never copied.
        """
        updates = gathered.updates
        lengths = torch.linalg.vector_norm(updates, dim=1).double().cpu()
        clip = (lengths.median() / lengths).clamp(max=1).nan_to_num(1.0)
        mean = gathered.global_model + combine(weights * clip, updates)
        stay = gathered.global_model + (1 - self.step) * (mean - gathered.global_model)
        models = updates.new_empty(len(updates) + 1, updates.shape[1])
        torch.addcmul(stay, (self.step * clip).to(updates)[:, None], updates, out=models[:-1])
        models[-1] = mean
        return models

    def _z(self, evaluation: Evaluation) -> tuple[Tensor | None, str]:
        """What speaks against each client in this round [n], in standard errors; or None, and why nothing does."""
        by_sample = evaluation.sample_losses is not None
        losses = evaluation.sample_losses if by_sample else evaluation.losses[:, evaluation.num_samples > 0]
        assert losses is not None
        if losses.shape[1] < LEAST_WITNESSES:
            return None, f"fewer than {LEAST_WITNESSES} held-out samples or judges"
        if not bool(losses[-1].isfinite().all()):
            return None, "the loss of the mean is no number"
        most = LARGEST_LOSS * (1 + losses[-1].mean())
        found = losses[:-1].nan_to_num(nan=float(most)).clamp(max=most) - losses[-1]  # [n, N]
        liars = (0.0 if by_sample else POSSIBLE_LIARS) if self.liars is None else self.liars
        return (z_despite(found, liars) if liars else z_values(found)), ""


def moved(prior: Tensor, log_odds: Tensor) -> Tensor:
    """The prior weights, each times exp(log_odds); whom the prior gives nothing gets nothing."""
    result = prior * (log_odds - log_odds[prior > 0].max()).exp()
    return result / result.sum()


def z_values(found: Tensor) -> Tensor:
    """Mean over standard error of each row [n, N]."""
    return _ratio(found.mean(1), found.std(1) / found.shape[1] ** 0.5)


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
    return _ratio(median[:, 0], 1.2533 * deviation / found.shape[1] ** 0.5)


def _ratio(value: Tensor, error: Tensor) -> Tensor:
    """value / error; zero where nothing varies, of which nothing can be said."""
    return torch.where(error > 0, value / error.clamp(min=torch.finfo(error.dtype).tiny), 0.0)
