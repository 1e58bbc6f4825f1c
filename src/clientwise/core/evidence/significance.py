"""Weights fall only where there is significant evidence: on held-out data, or from the directions of the updates.

`Significance` asks by how much each client increases the held-out loss. `OwnPast` compares an update with what the same
client sent before, by small sketches of the updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from ...registry import needs
from ..aggregation.robust import combine
from ..types import Gathered, LookBack, Posterior, Scanned
from .backdoor import watch
from .base import EVIDENCE, Evidence, PageTest, enlist, moved, with_rows

GROUPS = 20  # of held-out samples, whose gradients are the witnesses
LEAST_COMPARED = 5  # samples of a group where their loss compares them with each other
LEAST_SAMPLES = 8  # held-out samples of the server; with fewer there is no evidence
# Samples that the model is tuned on wear out as witnesses
FRESH = 10  # rounds
WEAR = 0.05  # standard errors that each later round takes from z
MOST_WORN = 1.5
LEAST_JUDGES = 12  # with fewer, too many harmless clients lose weight
JUDGED_STEP = (
    0.1  # from the mean towards a client, where clients judge; smaller ones are lost in rounding
)
# The largest loss of one judge, in units of the mean model's loss, so that none dominates.
LARGEST_RISE = 1e3
POSSIBLE_LIARS = 0.3  # share of the judges, where clients judge

# Of the directions of updates
SKETCH = 256  # numbers; the cosine of two sketches has a standard error of 1/√256
FIRST = 5  # updates of a client, whose mean direction is its past; later ones may turn slowly
LEAST_TIMES = 3  # of these, without which a past says nothing
LEAST_FILLED = 100  # slots of a sketch; updates of smaller models turn, and agree, by chance
OPPOSITE = 0.2  # a cosine to the past below −0.2 (an angle above 102°) is against it
LARGEST_COSINE = 0.999  # Fisher's transformation is infinite at 1
MOST_TURNED = 1.5  # counts in a round: honest clients turn once, too, when the model overshoots
AT_ONCE = 1024  # clients whose sketches are made and compared at a time
FEW = 256  # sketches that a CPU compares in less time than a GPU takes for the launches
COPY, SAME = 0.9, 0.9999  # cosine above which two updates count as one; the same in smaller models
SIGNS_SEED = 7  # the same signs in every run, so that checkpoints stay valid


@dataclass(frozen=True)
class Harm:
    """By how much each client would change the held-out loss, and how sure that is."""

    mean: Tensor  # [n] h_k
    error: Tensor  # [n] its standard error
    z: Tensor  # [n] what of it exceeds the margin, in standard errors
    change: float  # of the held-out loss by the mean of the clipped updates


@EVIDENCE.register("significance", needs("server_set"))
@dataclass(frozen=True)
class Significance(PageTest):
    """A client loses weight if its update significantly and notably increases the held-out loss.

    Δ_k are the updates, clipped to the cohort's median norm, with the weights w_k. To first order, client k
    alone changes the held-out loss ℓ by e_k. It is compared with the mean update, or with no update where
    the mean raises the loss:

        e_k = ⟨∇ℓ(Θ), Δ_k⟩,    h_k = e_k − min(0, Σ_j w_j e_j).

    The held-out samples are divided into up to 20 random groups, each with a gradient of its own. So all
    clients take one product, [n, d] × [d, 20], and the groups' values give h_k a standard error s_k, with
    19 degrees of freedom. What counts is how far h_k exceeds a margin, in standard errors:

        z_k = sign(h_k) · (|h_k| − margin · Σ_j w_j |e_j|)₊ / s_k.

    The sum is by how much a client changes the held-out loss on average. Without the margin, clients with
    almost equal updates would be told apart by differences that are significant, but far too small to
    matter, and a client with rare data would pay for helping less than others. Classes that the held-out
    samples lack are left out of ℓ.

    The server's samples lose their power as the model is tuned on them: from round 11 on, each round takes
    0.05 more from |z_k|, at most 1.5.

    Evidence against a client and in its favour is summed over the rounds, less `slack` per round for
    chance and different data (CUSUM test, Page, 1954):

        against_k ← max(0, against_k + z_k − slack),    favour_k ← max(0, favour_k − z_k − slack).

    What exceeds the threshold changes the client's weight, which never exceeds the weight by the score:

        log w_k ← min(0, log w_k − strength · (against_k − threshold)₊ + strength · (favour_k − threshold)₊).

    With the defaults, more than 4.5 standard errors in one round count, or more than one in each of eight
    rounds. Earlier good updates do not offset harm. Both sums are cut at the threshold once they have had
    their effect.

    If clients judge instead of a server's set, the witnesses are the judges: each evaluates a step of a
    tenth from the mean towards every client. A client then counts as harmful only if it is so without the
    share `liars` of the witnesses that speak most against it, and as helpful only without the share that
    speak most for it. There is no evidence with fewer than 12 judges, or fewer than 8 samples.

    Two more witnesses compare directions of updates; see `look_back`:

    - `history`: an update that points against the first five of the same client, by at most 1.5 a round,
      so that it counts from the fifth such round on. The larger of the two z-values counts.
    - `copies`: updates that are almost equal share the weight of one, in rounds with evidence from
      held-out samples or judges.

    In models of fewer than 100 parameters, history is no evidence, and only identical updates are copies.

    `backdoors` scans the model for patterns that turn inputs of many classes into one. While a class is
    suspect, clients whose models react to its pattern more than others lose weight, and `fine_tune` trains
    the model to ignore the pattern (docs/evidence.md, "Backdoors").

    Args:
        threshold: in standard errors.
        slack: in standard errors per round.
        strength: how fast evidence beyond the threshold changes log-weights.
        margin: how large a harm must be to count, in units of what a client changes of the loss on average.
        liars: share of the judges that may lie together.
        history: whether to compare updates with the client's first ones.
        copies: whether almost equal updates share the weight of one.
        backdoors: whether to scan for backdoors; needs classes, and inputs that are numbers.
    """

    margin: Annotated[float, Ge(0), Le(10)] = 0.5
    liars: Annotated[float, Ge(0), Lt(0.5)] = POSSIBLE_LIARS
    history: bool = False
    copies: bool = False
    backdoors: bool = False

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """No evidence on any client, and no round."""
        return {**super().first(num_clients), "rounds": torch.tensor(0)}

    def for_trial(self) -> Evidence:
        """Without the scan."""
        return replace(self, backdoors=False)

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class; z of the result is `against`, or −`favour` if that is larger."""
        rows = torch.tensor(gathered.client_ids, dtype=torch.int64)
        start = moved(prior, memory["log_odds"][rows])
        rounds = memory["rounds"] + 1
        harm = self._harm(gathered, start)
        held_out = None
        if isinstance(harm, Harm):
            worn = float((WEAR * (rounds - FRESH)).clamp(0, MOST_WORN))
            held_out = beyond(harm.z, worn if gathered.gradients else 0.0)  # judges do not wear out
        # Without held-out samples nothing tells whether the copies or the others are honest.
        copies = self.copies and held_out is not None
        past = look_back(gathered, memory, history=self.history, copies=copies)
        scanned = watch(gathered, start, memory) if self.backdoors else Scanned()
        z = larger(held_out, past.z, scanned.z)
        found = self.posterior(rows, prior, z, memory, past)
        found = replace(
            found,
            memory={**found.memory, **scanned.memory, "rounds": rounds},
            notes=scanned.notes,
            scanned=scanned,
        )
        if isinstance(harm, Harm):
            return replace(
                found, harm=harm.mean, harm_error=harm.error, held_out_change=harm.change
            )
        return replace(found, notes=(f"{harm}: no evidence from them", *found.notes))

    def _harm(self, gathered: Gathered, weights: Tensor) -> Harm | str:
        """The harm of each client, or why there is no evidence."""
        clip = _clip_factors(gathered)
        model = gathered.global_model
        mean = model + combine(weights * clip, gathered.updates)
        if gathered.gradients is None:
            return self._judged_harm(gathered, weights, clip, mean)
        found = gathered.judge(torch.stack([model, mean]))
        count = int(found.num_samples.sum())
        if count < LEAST_SAMPLES:
            return f"fewer than {LEAST_SAMPLES} held-out samples"
        change = float(found.losses[1, 0] - found.losses[0, 0])
        least = LEAST_COMPARED if gathered.compares_samples else 1
        gradients = gathered.gradients(model, _groups(count, least, gathered.seed))
        effects = (gathered.updates @ gradients.T).double().cpu() * clip[:, None]  # [n, g]
        if not math.isfinite(change) or not bool(effects.isfinite().all()):
            return "the loss of the mean is not finite"
        margin = self.margin * float(weights @ effects.mean(1).abs())
        of_mean = weights @ effects  # [g]
        if float(of_mean.mean()) < 0:  # a mean that raises the loss would excuse those who do
            effects -= of_mean
        error = effects.std(1) / effects.shape[1] ** 0.5
        mean_effects = effects.mean(1)
        return Harm(mean_effects, error, _z(mean_effects, error, margin), change)

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
        middle, error = _median(effects)
        margin = self.margin * float(weights @ (middle + change).abs())
        against = _z(*_median(_without_largest(effects, self.liars)), margin)
        favour = _z(*_median(_without_largest(-effects, self.liars)), margin)
        return Harm(middle, error, against.clamp(min=0) - favour.clamp(min=0), change)


