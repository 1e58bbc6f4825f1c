"""What every kind of evidence shares: the protocol, memories with a row for every client that was seen, Page's test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ...registry import Registry
from ..types import Gathered, LookBack, Posterior


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

    def for_trial(self) -> Evidence:
        """The same without what takes long, for the round that `check` tries."""
        return self

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


StandardErrors = Annotated[float, Ge(0), Le(100)]
Strength = Annotated[float, Gt(0), Le(100)]


@dataclass(frozen=True)
class PageTest(Evidence):
    """Evidence that is summed: against each client and in its favour, and its factor on the weight by the score.

    With z_k the evidence of a round against client k in standard errors (CUSUM test, Page, 1954):

        against_k ← max(0, against_k + z_k − slack),    favour_k ← max(0, favour_k − z_k − slack)
        log f_k ← min(0, log f_k − strength · (against_k − threshold)₊ + strength · (favour_k − threshold)₊)

    Both sums are cut at the threshold once they have had their effect.
    """

    threshold: StandardErrors
    slack: StandardErrors
    strength: Strength

    def first(self, num_clients: int) -> dict[str, Tensor]:
        """No evidence on any client."""
        names = ("against", "favour", "log_odds")
        return {name: torch.zeros(num_clients, dtype=torch.float64) for name in names}

    def posterior(
        self,
        rows: Tensor,
        prior: Tensor,
        z: Tensor | None,
        memory: Mapping[str, Tensor],
        past: LookBack,
    ) -> Posterior:
        """The weights after a round.

        Args:
            rows: the n clients of the round.
            prior: weights by the score, sum to 1, [n].
            z: evidence against each client [n]; None: there is none in this round.
            memory: as `first` or the last call left it.
            past: what the directions of the updates tell.

        Returns:
            Weights [n] and memory; its z is `against`, or −`favour` if that is larger.
        """
        log_odds = memory["log_odds"][rows]
        after = past.kept_in(memory)
        if z is None:
            return Posterior(past.counted_once(moved(prior, log_odds)), after, look_back=past)
        against = (memory["against"][rows] + z - self.slack).clamp(min=0)
        favour = (memory["favour"][rows] - z - self.slack).clamp(min=0)
        beyond = (against - self.threshold).clamp(min=0) - (favour - self.threshold).clamp(min=0)
        log_odds = (log_odds - self.strength * beyond).clamp(max=0)
        after["against"][rows] = against.clamp(max=self.threshold)
        after["favour"][rows] = favour.clamp(max=self.threshold)
        after["log_odds"][rows] = log_odds
        return Posterior(
            weights=past.counted_once(moved(prior, log_odds)),
            memory=after,
            z=torch.where(against >= favour, against, -favour),
            look_back=past,
        )


def moved(prior: Tensor, log_odds: Tensor) -> Tensor:
    """The prior weights [n], each times exp(log_odds), divided by their sum; a prior of 0 stays 0."""
    result = prior * (log_odds - log_odds[prior > 0].max()).exp()
    return result / result.sum()
