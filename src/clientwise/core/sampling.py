"""Client sampling: which clients take part in a round."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..registry import OpenShare, Registry
from .seeding import generator, uniform

SAMPLINGS: Registry[Any] = Registry("sampling", "samplings", "How a round's clients are drawn")


def cohort_size(
    num_clients: int, *, fraction: float | None = None, clients_per_round: int | None = None
) -> int:
    """How many clients a round asks: `clients_per_round`, or a fraction of all; at least one.

    >>> cohort_size(100, fraction=0.1), cohort_size(6), cohort_size(100, clients_per_round=7)
    (10, 6, 7)
    """
    if clients_per_round is not None:
        return min(clients_per_round, num_clients)
    if fraction is None:
        return num_clients
    return max(1, round(num_clients * fraction))


@functools.lru_cache(maxsize=16)  # all methods of a seed ask for the same cohorts
def sample_clients(
    num_clients: int,
    size: int,
    seed: int,
    round_num: int,
    among: frozenset[int] | None = None,
) -> tuple[int, ...]:
    """The cohort A⁻ of a round: `size` clients, drawn uniformly without replacement.

    It is the same for every method of a seed. `among` restricts it to some clients. A client of the
    unrestricted cohort is also in the restricted one, if it is among them.
    """
    order = torch.randperm(num_clients, generator=generator(seed, "cohort", round_num))
    return _first(order.tolist(), size, among)


def poisson_sample(
    num_clients: int,
    probability: float,
    key: bytes,
    round_num: int,
    among: frozenset[int] | None = None,
) -> tuple[int, ...]:
    """A cohort of random size, possibly empty: each client with this probability, independently.

    >>> len(poisson_sample(1000, 0.1, b"key", 1))
    104
    """
    drawn = uniform(key, f"cohort/{round_num}", num_clients) < probability
    chosen = drawn.nonzero().flatten().tolist()
    return _first(chosen, num_clients, among)


def secret_sample(
    num_clients: int, size: int, key: bytes, round_num: int, among: frozenset[int] | None = None
) -> tuple[int, ...]:
    """As `sample_clients`, for those who know the key alone."""
    order = uniform(key, f"cohort/{round_num}", num_clients).argsort().tolist()
    return _first(order, size, among)


def _first(order: Sequence[int], size: int, among: frozenset[int] | None) -> tuple[int, ...]:
    """The first clients in an order, in ascending order of their numbers."""
    allowed = [client for client in order if among is None or client in among]
    return tuple(sorted(allowed[:size]))


@SAMPLINGS.register("by_score")
@dataclass(frozen=True)
class ByScore:
    """Draw clients with a higher score f of their last criteria more often: by floor/K + (1 − floor)·f_k/Σf.

    Every round draws without replacement. The probability that client k is drawn is this share times
    the cohort's size, or 1 where that is more; the others then share what is left. A client without
    criteria has the mean score. Before the first criteria, all clients are alike.

    The drawn clients have equal weights before the evidence, so a client's expected weight is its share
    (scheme I of Li et al., 2020). What favours clients biases the model towards their data (Cho et al., 2022).

    Args:
        floor: part of the share that all K clients have alike, so that each is drawn at times.

    >>> scores = torch.tensor([3.0, 1.0, torch.nan, 0.0])  # the third has not been seen
    >>> [round(one, 3) for one in ByScore(floor=0.2).probabilities(scores, 2).tolist()]
    [1.0, 0.4, 0.5, 0.1]
    """

    floor: OpenShare = 0.1

    def probabilities(self, scores: Tensor, size: int) -> Tensor:
        """The probability [K] that each client is among `size` drawn ones, for its score or NaN [K]."""
        seen = ~scores.isnan()
        mean = scores[seen].mean() if seen.any() else torch.ones(())
        known = torch.where(seen, scores, mean.to(scores)).double().clamp(min=0)
        total = known.sum()
        share = known / total if 0 < total < torch.inf else torch.full_like(known, 1 / len(known))
        return inclusion(self.floor / len(share) + (1 - self.floor) * share, size)

    def draw(
        self,
        scores: Tensor,
        num_clients: int,
        size: int,
        seed: int,
        round_num: int,
        among: frozenset[int] | None = None,
    ) -> tuple[int, ...]:
        """The cohort of a round; `scores` [K] are NaN for clients without, the rest as `sample_clients`."""
        allowed = torch.tensor(sorted(range(num_clients) if among is None else among))
        if size >= len(allowed):
            return tuple(allowed.tolist())
        draws = generator(seed, "cohort by score", round_num)
        order = allowed[torch.randperm(len(allowed), generator=draws)]
        chosen = systematic(self.probabilities(scores[order], size), draws)
        return tuple(order[chosen].sort().values.tolist())


def inclusion(shares: Tensor, size: int) -> Tensor:
    """Probabilities [K], proportional to the shares but at most 1, that sum to `size`, which is at most K.

    >>> inclusion(torch.tensor([0.8, 0.1, 0.1]), 2)
    tensor([1.0000, 0.5000, 0.5000])
    """
    certain = torch.zeros_like(shares, dtype=torch.bool)
    while True:
        rest = torch.where(certain, 0.0, shares)
        if not rest.any():  # so small a floor that it is rounded to zero
            rest = (~certain).to(shares.dtype)
        scaled = rest / rest.sum() * (size - int(certain.sum()))
        above = (scaled >= 1) & ~certain
        if not above.any():
            return torch.where(certain, 1.0, scaled)
        certain |= above


def systematic(probabilities: Tensor, draws: torch.Generator) -> Tensor:
    """Whether each of K clients is drawn [K], with exactly these probabilities (Madow, 1949).

    The number of drawn clients is the sum of the probabilities. Pass clients in random order: whether
    two are drawn together depends on it.
    """
    ends = probabilities.double().cumsum(0)
    ends[-1] = ends[-1].round()  # a whole number, but for rounding
    start = torch.rand((), generator=draws, dtype=torch.float64)
    passed = (ends + start).floor()
    return passed.diff(prepend=torch.zeros(1, dtype=torch.float64)) > 0
