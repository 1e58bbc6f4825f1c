"""What every kind of evidence shares: the protocol, and memories with a row for every client that was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ...registry import Registry
from ..types import Gathered, Posterior


class Evidence(Protocol):
    """Turns prior weights into posterior weights. The options are arguments of the constructor.

    A subclass inherits "no memory" and "judges no model".
    """

    # What `check` foretells the memory of a round by:
    client_models: ClassVar[int] = 0  # models that its memory has of every client that was seen
    judges_all: ClassVar[bool] = False  # whether it judges a model for every client at once

    def first(self, num_clients: int) -> Mapping[str, Tensor]:
        """The memory before the first round: tensors [K] with a value for every client; none by default."""
        return {}

    def __call__(
        self, gathered: Gathered, prior: Tensor, memory: Mapping[str, Tensor]
    ) -> Posterior:
        """Weigh the clients of a round.

        Args:
            gathered: what the server holds of the n clients of the round.
            prior: weights by the score, sum to 1, [n].
            memory: what the last call left, tensors [K].

        Returns:
            The posterior weights [n], and the memory for the next round.
        """
        ...


EVIDENCE: Registry[Any] = Registry("evidence", "evidence", "Changes of the prior weights")


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
    known = torch.zeros(0, dtype=torch.int64) if ids is None else ids.cpu()
    asked = torch.tensor(client_ids, dtype=torch.int64)
    largest = max([int(some.max()) for some in (known, asked) if len(some)], default=-1)
    row_of = torch.full((largest + 1,), -1)
    row_of[known] = torch.arange(len(known))
    unknown = asked[row_of[asked] < 0].tolist()
    known = torch.cat([known, torch.tensor(list(dict.fromkeys(unknown)), dtype=torch.int64)])
    row_of[known] = torch.arange(len(known))
    return known, row_of[asked]


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