@EVIDENCE.register("history", needs("models"))
@dataclass(frozen=True)
class OwnPast(PageTest):
    """A client loses weight if its updates point against its first ones; needs no held-out samples.

    z_k tests whether the cosine of the update and the client's first five is below −0.2, from its fourth
    update on. Agreement with them is no evidence in favour of a client, so a lost weight is not regained. A
    client that is hostile from its first round is not found, nor any in models of fewer than 100 parameters.

    Args:
        threshold: in standard errors.
        slack: in standard errors per round.
        strength: how fast evidence beyond the threshold changes log-weights.
    """

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """See the class."""
        rows = torch.tensor(gathered.client_ids, dtype=torch.int64)
        past = look_back(gathered, memory, history=True, copies=False)
        return self.posterior(rows, prior, larger(None, past.z), memory, past)


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


def _z(values: Tensor, errors: Tensor, margin: float) -> Tensor:
    """How far values exceed the margin on their side of zero, in standard errors; 0 where these are 0."""
    least = torch.finfo(errors.dtype).tiny
    return torch.where(errors > 0, beyond(values, margin) / errors.clamp(min=least), 0.0)


def beyond(values: Tensor, margin: float) -> Tensor:
    """How far values exceed the margin on their side of zero.

    >>> beyond(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
    tensor([-2.,  0.,  1.])
    """
    return values.sign() * (values.abs() - margin).clamp(min=0)


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


