"""What the parties of a round agree on before it, and the order of its steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Message = dict[str, Any]  # plain JSON; bytes are written in hex, and "masked" is an array
KEYS = "keys"
SHARES = "shares"
MASK = "mask"
CONFIRM = "confirm"
UNMASK = "unmask"
GONE = "a client dropped out between the two sums, whose difference would tell about its score"
PROTOCOL = "clientwise secure 2"  # changes with every change of a message, key or mask
FEWEST = 3  # clients: of two, each knows the other's value from the sum


class ProtocolError(ValueError):
    """A message that does not follow the protocol. Nothing is revealed in answer to it."""


class VoidError(Exception):
    """A round that cannot be finished; says why. Nobody's value is revealed."""


@dataclass(frozen=True)
class Sum:
    """One masked sum of a round.

    Args:
        purpose: its name; keys and masks of different sums are independent.
        length: values in the vector.
        bits: of the modulus 2^bits, 32 or 64.
    """

    purpose: str
    length: int
    bits: int


@dataclass(frozen=True)
class Terms:
    """The public facts of a round. Each party computes them from what it knows itself.

    Args:
        run: names the run, seed and round. The server chooses the number of a run, so no secret
            depends on its being new: clients make new keys for every round.
        agreed: hash of the global model, the task and the experiment.
        cohort: number of clients that the round asks, n.
        threshold: clients that must take part in every step, t.
        sums: the masked sums in their order.
    """

    run: str
    agreed: str
    cohort: int
    threshold: int
    sums: tuple[Sum, ...]

    def __post_init__(self) -> None:
        if self.threshold < FEWEST:
            raise ValueError(
                f"a threshold of {self.threshold} of {self.cohort} clients: secure aggregation needs "
                f"at least {FEWEST}"
            )
        if not self.cohort < 2 * self.threshold <= 2 * self.cohort:
            raise ValueError(
                f"a threshold of {self.threshold} of {self.cohort} clients is not a majority"
            )

    @cached_property
    def context(self) -> str:
        """Binds every key, signature and ciphertext to this round."""
        sums = [(one.purpose, one.length, one.bits) for one in self.sums]
        return digest("terms", self.run, self.agreed, self.cohort, self.threshold, sums)

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """What a client is asked for, each step once and in this order."""
        steps = [KEYS, SHARES]
        for one in self.sums:
            steps += [step_of(kind, one.purpose) for kind in (MASK, CONFIRM, UNMASK)]
        return tuple(steps)

    @property
    def purposes(self) -> tuple[str, ...]:
        """The names of the sums."""
        return tuple(one.purpose for one in self.sums)

    def exposes_dropped(self, purpose: str, before: int, now: int) -> bool:
        """Whether a later sum lacks a client of the sum before it."""
        return purpose != self.purposes[0] and now < before

    def sum_for(self, purpose: str) -> Sum:
        """The sum with this name."""
        return next(one for one in self.sums if one.purpose == purpose)


def step_of(kind: str, purpose: str) -> str:
    """The name of a step of one sum."""
    return f"{kind} {purpose}"


def encode(*parts: Any) -> bytes:
    """Plain values as bytes: equal only where all values are equal."""
    return json.dumps([PROTOCOL, *parts], sort_keys=True).encode()


def digest(*parts: Any) -> str:
    """SHA-256 of plain values, in hex."""
    return hashlib.sha256(encode(*parts)).hexdigest()


def read_bytes(value: Any, length: int, what: str) -> bytes:
    """Bytes of a known length, from hex."""
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        raise ProtocolError(f"{what} is not written in hex") from None
    if len(found) != length or found.hex() != value:  # one way of writing: equal texts, equal bytes
        raise ProtocolError(f"{what} is not {length} bytes in hex")
    return found


def read_table(message: Any, key: str) -> Mapping[str, Any]:
    """A table of a message."""
    found = message.get(key) if isinstance(message, dict) else None
    if not isinstance(found, dict):
        raise ProtocolError(f"the message has no table {key!r}")
    return found


def read_clients(value: Any, known: Sequence[int], what: str) -> list[int]:
    """A sorted list of clients, each of them known and listed once."""
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise ProtocolError(f"{what} is not a list of clients")
    if value != sorted(set(value)):
        raise ProtocolError(f"{what} lists a client twice or out of order")
    if not set(value) <= set(known):
        raise ProtocolError(f"{what} lists a client that has no part in this step")
    return value
