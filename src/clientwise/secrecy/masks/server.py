"""The server's side of a round: who is still in it, and the totals of the sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

from .primitives import (
    SECRET_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    Masked,
    combine,
    is_signed,
    public_bytes,
    value_type,
)
from .statements import (
    KINDS,
    checked_keys,
    commitment,
    mask_key,
    pair_mask,
    roster_view,
    self_mask,
    signed_survivors,
    sum_view,
    survivors_view,
)
from .terms import (
    GONE,
    Message,
    ProtocolError,
    Terms,
    VoidError,
    read_bytes,
    read_table,
)

HASH_BYTES = 32
LONGEST_REASON = 200  # characters


class SecureServer:
    """One round. A reply that does not follow the protocol drops its client, with the reason.

    Args:
        terms: the public facts of the round.
        identities: the public keys of all clients.
    """

    def __init__(self, terms: Terms, identities: Mapping[int, bytes]) -> None:
        self.terms = terms
        self.dropped: dict[int, str] = {}  # why a client has no part in the rest of the round
        self.notes: list[str] = []
        self._identities = identities
        self._roster: dict[str, Any] = {}
        self._holders: list[int] = []  # of shares: all clients of the roster
        self._packets: dict[int, Mapping[str, Any]] = {}  # by owner
        self._commitments: dict[int, Mapping[str, Any]] = {}
        self._whole: dict[int, Mapping[str, Any]] = {}  # commitments to whole secrets
        self._peers: list[int] = []  # clients whose masks are in the present sum
        self._survivors: list[int] = []  # clients whose values are in the present sum
        self._shared_view = ""  # the clients' views (`statements`) when they shared their secrets,
        self._masked_view = ""  # when they masked the present sum,
        self._view = ""  # and at last
        self._total: Masked | None = None
        self._signatures: dict[str, str] = {}

    # Keys and shares ------------------------------------------------------------------------------

    def take_keys(self, replies: Mapping[int, Message]) -> Message:
        """Everybody's keys; the request for shares."""

        def read(client: int, reply: Message) -> None:
            keys = checked_keys(self.terms, str(client), reply, self._identities)
            known = {key for entry in self._roster.values() for key in entry["keys"].values()}
            if known & set(keys.values()) or len(set(keys.values())) < len(keys):
                raise ProtocolError("sent a public key twice")
            self._roster[str(client)] = {"keys": keys, "signature": reply["signature"]}

        self._holders = self._each(replies, read, "sent keys")
        keys = {name: entry["keys"] for name, entry in self._roster.items()}
        self._shared_view = self._view = roster_view(self.terms, keys)
        return {"roster": self._roster}

    def take_shares(self, replies: Mapping[int, Message]) -> dict[int, Message]:
        """Everybody's encrypted shares; by client, those that it holds."""

        def read(client: int, reply: Message) -> None:
            packets = read_table(reply, "packets")
            commitments = read_table(reply, "commitments")
            whole = read_table(reply, "secrets")
            others = {str(one) for one in self._holders if one != client}
            count = len(KINDS) * len(self.terms.purposes)
            if set(packets) != others or set(commitments) != {*others, str(client)}:
                raise ProtocolError("did not send a share for every client")
            for sealed in packets.values():
                read_bytes(sealed, count * SECRET_BYTES + TAG_BYTES, "an encrypted share")
            for listed in commitments.values():
                if not isinstance(listed, list) or len(listed) != count:
                    raise ProtocolError("sent the wrong number of commitments")
                for one in listed:
                    read_bytes(one, HASH_BYTES, "a commitment")
            for purpose in self.terms.purposes:
                read_bytes(whole.get(purpose), HASH_BYTES, "a commitment")
            self._packets[client] = packets
            self._commitments[client] = commitments
            self._whole[client] = whole

        self._peers = self._each(replies, read, "shared their secrets")
        requests: dict[int, Message] = {}
        for holder in self._peers:
            others = [one for one in self._peers if one != holder]
            requests[holder] = {
                "packets": {str(one): self._packets[one][str(holder)] for one in others},
                "commitments": {str(one): self._commitments[one][str(holder)] for one in others},
            }
        return requests

    # One sum --------------------------------------------------------------------------------------

    def begin_sum(self, purpose: str, broadcast: Any = None) -> Message:
        """The request for masked values, of all clients in the sum before."""
        one = self.terms.sum_for(purpose)
        self._total = numpy.zeros(one.length, dtype=value_type(one.bits))
        self._survivors = []
        self._masked_view = sum_view(self._view, purpose, self._peers, broadcast)
        return {"broadcast": broadcast}

    def add(self, purpose: str, client: int, reply: Any) -> None:
        """Add one client's masked values as they arrive."""
        one = self.terms.sum_for(purpose)
        values = reply.get("masked") if isinstance(reply, dict) else None
        if client not in self._peers or client in self._survivors:
            return
        if (
            not isinstance(values, numpy.ndarray)
            or values.shape != (one.length,)
            or values.dtype != value_type(one.bits)
        ):
            self.dropped[client] = f"sent no {one.length} values of {one.bits} bits"
            return
        assert self._total is not None
        self._total += values
        self._survivors = sorted([*self._survivors, client])

    def close_sum(self, purpose: str) -> Message:
        """No more values count; the request to confirm who is in the sum."""
        self._enough(len(self._survivors), "sent their masked values")
        if self.terms.exposes_dropped(purpose, len(self._peers), len(self._survivors)):
            raise VoidError(GONE)
        return {"survivors": self._survivors}

    def take_confirmed(self, purpose: str, replies: Mapping[int, Message]) -> Message:
        """Signatures of the list; the request to unmask."""
        self._view = survivors_view(self._masked_view, self._survivors)
        text = signed_survivors(self._view)
        self._signatures = {}

        def read(client: int, reply: Message) -> None:
            signature = read_bytes(reply.get("signature"), SIGNATURE_BYTES, "a signature")
            if client not in self._survivors:
                raise ProtocolError("confirmed a sum that it is not in")
            if not is_signed(self._identities[client], signature, text):
                raise ProtocolError("did not sign the list of survivors")
            self._signatures[str(client)] = reply["signature"]

        self._each(replies, read, "confirmed the list")
        return {"signatures": self._signatures}

    def take_unmasked(self, purpose: str, replies: Mapping[int, Message]) -> Masked:
        """The total, without masks.

        Raises:
            VoidError: a secret cannot be restored.
        """
        own: dict[int, bytes] = {}
        shares: dict[int, dict[int, bytes]] = {peer: {} for peer in self._peers}
        names = {
            str(peer): peer for peer in self._peers
        }  # of each one, so that none is noted twice

        def read(holder: int, reply: Message) -> None:
            secret: Any = reply.get("own")
            kind = "self"
            if self._whole[holder][purpose] != commitment(
                self._shared_view, holder, -1, purpose, kind, secret
            ):
                raise ProtocolError("revealed another self-mask than it committed to")
            own[holder] = read_bytes(secret, SECRET_BYTES, "a secret")
            for name, value in read_table(reply, "shares").items():
                if name in names:
                    self._take_share(purpose, holder, names[name], value, shares)

        answered = [client for client in replies if client in self._survivors]
        self._each({client: replies[client] for client in answered}, read, "sent their shares")
        assert self._total is not None
        total = self._total
        one = self.terms.sum_for(purpose)
        for client in self._survivors:
            secret = own.get(client) or self._restored(purpose, client, "self", shares[client])
            total = total - self_mask(one, self._masked_view, client, secret)
        for client in sorted(set(self._peers) - set(self._survivors)):
            secret = self._restored(purpose, client, "mask", shares[client])
            key = mask_key(self.terms, client, purpose, secret)
            for other in self._survivors:
                theirs = bytes.fromhex(self._roster[str(other)]["keys"][purpose])
                pad = pair_mask(one, self._masked_view, key, theirs)
                total = total - pad if other < client else total + pad
        self._peers = self._survivors
        self._total = None
        return total

    @property
    def survivors(self) -> list[int]:
        """The clients in the last sum."""
        return list(self._survivors)

    def _take_share(
        self,
        purpose: str,
        holder: int,
        owner: int,
        value: Any,
        shares: dict[int, dict[int, bytes]],
    ) -> None:
        """One revealed share, if it is what its owner committed to; otherwise a note."""
        kind = "self" if owner in self._survivors else "mask"
        listed = self._commitments[owner][str(holder)]
        index = self.terms.purposes.index(purpose) * len(KINDS) + KINDS.index(kind)
        if listed[index] == commitment(self._shared_view, owner, holder, purpose, kind, value):
            shares[owner][holder] = read_bytes(value, SECRET_BYTES, "a share")
        else:
            self.notes.append(f"client {holder} sent a wrong share of client {owner}'s secret")

    def _restored(self, purpose: str, client: int, kind: str, shares: Mapping[int, bytes]) -> bytes:
        """A client's secret from the shares of others, compared with what the client committed to."""
        if len(shares) < self.terms.threshold:
            raise VoidError(
                f"client {client} vanished, and only {len(shares)} usable shares of its secret "
                f"arrived; {self.terms.threshold} are needed"
            )
        secret = combine(shares, self.terms.threshold, self._holders)
        if kind == "self":
            whole = commitment(self._shared_view, client, -1, purpose, kind, secret.hex())
            fits = whole == self._whole[client][purpose]
        else:
            public = public_bytes(mask_key(self.terms, client, purpose, secret)).hex()
            fits = public == self._roster[str(client)]["keys"][purpose]
        if not fits:
            raise VoidError(f"client {client} vanished after it shared a wrong secret")
        return secret

    def _each(
        self, replies: Mapping[int, Message], read: Callable[[int, Message], None], what: str
    ) -> list[int]:
        """Read every reply; the clients whose reply could be read, if they are enough."""
        good = []
        for client, reply in sorted(replies.items()):
            try:
                if not isinstance(reply, dict):
                    raise ProtocolError("sent no table")
                read(client, reply)
                good.append(client)
            except Exception as error:  # nothing a client sends ends the run
                self.dropped[client] = f"answer refused: {error}"[:LONGEST_REASON]
        self._enough(len(good), what)
        return good

    def _enough(self, count: int, what: str) -> None:
        if count < self.terms.threshold:
            raise VoidError(
                f"only {count} of {self.terms.cohort} clients {what}, and secure aggregation "
                f"needs {self.terms.threshold}"
            )