def _median(effects: Tensor) -> tuple[Tensor, Tensor]:
    """The median of each row [n, N] over the witnesses, and its standard error; robust to the liars that remain."""
    middle = effects.median(1, keepdim=True).values
    deviation = 1.4826 * (effects - middle).abs().median(1).values  # the standard deviation
    return middle[:, 0], 1.2533 * deviation / effects.shape[1] ** 0.5


def _without_largest(effects: Tensor, share: float) -> Tensor:
    """Each row [n, N] without this share of its largest values."""
    kept = effects.shape[1] - round(share * effects.shape[1])
    return effects.sort(1).values[:, :kept]


def sketch(updates: Tensor) -> Tensor:
    """Directions of updates in few numbers (count sketch, Charikar et al., 2002).

    Coordinate i is added to slot i mod 256 with a random sign that is the same for all clients. The
    cosine of two sketches estimates the cosine of the updates with a standard error of 1/16.

    Args:
        updates: one update a row, [n, d].

    Returns:
        Unit vectors [n, 256]; zeros for an update of zeros.

    Example:
        >>> one = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1))
        >>> opposite = torch.cat([one, -2 * one])
        >>> float((sketch(opposite)[0] * sketch(opposite)[1]).sum().round(decimals=4))
        -1.0
    """
    signs = _signs(updates.shape[1], updates.device).to(updates)
    slots = torch.cat([_slots(some, signs) for some in torch.split(updates, AT_ONCE)])
    return torch.nn.functional.normalize(slots.nan_to_num(), dim=1)


def _slots(updates: Tensor, signs: Tensor) -> Tensor:
    count, size = updates.shape
    padded = updates.new_empty(count, size + -size % SKETCH)
    torch.mul(updates, signs, out=padded[:, :size])
    padded[:, size:] = 0
    return padded.reshape(count, -1, SKETCH).sum(1)


