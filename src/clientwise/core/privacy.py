"""Differential privacy of the clients: noised sums, and how much privacy a run spends.

It is the Gaussian mechanism on the weighted mean of clipped updates: the server clips
every update to the norm C, weighs it by at most `cap`, adds them up and adds Gaussian
noise to the sum:

    released = Σ_a w_a·clip(Δ_a, C) + z·S·N(0, 1)

S is the sensitivity: how far another client can move the sum. It follows from C, from the cap and from
what another client means (docs/results/privacy.md has the proofs):

- Weights that sum to 1 are at most 2·C·cap apart, whether a client is added, removed or replaced.
- With a fixed denominator D, w_a = min(cap, f_a/D), it is C·cap for a client that is added or removed,
  and 2·C·cap for one that is replaced.

This holds only where the score of a client depends on no other client. Each is therefore computed alone.

How much privacy a run spends is ε at δ, by Google's `dp-accounting`. Every round is a Gaussian mechanism on a random
cohort. Its sampling decides on the neighbouring relation and on the accountant:

- Poisson sampling: a client is added or removed. Privacy loss distributions, numerically tight.
- A cohort of fixed size: a client is replaced. Rényi differential privacy of sampling without
  replacement (Wang, Balle and Kasiviswanathan, 2019), an upper bound that is not tight.
- All clients, or noise by the clients: no amplification. The exact ε of the Gaussian mechanism.

Sampling never costs privacy: the last one bounds the other two as well (`_epsilon`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le, Lt, doc
from torch import Tensor

from ..errors import needing
from ..registry import PositiveFloat
from .seeding import standard_normal

# A smaller score is zero, and one over it the largest. So the quotient of two scores cannot vanish: a
# client with a huge score would else make those of all others zero, which is more than its own weight.
LEAST_SCORE = 1e-100


@dataclass(frozen=True)
class LocalNoise:
    """What a client does to its own update: it clips it to a norm and adds Gaussian noise."""

    clip: float
    deviation: float  # of the noise

    def apply(self, updates: Tensor, key: bytes, names: Sequence[str]) -> Tensor:
        """Clipped updates [n, d] with noise, which follows from the key and a name for each.

        Of an update that is not finite, the noise alone is sent: that training failed tells of the samples.
        """
        is_finite = norms_of(updates).isfinite().to(updates.device)
        updates = torch.where(is_finite[:, None], updates, 0.0)
        factors = clip_factors(norms_of(updates), self.clip)
        sent = []
        for update, factor, name in zip(updates, factors.tolist(), names, strict=True):
            noise = standard_normal(key, name, len(update)).to(update.device)
            sent.append((factor * update.double() + self.deviation * noise).to(updates.dtype))
        return torch.stack(sent)


@dataclass(frozen=True)
class Privacy:
    """How much a client may change the models of a run (docs/privacy.md)."""

    # The config's [methods.privacy] table is made from these fields.
    clip: Annotated[
        PositiveFloat,
        doc("Clipping norm C: longer updates are scaled down to it."),
    ]
    delta: Annotated[
        float,
        Gt(0),
        Lt(1),
        doc("δ at which ε is given: less than 1 / number of clients."),
    ]
    noise_multiplier: Annotated[
        Annotated[float, Gt(0), Le(1e6)] | None,
        doc(
            "Standard deviation of the noise, divided by the sensitivity. Without it, `check` prints "
            "the one that spends `epsilon`."
        ),
    ] = None
    epsilon: Annotated[
        PositiveFloat | None,
        doc("The budget: a run stops before it would exceed this ε."),
    ] = None
    denominator: Annotated[
        PositiveFloat | None,
        doc(
            "Public constant that divides the scores: the expected sum. Default: weights sum to 1."
        ),
    ] = None
    local: Annotated[
        bool,
        doc("Clients add the noise; the server sees no exact update."),
    ] = False
    public: Annotated[
        Sequence[str],
        doc("With `local`: client-measured criteria that are sent without noise."),
    ] = ()
    secret: Annotated[
        bool,
        doc(
            "Draw noise and cohorts from an unrecorded key, as a deployment needs, not from the seed."
        ),
    ] = False

    @property
    def multiplier(self) -> float:
        """The noise multiplier z; validation refuses a method without."""
        assert self.noise_multiplier is not None
        return self.noise_multiplier

    @property
    def local_noise(self) -> LocalNoise:
        """The noise of a client, whose update may be replaced by any other: 2·C away."""
        return LocalNoise(self.clip, self.multiplier * 2 * self.clip)

    def sensitivity(self, cap: float, *, replaced: bool) -> float:
        """How far the weighted sum moves where one client is replaced, or else added or removed."""
        if self.denominator is not None and not replaced:
            return self.clip * cap
        return 2 * self.clip * cap

    def weights(self, scores: Tensor, cap: float) -> Tensor:
        """The weights [n] of scores [n], at most `cap`; see `capped`. A negative score counts as zero."""
        scores = scores.double().nan_to_num(nan=0.0).clamp(0, 1 / LEAST_SCORE)
        scores = torch.where(scores < LEAST_SCORE, 0.0, scores)
        if self.denominator is not None:
            return (scores / self.denominator).clamp(max=cap)
        return capped(scores, cap)

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """The state before the first round: in how many releases each client was [K]."""
        return {"releases": torch.zeros(num_clients, dtype=torch.int64)}

    def after(self, state: Mapping[str, Tensor], asked: Sequence[int]) -> dict[str, Tensor]:
        """The state after a round.

        With noise of the server, all clients are in every release: which were asked is a secret. With
        noise of the clients, only those that were asked.
        """
        releases = state["releases"].clone()
        releases[list(asked) if self.local else slice(None)] += 1
        return {"releases": releases}


@dataclass(frozen=True)
class NoisedSum:
    """The noised sum of a round, and how it was made."""

    update: Tensor  # [d] float64
    weights: Tensor  # [n]
    clip: float
    deviation: float  # of the noise, in every value of the update


def release(
    privacy: Privacy,
    updates: Sequence[Tensor],
    scores: Tensor,
    like: Tensor,
    *,
    cap: float,
    replaced: bool,
    key: bytes,
    round_num: int,
) -> NoisedSum:
    """The Gaussian mechanism: the weighted sum of clipped updates, with noise, also without any client.

    Args:
        privacy: the settings.
        updates: how far the clients' models moved, n of [d].
        scores: of each client alone, zero or more, [n].
        like: a model [d], for size and device.
        cap: the largest weight.
        replaced: whether neighbours differ in a client that is replaced; else added or removed.
        key: what the noise follows from.
        round_num: the round.
    """
    norms = torch.tensor([float(norms_of(one[None])) for one in updates], dtype=torch.float64)
    weights = privacy.weights(scores, cap)
    factors = weights * clip_factors(norms, privacy.clip)
    total = torch.zeros_like(like, dtype=torch.float64)
    for factor, update in zip(factors.tolist(), updates, strict=True):
        total.add_(update.double(), alpha=factor)  # float64: no clipped norm is rounded above C
    deviation = privacy.multiplier * privacy.sensitivity(cap, replaced=replaced)
    noise = standard_normal(key, f"noise/{round_num}", len(like))
    return NoisedSum(total + deviation * noise.to(total.device), weights, privacy.clip, deviation)


def capped(scores: Tensor, cap: float) -> Tensor:
    """w_a = min(cap, t·f_a), with the t that makes them sum to 1.

    With fewer than 1/cap clients that have a score, their weights are the cap, and sum to less than 1.
    So another client moves the weights of all others in one direction, by no more than its own weight.

    Args:
        scores: zero or more, [n].
        cap: largest weight.

    Returns:
        The weights [n].

    Example:
        >>> capped(torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64), 0.5)
        tensor([0.5000, 0.3750, 0.1250], dtype=torch.float64)
        >>> capped(torch.tensor([6.0, 0.0], dtype=torch.float64), 0.5)
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    some = scores > 0
    if float(some.sum()) * cap <= 1:
        return some.to(scores) * cap
    relative = scores / scores.max()
    largest_first = relative.sort(descending=True).values
    rest = largest_first.flip(0).cumsum(0).flip(0)  # the sum from each position on
    at_cap = torch.arange(len(scores), dtype=scores.dtype)
    free = 1 - cap * at_cap  # for those after k at the cap
    factors = torch.where(rest > 0, free / rest, torch.inf)
    # Rounding can make the last free share exceed the cap by a bit. Without `is_last`, the next one, which
    # is zero or negative, would be taken, and all weights would vanish.
    is_last = cap * (at_cap + 1) >= 1
    fits = (factors * largest_first <= cap) | is_last
    factor = factors[int(fits.to(torch.int64).argmax())]
    return (factor * relative).clamp(max=cap)


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """min(1, C/‖Δ‖) for norms [n]."""
    return (clip / norms).clamp(max=1)


