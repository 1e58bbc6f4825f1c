"""Ed25519 keys in PEM files. They need the package `cryptography`, which is optional."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import ClientwiseError, needing
from ...writing import write_atomically

with needing("signed", "a signed record"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )

PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def private_key(file: Path) -> Ed25519PrivateKey:
    """The private key in a file."""
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, TypeError, ValueError) as error:
        raise ClientwiseError(f"{file}: no private key can be read: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ClientwiseError(f"{file}: not an Ed25519 key; make one with `clientwise key FILE`")
    return key


def make_private_key(file: Path) -> Ed25519PrivateKey:
    """Make a key pair: the private key in `file`, which only its owner can read, and FILE.pub."""
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        file.touch(0o600, exist_ok=False)
        try:
            write_atomically(file, secret, mode=0o600)
            write_atomically(file.with_name(f"{file.name}.pub"), public)
        except OSError:
            file.unlink()
            raise
    except FileExistsError:
        raise ClientwiseError(f"{file}: exists already; a key is never replaced") from None
    except OSError as error:
        raise ClientwiseError(f"{file}: cannot be written: {error.strerror}") from None
    return key


def public_keys(file: Path) -> list[Ed25519PublicKey]:
    """All public keys in a file; ClientwiseError where there is none."""
    try:
        blocks = PEM.findall(file.read_bytes())
        keys = [load_pem_public_key(block) for block in blocks]
    except (OSError, ValueError) as error:
        raise ClientwiseError(f"{file}: no public key can be read: {error}") from None
    found = [key for key in keys if isinstance(key, Ed25519PublicKey)]
    if not found:
        raise ClientwiseError(f"{file}: has no Ed25519 public key")
    return found


def public_bytes(key: Ed25519PrivateKey | Ed25519PublicKey) -> bytes:
    """The 32 bytes of a public key, or of the public key of a private one."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


def is_signed_by(keys: Sequence[Ed25519PublicKey], signature: bytes, signed: bytes) -> bool:
    """Whether one of the keys made this signature."""
    for key in keys:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            continue
        return True
    return False
