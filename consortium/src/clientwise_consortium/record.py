"""The signed record of a run: a line a round, which names every member's row by a salted digest.

`record.jsonl` is for all members: its lines tell nothing of the rows. `rows.jsonl` has the rows and salts; the
coordinator keeps it and gives each member its own (`statement`). Every line has the digest of the line before, and
every instruction to a member has the digest of the last line. So a line that a member's ledger knows cannot be changed,
cut or left out later, not even by the coordinator.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .canonical import Row, digest, encode
from .envelope import sign
from .keys import UntrustedError

LABEL = "clientwise record 1"
FIRST = "0" * 64  # the head of an empty record
LINES = "record.jsonl"
ROWS = "rows.jsonl"
CLAIMS = "claims.jsonl"  # what members signed: a line may be written after a restart


class Record:
    """The coordinator's record.

    Args:
        folder: of the run.
        key: the coordinator's.
        secret: the salts follow from it; it stays with the coordinator.
    """

    def __init__(self, folder: Path, key: Ed25519PrivateKey, secret: bytes) -> None:
        self._lines = folder / LINES
        self._rows = folder / ROWS
        self._claims = folder / CLAIMS
        self._key = key
        self._secret = secret
        self._finish()

    def head(self) -> str:
        """The digest of the last line. It is in every instruction."""
        lines = self._lines.read_bytes().splitlines() if self._lines.exists() else []
        return digest(lines[-1]) if lines else FIRST

    def round_done(self, body: Row, rows: Mapping[str, Row]) -> None:
        """Add a line about a round, and a row about each member."""
        previous = self.head()
        salts = {name: self._salt(previous, name) for name in rows}
        leaves = {name: leaf(salts[name], name, row) for name, row in rows.items()}
        line = {**body, "previous": previous, "leaves": leaves}
        # Rows first: a line without its rows could not be verified.
        _append(self._rows, {"body": line, "rows": dict(rows), "salts": salts})
        self._sign(line)

    def known(self, label: str) -> list[Any]:
        """The values under a label of all lines so far."""
        found = read(self._lines) if self._lines.exists() else []
        return [one["body"][label] for one in found if label in one["body"]]

    def rounds(self) -> set[tuple[Any, Any, Any]]:
        """Method, seed and number of the rounds so far."""
        found = read(self._lines) if self._lines.exists() else []
        return {_number(one["body"]) for one in found if "round" in one["body"]}

    def keep_claim(self, member: str, signed: Row) -> None:
        """Keep the criteria that a member signed, before the library counts its update."""
        _append(self._claims, {"member": member, "signed": signed})

    def claims(self, member: str) -> list[Row]:
        """What a member signed so far."""
        found = read(self._claims) if self._claims.exists() else []
        return [one["signed"] for one in found if one["member"] == member]

    def _salt(self, previous: str, name: str) -> str:
        return hmac.digest(self._secret, encode([previous, name]), "sha256").hex()

    def _sign(self, line: Row) -> None:
        _append(self._lines, {"body": dict(line), "signature": sign(self._key, LABEL, line).hex()})

    def _finish(self) -> None:
        """After a crash: drop half a line, and sign the line whose rows are there already."""
        for path in (self._lines, self._rows, self._claims):
            if path.exists():
                whole, _, _ = path.read_bytes().rpartition(b"\n")
                path.write_bytes(whole + b"\n" if whole else b"")
        rows = read(self._rows) if self._rows.exists() else []
        if rows and rows[-1]["body"]["previous"] == self.head():
            self._sign(rows[-1]["body"])


def leaf(salt: str, name: str, row: Row) -> str:
    """Names a row. Without the salt, a row could be guessed and confirmed."""
    return digest(encode([salt, name, dict(row)]))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; UntrustedError for what is no JSON object."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            one = None
        if not isinstance(one, dict):
            raise UntrustedError(f"{path}, line {number}: not a JSON object")
        found.append(one)
    return found


def faults(
    folder: Path,
    trusted: Ed25519PublicKey,
    heads: Mapping[str, Collection[str]],
) -> Iterator[str]:
    """What does not hold of a record. Reads JSON, computes digests and runs nothing else.

    Args:
        folder: with both files.
        trusted: the coordinator's key.
        heads: those that members kept, by member.
    """
    previous = FIRST
    seen = {FIRST}
    last: dict[str, Any] = {}
    shown = by_line(folder)
    raw = (folder / LINES).read_bytes().splitlines()
    for number, (line, one) in enumerate(zip(raw, read(folder / LINES), strict=True), 1):
        where = f"line {number}"
        body = one.get("body")
        if not isinstance(body, dict) or line != encode(one) or body.get("previous") != previous:
            yield f"{where}: changed, or not the one after line {number - 1}"
            return
        if not is_signed(trusted, one):
            yield f"{where}: not signed by the coordinator"
        yield from _order_faults(where, body, last)
        yield from _row_faults(where, body, shown.pop(previous, {}))
        previous = digest(line)
        seen.add(previous)
    for extra in shown:
        yield f"rows after {extra[:12]}: they belong to no line"
    for name, kept in heads.items():
        if lost := len(set(kept) - seen):
            yield f"{name} was shown {lost} heads that this record does not have: it was rewritten or cut"


def _number(body: Row) -> tuple[Any, Any, Any]:
    return body.get("method"), body.get("seed"), body.get("round")


def _order_faults(where: str, body: Row, last: dict[str, Any]) -> Iterator[str]:
    """Whether a line has the round after the last one of its method and seed, which `last` keeps."""
    if "round" not in body:
        return
    method, seed, number = _number(body)
    lane = f"{method}, seed {seed}"
    if type(number) is not int:
        yield f"{where}: no round has the number {number}"
        return
    before = last.get(lane, 0)
    if number <= before:
        yield f"{where}: round {number} of {lane} is there again: the run was set back"
    if number > before + 1:
        yield f"{where}: {number - before - 1} rounds of {lane} before round {number} have no line"
    last[lane] = number


def is_signed(trusted: Ed25519PublicKey, line: Row) -> bool:
    """Whether the coordinator signed the body of a line."""
    try:
        trusted.verify(bytes.fromhex(line["signature"]), encode([LABEL, line["body"]]))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return False
    return line.keys() == {"body", "signature"}


def _row_faults(where: str, body: Row, shown: Row) -> Iterator[str]:
    rows, salts, leaves = shown.get("rows", {}), shown.get("salts", {}), body.get("leaves", {})
    if not all(isinstance(one, dict) for one in (rows, salts, leaves)):
        yield f"{where}: rows of another form"
        return
    if rows.keys() != leaves.keys():
        yield f"{where}: its rows are of other members"
        return
    if shown and shown["body"] != body:
        yield f"{where}: its rows are of another line"
    for name, row in rows.items():
        if not isinstance(row, dict) or leaf(str(salts.get(name)), name, row) != leaves[name]:
            yield f"{where}: the row of {name} is not the one that was signed"


def by_line(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of every line, by the digest of the line before it."""
    found = {}
    for one in read(folder / ROWS):
        body = one.get("body")
        if not isinstance(body, dict) or str(body.get("previous")) in found:
            raise UntrustedError(f"{folder / ROWS}: rows without a line of their own")
        found[str(body["previous"])] = one
    return found


