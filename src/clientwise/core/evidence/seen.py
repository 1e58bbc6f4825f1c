"""Rows of a memory that has one row for every client that was seen, and none for others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def enlist(ids: Tensor | None, client_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The clients that were seen, with new ones at the end, and the rows of a round's clients.

    Args:
        ids: the clients that were seen before [s]; None: none.
        client_ids: the n clients of the round.

    Returns:
        All clients that were seen, and the rows [n] of the round's.

    Example:
        >>> enlist(torch.tensor([7, 4]), [4, 9])
        (tensor([7, 4, 9]), tensor([1, 2]))
    """
    known = [] if ids is None else ids.tolist()
    row_of = {client: row for row, client in enumerate(known)}
    for client in client_ids:
        row_of.setdefault(client, len(row_of))
    rows = [row_of[client] for client in client_ids]
    return torch.tensor(list(row_of), dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)


def with_rows(values: Tensor | None, count: int, first: Tensor) -> Tensor:
    """A copy of the values with `count` rows; rows that are missing are like `first`.

    >>> with_rows(torch.tensor([[1.0, 2.0]]), 2, torch.zeros(2))
    tensor([[1., 2.],
            [0., 0.]])
    """
    missing = count if values is None else count - len(values)
    new = first.expand(missing, *first.shape)
    if values is None:
        return new.clone()
    return torch.cat([values.to(first.device), new])
