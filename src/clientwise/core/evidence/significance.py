"""Weights fall only for clients whose updates significantly increase the held-out loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from ...registry import needs
from ..aggregation.robust import combine
from ..types import Gathered, Posterior
from .base import EVIDENCE, Evidence, PageTest, StandardErrors, Strength, moved
from .history import larger, look_back

GROUPS = 20  # of held-out samples, whose gradients are the witnesses
LEAST_COMPARED = 5  # samples of a group where their loss compares them with each other
LEAST_SAMPLES = 8  # held-out samples of the server; with fewer there is no evidence
# Judges. With fewer, more than 5% of harmless clients lose half of their weight (docs/evidence.md).
LEAST_JUDGES = 12
JUDGED_STEP = (
    0.1  # from the mean towards a client, where clients judge; smaller ones are lost in rounding
)
# The largest loss of one judge, in units of the mean model's loss, so that none dominates.
LARGEST_RISE = 1e3
POSSIBLE_LIARS = 0.3  # share of the judges, where clients judge


@dataclass(frozen=True)
class Harm:
    """By how much each client would change the held-out loss, and how sure that is."""

    mean: Tensor  # [n] h_k
    error: Tensor  # [n] its standard error
    z: Tensor  # [n] what of it exceeds the margin, in standard errors
    change: float  # of the held-out loss by the round itself


@EVIDENCE.register("significance", needs("server_set"))
@dataclass(frozen=True)
class Significance(Evidence):
    """A client loses weight if its update significantly and notably increases the held-out loss.

    Δ_k are the updates, clipped to the cohort's median norm, and Δ̄ is their weighted mean. Following
    client k instead of the mean changes the held-out loss ℓ, to first order, by

        h_k = ⟨∇ℓ(Θ + Δ̄), Δ_k − Δ̄⟩.

    The held-out samples are divided into up to 20 random groups, each with a gradient of its own. So all
    clients take one product, [n, d] × [d, 20], and the groups' values give h_k a standard error s_k, with
    19 degrees of freedom. What counts is how far h_k exceeds a margin, in standard errors:

        z_k = sign(h_k) · (|h_k| − margin · Σ_j w_j |⟨∇ℓ(Θ + Δ̄), Δ_j⟩|)₊ / s_k.

    The sum is by how much a client changes the held-out loss on average. Without the margin, clients with
    almost equal updates would be told apart by differences that are significant, but far too small to
    matter, and a client with rare data would pay for helping less than others. Classes that the held-out
    samples lack are left out of ℓ.

    Evidence against a client and in its favour is summed over the rounds, less `slack` per round for
    chance and different data (CUSUM test, Page, 1954):

        against_k ← max(0, against_k + z_k − slack),    favour_k ← max(0, favour_k − z_k − slack).

    What exceeds the threshold changes the client's weight, which never exceeds the weight by the score:

        log w_k ← min(0, log w_k − strength · (against_k − threshold)₊ + strength · (favour_k − threshold)₊).

    With the defaults, more than six standard errors in one round count, or more than four in each of two
    rounds. Earlier good updates do not offset harm. Both sums are cut at the threshold once they have had
    their effect.

    If clients judge instead of a server's set, the witnesses are the judges: each evaluates a step of a
    tenth from the mean towards every client. A client then counts as harmful only if it is so without the
    share `liars` of the witnesses that speak most against it, and as helpful only without the share that
    speak most for it. There is no evidence with fewer than 12 judges, or fewer than 8 samples.

    Two more witnesses compare directions of updates; see `history.py`:

    - `history`: an update that points against what the same client sent before. The larger of the two
      z-values counts.
    - `copies`: updates that are almost equal share the weight of one, in rounds with evidence from
      held-out samples.

    Args:
        threshold: in standard errors.
        slack: in standard errors per round.
        strength: how fast evidence beyond the threshold changes log-weights.
        margin: how large a harm must be to count, in units of what a client changes of the loss on average.
        liars: share of the judges that may lie together.
        history: whether a client's own past is a witness.
        copies: whether almost equal updates share the weight of one.
    """

    threshold: StandardErrors = 4.0
    slack: StandardErrors = 2.0
    strength: Strength = 0.5
    margin: Annotated[float, Ge(0), Le(10)] = 0.5
    liars: Annotated[float, Ge(0), Lt(0.5)] = POSSIBLE_LIARS
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
        harm = self._harm(gathered, start)
        held_out = harm.z if isinstance(harm, Harm) else None
        # Without held-out samples nothing tells whether the copies or the others are honest.
        copies = self.copies and held_out is not None
        past = look_back(gathered, memory, history=self.history, copies=copies)
        test = PageTest(self.threshold, self.slack, self.strength)
        found = test.posterior(rows, prior, larger(held_out, past.z), memory, past)
        if isinstance(harm, Harm):
            return replace(
                found, harm=harm.mean, harm_error=harm.error, held_out_change=harm.change
            )
        return replace(found, notes=(f"{harm}: no evidence from them",))

    def _harm(self, gathered: Gathered, weights: Tensor) -> Harm | str:
        """The harm of each client, or why there is no evidence."""
        clip = _clip_factors(gathered)
        mean = gathered.global_model + combine(weights * clip, gathered.updates)
        if gathered.gradients is None:
            return self._judged_harm(gathered, weights, clip, mean)
        found = gathered.judge(torch.stack([gathered.global_model, mean]))
        count = int(found.num_samples.sum())
        if count < LEAST_SAMPLES:
            return f"fewer than {LEAST_SAMPLES} held-out samples"
        change = float(found.losses[1, 0] - found.losses[0, 0])
        least = LEAST_COMPARED if gathered.compares_samples else 1
        gradients = gathered.gradients(mean, _groups(count, least, gathered.seed))
        effects = (gathered.updates @ gradients.T).double().cpu() * clip[:, None]  # [n, g]
        if not math.isfinite(change) or not bool(effects.isfinite().all()):
            return "the loss of the mean is not finite"
        margin = self.margin * float(weights @ effects.mean(1).abs())
        effects -= weights @ effects
        error = effects.std(1) / effects.shape[1] ** 0.5
        z = _ratio(_beyond(effects.mean(1), margin), error)
        return Harm(effects.mean(1), error, z, change)

    def _judged_harm(
        self, gathered: Gathered, weights: Tensor, clip: Tensor, mean: Tensor
    ) -> Harm | str:
        """The same by clients that evaluate models."""
        found = gathered.judge(_candidates(gathered, clip, mean))
        losses = found.losses[:, found.num_samples > 0]
        if losses.shape[1] < LEAST_JUDGES:
            return f"fewer than {LEAST_JUDGES} judges"
        before, after = losses[-2:]
        if not bool(after.isfinite().all()):
            return "the loss of the mean is not finite"
        most = float(LARGEST_RISE * (1 + after.mean()))
        effects = losses[:-2].nan_to_num(nan=most).clamp(max=most) - after
        effects /= JUDGED_STEP
        change = float((after - before).nan_to_num().median())  # of liars, whatever they say
        middle = _Median.of(effects)
        margin = self.margin * float(weights @ (middle.value + change).abs())
        against = _Median.of(_without_largest(effects, self.liars))
        favour = _Median.of(_without_largest(-effects, self.liars))
        z = against.z(margin).clamp(min=0) - favour.z(margin).clamp(min=0)
        return Harm(middle.value, middle.error, z, change)


def _clip_factors(gathered: Gathered) -> Tensor:
    """What each update is multiplied by so that none is longer than the median one [n]."""
    parameters = gathered.updates[:, : gathered.spec.num_parameters]  # without statistics
    lengths = torch.linalg.vector_norm(parameters, dim=1).double().cpu()
    factors: Tensor = lengths.median() / lengths
    return factors.clamp(max=1).nan_to_num(1.0)


def _groups(count: int, least: int, seed: int) -> list[list[int]]:
    """Rows of samples at random in up to 20 groups of at least so many, whose sizes differ by at most one."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    groups = max(2, min(GROUPS, count // least))
    return [order[first::groups] for first in range(groups)]


