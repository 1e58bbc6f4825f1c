"""Client sampling: which clients take part in a round."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .seeding import generator, uniform


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
    return _first(order, size, among)


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
    chosen = drawn.nonzero().flatten()
    return _first(chosen, num_clients, among)


def secret_sample(
    num_clients: int, size: int, key: bytes, round_num: int, among: frozenset[int] | None = None
) -> tuple[int, ...]:
    """As `sample_clients`, for those who know the key alone."""
    order = uniform(key, f"cohort/{round_num}", num_clients).argsort()
    return _first(order, size, among)


def _first(order: Tensor, size: int, among: frozenset[int] | None) -> tuple[int, ...]:
    """The first clients in an order, in ascending order of their numbers."""
    if among is None:  # few of a million
        order = order[:size]
    allowed = [client for client in order.tolist() if among is None or client in among]
    return tuple(sorted(allowed[:size]))
