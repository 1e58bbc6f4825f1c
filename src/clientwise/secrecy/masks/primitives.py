"""The cryptographic building blocks, all of them from libraries.

X25519, Ed25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 of `cryptography`; Shamir's secret
sharing of `pycryptodome`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from .terms import ProtocolError, encode

KEY_BYTES = 32
SECRET_BYTES = 16  # what Shamir's scheme of pycryptodome shares; 128 bits, as strong as X25519
SIGNATURE_BYTES = 64
TAG_BYTES = 16
NONCE = bytes(12)  # every key encrypts one message
STREAM_NONCE = bytes(16)  # every key makes one mask
Masked = NDArray[Any]  # of uint32 or uint64, whose sums are modulo 2^32 or 2^64


def new_secret() -> bytes:
    """128 random bits."""
    return os.urandom(SECRET_BYTES)


def derive(secret: bytes, *about: Any) -> bytes:
    """A key of 32 bytes for one purpose (HKDF-SHA256), which `about` names."""
    return HKDF(SHA256(), KEY_BYTES, None, encode(*about)).derive(secret)


def private_key(secret: bytes, *about: Any) -> X25519PrivateKey:
    """The X25519 key that follows from a shared secret."""
    return X25519PrivateKey.from_private_bytes(derive(secret, "private key", *about))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public half of a key."""
    return key.public_key().public_bytes_raw()


def pair_key(mine: X25519PrivateKey, theirs: bytes, *about: Any) -> bytes:
    """A key that two parties compute, each from its private key and the other's public one."""
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise ProtocolError("a public key is not a usable point") from None
    pair = sorted([public_bytes(mine).hex(), theirs.hex()])
    return derive(shared, "pair", pair, *about)


def mask(key: bytes, length: int, bits: int) -> Masked:
    """Pseudorandom values modulo 2^bits: the ChaCha20 key stream."""
    stream = Cipher(ChaCha20(key, STREAM_NONCE), mode=None).encryptor()
    return numpy.frombuffer(stream.update(bytes(length * bits // 8)), dtype=value_type(bits))


def value_type(bits: int) -> numpy.dtype[Any]:
    """Little-endian unsigned integers, on every machine."""
    return numpy.dtype(f"<u{bits // 8}")


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate one message."""
    return ChaCha20Poly1305(key).encrypt(NONCE, text, None)


def open_sealed(key: bytes, sealed: bytes) -> bytes:
    """The message that was sealed."""
    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, sealed, None)
    except InvalidTag:
        raise ProtocolError("an encrypted share cannot be read") from None


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the holder of an Ed25519 key signed a text."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def split(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Shares of a secret for these holders: any `threshold` of them restore it."""
    shares = Shamir.split(threshold, len(holders), secret, ssss=False)
    return {holder: share for holder, (_, share) in zip(holders, shares, strict=True)}


def combine(shares: Mapping[int, bytes], threshold: int, holders: Sequence[int]) -> bytes:
    """The secret behind shares, given by holder; garbage if one of them is wrong."""
    positions = {holder: position for position, holder in enumerate(holders, 1)}
    some = sorted(shares.items())[:threshold]
    points = [(positions[holder], share) for holder, share in some]
    return bytes(Shamir.combine(points, ssss=False))
