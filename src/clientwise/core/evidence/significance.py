"""Weights fall only for clients whose updates significantly increase the held-out loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from ...registry import needs
from ..aggregation.robust import combine
from ..types import Evaluation, Gathered, Posterior
from .history import larger, look_back
from .page import (
    PageTest,
    StandardErrors,
    Strength,
    moved,
)
from .protocol import EVIDENCE, Evidence

LEAST_SAMPLES = 8  # held-out samples of the server; with fewer there is no evidence
# Judges. With fewer, more than 5% of harmless clients lose half of their weight (docs/evidence.md).
LEAST_JUDGES = 12
# The largest loss of one witness, in units of the mean model's loss, so that none dominates.
LARGEST_RISE = 1e3
POSSIBLE_LIARS = 0.3  # share of the judges, where clients judge


@EVIDENCE.register("significance", needs("server_set"))
@dataclass(frozen=True)
class Significance(Evidence):
    """A client loses weight if a step towards its update significantly increases the held-out loss.

    Δ_k are the updates, clipped to the cohort's median norm. Δ̄ is their weighted mean. A small step from
    the mean towards client k changes the loss of sample i by

        d_ik = ℓ_i(Θ + Δ̄ + step·(Δ_k − Δ̄)) − ℓ_i(Θ + Δ̄).

    z_k is the mean of d_ik over the samples divided by its standard error. Evidence against a client and in
    its favour is summed over the rounds, less `slack` per round for chance and different data (CUSUM test,
    Page, 1954):

        against_k ← max(0, against_k + z_k − slack),    favour_k ← max(0, favour_k − z_k − slack).

    What exceeds the threshold changes the client's weight, which never exceeds the weight by the score:

        log w_k ← min(0, log w_k − strength · (against_k − threshold)₊ + strength · (favour_k − threshold)₊).

    With the defaults, more than three standard errors in one round count, or more than two in each of two
    rounds. Earlier good updates do not offset harm. Both sums are cut at the threshold once they have had
    their effect. All candidates are evaluated in one pass, one more than AdaFed evaluates.

    If clients judge instead of a server's set, the witnesses are the judges, each with its mean loss. There
    is no evidence with fewer than 12 judges, or fewer than 8 samples. A
    client then counts as harmful only if it is so without the share `liars` of the witnesses that speak
    most against it, and as helpful only without the share that speak most for it.

    Two more witnesses compare directions of updates; see `history.py`:

    - `history`: an update that points against what the same client sent before. The larger of the two
      z-values counts.
    - `copies`: updates that are almost equal share the weight of one, in rounds with evidence from
      held-out samples.

    Args:
        threshold: in standard errors.
        slack: in standard errors per round.
        strength: how fast evidence beyond the threshold changes log-weights.
        step: size of the step from the mean towards a client.
        liars: share of the witnesses that may lie together. Default: 0 for samples of the server, 0.3
            for judges.
        history: whether a client's own past is a witness.
        copies: whether almost equal updates share the weight of one.
    """

    judges_all: ClassVar[bool] = True
    threshold: StandardErrors = 2.0
    slack: StandardErrors = 1.0
    strength: Strength = 0.5
    step: Annotated[float, Ge(1e-3), Le(1)] = 0.1  # smaller steps are lost in rounding
    liars: Annotated[float, Ge(0), Lt(0.5)] | None = None
    history: bool = False
    copies: bool = False

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """No evidence on any client."""
        return PageTest.first(num_clients)

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class; z of the result is `against`, or −`favour` if that is larger."""
        rows = torch.tensor(gathered.client_ids, dtype=torch.int64)
        start = moved(prior, memory["log_odds"][rows])
        held_out, why_not = self._z(gathered.judge(self._candidates(gathered, start)))
        # Without held-out samples nothing tells whether the copies or the others are honest.
        copies = self.copies and held_out is not None
        past = look_back(gathered, memory, history=self.history, copies=copies)
        test = PageTest(self.threshold, self.slack, self.strength)
        found = test.posterior(rows, prior, larger(held_out, past.z), memory, past)
        if held_out is not None:
            return found
        return replace(found, notes=(f"{why_not}: no evidence from them",))

    def _candidates(self, gathered: Gathered, weights: Tensor) -> Tensor:
        """A step from the mean of the clipped updates towards each of them, and the mean itself [n + 1, d].

        The updates are as large as all models together, so they are never copied.
        """
        updates = gathered.updates
        parameters = updates[:, : gathered.spec.num_parameters]  # statistics are not clipped by
        lengths = torch.linalg.vector_norm(parameters, dim=1).double().cpu()
        clip = (lengths.median() / lengths).clamp(max=1).nan_to_num(1.0)
        mean = gathered.global_model + combine(weights * clip, updates)
        stay = gathered.global_model + (1 - self.step) * (mean - gathered.global_model)
        models = updates.new_empty(len(updates) + 1, updates.shape[1])
        torch.addcmul(stay, (self.step * clip).to(updates)[:, None], updates, out=models[:-1])
        models[-1] = mean
        return models

    def _z(self, evaluation: Evaluation) -> tuple[Tensor | None, str]:
        """z of each client in this round [n]; or None, and why there is no evidence."""
        losses = evaluation.sample_losses
        liars = 0.0
        least = LEAST_SAMPLES
        kind = "held-out samples"
        if losses is None:  # clients judge
            losses = evaluation.losses[:, evaluation.num_samples > 0]
            liars = POSSIBLE_LIARS
            least = LEAST_JUDGES
            kind = "judges"
        if self.liars is not None:
            liars = self.liars
        if losses.shape[1] < least:
            return None, f"fewer than {least} {kind}"
        if not bool(losses[-1].isfinite().all()):
            return None, "the loss of the mean is not finite"
        most = LARGEST_RISE * (1 + losses[-1].mean())
        found = losses[:-1].nan_to_num(nan=float(most)).clamp(max=most) - losses[-1]  # [n, N]
        return (z_despite(found, liars) if liars else z_values(found)), ""


def z_values(found: Tensor) -> Tensor:
    """z of each row [n, N]: the mean divided by its standard error."""
    return _ratio(found.mean(1), found.std(1) / found.shape[1] ** 0.5)


def z_despite(found: Tensor, liars: float) -> Tensor:
    """z of each row [n, N] that holds whichever share `liars` of the witnesses is left out; else 0."""
    ordered = found.sort(1).values
    count = round(liars * found.shape[1])
    without_worst = _median_z(ordered[:, : found.shape[1] - count])
    without_best = _median_z(ordered[:, count:])
    return without_worst.clamp(min=0) + without_best.clamp(max=0)


def _median_z(found: Tensor) -> Tensor:
    """Median divided by its standard error, from the median absolute deviation: robust to remaining liars."""
    median = found.median(1, keepdim=True).values
    deviation = 1.4826 * (found - median).abs().median(1).values  # estimates the standard deviation
    return _ratio(median[:, 0], 1.2533 * deviation / found.shape[1] ** 0.5)


def _ratio(value: Tensor, error: Tensor) -> Tensor:
    """value / error; 0 where the error is 0."""
    return torch.where(error > 0, value / error.clamp(min=torch.finfo(error.dtype).tiny), 0.0)
