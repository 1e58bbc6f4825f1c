"""The protocol that every kind of evidence implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

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

    def most_judged(self, num_clients: int) -> int:
        """The most models that one call judges, for so many clients; none by default.

        Nodes refuse to evaluate more.
        """
        return 0


EVIDENCE: Registry[Any] = Registry("evidence", "evidence", "Changes of the prior weights")
