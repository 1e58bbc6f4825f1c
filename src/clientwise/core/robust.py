"""What robust rules and the steps before them share: who is within a share of the weight, and who is near to whom.

All of it is in terms of weight, never of the number of clients: a client of weight 2w is the same as two of weight w.
"""

from __future__ import annotations

from typing import Annotated

import numpy
import torch
from annotated_types import Ge, Le
from torch import Tensor

Minority = Annotated[float, Ge(0), Le(0.49)]  # a share of the weight that is less than half

AT_ONCE = 2**21  # values worked on at once: memory does not grow with the model, and threads are not started for little
ON_GPU = 2**26  # a GPU wants few and large pieces
TIE = 1e-12  # cumulative weights this close to each other are the same


def column_blocks(updates: Tensor) -> tuple[Tensor, ...]:
    """The updates [n, d], some columns at a time."""
    at_once = (ON_GPU if updates.is_cuda else AT_ONCE) // len(updates)
    return torch.split(updates, max(1, at_once), dim=1)


def combine(shares: Tensor, updates: Tensor) -> Tensor:
    """Σ_a s_a·Δ_a for shares [n], or for every row of shares [m, n]; added in float64.

    >>> combine(torch.tensor([0.5, 0.0, 0.5]), torch.tensor([[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]]))
    tensor([2., 3.])
    """
    used = (shares != 0).reshape(-1, len(updates)).any(0)  # where the weights are: mostly no GPU has to be waited for
    rows, shares = (slice(None), shares) if bool(used.all()) else (used, shares[..., used])
    shares = shares.to(updates.device, torch.float64)
    return torch.cat([(shares @ block[rows].double()).to(updates.dtype) for block in column_blocks(updates)], -1)


def gram(updates: Tensor) -> Tensor:
    """⟨Δ_a, Δ_b⟩ for all pairs [n, n]; in float64, which holds the square of 1e30 and what tells near ones apart."""
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=updates.device)
    for block in column_blocks(updates):
        exact = block.double()
        products.addmm_(exact, exact.T)
    return products


def squared_distances(updates: Tensor) -> Tensor:
    """‖Δ_a − Δ_b‖² for all pairs [n, n], float64."""
    products = gram(updates)
    norms = products.diag()
    return (norms[:, None] + norms - 2 * products).clamp(min=0).fill_diagonal_(0)


def distances_to(centre: Tensor, updates: Tensor) -> Tensor:
    """‖Δ_a − centre‖ for all clients [n], float64."""
    pairs = zip(column_blocks(updates), column_blocks(centre[None].expand_as(updates)), strict=True)
    norms = [(block - middle[0]).norm(dim=1, dtype=torch.float64) for block, middle in pairs]
    distances: Tensor = torch.stack(norms).norm(dim=0)
    return distances


def edges(keys: Tensor, weights: Tensor, *shares: float) -> list[Tensor]:
    """For every share, the key [1, c] of every column at which that much of the weight [n] is reached from below.

    >>> edges(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0.5, 0.25, 0.25]).double(), 0.5, 0.75)
    [tensor([[2.]]), tensor([[3.]])]
    """
    rows = keys.T.contiguous()
    if bool((weights == weights[0]).all()):
        values, reached = _sort(rows), weights.double().cumsum(0)[None]
    else:
        order = _argsort(rows)
        values, reached = rows.gather(1, order), weights.double()[order].cumsum(1)
    last = len(keys) - 1
    ranks = [(reached < share - TIE).sum(1, keepdim=True).clamp(max=last) for share in shares]
    return [values.take_along_dim(rank, 1).T for rank in ranks]


def _sort(rows: Tensor) -> Tensor:
    """Every row sorted: on a CPU by NumPy, which uses vector instructions and is several times as fast as PyTorch."""
    return rows.sort(1).values if rows.is_cuda else torch.from_numpy(numpy.sort(rows.numpy(), axis=1))


def _argsort(rows: Tensor) -> Tensor:
    return rows.argsort(1) if rows.is_cuda else torch.from_numpy(numpy.argsort(rows.numpy(), axis=1))


def middle_edges(keys: Tensor, weights: Tensor, outside: float) -> list[Tensor]:
    """The first and the last key [1, c] of every column that are not within the lowest and the highest share `outside`.

    Without half on each side, these are the two neighbours of the middle: mostly the same one twice.
    """
    return edges(keys, weights, outside + 2 * TIE, 1 - outside)


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The median of values [n], a number.

    >>> weighted_median(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.5, 0.25, 0.25]))
    tensor(2.5000)
    """
    low, high = middle_edges(values[:, None], weights, 0.5)
    return (low + high)[0, 0] / 2


def _below_and_at(keys: Tensor, weights: Tensor, edge: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Who is below the edge [n, c] and who at it, and what part of these makes the weight `share` [c]."""
    below, at = (keys < edge).double(), (keys == edge).double()
    held = (weights @ at).clamp(min=TIE)  # at the edge of no share there may be none
    return below, at, (share - weights @ below) / held


def within(keys: Tensor, weights: Tensor, edge: Tensor, share: float) -> Tensor:
    """The weight [n, c] of those below the edge [1, c], and as much of that at the edge as makes it sum to `share`.

    Who stands at the edge counts in part; those that tie there do so in proportion to their weights.
    """
    below, at, part = _below_and_at(keys, weights, edge, share)
    return at.mul_(part).add_(below).mul_(weights[:, None])


def total_within(keys: Tensor, weights: Tensor, edge: Tensor, share: float) -> Tensor:
    """The sum of `within` over the columns, [n]."""
    below, at, part = _below_and_at(keys, weights, edge, share)
    return weights * (below.sum(1) + at @ part)


def lowest(keys: Tensor, weights: Tensor, share: float) -> Tensor:
    """The weight [n, c] of those with the lowest keys [n, c], column by column, until it sums to `share`.

    The keys are compared in float32, so that what differs by rounding alone is a tie.

    >>> lowest(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0.5, 0.25, 0.25]).double(), 0.75).T
    tensor([[0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    keys = keys.float()
    return within(keys, weights, edges(keys, weights, share)[0], share)