def norms_of(updates: Tensor) -> Tensor:
    """Norms [n] of updates [n, d] in float64, on the CPU."""
    norms: Tensor = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    return norms.cpu()


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of μ-Gaussian differential privacy (Dong, Roth and Su, 2022).

    The ε at which Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2) is δ, by bisection.

    Args:
        mu: μ > 0.
        delta: δ.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 1)
        4.4
    """
    low, high = 0.0, mu * (mu / 2 + 40)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        spent = _normal_cdf(-middle / mu + mu / 2)
        tail = _normal_cdf(-middle / mu - mu / 2)
        if tail:  # else too small for a float: ε is then an upper bound
            spent -= math.exp(middle + math.log(tail))
        if spent > delta:
            low = middle
        else:
            high = middle
    return high


def _normal_cdf(value: float) -> float:
    """Φ, also far in the tail."""
    return math.erfc(-value / math.sqrt(2)) / 2


Relation = Literal["add or remove one client", "replace one client"]
# Of privacy losses. The result stays an upper bound, and is at most 1e-4 above that of 1e-4.
DISCRETISATION = 1e-3
ORDERS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512)
MOST_NOISE = 1e4
PRECISION = 1e-3


@dataclass(frozen=True)
class Accountant:
    """The mechanism of one round, for any number of rounds.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity.
        delta: δ.
        num_clients: n, all clients that may be asked.
        probability: of each client, with Poisson sampling; None: a cohort of fixed size.
        size: of such a cohort; None: all clients, or each release of a client counts in full.
    """

    noise_multiplier: float
    delta: float
    num_clients: int
    probability: float | None = None
    size: int | None = None

    @property
    def relation(self) -> Relation:
        """What neighbouring federations differ in."""
        return "replace one client" if self.probability is None else "add or remove one client"

    @property
    def is_amplified(self) -> bool:
        """Whether sampling makes ε smaller."""
        if self.probability is not None:
            return self.probability < 1
        return self.size is not None and self.size < self.num_clients

    def epsilon(self, releases: int) -> float:
        """ε of so many releases; 0 of none."""
        return _epsilon(self, releases) if releases else 0.0

    def noise_for(self, epsilon: float, releases: int) -> float | None:
        """The smallest noise multiplier, up to `PRECISION`, that spends at most ε; None: none does."""

        def spent(multiplier: float) -> float:
            return _epsilon(replace(self, noise_multiplier=multiplier), releases)

        low, high = 0.1, 0.2
        while spent(high) > epsilon:
            low, high = high, 2 * high
            if high > MOST_NOISE:
                return None
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            if spent(middle) > epsilon:
                low = middle
            else:
                high = middle
        return high


@functools.lru_cache(maxsize=4096)
def _epsilon(mechanism: Accountant, releases: int) -> float:
    # T Gaussian mechanisms are one with √T times the sensitivity.
    together = mechanism.noise_multiplier / releases**0.5
    unsampled = float(_library().get_epsilon_gaussian(together, mechanism.delta))
    if not mechanism.is_amplified:
        return unsampled
    # Both bounds are for the mechanism's own relation, in whose sensitivity its noise is measured.
    # The cohort is drawn in the same way in both neighbouring federations. For each cohort, their sums
    # are at most the sensitivity apart, so the round is a mixture of Gaussian mechanisms with the same
    # probabilities in both. By joint convexity it is at least as private as one of them.
    return min(unsampled, _sampled_epsilon(mechanism, releases))


def _sampled_epsilon(mechanism: Accountant, releases: int) -> float:
    """An upper bound on ε that counts the sampling. For large cohorts it can exceed that of all clients."""
    library = _library()
    if mechanism.probability is not None:
        losses = _poisson_losses(mechanism.noise_multiplier, mechanism.probability)
        return float(losses.self_compose(releases).get_epsilon_for_delta(mechanism.delta))
    event = library.SampledWithoutReplacementDpEvent(
        mechanism.num_clients, mechanism.size, library.GaussianDpEvent(mechanism.noise_multiplier)
    )
    accountant = library.rdp.RdpAccountant(ORDERS, library.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, releases).get_epsilon(mechanism.delta))


@functools.lru_cache(maxsize=64)
def _poisson_losses(noise_multiplier: float, probability: float) -> Any:
    """The privacy losses of one round, where a client is added or removed."""
    return _library().pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        value_discretization_interval=DISCRETISATION,
        sampling_prob=probability,
    )


@functools.cache
def _library() -> Any:
    """`dp-accounting`; its import takes seconds."""
    with needing("privacy", "differential privacy"):
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    return dp_accounting
