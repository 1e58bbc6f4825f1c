"""What a site may put between its data and a server: passed as an argument, never looked for.

    app = client_app("experiment.toml", gate=MyGate(...))

The library has no gate of its own. Without one, a client app answers every request exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import Tensor

from ..core.types import Evaluation, Updates

if TYPE_CHECKING:  # these need Flower
    from .flower.data import OwnData
    from .flower.wire import Request

Exact = TypeVar("Exact", Updates, Evaluation)


@dataclass(frozen=True)
class Permit:
    """A request that was let in.

    Args:
        noise_key: what the noise of the client's update follows from: the same key, the same noise.
    """

    noise_key: bytes


class Gate(Protocol):
    """Decides which requests a site answers, and what its answers say."""

    def rows(self, load: Callable[[], OwnData]) -> OwnData:
        """The rows to train and test on."""
        ...

    def admit(self, request: Request, models: Tensor) -> Permit:
        """Let a request in, before any row is read; `errors.RefusedError` otherwise."""
        ...

    def release(self, permit: Permit, exact: Exact) -> Exact:
        """What leaves the site, given the exact answer."""
        ...
