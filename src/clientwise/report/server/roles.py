"""What a reader of the live page may open, by the token it sends.

The operator's token opens everything. The board's token opens reports, a site's token its own
statements. A roles file has the SHA-256 of these tokens, not the tokens: they are random, with 256
bits, so that a hash without salt cannot be guessed. The file is read for every request: a token that
was revoked opens nothing from then on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from ...errors import ClientwiseError
from ...record.files import read_whole
from ...writing import write_atomically

MAX_BYTES = 1_000_000
ONLY_OWNER = 0o077  # of a file's mode: what others may do

Role = Literal["operator", "board", "site"]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class RolesError(ClientwiseError):
    """A roles file that cannot be used."""


@dataclass(frozen=True)
class Reader:
    """Who sent a request."""

    role: Role
    site: str = ""  # of the role "site"

    @property
    def opens(self) -> str:
        """What its token opens, in words."""
        if self.role == "operator":
            return "everything"
        return f"the statements of {self.site}" if self.role == "site" else "the reports"


OPERATOR = Reader("operator")
BOARD = Reader("board")


class _Hashes(BaseModel):
    """The content of a roles file."""

    model_config = ConfigDict(extra="forbid")

    board: Hash | None = None
    sites: dict[str, Hash] = {}


@dataclass(frozen=True)
class Roles:
    """A roles file: at most one token for the board and one for each site."""

    path: Path

    def readers(self) -> list[Reader]:
        """All readers that have a token."""
        return [reader for reader, _ in self._known()]

    def reader(self, token: str) -> Reader | None:
        """The reader with this token; None for an unknown token."""
        given = _hash(token)
        found = None
        for reader, known in self._known():
            if hmac.compare_digest(given, known):
                found = reader
        return found

    def give(self, reader: Reader) -> str:
        """A new token for the board or a site. An earlier one is not valid any more."""
        token = secrets.token_urlsafe(32)
        self._set(reader, _hash(token))
        return token

    def revoke(self, reader: Reader) -> None:
        """Make the token of the board or of a site invalid."""
        self._set(reader, None)

    def _known(self) -> list[tuple[Reader, str]]:
        hashes = self._read()
        known = [(Reader("site", site), value) for site, value in hashes.sites.items()]
        if hashes.board is not None:
            known.append((BOARD, hashes.board))
        return known

    def _set(self, reader: Reader, value: str | None) -> None:
        with _held(self.path.parent):
            known = self.readers() if self.path.exists() else []
            if value is None and reader not in known:
                raise RolesError(f"{self.path}: has no token for {reader.site or reader.role}")
            hashes = self._read() if known else _Hashes()
            if reader == BOARD:
                hashes.board = value
            elif value is None:
                del hashes.sites[reader.site]
            else:
                hashes.sites[reader.site] = value
            content = f"{hashes.model_dump_json(indent=2)}\n"
            write_atomically(self.path, content.encode(), mode=0o600)

    def _read(self) -> _Hashes:
        refuse_shared(self.path)
        try:
            return _Hashes.model_validate_json(read_whole(self.path, MAX_BYTES))
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise RolesError(f"{self.path}: not a roles file: {where}: {wrong['msg']}") from None


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Wait until no other process changes a roles file here: else it could undo a revocation."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: it has no such lock
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def refuse_shared(path: Path) -> None:
    """Refuse a secret file that other users can read."""
    if path.stat().st_mode & ONLY_OWNER:
        raise RolesError(f"{path}: other users can read it. Run: chmod 600 {path}")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