def _beyond(values: Tensor, margin: float) -> Tensor:
    """How far values exceed the margin on their side of zero; 0 within it."""
    return values.sign() * (values.abs() - margin).clamp(min=0)


def _ratio(value: Tensor, error: Tensor) -> Tensor:
    """value / error; 0 where the error is 0."""
    return torch.where(error > 0, value / error.clamp(min=torch.finfo(error.dtype).tiny), 0.0)


def _candidates(gathered: Gathered, clip: Tensor, mean: Tensor) -> Tensor:
    """A step from the mean towards each update, the model before the round, and the mean [n + 2, d].

    The updates are as large as all models together, so they are never copied.
    """
    updates = gathered.updates
    stay = gathered.global_model + (1 - JUDGED_STEP) * (mean - gathered.global_model)
    models = updates.new_empty(len(updates) + 2, updates.shape[1])
    torch.addcmul(stay, (JUDGED_STEP * clip).to(updates)[:, None], updates, out=models[:-2])
    models[-2] = gathered.global_model
    models[-1] = mean
    return models


@dataclass(frozen=True)
class _Median:
    """The median over the witnesses [n], and its standard error from the median absolute deviation."""

    value: Tensor
    error: Tensor

    @staticmethod
    def of(effects: Tensor) -> _Median:
        """Of each row [n, N]; robust to the liars that remain."""
        middle = effects.median(1, keepdim=True).values
        deviation = 1.4826 * (effects - middle).abs().median(1).values  # the standard deviation
        return _Median(middle[:, 0], 1.2533 * deviation / effects.shape[1] ** 0.5)

    def z(self, margin: float) -> Tensor:
        """What exceeds the margin, in standard errors."""
        return _ratio(_beyond(self.value, margin), self.error)


def _without_largest(effects: Tensor, share: float) -> Tensor:
    """Each row [n, N] without this share of its largest values."""
    kept = effects.shape[1] - round(share * effects.shape[1])
    return effects.sort(1).values[:, :kept]
