"""How much privacy a run spends: ε at δ, by Google's `dp-accounting`.

Every round is a Gaussian mechanism on a random cohort. Its sampling decides on the neighbouring
relation and on the accountant:

- Poisson sampling: a client is added or removed. Privacy loss distributions, numerically tight.
- A cohort of fixed size: a client is replaced. Rényi differential privacy of sampling without
  replacement (Wang, Balle and Kasiviswanathan, 2019), an upper bound that is not tight.
- All clients, or noise by the clients: no amplification. The exact ε of the Gaussian mechanism.

Sampling never costs privacy: the last one bounds the other two as well (`_epsilon`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import needing
from .method import Method, Plan

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
            mechanism = Accountant(
                multiplier, self.delta, self.num_clients, self.probability, self.size
            )
            return _epsilon(mechanism, releases)

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


def accountant_of(method: Method, plan: Plan, num_clients: int) -> Accountant | None:
    """The accountant of a method in a plan; None for a method without differential privacy."""
    privacy = method.privacy
    if privacy is None:
        return None
    members = plan.members(num_clients)
    multiplier = privacy.noise_multiplier or 1.0
    if privacy.local:  # the server knows which clients it asked
        return Accountant(multiplier, privacy.delta, members)
    size = plan.cohort_size if plan.probability is None else None
    return Accountant(multiplier, privacy.delta, members, plan.probability, size)


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
