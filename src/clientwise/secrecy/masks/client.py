"""The client's side of a round. Each step is answered once, in order; the state fits into JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from .primitives import (
    SECRET_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    Masked,
    is_signed,
    new_secret,
    open_sealed,
    pair_key,
    public_bytes,
    seal,
    split,
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
    signed_keys,
    signed_survivors,
    sum_view,
    survivors_view,
)
from .terms import (
    CONFIRM,
    GONE,
    KEYS,
    MASK,
    SHARES,
    UNMASK,
    Message,
    ProtocolError,
    Terms,
    read_bytes,
    read_clients,
    read_table,
    step_of,
)

Values = Callable[[Any], Masked]  # the client's own values, given what the server broadcast


class SecureClient:
    """One client in one round.

    Args:
        terms: what the client itself knows about the round.
        client: its number.
        identity: its Ed25519 key.
        identities: the public keys of all clients, as their operators agreed on them. The server has
            no say in this list.
        state: what `state` was after the step before; None for a new round.
    """

    def __init__(
        self,
        terms: Terms,
        client: int,
        identity: Ed25519PrivateKey,
        identities: Mapping[int, bytes],
        state: dict[str, Any] | None = None,
    ) -> None:
        self.terms = terms
        self.client = client
        self.state: dict[str, Any] = state or {"context": terms.context, "done": 0}
        if self.state["context"] != terms.context:
            raise ProtocolError("this client is in another round, or has another model or task")
        self._identity = identity
        self._identities = identities

    def keys(self) -> Message:
        """Make this round's keys and sign them.

        They are random, and every later mask, share and signature depends on all of them: what others
        sent in another round is of no use in this one, even if the server gives both the same name.
        """
        self._expect(KEYS)
        sharing = X25519PrivateKey.generate()
        secrets = {}
        keys = {"sharing": public_bytes(sharing).hex()}
        for purpose in self.terms.purposes:
            secrets[purpose] = {kind: new_secret().hex() for kind in KINDS}
            keys[purpose] = public_bytes(self._mask_key(purpose, secrets[purpose]["mask"])).hex()
        signature = self._identity.sign(signed_keys(self.terms, self.client, keys))
        self._note(KEYS, sharing=sharing.private_bytes_raw().hex(), secrets=secrets, own=keys)
        return {"keys": keys, "signature": signature.hex()}

    def shares(self, request: Message) -> Message:
        """Check everybody's keys, and share the own secrets among all."""
        self._expect(SHARES)
        roster = self._checked_roster(request)
        view = roster_view(self.terms, roster)
        holders = sorted(map(int, roster))
        shares: dict[int, dict[str, dict[str, str]]] = {holder: {} for holder in holders}
        for purpose, secrets in self.state["secrets"].items():
            for kind in KINDS:
                secret = bytes.fromhex(secrets[kind])
                parts = split(secret, self.terms.threshold, holders)
                for holder, share in parts.items():
                    shares[holder].setdefault(purpose, {})[kind] = share.hex()
        packets = {}
        commitments = {}
        for holder, mine in shares.items():
            commitments[str(holder)] = self._commitments(view, self.client, holder, mine)
            if holder != self.client:
                text = bytes.fromhex("".join(mine[p][k] for p in mine for k in KINDS))
                key = self._sharing_key(roster, view, self.client, holder)
                packets[str(holder)] = seal(key, text).hex()
        whole = {
            purpose: commitment(view, self.client, -1, purpose, "self", secrets["self"])
            for purpose, secrets in self.state["secrets"].items()
        }
        held = {str(self.client): shares[self.client]}
        self._note(SHARES, roster=roster, view=view, held=held)
        return {"packets": packets, "commitments": commitments, "secrets": whole}

    def masked(self, purpose: str, request: Message, values: Values) -> Message:
        """The client's values under masks that cancel in the sum.

        They cancel among clients that were told the same, from the keys to this broadcast.
        """
        step = step_of(MASK, purpose)
        self._expect(step)
        if purpose == self.terms.purposes[0]:  # the first sum brings the others' shares along
            peers, held = self._open_packets(request)
        else:
            peers, held = self.state["survivors"], self.state["held"]
        broadcast = request.get("broadcast")
        one = self.terms.sum_for(purpose)
        total = values(broadcast)
        if total.shape != (one.length,) or total.dtype != value_type(one.bits):
            raise ValueError(
                f"{total.shape} values of {total.dtype} do not fit the sum {purpose!r}"
            )
        view = sum_view(self.state["view"], purpose, peers, broadcast)
        secrets = self.state["secrets"][purpose]
        total = total + self_mask(one, view, self.client, bytes.fromhex(secrets["self"]))
        key = self._mask_key(purpose, secrets["mask"])
        for peer in peers:
            if peer != self.client:
                theirs = bytes.fromhex(self.state["roster"][str(peer)][purpose])
                pad = pair_mask(one, view, key, theirs)
                total = total + pad if self.client < peer else total - pad
        self._note(step, held=held, peers=peers, view=view)
        return {"masked": total}

    def confirm(self, purpose: str, request: Message) -> Message:
        """Sign who is in the sum; a client signs one list for a sum and never another."""
        step = step_of(CONFIRM, purpose)
        self._expect(step)
        peers = self.state["peers"]
        survivors = read_clients(request.get("survivors"), peers, "the list of survivors")
        if self.client not in survivors:
            raise ProtocolError("the server names this client as dropped, and asks it to go on")
        self._check_enough(len(survivors), "are in the sum")
        if self.terms.exposes_dropped(purpose, len(peers), len(survivors)):
            raise ProtocolError(GONE)
        view = survivors_view(self.state["view"], survivors)
        signature = self._identity.sign(signed_survivors(view))
        self._note(step, survivors=survivors, view=view)
        return {"signature": signature.hex()}

    def unmask(self, purpose: str, request: Message) -> Message:
        """The own self-mask, and a share of one secret of every other client.

        Of a client in the sum that is its self-mask, of one that dropped out its mask key. Only after
        `threshold` clients signed the same list.
        """
        step = step_of(UNMASK, purpose)
        self._expect(step)
        survivors = self.state["survivors"]
        text = signed_survivors(self.state["view"])
        signed = 0
        for name, value in read_table(request, "signatures").items():
            if name not in map(str, survivors):
                raise ProtocolError("a signature of a client that is not in the sum")
            signature = read_bytes(value, SIGNATURE_BYTES, "a signature")
            if not is_signed(self._identities[int(name)], signature, text):
                raise ProtocolError(f"client {name} did not sign this list of survivors")
            signed += 1
        self._check_enough(signed, "signed the list of survivors")
        shares = {}
        for peer in self.state["peers"]:
            kind = "self" if peer in survivors else "mask"
            share = self.state["held"].get(str(peer), {}).get(purpose, {}).get(kind)
            if share is not None:
                shares[str(peer)] = share
        own = self.state["secrets"][purpose]["self"]
        self._note(step)
        if step == self.terms.steps[-1]:  # nothing of the round is needed any more
            self.state = {"context": self.terms.context, "done": self.state["done"]}
        return {"own": own, "shares": shares}

    def _expect(self, step: str) -> None:
        """ProtocolError unless this step comes next: each is answered once, in order."""
        done = self.state["done"]
        steps = self.terms.steps
        if done >= len(steps) or steps[done] != step:
            expected = steps[done] if done < len(steps) else "nothing"
            raise ProtocolError(f"asked for {step!r}, but {expected!r} comes next in this round")

    def _note(self, step: str, **facts: Any) -> None:
        """The state after a step; changed only once the whole step has succeeded."""
        self.state = {**self.state, **facts, "done": self.terms.steps.index(step) + 1}

    def _checked_roster(self, request: Message) -> dict[str, dict[str, str]]:
        """Everybody's keys, each signed by its client for this round, model and task."""
        roster = read_table(request, "roster")
        if len(roster) > self.terms.cohort:
            raise ProtocolError(f"{len(roster)} clients in a round of {self.terms.cohort}")
        self._check_enough(len(roster), "sent keys")
        seen: set[str] = set()
        checked = {}
        for name, entry in roster.items():
            keys = checked_keys(self.terms, name, entry, self._identities)
            checked[name] = keys
            if seen & set(keys.values()) or len(set(keys.values())) < len(keys):
                raise ProtocolError("two public keys of the roster are equal")
            seen |= set(keys.values())
        if checked.get(str(self.client)) != self.state["own"]:
            raise ProtocolError("the roster does not have the keys that this client sent")
        return checked

    def _open_packets(self, request: Message) -> tuple[list[int], dict[str, Any]]:
        """The clients that shared their secrets, and the shares that this client can use.

        A share that does not fit its commitment is left out: nobody could use it.
        """
        packets = read_table(request, "packets")
        commitments = read_table(request, "commitments")
        roster, view = self.state["roster"], self.state["view"]
        names = set(packets) | {str(self.client)}
        if not names <= set(roster):
            raise ProtocolError("shares of a client that is not in the roster")
        self._check_enough(len(names), "shared their secrets")
        held = dict(self.state["held"])
        for name, sealed in packets.items():
            if name != str(self.client):
                try:
                    shares = self._open_packet(int(name), sealed)
                except ProtocolError:
                    continue
                if commitments.get(name) == self._commitments(view, int(name), self.client, shares):
                    held[name] = shares
        return sorted(map(int, names)), held

    def _open_packet(self, owner: int, sealed: Any) -> dict[str, dict[str, str]]:
        count = len(KINDS) * len(self.terms.purposes)
        data = read_bytes(sealed, count * SECRET_BYTES + TAG_BYTES, "an encrypted share")
        key = self._sharing_key(self.state["roster"], self.state["view"], owner, self.client)
        text = open_sealed(key, data).hex()
        size = 2 * SECRET_BYTES
        pieces = iter([text[start : start + size] for start in range(0, len(text), size)])
        return {purpose: {kind: next(pieces) for kind in KINDS} for purpose in self.terms.purposes}

    def _commitments(
        self, view: str, owner: int, holder: int, shares: Mapping[str, Mapping[str, str]]
    ) -> list[str]:
        return [
            commitment(view, owner, holder, purpose, kind, shares[purpose][kind])
            for purpose in self.terms.purposes
            for kind in KINDS
        ]

    def _sharing_key(
        self, roster: Mapping[str, Any], view: str, sender: int, receiver: int
    ) -> bytes:
        """The key for shares from one client to another; each direction has its own."""
        other = receiver if sender == self.client else sender
        mine = X25519PrivateKey.from_private_bytes(bytes.fromhex(self.state["sharing"]))
        theirs = bytes.fromhex(roster[str(other)]["sharing"])
        return pair_key(mine, theirs, "shares", view, sender, receiver)

    def _mask_key(self, purpose: str, secret: str) -> X25519PrivateKey:
        return mask_key(self.terms, self.client, purpose, bytes.fromhex(secret))

    def _check_enough(self, count: int, what: str) -> None:
        if count < self.terms.threshold:
            needed = f"{self.terms.threshold} of {self.terms.cohort} are needed"
            raise ProtocolError(f"only {count} clients {what}, and {needed}")
