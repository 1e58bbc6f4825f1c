"""What stands between a site's data and a server that is not trusted: protocols, passed as arguments.

The library has no implementation of its own and never looks for one: what is not passed is not there. Only `Gate` is
used here: without one, a client app answers every request exactly. A package for real sites implements the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

from torch import Tensor

from ..core.types import Evaluation, Task, Updates
from ..errors import ClientwiseError

VERSION = version("clientwise")
Row = Mapping[str, Any]  # values that JSON can hold
Fixed = Tensor  # int64: numbers in fixed point, so that a sum does not depend on its order
Exact = TypeVar("Exact", Updates, Evaluation)


class Refused(ClientwiseError):  # noqa: N818  # an answer, not a fault
    """A request or a message that is refused. The text may go to the server."""


class Void(ClientwiseError):  # noqa: N818
    """A round whose sum cannot be used: the model stays as it was."""


@dataclass(frozen=True)
class OwnData:
    """What one node holds: (inputs, targets) to train on and to test on, as the model sees them."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]
    # Facts about the training samples
    sample_attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A request without its models."""

    client: int
    seed: int
    task: Task | None = None  # None: evaluate
    version: str = VERSION  # of clientwise, at the server
    round_num: int = 0  # of an evaluation; a task has its own
    frozen: str = ""  # digest of the server's frozen parameters, which no message holds


@dataclass(frozen=True)
class Permit:
    """A request that was let in.

    Args:
        noise_key: what the noise of the client's update follows from: the same key, the same noise.
        stored: answers that were given before, by model. They are given again, not computed again.
    """

    noise_key: bytes
    stored: Mapping[str, Evaluation] = field(default_factory=dict)


class Sealer(Protocol):
    """Seals messages so that only the receiver can read them, and knows whom they are from.

    A peer is the name of a member, or "server". `about` says what a message is about, such as its run and round: it is
    bound to the content.
    """

    def seal(self, peer: str, about: Row, content: bytes) -> bytes:
        """An envelope for a peer."""
        ...

    def unseal(self, peer: str, about: Row, envelope: bytes) -> bytes:
        """The content of a peer's envelope; `Refused` where it is of someone else, or about something else."""
        ...


class Gate(Protocol):
    """At a site: decides which requests are answered, and what the answers say."""

    def rows(self, load: Callable[[], OwnData]) -> OwnData:
        """The rows to train and test on."""
        ...

    def admit(self, request: Request, models: Tensor) -> Permit:
        """Let a request in, before any row is read; `Refused` otherwise."""
        ...

    def release(self, permit: Permit, exact: Exact) -> Exact:
        """What leaves the site, given the exact answer."""
        ...


class Outbox(Protocol):
    """At the server: the record of a run, as far as it goes to the sites."""

    def round_done(self, body: Row, rows: Mapping[str, Row]) -> None:
        """Add a round that is recorded: what everyone may read, and a row for each member."""
        ...

    def head(self) -> str:
        """The digest of all rounds so far. It is part of every instruction."""
        ...


class SecureSum(Protocol):
    """At a site: its part of the sums of one round, which the server cannot read alone."""

    def key(self) -> bytes:
        """The public key of this round."""
        ...

    def masked(
        self, purpose: str, roster: Mapping[str, bytes], told: object, values: Fixed
    ) -> Fixed:
        """The values under masks that cancel in the sum of all members.

        Args:
            purpose: which sum of the round it is.
            roster: the public keys of all members.
            told: what the server told all members. A member that was told something else does not cancel.
            values: this site's own, in fixed point.
        """
        ...


class Total(Protocol):
    """At the server: sums of what all members masked."""

    def total(self, purpose: str, parts: Mapping[str, Fixed]) -> Fixed:
        """The sum over all members; `Void` where one is missing."""
        ...