@lru_cache(8)
def _signs(size: int, device: torch.device) -> Tensor:
    """The same on every device; made and moved there once."""
    generator = torch.Generator().manual_seed(SIGNS_SEED)
    signs = 2 * torch.randint(2, (size,), generator=generator, dtype=torch.int8) - 1
    return signs.to(device)


def count_copies(sketches: Tensor) -> Tensor:
    """How many updates of the cohort point in almost the same direction as each one, itself included [n].

    Clients that send the same vector, as in ALIE or mimicry, have cosines near 1. Honest clients that
    train on different samples rarely exceed 0.9 in models of 100 parameters and more.
    """
    least = COPY if _filled(sketches) >= LEAST_FILLED else SAME
    # In parts: all pairs of 10,000 clients would take 400 MB
    parts = [(some @ sketches.T > least).sum(1) for some in torch.split(sketches, AT_ONCE)]
    return torch.cat(parts).clamp(min=1).double()


def against_past(past: Tensor, times: Tensor, sketches: Tensor) -> Tensor:
    """How far updates point against the own past, in standard errors [n].

    z = (atanh(−cos) − atanh(0.2))·√(s − 3): Fisher's test that the cosine of update and past is below
    −0.2, where s is the number of slots that the model fills. NaN for a client with fewer than three
    first updates, and for a model that fills fewer than 100 slots.

    Args:
        past: sums of the clients' first sketches, [n, 256].
        times: updates that went into each, [n].
        sketches: of the updates, [n, 256].
    """
    cosine = torch.nn.functional.cosine_similarity(sketches, past, dim=1).double()
    turned = (-cosine).clamp(-LARGEST_COSINE, LARGEST_COSINE).atanh()
    filled = _filled(sketches)
    z = (turned - math.atanh(OPPOSITE)) * math.sqrt(max(0, filled - 3))
    return z.where((times >= LEAST_TIMES) & (filled >= LEAST_FILLED), torch.nan)


def _filled(sketches: Tensor) -> int:
    """Slots that some update fills; a model of few parameters leaves the others empty."""
    return int((sketches != 0).any(0).sum())


def look_back(
    gathered: Gathered, memory: Mapping[str, Tensor], *, history: bool, copies: bool
) -> LookBack:
    """What the sketches of a round's updates tell.

    Args:
        gathered: the round.
        memory: what the evidence keeps between rounds.
        history: whether to compare each client with its own past.
        copies: whether to count almost equal updates.
    """
    if not history and not copies:
        return LookBack()
    sketches = sketch(gathered.updates[:, : gathered.spec.num_parameters])
    if len(sketches) <= FEW:
        sketches = sketches.cpu()
    counts = count_copies(sketches).cpu() if copies else None
    if not history:
        return LookBack(copies=counts)
    # Only clients that were seen have a past
    ids, rows = enlist(memory.get("ids"), gathered.client_ids)
    rows = rows.to(sketches.device)
    past = with_rows(memory.get("past"), len(ids), torch.zeros_like(sketches[0]))
    times = with_rows(memory.get("times"), len(ids), torch.tensor(0, device=sketches.device))
    z = against_past(past[rows], times[rows], sketches)
    if len(z) > 2:  # where most clients turn, as when a model overshoots, none is told apart
        z = z - z.nanmedian().nan_to_num().clamp(min=0)
    # The past stays what the first updates made it: a client that turns slowly cannot rewrite it
    is_first = (times[rows] < FIRST) & ~(z > 0)
    past[rows] += is_first[:, None] * sketches
    times[rows] += is_first
    counted = z.clamp(max=MOST_TURNED).cpu()
    return LookBack(counted, counts, {"ids": ids, "past": past, "times": times})


def larger(held_out: Tensor | None, *others: Tensor | None) -> Tensor | None:
    """The largest evidence against each client [n]; NaN is no evidence.

    Other witnesses than the held-out samples are no evidence in favour of a client.
    """
    largest = held_out
    for z in others:
        if z is None:
            continue
        if largest is None:
            largest = torch.zeros_like(z)
        largest = torch.maximum(largest, z.nan_to_num(nan=-torch.inf))
    return largest
