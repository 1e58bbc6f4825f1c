"""Sums over all n members: pairwise masks that cancel only if every member was told the same.

Every pair of members agrees on a key (X25519) that both derive from everything that the sum depends on: the terms of
the round, all public keys, the purpose, and what the server told them. A member adds the stream of this key (ChaCha20)
or subtracts it. The sum over all members has no mask; the sum over fewer is noise. There are no shares, so a missing
member makes the round void. The server learns the sum alone, unless it colludes with all other members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy
import torch
from clientwise.hosts.protocols import Refused
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .canonical import Row, encode
from .envelope import check, sign
from .fixed_point import Fixed, Void
from .keys import UntrustedError

FEWEST = 3  # of two members, each reads the other's value from the sum
KEY = 32  # bytes of a public key; the signature follows it
LABEL = "clientwise sum 1"


class Masker:
    """One member in one round. It lives in memory, so a restart makes the round void.

    Args:
        name: of the member.
        identity: of the member.
        members: the identities of all members, from the signers file.
        terms: what the members agree on beforehand: run, experiment, seed, round.
    """

    def __init__(
        self,
        name: str,
        identity: Ed25519PrivateKey,
        members: Mapping[str, Ed25519PublicKey],
        terms: Row,
    ) -> None:
        if len(members) < FEWEST or name not in members:
            raise Refused(f"a sum needs at least {FEWEST} members, this one among them")
        self._name = name
        self._members = members
        self._terms = dict(terms)
        self._secret = X25519PrivateKey.generate()
        self._public = self._secret.public_key().public_bytes_raw()
        self._signature = sign(identity, LABEL, self._terms, name, self._public.hex())
        self._done: set[str] = set()

    def key(self) -> bytes:
        """The public key of this round and its signature."""
        return self._public + self._signature

    def masked(
        self, purpose: str, roster: Mapping[str, bytes], told: object, values: Fixed
    ) -> Fixed:
        """The values (int64) under masks, once for each purpose.

        Args:
            purpose: which sum of the round it is.
            roster: the signed public keys of all members.
            told: what the server told all members. A member that was told something else does not cancel.
            values: this member's own.
        """
        if purpose in self._done:
            raise Refused(f"{purpose}: this member masked it before")
        keys = self._checked(roster)
        self._done.add(purpose)
        public = {name: key.hex() for name, key in keys.items()}
        view = encode([LABEL, self._terms, public, purpose, told, len(values)])
        salt = hashlib.sha256(view).digest()
        total = values.numpy().view("<u8").copy()
        for name, key in keys.items():
            if name == self._name:
                continue
            shared = self._secret.exchange(X25519PublicKey.from_public_bytes(key))
            pair = encode(sorted([name, self._name]))
            stream = _stream(HKDF(SHA256(), 32, salt, pair).derive(shared), len(total))
            if self._name < name:
                total += stream  # unsigned integers wrap around
            else:
                total -= stream
        return torch.from_numpy(total.view("<i8"))

    def _checked(self, roster: Mapping[str, bytes]) -> dict[str, bytes]:
        """The public keys of a roster; Refused unless every member signed its own for this round."""
        if set(roster) != set(self._members) or roster[self._name] != self.key():
            raise Refused("the roster must have every member, and this one's own key")
        keys = {name: entry[:KEY] for name, entry in roster.items()}
        if len(set(keys.values())) < len(keys):
            raise Refused("two members of the roster have one key")
        for name, entry in roster.items():
            try:
                check(self._members[name], entry[KEY:], LABEL, self._terms, name, entry[:KEY].hex())
            except UntrustedError:
                raise Refused(f"the key of {name} is not signed for this round") from None
        return keys


class Adder:
    """At the server: sums of what all members masked.

    Args:
        members: the names of all members.
    """

    def __init__(self, members: frozenset[str]) -> None:
        self._members = members

    def total(self, purpose: str, parts: Mapping[str, Fixed]) -> Fixed:
        """The sum over all members; Void where one is missing, or has another length."""
        if missing := self._members - parts.keys():
            raise Void(f"{purpose}: no part of {', '.join(sorted(missing))}")
        if parts.keys() != self._members:
            raise Void(f"{purpose}: parts of others")
        lengths = {(len(part), part.dtype) for part in parts.values()}
        if len(lengths) != 1 or lengths.pop()[1] != torch.int64:
            raise Void(f"{purpose}: parts of different lengths or types")
        unsigned = [part.numpy().view("<u8") for part in parts.values()]
        return torch.from_numpy(numpy.sum(unsigned, axis=0, dtype="<u8").view("<i8"))


def _stream(key: bytes, length: int) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.uint64]]:
    """Numbers that cannot be told from random ones without the key, which is used once."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return numpy.frombuffer(encryptor.update(bytes(8 * length)), "<u8")
