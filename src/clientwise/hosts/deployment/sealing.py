"""Replies that only the server's process can read.

Flower stores a message as objects that are named by their hash. A node that guesses the content of
another node's reply learns from the hash whether it is right. It asks for the object, or it lists
the hash among the objects of its own reply and is not asked to send that one.

A sealed reply is one encrypted array. It differs each time, so its hash cannot be guessed. The
server's private key exists only in the memory of the process that runs the rounds: what the
SuperLink leaves on its disk cannot be read, also not by that process's successor.

X25519 with a new key for every reply, HKDF-SHA256, ChaCha20-Poly1305. The reply is bound to the
instruction that it answers.
"""

from __future__ import annotations

import numpy
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto

RECORD = "sealed"  # the only record of a sealed reply
KEY_BYTES = 32
NONCE = bytes(12)  # every key encrypts one reply


class ReplyKey:
    """Opens sealed replies; made anew by every process."""

    def __init__(self) -> None:
        self._key = X25519PrivateKey.generate()
        self.public = self._key.public_key().public_bytes_raw()

    def open(self, content: RecordDict, message_id: str) -> RecordDict:
        """The content that `seal` got. A reply that is not sealed is returned as it is.

        Args:
            content: of a reply.
            message_id: of the instruction that it answers.

        Raises:
            ValueError: the reply is not sealed for this key and this instruction.
        """
        if RECORD not in content.array_records:
            return content
        data = content.array_records[RECORD]["data"].numpy().tobytes()
        theirs = data[:KEY_BYTES]
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(theirs))
            cipher = _cipher(shared, theirs, self.public)
            plain = cipher.decrypt(NONCE, data[KEY_BYTES:], message_id.encode())
        except Exception as error:
            raise ValueError("not sealed for this instruction") from error
        return recorddict_from_proto(RecordDictProto.FromString(plain))


def seal(content: RecordDict, public: bytes, message_id: str) -> RecordDict:
    """A reply that only the holder of the reply key can read.

    Args:
        content: of the reply.
        public: the server's `ReplyKey.public`.
        message_id: of the instruction that it answers.
    """
    key = X25519PrivateKey.generate()
    mine = key.public_key().public_bytes_raw()
    shared = key.exchange(X25519PublicKey.from_public_bytes(public))
    plain = recorddict_to_proto(content).SerializeToString()
    sealed = _cipher(shared, mine, public).encrypt(NONCE, plain, message_id.encode())
    data = numpy.frombuffer(mine + sealed, dtype=numpy.uint8)
    return RecordDict({RECORD: ArrayRecord({"data": Array(data)})})


def _cipher(shared: bytes, node: bytes, server: bytes) -> ChaCha20Poly1305:
    about = b"clientwise reply 1" + node + server
    return ChaCha20Poly1305(HKDF(SHA256(), 32, None, about).derive(shared))
