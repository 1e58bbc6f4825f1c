"""What crosses the mailbox: signed by its sender, sealed for its receiver, about one thing.

A receiver has an opening key that exists in one process alone, so recorded envelopes cannot be opened later. Two
processes exchange their opening keys in a handshake that both sign with their identities (`offer`, `accept`).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .canonical import Row, encode
from .keys import UntrustedError

KEY = 32  # bytes of a public key
SIGNATURE = 64
NONCE = bytes(12)  # every key seals one envelope
LABEL = "clientwise envelope 1"


def seal(sender: Ed25519PrivateKey, receiver: bytes, about: Row, content: bytes) -> bytes:
    """An envelope that only the receiver's opening key opens.

    Args:
        sender: the identity that signs.
        receiver: the public opening key.
        about: run, number, purpose, sender and receiver. Both sides know it; it is not in the envelope.
        content: what is sent.
    """
    once = X25519PrivateKey.generate()
    public = once.public_key().public_bytes_raw()
    text = _text(about, public, receiver)
    shared = once.exchange(X25519PublicKey.from_public_bytes(receiver))
    inner = sender.sign(text + content) + content
    return public + _cipher(shared, text).encrypt(NONCE, inner, text)


def unseal(
    receiver: X25519PrivateKey, sender: Ed25519PublicKey, about: Row, envelope: bytes
) -> bytes:
    """The content; UntrustedError unless `sender` sealed it for this receiver and about this."""
    public = envelope[:KEY]
    text = _text(about, public, receiver.public_key().public_bytes_raw())
    try:
        shared = receiver.exchange(X25519PublicKey.from_public_bytes(public))
        inner = _cipher(shared, text).decrypt(NONCE, envelope[KEY:], text)
        sender.verify(inner[:SIGNATURE], text + inner[SIGNATURE:])
    except (InvalidSignature, InvalidTag, ValueError):
        raise UntrustedError("not an envelope of this sender, about this") from None
    return inner[SIGNATURE:]


def sign(identity: Ed25519PrivateKey, label: str, *parts: object) -> bytes:
    """A signature of values under a label: a signature for one purpose is none for another."""
    return identity.sign(encode([label, *parts]))


def check(identity: Ed25519PublicKey, signature: bytes, label: str, *parts: object) -> None:
    """UntrustedError unless `sign` made the signature."""
    try:
        identity.verify(signature, encode([label, *parts]))
    except (InvalidSignature, ValueError):
        raise UntrustedError(f"{label}: not signed by this identity") from None


def _text(about: Row, public: bytes, receiver: bytes) -> bytes:
    """JSON has no line break of its own, so what follows it cannot be taken for a part of it."""
    return encode([LABEL, dict(about), public.hex(), receiver.hex()]) + b"\n"


def _cipher(shared: bytes, text: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), 32, None, text).derive(shared))
