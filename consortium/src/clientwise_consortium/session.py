"""Sessions between the coordinator and a site: who is there, and one envelope for every message.

The coordinator greets a site with its opening key, the site answers with its own; both sign with their identities.
Messages are then sealed for one session, one number and one purpose. What Flower's services can do to them is to read
their sizes, to drop, delay or repeat them; a repeated one is refused.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from .canonical import Row, encode
from .envelope import check, seal, sign, unseal
from .keys import UntrustedError

SERVER = "server"
HELLO = "clientwise hello 1"
HERE = "clientwise here 1"
UNKNOWN = "unknown"  # a site's answer to what it cannot open, such as after its restart


class AgainError(Exception):
    """A site has no such session, perhaps since it was restarted: greet it again."""


class ServerSide:
    """The coordinator's half.

    Args:
        identity: of the coordinator.
        members: the identities of the sites, by name.
    """

    def __init__(
        self, identity: Ed25519PrivateKey, members: Mapping[str, Ed25519PublicKey]
    ) -> None:
        self.members = members
        self._identity = identity
        self._session = secrets.token_hex(16)
        self._opening = X25519PrivateKey.generate()
        self._theirs: dict[str, bytes] = {}
        self._number = 0

    def hello(self) -> bytes:
        """A greeting, the same for everyone: who answers it says who it is."""
        opening = self._opening.public_key().public_bytes_raw().hex()
        signature = sign(self._identity, HELLO, self._session, opening)
        header = {"kind": "hello", "session": self._session, "opening": opening}
        return join({**header, "signature": signature.hex()})

    def greeted(self, reply: bytes) -> str:
        """Who answered the greeting; UntrustedError where it is no member, or not its signature."""
        header, _ = split(reply)
        member = header.get("member")
        if not isinstance(member, str) or member not in self.members:
            raise UntrustedError("not a member")
        theirs = _hexadecimal(header, "opening")
        mine = self._opening.public_key().public_bytes_raw().hex()
        parts = (self._session, member, mine, theirs.hex())
        check(self.members[member], _hexadecimal(header, "signature"), HERE, *parts)
        self._theirs[member] = theirs
        return member

    def instruction(self, member: str, purpose: str, content: bytes) -> tuple[int, bytes]:
        """A sealed message to a site, and its number; UntrustedError where its opening key is none."""
        self._number += 1
        about = _about(self._session, self._number, purpose, SERVER, member)
        try:
            envelope = seal(self._identity, self._theirs[member], about, content)
        except ValueError:  # such as a point of low order
            raise UntrustedError(f"{member} gave an opening key that is none") from None
        header = {
            "kind": "sealed",
            "session": self._session,
            "number": self._number,
            "purpose": purpose,
        }
        return self._number, join(header, envelope)

    def reply(self, member: str, number: int, purpose: str, reply: bytes) -> bytes:
        """The content of a site's reply; UntrustedError where it is none, AgainError where there is no session."""
        header, envelope = split(reply)
        if header.get("kind") == UNKNOWN:
            raise AgainError(member)
        about = _about(self._session, number, purpose, member, SERVER)
        return unseal(self._opening, self.members[member], about, envelope)


class SiteSide:
    """A site's half.

    Args:
        name: of the site.
        identity: of the site.
        coordinator: whom it answers.
    """

    def __init__(
        self, name: str, identity: Ed25519PrivateKey, coordinator: Ed25519PublicKey
    ) -> None:
        self._name = name
        self._identity = identity
        self._coordinator = coordinator
        self._opening = X25519PrivateKey.generate()
        self._theirs: dict[str, bytes] = {}
        self._seen: set[tuple[str, int]] = set()

    def here(self, header: Row) -> bytes:
        """The answer to a greeting; UntrustedError where it is not the coordinator's."""
        session, opening = str(header.get("session")), _hexadecimal(header, "opening")
        parts = (session, opening.hex())
        check(self._coordinator, _hexadecimal(header, "signature"), HELLO, *parts)
        self._theirs[session] = opening
        mine = self._opening.public_key().public_bytes_raw().hex()
        signature = sign(self._identity, HERE, session, self._name, opening.hex(), mine)
        reply = {"kind": "here", "member": self._name, "opening": mine}
        return join({**reply, "signature": signature.hex()})

    def instruction(self, header: Row, envelope: bytes) -> bytes:
        """The content of an instruction; UntrustedError where it is not the coordinator's, or repeated."""
        session, number = str(header.get("session")), header.get("number")
        if session not in self._theirs or not isinstance(number, int):
            raise UntrustedError("no such session")
        about = _about(session, number, str(header.get("purpose")), SERVER, self._name)
        content = unseal(self._opening, self._coordinator, about, envelope)
        if (session, number) in self._seen:
            raise UntrustedError("this message was answered before")
        self._seen.add((session, number))
        return content

    def reply(self, header: Row, content: bytes) -> bytes:
        """The sealed reply to an instruction."""
        session = str(header["session"])
        about = _about(session, header["number"], str(header["purpose"]), self._name, SERVER)
        return join({"kind": "sealed"}, seal(self._identity, self._theirs[session], about, content))


def join(header: Row, rest: bytes = b"") -> bytes:
    """A header in JSON, and bytes after it."""
    return encode(dict(header)) + b"\n" + rest


def split(message: bytes) -> tuple[dict[str, Any], bytes]:
    """What `join` put together; UntrustedError for anything else."""
    first, _, rest = message.partition(b"\n")
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise UntrustedError("not a message")
    return header, rest


def _about(session: str, number: int, purpose: str, sender: str, receiver: str) -> Row:
    return {
        "session": session,
        "number": number,
        "purpose": purpose,
        "from": sender,
        "to": receiver,
    }


def _hexadecimal(header: Row, name: str) -> bytes:
    try:
        return bytes.fromhex(header[name])
    except (KeyError, TypeError, ValueError):
        raise UntrustedError(f"{name}: not hexadecimal") from None
