"""Clients' receipts of a signed record: read from a run, and compared with it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ...errors import RunError
from ..database import reading
from .chain import (
    SALT_BYTES,
    TYPES,
    Leaves,
    Link,
    hash_of_leaves,
    leaf_digest,
    leaves_of_round,
    links,
    live_rounds,
    receipts_of_round,
    signed_bytes,
)

LOCAL = "local"  # a table
NOT_COMPARED = {"seconds", TYPES}  # the time that a round took, which differs when it is run again
MOST_RECEIPT_BYTES = 2**28  # of a file


def receipts(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The receipts of every client by its name, in the order of the chain."""
    by_client: dict[str, list[dict[str, Any]]] = {}
    with reading(folder) as database:
        lanes = lanes_of(database)
        named = database.execute("SELECT seed, client, name FROM clients").fetchall()
        names = {(seed, client): name for seed, client, name in named}
        live = live_rounds(links(database))
        for (method, seed, round_num), link in live.items():
            if (method, seed) not in lanes:
                continue  # deleted: `verify` says so
            found = receipts_of_round(database, lanes[method, seed], round_num, link)
            for client, receipt in found.items():
                name = names.get((seed, client)) or f"client-{client}"
                by_client.setdefault(name, []).append(receipt)
    return by_client


def receipts_of_last_round(folder: Path) -> dict[int, dict[str, Any]]:
    """The receipts of all clients of the round that was recorded last."""
    with reading(folder) as database:
        for link in links(database, newest_first=True):
            if link.kind == "round":
                lane = lanes_of(database)[link.lane]
                return receipts_of_round(database, lane, link.number("round"), link)
    return {}


def is_valid_receipt(receipt: Mapping[str, Any], trusted: Collection[bytes]) -> bool:
    """Whether a receipt is signed by a trusted key, and its rows are in its entry."""
    return _fault_of_receipt(receipt, trusted) is None


def fault_of_signature(entry: str, signature: bytes, trusted: Collection[bytes]) -> str | None:
    """Why an entry is not signed as it must be; None if it is."""
    try:
        key = bytes.fromhex(json.loads(entry)["key"])
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed_bytes(entry))
    except (InvalidSignature, KeyError, TypeError, ValueError, RecursionError):
        return "its signature is wrong: the entry was changed"
    if trusted and key not in trusted:
        return f"signed with another key than the one given ({key.hex()[:16]}…)"
    return None


class Comparison:
    """A record, to be compared with receipts."""

    def __init__(
        self, database: sqlite3.Connection, chain: Sequence[Link], trusted: Collection[bytes]
    ) -> None:
        self._database = database
        self._trusted = trusted
        self._chain = {link.position: link for link in chain}
        self._live = live_rounds(chain)
        self._lanes = lanes_of(database)
        self._seen: set[int] = set()  # positions of entries with a receipt

    def faults(self, receipt: Mapping[str, Any]) -> Iterator[str]:
        """What of the record contradicts a receipt."""
        fault = _fault_of_receipt(receipt, self._trusted)
        if fault:
            yield fault
            return
        position = json.loads(receipt["entry"])["position"]
        self._seen.add(position)
        about = f"the receipt of entry {position}"
        link = self._chain.get(position)
        if link is None:
            yield f"{about}: the record ends before it: its end was cut off"
        elif link.entry != receipt["entry"]:
            yield f"{about}: the record has another entry there: it was written anew"
        elif link.kind == "round":
            yield from self._changes(receipt, link)

    def rounds_without_receipt(self) -> int:
        """Rounds whose entry is in no receipt."""
        return sum(link.position not in self._seen for link in self._live.values())

    def _changes(self, receipt: Mapping[str, Any], link: Link) -> Iterator[str]:
        """What a later entry about the same round says otherwise."""
        method, seed = link.lane
        round_num = link.number("round")
        about = f"the receipt of {round_in_words(method, seed, round_num)} (entry {link.position})"
        now = self._live.get((method, seed, round_num))
        if now is None:
            yield f"{about}: the round was deleted later"
        elif now.position != link.position and (method, seed) in self._lanes:
            lane = self._lanes[method, seed]
            leaves = leaves_of_round(self._database, lane, round_num, link.version)
            after = [json.loads(row) for row in leaves.get(receipt["label"], [])]
            may_lack = {LOCAL} if self._was_extended(now, leaves) else set()
            for change in _differences(receipt["rows"], after, may_lack):
                yield f"{about}: {change} in entry {now.position} of {now.fields.get('time')}"

    def _was_extended(self, link: Link, leaves: Leaves) -> bool:
        """Whether a round was the last one of a shorter run: its evaluation, of all clients, is deleted."""
        is_last = (*link.lane, link.number("round") + 1) not in self._live
        tables = {json.loads(row).get("table") for rows in leaves.values() for row in rows}
        return not is_last and LOCAL not in tables


def _differences(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    may_lack: Collection[str],
) -> Iterator[str]:
    """How the rows about a client changed, except for times; those of some tables may be missing."""
    now = {_key(row): row for row in after}
    for key in now.keys() - {_key(row) for row in before}:
        yield f"{' '.join(map(str, key))}: inserted"
    for row in before:
        other = now.get(_key(row))
        if other is None:
            table, _ = _key(row)
            if table not in may_lack:
                yield f"{' '.join(map(str, _key(row)))}: deleted"
            continue
        for column in {**row, **other}:
            if column not in NOT_COMPARED and row.get(column) != other.get(column):
                name = row.get("criterion", row.get("table"))
                yield f"{name}, {column}: {row.get(column)} became {other.get(column)}"


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return str(row.get("table")), str(row.get("criterion", ""))


def _fault_of_receipt(receipt: Mapping[str, Any], trusted: Collection[bytes]) -> str | None:
    """Why a receipt proves nothing; None for a valid one."""
    try:
        fields = json.loads(receipt["entry"])
        rows = [dict(row) for row in receipt["rows"]]
        salt = bytes.fromhex(receipt["salt"])
        own = leaf_digest(salt, receipt["label"], rows)
        digests = [str(one) for one in receipt["digests"]]
        hashed = hash_of_leaves(digests)
        fault = fault_of_signature(receipt["entry"], bytes.fromhex(receipt["signature"]), trusted)
        position = int(fields["position"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return "not a receipt of clientwise"
    if len(salt) != SALT_BYTES:  # what is hashed would not show where the salt ends
        return "not a receipt of clientwise"
    if fault is None and (own not in digests or hashed != fields.get("leaves")):
        fault = "its rows are not in the entry"
    return f"the receipt of entry {position} is not valid: {fault}" if fault else None


def read_receipts(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The receipts in a file, each with its place there; an empty one for what is none."""
    try:
        if file.stat().st_size > MOST_RECEIPT_BYTES:
            raise RunError(f"{file}: too large for receipts")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file}: cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            receipt = json.loads(line)
        except (ValueError, RecursionError):
            receipt = None
        yield f"{file}, line {number}", receipt if isinstance(receipt, dict) else {}


def lanes_of(database: sqlite3.Connection) -> dict[tuple[str, int], int]:
    """The number of every lane, by method and seed."""
    found = database.execute("SELECT lane, method, seed FROM lanes").fetchall()
    return {(method, seed): lane for lane, method, seed in found}


def round_in_words(method: object, seed: object, round_num: object) -> str:
    """A round, as faults name it."""
    return f"{method}, seed {seed}, round {round_num}"