def statement(folder: Path, site: str) -> Iterator[dict[str, Any]]:
    """What one member gets: all lines, and its own rows with their salts."""
    shown = by_line(folder)
    for line in read(folder / LINES):
        own = shown[line["body"]["previous"]]
        yield {"line": line, "row": own["rows"].get(site), "salt": own["salts"].get(site)}


def statement_faults(
    path: Path, site: str, trusted: Ed25519PublicKey, summary: Mapping[str, Any]
) -> Iterator[str]:
    """What does not hold of a statement, by the member's own `summary.json`: its heads and its rounds."""
    told: set[tuple[int, int]] = set()
    previous = FIRST
    seen = {FIRST}
    last: dict[str, Any] = {}
    for number, one in enumerate(read(path), 1):
        line = one.get("line")
        if not isinstance(line, dict) or not is_signed(trusted, line):
            yield f"line {number}: not signed by the coordinator"
            return
        body = line["body"]
        if body.get("previous") != previous:
            yield f"line {number}: not the one after line {number - 1}"
        yield from _order_faults(f"line {number}", body, last)
        row, own = one.get("row"), body.get("leaves", {}).get(site)
        if (row is None) != (own is None):
            yield f"line {number}: this site's row is missing"
        elif row is not None and leaf(str(one.get("salt")), site, row) != own:
            yield f"line {number}: this site's row is not the one that was signed"
        if row is not None:
            told.add((body.get("seed"), body.get("round")))
        previous = digest(encode(line))
        seen.add(previous)
    for seed, round_num in summary["rounds"]:
        if (seed, round_num) not in told:
            yield f"this site trained in round {round_num} of seed {seed}: it was interrupted, or the site left out"
    if lost := len(set(summary["heads"]) - seen):
        yield f"this site was shown {lost} heads that the statement does not have: rounds were cut or rewritten"


def _append(path: Path, value: Row) -> None:
    """A line that is on the disk when this returns."""
    with path.open("ab") as file:
        file.write(encode(value) + b"\n")
        file.flush()
        os.fsync(file.fileno())
