"""What stands between a site's data and a server that is not trusted: a `Gate`, passed as an argument.

The library has no implementation of its own and never looks for one: what is not passed is not there, and without a
gate, a client app answers every request exactly. `consortium/` has one for real sites.
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
Exact = TypeVar("Exact", Updates, Evaluation)


class Refused(ClientwiseError):  # noqa: N818  # an answer, not a fault
    """A request or a message that is refused. The text may go to the server."""


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
    """

    noise_key: bytes


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
