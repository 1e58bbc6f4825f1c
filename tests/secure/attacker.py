"""A server that deviates, with the code in hand: what it is told, and all that it can compute from it.

It drives real clients, and keeps every reply. `Attack.readable` then removes every mask that the replies
tell, from every sum and difference of masked vectors. It is given more than a server has: where enough
holders revealed a share of a secret, it takes the secret itself; and it knows every client's view.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest

pytest.importorskip("Crypto", reason="needs clientwise[deployment]")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from clientwise.secrecy.masks.client import SecureClient
from clientwise.secrecy.masks.primitives import (
    Masked,
    is_signed,
    public_bytes,
    value_type,
)
from clientwise.secrecy.masks.statements import (
    mask_key,
    pair_mask,
    self_mask,
    signed_survivors,
)
from clientwise.secrecy.masks.terms import Message, Sum, Terms

SUMS = (Sum("criteria", 12, 64), Sum("vector", 12, 32))
FULL = 1 << 20  # a client's values are below it, and so small that a sum of them is told from noise
# What the server sends instead of an honest message: (step, client, message) -> the message; None: nothing
Tell = Callable[[str, int, Message], Message | None]


@dataclass(frozen=True, eq=False)
class Vector:
    """One masked vector that a client sent, and what it depends on."""

    client: int
    view: str
    peers: dict[int, bytes]  # their public keys, as the client was told them
    told: Any
    masked: Masked


@dataclass
class Attack:
    """One round under attack.

    Args:
        terms: of the round, as most clients have them.
        tell: the deviation.
        colluding: clients whose secrets the server has, and that sign anything.
        own_terms: other terms of single clients.
        keys: the clients' identities.
        leaked: mask keys that the server has from earlier rounds, by public key.
    """

    terms: Terms
    tell: Tell = lambda step, client, message: message
    colluding: frozenset[int] = frozenset()
    own_terms: dict[int, Terms] = field(default_factory=dict)
    keys: dict[int, Ed25519PrivateKey] = field(default_factory=dict)
    leaked: dict[bytes, X25519PrivateKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        everyone = range(self.terms.cohort)
        self.keys = self.keys or {client: Ed25519PrivateKey.generate() for client in everyone}
        self.identities = {
            one: key.public_key().public_bytes_raw() for one, key in self.keys.items()
        }
        self.clients = {
            client: SecureClient(
                self.own_terms.get(client, self.terms), client, key, self.identities
            )
            for client, key in self.keys.items()
        }
        chance = numpy.random.default_rng(1)
        self.values = {
            one.purpose: {
                client: chance.integers(1, FULL, one.length).astype(value_type(one.bits))
                for client in everyone
            }
            for one in self.terms.sums
        }
        self.answers: dict[str, dict[int, Message]] = defaultdict(dict)  # the last ones, by step
        self.refusals: list[str] = []
        self.vectors: dict[str, list[Vector]] = defaultdict(list)
        self.secrets: dict[tuple[int, str, str], str] = {}  # the true ones: owner, purpose, kind
        self.told: dict[tuple[int, str, str], set[int]] = defaultdict(
            set
        )  # who told of each secret

    # What the server does -------------------------------------------------------------------------

    def run(self) -> Attack:
        """All steps, with whatever clients answer."""
        everyone = list(self.clients)
        for client in everyone:
            self.ask("keys", client, {})
        roster = {str(client): reply for client, reply in self.answers["keys"].items()}
        for client in everyone:
            self.ask("shares", client, {"roster": roster})
        for one in self.terms.sums:
            self._sum(one.purpose)
        return self

    def _sum(self, purpose: str) -> None:
        for client in self.clients:
            request: Message = {"broadcast": {"score": 1}}
            if purpose == self.terms.purposes[0]:
                request |= self.packets_for(client)
            self.ask(f"mask {purpose}", client, request)
        listed = sorted(self.answers[f"mask {purpose}"])
        for client in listed:
            self.ask(f"confirm {purpose}", client, {"survivors": listed})
        for client in list(self.answers[f"confirm {purpose}"]):
            self.ask(
                f"unmask {purpose}", client, {"signatures": self.signatures_for(client, purpose)}
            )

    def packets_for(self, client: int) -> Message:
        """The shares that others sent to a client."""
        found: Message = {"packets": {}, "commitments": {}}
        for owner, reply in self.answers["shares"].items():
            if owner != client:
                for table in found:
                    found[table][str(owner)] = reply[table].get(str(client), "")
        return found

    def signatures_for(self, client: int, purpose: str) -> dict[str, str]:
        """All signatures that a client accepts."""
        state = self.clients[client].state
        text = signed_survivors(state["view"])
        found = {}
        for signer in state["survivors"]:
            if signer in self.colluding:
                found[str(signer)] = self.keys[signer].sign(text).hex()
                continue
            signature = self.answers[f"confirm {purpose}"].get(signer, {}).get("signature", "")
            if is_signed(self.identities[signer], bytes.fromhex(signature), text):
                found[str(signer)] = signature
        return found

    def ask(self, step: str, client: int, message: Message) -> Message | None:
        """One request, as the deviation has it; the answer, if there is one."""
        told = self.tell(step, client, copy.deepcopy(message))
        return None if told is None else self.ask_plainly(step, client, told)

    def ask_plainly(self, step: str, client: int, message: Message) -> Message | None:
        """One request as it is. What the answer tells is kept."""
        one = self.clients[client]
        one.state = json.loads(json.dumps(one.state))  # as between the messages of a node
        survivors = one.state.get("survivors")
        kind, _, purpose = step.partition(" ")
        told = json.loads(json.dumps(message))
        try:
            reply = self._answer(one, kind, purpose, told)
        except ValueError as reason:  # a ProtocolError is one
            self.refusals.append(f"{step}: {reason}")
            return None
        if kind == "keys":
            for what, secrets in one.state["secrets"].items():
                for name, secret in secrets.items():
                    self.secrets[client, what, name] = secret
        elif kind == "mask":
            roster = one.state["roster"]
            peers = {peer: bytes.fromhex(roster[str(peer)][purpose]) for peer in one.state["peers"]}
            view, said = one.state["view"], told.get("broadcast")
            found = Vector(client, view, peers, said, reply["masked"])
            if not any(
                numpy.array_equal(found.masked, one.masked) for one in self.vectors[purpose]
            ):
                self.vectors[purpose].append(found)
        elif kind == "unmask":
            self.told[client, purpose, "self"] |= set(range(self.terms.cohort))
            for owner in reply["shares"]:
                which = "self" if int(owner) in survivors else "mask"
                self.told[int(owner), purpose, which].add(client)
        self.answers[step][client] = reply
        return reply

    def _answer(self, one: SecureClient, kind: str, purpose: str, told: Message) -> Message:
        if kind == "keys":
            return one.keys()
        if kind == "shares":
            return one.shares(told)
        if kind == "mask":
            values = self.values[purpose][one.client]
            return one.masked(purpose, told, lambda said: values * values.dtype.type(score(said)))
        return one.confirm(purpose, told) if kind == "confirm" else one.unmask(purpose, told)

    # What the server can compute ------------------------------------------------------------------

    def known(self, owner: int, purpose: str, kind: str) -> bytes | None:
        """A client's secret, if enough of it was told."""
        if (owner, purpose, kind) not in self.secrets:
            return None
        helpers = len(self.told[owner, purpose, kind] | self.colluding)
        if owner in self.colluding or helpers >= self.terms.threshold:
            return bytes.fromhex(self.secrets[owner, purpose, kind])
        return None

    def readable(self) -> Iterator[tuple[str, dict[Vector, int], Masked]]:
        """Sums and differences of masked vectors that are no noise once all known masks are off.

        Yields the sum's name, the sign of every vector, and what is read.
        """
        for one in self.terms.sums:
            vectors = [
                each for each in self.vectors[one.purpose] if each.client not in self.colluding
            ]
            bare = [self._unmasked(one, each) for each in vectors]
            for signs in itertools.product((0, 1, -1), repeat=len(bare)):
                first = next((sign for sign in signs if sign), 0)
                if first != 1:  # nothing, or the negative of another one
                    continue
                total = bare[0] * 0
                for sign, values in zip(signs, bare, strict=True):
                    total = total + values if sign > 0 else total - values if sign else total
                if is_readable(total):
                    signed = zip(vectors, signs, strict=True)
                    yield one.purpose, {each: sign for each, sign in signed if sign}, total

    def _unmasked(self, one: Sum, vector: Vector) -> Masked:
        """A vector without the masks that are known."""
        client, purpose = vector.client, one.purpose
        left = vector.masked
        secret = self.known(client, purpose, "self")
        if secret is not None:
            left = left - self_mask(one, vector.view, client, secret)
        keys = self.mask_keys(purpose)
        mine = vector.peers[client]
        for peer, theirs in vector.peers.items():
            if peer == client:
                continue
            if mine in keys:
                pad = pair_mask(one, vector.view, keys[mine], theirs)
            elif theirs in keys:
                pad = pair_mask(one, vector.view, keys[theirs], mine)
            else:
                continue
            left = left - pad if client < peer else left + pad
        return left

    def mask_keys(self, purpose: str, *, every: bool = False) -> dict[bytes, X25519PrivateKey]:
        """The mask keys of a sum that the server has, by public key; with `every`, those it has not, too."""
        found = dict(self.leaked)
        for client in self.clients:
            secret = self.known(client, purpose, "mask")
            if every:
                secret = bytes.fromhex(self.secrets[client, purpose, "mask"])
            if secret is not None:
                key = mask_key(self.terms, client, purpose, secret)
                found[public_bytes(key)] = key
        return found

    def check(self) -> int:
        """Nothing is readable but one sum of each kind, over the same clients; how many are readable.

        Such a sum is over all honest clients of a list of at least t, which were all told the same.
        """
        least = self.terms.threshold - len(self.colluding)
        sums: dict[str, list[int]] = {}
        for purpose, signs, total in self.readable():
            clients = sorted(one.client for one in signs)
            assert set(signs.values()) == {1}, f"{purpose}: a difference of {clients}"
            assert len(set(clients)) == len(clients) >= least, f"{purpose}: only {clients}"
            assert len({one.view for one in signs}) == 1, (
                f"{purpose}: {clients} were told different things"
            )
            assert purpose not in sums, f"{purpose}: {clients} and {sums[purpose]}"
            (told, *_) = (one.told for one in signs)
            plain = sum_of([self.values[purpose][client] for client in clients])
            assert numpy.array_equal(total, plain * plain.dtype.type(score(told))), purpose
            sums[purpose] = clients
        assert len({tuple(clients) for clients in sums.values()}) <= 1, sums
        return len(sums)


def score(told: Any) -> int:
    """What a client's values are multiplied by, as a score follows from the sums that it is told."""
    return int(told["score"]) if isinstance(told, dict) and "score" in told else 1


def sum_of(values: Sequence[Masked]) -> Masked:
    total = values[0]
    for one in values[1:]:
        total = total + one
    return total


def is_readable(total: Masked) -> bool:
    """Whether most values are small. Of noise, one in 128 is."""
    bits = 8 * total.itemsize
    signed = numpy.abs(total.view(f"<i{total.itemsize}").astype("float64"))
    return int((signed < 2.0 ** (bits - 8)).sum()) >= 8


def some_terms(cohort: int = 5, threshold: int = 4, run: str = "run 1, seed 1, round 1") -> Terms:
    return Terms(run, "agreed", cohort, threshold, SUMS)
