"""Instructions signed by the server and verified by the nodes (Ed25519).

Flower's SuperLink also stores a message of a node as an instruction to another node. A node with
the server's public key in its node config (`server-keys`) answers only instructions that are

- signed with that key, for this node and this run;
- neither expired nor from the future;
- new: each is answered once.

The signature covers run, node, kind, time, a random number, the key for the reply (`sealing.py`) and
all records of the message. Without `server-keys`, as in a simulation, a node answers every
instruction.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ConfigRecord, Context, Message, RecordDict

from ...record.signed.keys import is_signed_by, private_key, public_keys
from .gate import RefusedError
from .sealing import ReplyKey

RECORD = "signature"  # the record of a message that holds its signature
PURPOSE = "clientwise instruction 1"  # what is signed for this purpose is worth nothing for others
CLOCK_TOLERANCE = 300.0  # seconds by which two clocks may differ; Flower allows as much


class Signer:
    """Signs instructions with the server's key, and opens the sealed replies.

    Args:
        file: an Ed25519 private key (PEM); None to send unsigned instructions.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._key = None if file is None else private_key(file)
        self._reply_key = ReplyKey()

    def sign(self, message: Message) -> Message:
        """The same message, with the record `signature` added to its content."""
        if self._key is not None:
            record = ConfigRecord({"number": os.urandom(16), "reply_key": self._reply_key.public})
            record["signature"] = self._key.sign(_signed_bytes(message, record))
            message.content[RECORD] = record
        return message

    def open(self, content: RecordDict, message_id: str) -> RecordDict:
        """The content of a reply to the instruction `message_id`; see `ReplyKey.open`."""
        return self._reply_key.open(content, message_id)


def verify(message: Message, context: Context) -> bytes | None:
    """Refuse an instruction that is not the server's, if the node config has `server-keys`.

    Node config:

    - `server-keys`: file with the server's public key (PEM), or several while a key is replaced.
    - `seen`: folder in which the node notes every instruction until it expires.

    Returns:
        The public key for which the reply must be sealed; None without `server-keys`.

    Raises:
        RefusedError: the instruction must not be answered; says why.
    """
    settings = context.node_config
    if "server-keys" not in settings:
        return None
    record = message.content.config_records.get(RECORD, ConfigRecord())
    keys = public_keys(Path(str(settings["server-keys"])))
    if not is_signed_by(keys, _bytes(record, "signature"), _signed_bytes(message, record)):
        raise RefusedError("the instruction is not signed with a key of `server-keys`")
    about = message.metadata
    if about.dst_node_id != context.node_id:
        raise RefusedError("the instruction is signed for another node")
    if about.run_id != context.run_id:
        raise RefusedError("the instruction is signed for another run")
    now = time.time()
    if about.created_at > now + CLOCK_TOLERANCE:
        raise RefusedError("the instruction is from the future: compare the clocks")
    expires = math.ceil(about.created_at + about.ttl + CLOCK_TOLERANCE)
    if expires < now:
        raise RefusedError("the instruction has expired")
    _note(Path(str(settings["seen"])), _bytes(record, "number"), expires)
    return _bytes(record, "reply_key")


def digest(content: RecordDict) -> str:
    """SHA-256 of all records except the signature, whatever their order."""
    parts = []
    for name, record in content.items():
        if name != RECORD:
            parts += [(name, type(record).__name__, *part) for part in _parts(record)]
    return hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()


def _parts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every key with a text that differs wherever its value differs."""
    parts = [("", str(len(record)))]  # an empty record is a part too
    for key, value in record.items():
        if isinstance(value, Array):
            data = hashlib.sha256(value.data).hexdigest()
            text = repr((value.dtype, tuple(value.shape), value.stype, data))
        else:
            text = repr(value)
        parts.append((key, text))
    return parts


def _signed_bytes(message: Message, record: ConfigRecord) -> bytes:
    about = message.metadata
    signed = {
        "purpose": PURPOSE,
        "run": about.run_id,
        "node": about.dst_node_id,
        "kind": about.message_type,
        "created_at": float(about.created_at),
        "ttl": float(about.ttl),
        "number": _bytes(record, "number").hex(),
        "reply_key": _bytes(record, "reply_key").hex(),
        "content": digest(message.content),
    }
    return json.dumps(signed, sort_keys=True).encode()


def _bytes(record: ConfigRecord, name: str) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes):
        raise RefusedError("the instruction is not signed")
    return value


def _note(folder: Path, number: bytes, expires: int) -> None:
    """Note an instruction; refuse it if it was noted before.

    Creating a file is atomic, also between two processes of one node.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.iterdir():
        if int(other.name.partition("-")[0]) < time.time():
            other.unlink(missing_ok=True)
    try:
        (folder / f"{expires}-{number.hex()}").touch(exist_ok=False)
    except FileExistsError:
        raise RefusedError("the instruction was answered before") from None
