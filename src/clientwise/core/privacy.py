"""What a server may learn of the clients: noised sums (differential privacy), sums alone (secure aggregation).

Differential privacy is the Gaussian mechanism on the weighted mean of clipped updates: the server clips
every update to the norm C, weighs it by at most `cap`, adds them up and adds Gaussian
noise to the sum:

    released = Σ_a w_a·clip(Δ_a, C) + z·S·N(0, 1)

S is the sensitivity: how far another client can move the sum. It follows from C, from the cap and from
what another client means (docs/results/privacy.md has the proofs):

- Weights that sum to 1 are at most 2·C·cap apart, whether a client is added, removed or replaced.
- With a fixed denominator D, w_a = min(cap, f_a/D), it is C·cap for a client that is added or removed,
  and 2·C·cap for one that is replaced.

This holds only where the score of a client depends on no other client. Each is therefore computed alone.

Secure aggregation is simulated: the sums have the rounding of masked ones, and the masks, which cancel, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le, Lt, doc
from torch import Tensor

from ..registry import OpenShare, PositiveFloat
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
    """How much a client may change the models of a run; see docs/privacy.md."""

    # The config's [methods.privacy] table is made from these fields.
    clip: Annotated[
        PositiveFloat,
        doc("Clipping norm C: longer updates are scaled down to it."),
    ]
    delta: Annotated[
        float,
        Gt(0),
        Lt(1),
        doc("δ at which ε is given. Must be smaller than 1 / number of clients."),
    ]
    noise_multiplier: Annotated[
        Annotated[float, Gt(0), Le(1e6)] | None,
        doc(
            "Standard deviation of the noise, divided by the sensitivity. Without it, `check` prints "
            "the value that spends `epsilon` in all rounds."
        ),
    ] = None
    epsilon: Annotated[
        PositiveFloat | None,
        doc("The budget: a run stops before the round that would exceed this ε. Default: none."),
    ] = None
    denominator: Annotated[
        PositiveFloat | None,
        doc(
            "A public constant that divides the scores instead of their sum: the sum that you expect "
            "in a round. Default: weights sum to 1."
        ),
    ] = None
    local: Annotated[
        bool,
        doc("Clients clip and add noise; the server sees no exact update."),
    ] = False
    public: Annotated[
        Sequence[str],
        doc("With `local`: labels of client-measured criteria that are sent without noise."),
    ] = ()
    secret: Annotated[
        bool,
        doc(
            "Draw noise and cohorts from an unrecorded key instead of the seed. Needed in a "
            "deployment on Flower. A resumed run draws anew."
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


FEWEST = 3  # clients in a secret sum: of two, each knows the other's update from it
FLOAT64_ERROR = 2.0**-51  # relative, of a product, a conversion and a quotient


@dataclass(frozen=True)
class SecureAggregation:
    """A round's weighted sum as it would be hidden from the server, simulated."""

    # The config's table `secure_aggregation` is made from these fields.
    threshold: Annotated[
        OpenShare,
        doc(
            "More than this share of the cohort must have a usable update, or the round is void. With "
            "masks, 2/3 would hold against a server that deviates together with fewer than a third of "
            "the clients; 1/2 against such a server alone, and is the least."
        ),
    ] = 2 / 3
    bits: Annotated[
        Literal[32, 64],
        doc("Bits of a masked value. 32 halves the bytes; 64 has no rounding that matters."),
    ] = 32
    clip: Annotated[
        PositiveFloat,
        doc(
            "Largest Euclidean norm of an update: a client scales a longer one down. Values are rounded "
            "in proportion to it. Differences of buffers are cut at it, value by value."
        ),
    ] = 10.0

    def needed(self, cohort: int) -> int:
        """The number of clients that must take part in a round of n."""
        return max(FEWEST, math.floor(self.threshold * cohort + 1e-9) + 1)


@dataclass(frozen=True)
class SecretSum:
    """The sums Σ s_k and Σ s_k·Δ_k of a cohort, of values in fixed point whose sum cannot overflow.

    A value of at most `limit` in size is rounded to 1/scale, with scale = (2^(bits−1)·(1 − 2^−50) − 1 − n)/(n·limit).

    Args:
        settings: of the method.
        cohort: the most clients that are added, n.
        highest: the largest score.
        usual: what the scores of a cohort sum to where its clients are alike.
    """

    settings: SecureAggregation
    cohort: int
    highest: float
    usual: float

    def scale(self, limit: float) -> float:
        """Steps per unit of values up to `limit`."""
        # float64 rounds 2^63 − 1 − n to 2^63, and each operation by up to 2^−53.
        largest = 2.0 ** (self.settings.bits - 1) * (1 - 2.0**-50) - 1 - self.cohort
        return largest / (self.cohort * limit)

    def error(self, limit: float) -> float:
        """The largest rounding error of one value."""
        return 0.5 / self.scale(limit) + limit * FLOAT64_ERROR

    def rounded(self, values: Tensor, limit: float) -> Tensor:
        """The values as a sum has them."""
        scale = self.scale(limit)
        return (values.double().clamp(-limit, limit) * scale).round() / scale

    @property
    def coarseness(self) -> float:
        """The largest rounding error of the mean of n usual updates, as a share of `clip`."""
        clip = self.settings.clip
        return self.error(self.highest * clip) * self.cohort / (clip * self.usual)

    def mean(self, scores: Tensor, updates: Tensor, num_parameters: int) -> tuple[Tensor, float]:
        """Σ s_k·Δ_k / Σ s_k [d] in float64, and the largest error of its values by the rounding.

        Args:
            scores: not all zero, [n].
            updates: [n, d], of which the first values are the parameters; clients clip them.
            num_parameters: how many.
        """
        clip = self.settings.clip
        limit = self.highest * clip
        clipped = clip_factors(norms_of(updates[:, :num_parameters]), clip).tolist()
        total = torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
        for score, factor, update in zip(scores.tolist(), clipped, updates, strict=True):
            own = update.double()
            own[:num_parameters] *= factor
            total += self.rounded(score * own.clamp(-clip, clip), limit)
        weight = float(self.rounded(scores, self.highest).sum())
        mean = total / weight
        steps = self.error(limit) + float(mean.abs().max()) * self.error(self.highest)
        return mean, len(scores) * steps / weight
