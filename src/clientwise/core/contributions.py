"""Contributions of clients: Shapley values of a game whose players are the clients.

The worth v(S) of a coalition S is a number; v(∅) is that of nobody. The Shapley value of player a is its
marginal gain v(S ∪ a) − v(S), averaged over all orders in which the players can join (Shapley, 1953).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

# Worths [c] of coalitions [c, n], whose entries are 1 for members and 0 for others
Worth = Callable[[Tensor], Tensor]
MOST_EXACT = 10  # players whose coalitions are all evaluated: 1,024
ORDERS = 40  # random orders of more players


@dataclass(frozen=True)
class Contributions:
    """Shapley values, and their standard errors where they were sampled."""

    values: Tensor  # [n]
    errors: Tensor  # [n] zero where all coalitions were evaluated


def all_coalitions(count: int) -> Tensor:
    """Every coalition of so many players [2^n, n]; row i has player a if bit a of i is set."""
    return torch.arange(2**count)[:, None] >> torch.arange(count) & 1


def exact_shapley(worth: Tensor) -> Tensor:
    """Shapley values [n] from the worths of `all_coalitions` [2^n].

    φ_a = Σ over S without a of |S|!·(n−|S|−1)!/n! · (v(S ∪ a) − v(S))

    Example:
        >>> exact_shapley(torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64))
        tensor([1.5000, 2.5000], dtype=torch.float64)
    """
    count = len(worth).bit_length() - 1
    members = all_coalitions(count)
    codes = torch.arange(2**count)
    sizes = members.sum(1)
    values = []
    for player in range(count):
        without = codes[members[:, player] == 0]
        factors = [1 / (count * comb(count - 1, size)) for size in sizes[without].tolist()]
        gains = worth[without + 2**player] - worth[without]
        values.append(torch.tensor(factors, dtype=torch.float64) @ gains.double())
    return torch.stack(values)


def sampled_shapley(
    worth: Worth, count: int, orders: int, random: torch.Generator
) -> Contributions:
    """Mean marginal gains over random orders [n], with the standard error of that mean.

    Half of the orders are the other half reversed, so that early and late positions balance out
    (antithetic sampling). The error is that of the means of such pairs.

    Args:
        worth: worths of coalitions.
        count: number of players.
        orders: number of orders, rounded down to pairs; at least two pairs.
        random: draws the orders.
    """
    pairs = max(2, orders // 2)
    means = []
    for _ in range(pairs):
        order = torch.randperm(count, generator=random)
        both = [_gains(worth, order), _gains(worth, order.flip(0))]
        means.append(torch.stack(both).mean(0))
    found = torch.stack(means)
    return Contributions(found.mean(0), found.std(0) / pairs**0.5)


def shapley(worth: Worth, count: int, random: torch.Generator) -> Contributions:
    """Exact values of up to ten players; sampled ones of more."""
    if count <= MOST_EXACT:
        values = exact_shapley(worth(all_coalitions(count)))
        return Contributions(values, torch.zeros_like(values))
    return sampled_shapley(worth, count, ORDERS, random)


def _gains(worth: Worth, order: Tensor) -> Tensor:
    """What each player adds as the players join in an order [n]; the sum is v(all) − v(∅)."""
    count = len(order)
    joined = torch.zeros(count + 1, count, dtype=torch.int64)
    for position, player in enumerate(order.tolist()):
        joined[position + 1 :, player] = 1
    steps = worth(joined).double().diff()
    gains = torch.zeros(count, dtype=torch.float64)
    gains[order] = steps
    return gains
