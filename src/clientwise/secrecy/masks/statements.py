"""What clients sign and commit to, and the keys and masks that follow from their secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from .primitives import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Masked,
    derive,
    is_signed,
    mask,
    pair_key,
    private_key,
)
from .terms import (
    ProtocolError,
    Sum,
    Terms,
    digest,
    encode,
    read_bytes,
    read_table,
)

KINDS = ("mask", "self")  # the two secrets of a sum: one is revealed, never both


# A view is the hash of all that a client was told in a round so far: first the terms and the roster,
# then, for each sum, peers, broadcast and survivors. Every mask, share and signature is made with the
# view of its client. Between clients with different views, masks do not cancel, shares cannot be
# opened, and signatures do not count.


def roster_view(terms: Terms, roster: Mapping[str, Mapping[str, str]]) -> str:
    """The view with everybody's public keys. They are new in every round, and so is the view."""
    return digest("roster", terms.context, dict(roster))


def sum_view(view: str, purpose: str, peers: list[int], broadcast: Any) -> str:
    """The view under which values are masked: whose masks are in the sum, what the server said."""
    return digest("sum", view, purpose, peers, broadcast)


def survivors_view(view: str, survivors: list[int]) -> str:
    """The view with the list of clients whose values are in the sum."""
    return digest("survivors", view, survivors)


def signed_keys(terms: Terms, client: int, keys: Mapping[str, str]) -> bytes:
    """What a client signs about its keys."""
    return encode("keys", terms.context, client, dict(keys))


def signed_survivors(view: str) -> bytes:
    """What a client signs about who is in a sum; see `survivors_view`."""
    return encode("confirmed", view)


def commitment(view: str, owner: int, holder: int, purpose: str, kind: str, value: str) -> str:
    """The hash that commits `owner` to a share of `holder`, or to a whole secret (holder −1).

    The value is 128 random bits, so that its hash does not tell it.
    """
    return digest("commitment", view, owner, holder, purpose, kind, value)


def checked_keys(
    terms: Terms, name: str, entry: Any, identities: Mapping[int, bytes]
) -> dict[str, str]:
    """A client's public keys; ProtocolError unless it signed them for this round."""
    if not name.isdecimal() or name != str(int(name)) or int(name) not in identities:
        raise ProtocolError(f"client {name[:20]!r} is not on the list of identities")
    keys = read_table(entry, "keys")
    if set(keys) != {"sharing", *terms.purposes}:
        raise ProtocolError(f"client {name} sent other keys than this round has")
    probe = X25519PrivateKey.generate()
    for value in keys.values():
        pair_key(probe, read_bytes(value, KEY_BYTES, "a public key"), "probe")
    signature = read_bytes(entry.get("signature"), SIGNATURE_BYTES, "a signature")
    if not is_signed(identities[int(name)], signature, signed_keys(terms, int(name), keys)):
        raise ProtocolError(
            f"client {name} did not sign these keys for this round, model and experiment"
        )
    return dict(keys)


def mask_key(terms: Terms, client: int, purpose: str, secret: bytes) -> X25519PrivateKey:
    """The key behind a client's masks in one sum."""
    return private_key(secret, "mask", terms.context, client, purpose)


def self_mask(one: Sum, view: str, client: int, secret: bytes) -> Masked:
    """The mask that hides a client's values until the client is known to be in the sum."""
    return mask(derive(secret, "self", view, client), one.length, one.bits)


def pair_mask(one: Sum, view: str, mine: X25519PrivateKey, theirs: bytes) -> Masked:
    """The mask that one client of a pair adds, and the other subtracts."""
    return mask(pair_key(mine, theirs, "mask", view), one.length, one.bits)
