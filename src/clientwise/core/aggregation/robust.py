"""Shared by robust rules and the steps before them: weighted quantiles, and distances between updates.

Everything is in terms of weight, not of the number of clients: one client of weight 2w counts as two of
weight w. A *share* is a fraction of the whole weight.
"""

from __future__ import annotations

from typing import Annotated

import numpy
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import cosine_similarity

from .sums import ON_GPU, weighted_sum

Minority = Annotated[float, Ge(0), Le(0.49)]  # a share of the weight that is less than half

AT_ONCE = 2**21  # values worked on at once, so that memory does not grow with the model
TIE = 1e-12  # cumulative weights this close to each other are equal


def column_blocks(updates: Tensor) -> tuple[Tensor, ...]:
    """The updates [n, d], some columns at a time."""
    at_once = ON_GPU if updates.is_cuda else AT_ONCE
    return torch.split(updates, max(1, at_once // len(updates)), dim=1)


def combine(shares: Tensor, updates: Tensor) -> Tensor:
    """Σ_a s_a·Δ_a for shares [n], or for every row of shares [m, n]; added in float64.

    >>> combine(torch.tensor([0.5, 0.0, 0.5]), torch.tensor([[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]]))
    tensor([2., 3.])
    """
    used = (shares != 0).reshape(-1, len(updates)).any(0)  # on the shares' device, mostly the CPU
    rows: slice | Tensor = slice(None)
    if not bool(used.all()):
        rows = used
        shares = shares[..., used]
    shares = shares.to(updates.device, torch.float64)
    blocks = (block[rows] for block in column_blocks(updates))
    if updates.is_cuda and shares.ndim == 1:
        sums = [weighted_sum(shares, block).to(updates.dtype) for block in blocks]
    else:
        sums = [(shares @ block.double()).to(updates.dtype) for block in blocks]
    return torch.cat(sums, -1) if len(sums) > 1 else sums[0]


def gram(updates: Tensor) -> Tensor:
    """⟨Δ_a, Δ_b⟩ for all pairs [n, n], in float64: squares of 1e30 are finite, and near updates differ."""
    products = updates.new_zeros(len(updates), len(updates), dtype=torch.float64)
    for block in column_blocks(updates):
        exact = block.double()
        products.addmm_(exact, exact.T)
    return products


def squared_distances(updates: Tensor) -> Tensor:
    """‖Δ_a − Δ_b‖² for all pairs [n, n], in float64."""
    products = gram(updates)
    squares = products.diag()
    distances = (squares[:, None] + squares).sub_(products, alpha=2).clamp_(min=0)
    return distances.fill_diagonal_(0)


def distances_to(centre: Tensor, updates: Tensor) -> Tensor:
    """‖Δ_a − centre‖ for all clients [n], float64."""
    pairs = zip(column_blocks(updates), column_blocks(centre[None].expand_as(updates)), strict=True)
    norms = [(block - middle[0]).norm(dim=1, dtype=torch.float64) for block, middle in pairs]
    distances: Tensor = torch.stack(norms).norm(dim=0)
    return distances


def cosines_to(direction: Tensor, updates: Tensor) -> Tensor:
    """cos(Δ_a, direction) for all clients [n], float64 on the CPU; 0 for an update of zeros.

    >>> cosines_to(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """
    exact = direction.double()
    return torch.stack([cosine_similarity(row.double(), exact, dim=0) for row in updates]).cpu()


def edges(keys: Tensor, weights: Tensor, *shares: float) -> list[Tensor]:
    """Weighted quantiles: for every share, the key [1, c] at which so much of the weight [n] is reached.

    >>> edges(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0.5, 0.25, 0.25]).double(), 0.5, 0.75)
    [tensor([[2.]]), tensor([[3.]])]
    """
    rows = keys.T.contiguous()
    if bool((weights == weights[0]).all()):
        values = _sort(rows)
        reached = weights.double().cumsum(0)[None]
    else:
        order = _argsort(rows)
        values = rows.gather(1, order)
        reached = weights.double()[order].cumsum(1)
    last = len(keys) - 1
    ranks = [(reached < share - TIE).sum(1, keepdim=True).clamp(max=last) for share in shares]
    return [values.take_along_dim(rank, 1).T for rank in ranks]


def _sort(rows: Tensor) -> Tensor:
    """Every row sorted; on a CPU by NumPy, which is several times as fast as PyTorch."""
    if rows.is_cuda:
        return rows.sort(1).values
    return torch.from_numpy(numpy.sort(rows.numpy(), axis=1))


def _argsort(rows: Tensor) -> Tensor:
    if rows.is_cuda:
        return rows.argsort(1)
    return torch.from_numpy(numpy.argsort(rows.numpy(), axis=1))


def middle_edges(keys: Tensor, weights: Tensor, outside: float) -> list[Tensor]:
    """First and last key [1, c] of every column after the share `outside` is cut off at both ends.

    With `outside` = 0.5 they are the two neighbours of the median, mostly the same key twice.
    """
    return edges(keys, weights, outside + 2 * TIE, 1 - outside)


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted median of values [n].

    >>> weighted_median(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.5, 0.25, 0.25]))
    tensor(2.5000)
    """
    low, high = middle_edges(values[:, None], weights, 0.5)
    return (low + high)[0, 0] / 2


def _below_and_at(
    keys: Tensor, weights: Tensor, edge: Tensor, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Masks [n, c] of keys below and at the edge, and the fraction [c] of the latter that completes `share`."""
    below = (keys < edge).double()
    at = (keys == edge).double()
    held = (weights @ at).clamp(min=TIE)  # zero where `share` is zero
    return below, at, (share - weights @ below) / held


def within(keys: Tensor, weights: Tensor, edge: Tensor, share: float) -> Tensor:
    """Weights [n, c] of the keys below the edge [1, c], plus part of those at the edge: they sum to `share`.

    Keys that tie at the edge count in proportion to their weights.
    """
    below, at, part = _below_and_at(keys, weights, edge, share)
    return at.mul_(part).add_(below).mul_(weights[:, None])


def total_within(keys: Tensor, weights: Tensor, edge: Tensor, share: float) -> Tensor:
    """The sum of `within` over the columns, [n]."""
    below, at, part = _below_and_at(keys, weights, edge, share)
    return weights * (below.sum(1) + at @ part)


def lowest(keys: Tensor, weights: Tensor, share: float) -> Tensor:
    """Weights [n, c] of the lowest keys [n, c] in every column: they sum to `share`.

    Keys are compared in float32, so that keys that differ by rounding alone tie.

    >>> lowest(torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([0.5, 0.25, 0.25]).double(), 0.75).T
    tensor([[0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    keys = keys.float()
    return within(keys, weights, edges(keys, weights, share)[0], share)
