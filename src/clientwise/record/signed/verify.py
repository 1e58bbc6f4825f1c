"""Verify a signed record: its chain, the rows it is about, and the receipts of clients."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import RunError, needing
from ..database import reading
from ..files import VERSIONS, read_whole
from ..migrations import KEPT_OF_0_2_0, REFUSALS_OF_0_2_0
from .chain import (
    BEST,
    FIRST,
    SALT_BYTES,
    SINCE,
    TABLES,
    TYPES,
    Leaves,
    Link,
    canonical,
    digest,
    digests_of,
    hash_of_leaves,
    leaf_digest,
    leaves_of_round,
    leaves_of_run,
    links,
    live_rounds,
    rank,
    receipts_of_round,
    signed_bytes,
)

with needing("signed", "a signed record"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

CLIENTS = "clients "  # the labels of leaves about clients begin with it, then the seed
LOCAL = "local"  # a table
NOT_COMPARED = {"seconds", TYPES}  # the time that a round took, which differs when it is run again
MOST_RECEIPT_BYTES = 2**28  # of a file
MOST_VERSIONS_BYTES = 2**16
MIGRATED = {"kept": KEPT_OF_0_2_0, "refusals": REFUSALS_OF_0_2_0}


@dataclass
class Verified:
    """What was found in a record."""

    entries: int = 0
    rounds: int = 0
    receipts: int = 0
    unreceipted: int = 0  # rounds that no receipt is about
    keys: list[str] = field(default_factory=list)  # that signed, in hexadecimal
    last: str = ""  # the time of the last entry
    repeated: list[str] = field(default_factory=list)  # rounds that were run again, in words
    changed: list[str] = field(default_factory=list)  # facts that a later entry replaced, in words
    faults: list[str] = field(default_factory=list)  # what does not hold, with its place
    # Clients that the run had in a round, by method, seed and round
    members: dict[tuple[str, int, int], int] = field(default_factory=dict)


def verify(
    folder: Path, trusted: Collection[bytes] = (), receipts: Sequence[Path] = ()
) -> Verified:
    """Check that a run's record is what was signed.

    Args:
        folder: the run folder.
        trusted: public keys (32 bytes each) that may sign; by default any key.
        receipts: files with clients' receipts, one JSON object a line.
    """
    found = Verified()
    with reading(folder) as database:
        chain = list(links(database))
        if not chain:
            raise RunError(
                f"{folder}: its record is not signed. Sign a run from its beginning: "
                "clientwise run --sign KEY"
            )
        found.entries = len(chain)
        found.faults += _faults_of_chain(chain, trusted, found)
        found.faults += _faults_of_rounds(database, chain, found)
        found.faults += _faults_of_facts(database, chain, found)
        found.faults += _faults_of_file(database)
        found.faults += _faults_of_versions(folder, database)
        found.members = _members(chain)
        signers = trusted or {bytes.fromhex(key) for key in found.keys}
        compared = _Compared(database, chain, signers)
        for file in receipts:
            for place, receipt in _read_receipts(file):
                found.receipts += 1
                found.faults += [f"{place}: {fault}" for fault in compared.faults(receipt)]
        found.unreceipted = compared.rounds_without_receipt()
    return found


def receipts(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The receipts of every client by its name, in the order of the chain."""
    by_client: dict[str, list[dict[str, Any]]] = {}
    with reading(folder) as database:
        lanes = _lanes(database)
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
                lane = _lanes(database)[link.lane]
                return receipts_of_round(database, lane, link.number("round"), link)
    return {}


def is_valid_receipt(receipt: Mapping[str, Any], trusted: Collection[bytes]) -> bool:
    """Whether a receipt is signed by a trusted key, and its rows are in its entry."""
    return _fault_of_receipt(receipt, trusted) is None


def _faults_of_chain(
    chain: Sequence[Link], trusted: Collection[bytes], found: Verified
) -> Iterator[str]:
    previous = FIRST
    for expected, link in enumerate(chain, start=1):
        fields = link.fields
        place = f"entry {link.position}"
        if link.position != expected or fields.get("position") != link.position:
            yield f"{place}: out of place: entries were deleted, inserted or moved before it"
            return
        if fields.get("previous") != previous:
            yield f"{place}: does not follow from the entry before it, which was changed"
        previous = digest(link.entry.encode())
        if _hash(link.leaves.values()) != fields.get("leaves"):
            yield f"{place}: its list of digests was changed"
        if not _is_canonical(link.entry, fields):
            yield f"{place}: not in canonical form"
        fault = _fault_of_signature(link.entry, link.signature, trusted)
        if fault:
            yield f"{place}: {fault}"
        elif fields["key"] not in found.keys:
            found.keys.append(str(fields["key"]))
        found.last = str(fields.get("time", ""))


def _hash(digests: Collection[str]) -> str | None:
    """The hash of all leaves; None where their digests cannot be hashed."""
    try:
        return hash_of_leaves(digests)
    except ValueError:
        return None


def _is_canonical(entry: str, fields: Mapping[str, Any]) -> bool:
    try:
        return entry.encode() == canonical(fields)
    except (ValueError, RecursionError):
        return False


def _fault_of_signature(entry: str, signature: bytes, trusted: Collection[bytes]) -> str | None:
    """Why an entry is not signed as it must be; None if it is."""
    try:
        key = bytes.fromhex(json.loads(entry)["key"])
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed_bytes(entry))
    except (InvalidSignature, KeyError, TypeError, ValueError, RecursionError):
        return "its signature is wrong: the entry was changed"
    if trusted and key not in trusted:
        return f"signed with another key than the one given ({key.hex()[:16]}…)"
    return None


def _faults_of_rounds(
    database: sqlite3.Connection, chain: Sequence[Link], found: Verified
) -> Iterator[str]:
    lanes = _lanes(database)
    live = live_rounds(chain)
    found.rounds = len(live)
    found.repeated += _repeated(chain)
    yield from _signed_again(chain)
    recorded = set()
    for table in TABLES:
        recorded |= set(database.execute(f"SELECT DISTINCT lane, round_num FROM {table}"))
    named = {lane: pair for pair, lane in lanes.items()}
    for lane, round_num in sorted(recorded, key=lambda place: [rank(one) for one in place]):
        method, seed = named.get(lane, ("unknown", lane))
        if (method, seed, round_num) not in live:
            yield f"{_round(method, seed, round_num)}: was inserted: no entry is about it"
    best = _best_rounds(live)
    for (method, seed, round_num), link in live.items():
        place = _round(method, seed, round_num)
        if (method, seed) not in lanes:
            yield f"{place}: was deleted with its whole method"
            continue
        leaves = leaves_of_round(database, lanes[method, seed], round_num, link.version)
        is_replaced = round_num < best.get((method, seed), 0) and BEST not in leaves
        for fault in _faults_of_leaves(link, leaves, without={BEST} if is_replaced else ()):
            yield f"{place}, {fault}"
    yield from _faults_of_migrated(database, live, named)


def _faults_of_migrated(
    database: sqlite3.Connection,
    live: Mapping[tuple[str, int, int], Link],
    named: Mapping[int, tuple[str, int]],
) -> Iterator[str]:
    """Rows that older entries do not cover, and that do not follow from what these cover."""
    for table, query in MIGRATED.items():
        older = {place for place, link in live.items() if link.version < SINCE[table]}
        if not older:
            continue
        present = {repr(row): row for row in database.execute(f"SELECT * FROM {table}")}
        expected = {repr(row): row for row in database.execute(query)}
        differing = {**present, **expected}
        for row in differing.keys() - (present.keys() & expected.keys()):
            lane, round_num = differing[row][:2]
            method, seed = named.get(lane, ("unknown", lane))
            if (method, seed, round_num) in older:
                yield f"{_round(method, seed, round_num)}, {table}: was changed"


def _best_rounds(live: Mapping[tuple[str, int, int], Link]) -> dict[tuple[str, int], int]:
    """The best round of every lane. The table `best` may have lost the rows of earlier ones."""
    found: dict[tuple[str, int], int] = {}
    for (method, seed, round_num), link in live.items():
        if BEST in link.leaves:
            found[method, seed] = max(round_num, found.get((method, seed), 0))
    return found


def _members(chain: Sequence[Link]) -> dict[tuple[str, int, int], int]:
    """How many clients the run had in each round: the facts before a round list them."""
    found: dict[tuple[str, int, int], int] = {}
    listed: Counter[str] = Counter()
    for link in chain:
        if link.kind == "facts":
            labels = [label.split() for label in link.leaves if label.startswith(CLIENTS)]
            listed = Counter(parts[1] for parts in labels if len(parts) > 1)
        elif link.kind == "round":
            method, seed = link.lane
            found[method, seed, link.number("round")] = listed[str(seed)]
    return found


def _faults_of_facts(
    database: sqlite3.Connection, chain: Sequence[Link], found: Verified
) -> Iterator[str]:
    about_facts = [link for link in chain if link.kind == "facts"]
    if not about_facts:
        yield "no entry is about the facts of the run"
        return
    last = about_facts[-1]
    # As entries of each version have them
    leaves = {link.version: leaves_of_run(database, link.version) for link in about_facts}
    yield from _faults_of_leaves(last, leaves[last.version])
    found.changed += _changed_facts(about_facts, leaves, chain)
    yield from _faults_of_clients(chain, leaves)


def _changed_facts(
    about_facts: Sequence[Link], leaves: Mapping[int, Leaves], chain: Sequence[Link]
) -> Iterator[str]:
    """Facts that are as they are now only since an entry after the first round, or were deleted."""
    first_round = next((link.position for link in chain if link.kind == "round"), len(chain))
    # A finished method changes its row of `lanes`; of clients, every change is a fault
    others = ("lanes ", CLIENTS)
    since: dict[str, Link] = {}
    for link in about_facts:
        signed = set(link.leaves.values())
        for label, own in digests_of(link.salt, leaves[link.version]).items():
            if label.startswith(others):
                continue
            if own not in signed:
                since.pop(label, None)
            else:
                since.setdefault(label, link)
    for label, link in since.items():
        if link.position > first_round:
            yield f"{label}: as it is since entry {link.position} ({link.fields.get('time')})"
    for before, link in pairwise(about_facts):
        for label in before.leaves.keys() - link.leaves.keys():
            yield f"{label}: deleted in entry {link.position} ({link.fields.get('time')})"


def _faults_of_clients(chain: Sequence[Link], leaves: Mapping[int, Leaves]) -> Iterator[str]:
    """Clients that had another name or other data when their rounds were signed.

    Digests are compared, and not labels: the signature does not cover these.
    """
    live = {link.position for link in live_rounds(chain).values()}
    said: set[str] = set()
    changed: set[str] = set()
    for link in chain:
        if link.kind == "facts":
            signed = set(link.leaves.values())
            present = digests_of(link.salt, leaves[link.version]).items()
            changed = {
                label for label, own in present if label.startswith(CLIENTS) and own not in signed
            }
        elif link.position in live and changed:
            seed = link.number("seed")
            own = {f"{CLIENTS}{seed} {label.rpartition(' ')[2]}" for label in link.leaves}
            for label in sorted(own & changed - said):
                said.add(label)
                yield f"{label}: is not what it was when entry {link.position} was signed"


def _faults_of_file(database: sqlite3.Connection) -> Iterator[str]:
    """An index that differs from its table: some queries would read values that nobody signed."""
    (found,) = database.execute("PRAGMA main.integrity_check(1)").fetchone()
    if found != "ok":
        yield f"the database contradicts itself ({found})"


def _faults_of_versions(folder: Path, database: sqlite3.Connection) -> Iterator[str]:
    """A file of versions that is not the one that the record has; that of 0.2.0 has none."""
    sql = "SELECT value FROM facts WHERE key = ?"
    for (recorded,) in database.execute(sql, (VERSIONS,)).fetchall():
        try:
            written = read_whole(folder / VERSIONS, MOST_VERSIONS_BYTES).decode()
        except FileNotFoundError:
            yield f"{VERSIONS}: was deleted"
        except (OSError, UnicodeDecodeError):
            yield f"{VERSIONS}: was changed"
        else:
            if json.dumps(written) != recorded:
                yield f"{VERSIONS}: was changed"


def _faults_of_leaves(link: Link, leaves: Leaves, without: Collection[str] = ()) -> Iterator[str]:
    """Leaves that differ from those of an entry; those of `without` may be missing."""
    present = digests_of(link.salt, leaves)
    for label in {**link.leaves, **present}:
        if label in without:
            continue
        if label not in present:
            yield f"{label}: was deleted"
        elif label not in link.leaves:
            yield f"{label}: was inserted"
        elif present[label] != link.leaves[label]:
            yield f"{label}: was changed"


class _Compared:
    """A record, to be compared with receipts."""

    def __init__(
        self, database: sqlite3.Connection, chain: Sequence[Link], trusted: Collection[bytes]
    ) -> None:
        self._database = database
        self._trusted = trusted
        self._chain = {link.position: link for link in chain}
        self._live = live_rounds(chain)
        self._lanes = _lanes(database)
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
        about = f"the receipt of {_round(method, seed, round_num)} (entry {link.position})"
        now = self._live.get((method, seed, round_num))
        if now is None:
            yield f"{about}: the round was deleted later"
        elif now.position != link.position and (method, seed) in self._lanes:
            lane = self._lanes[method, seed]
            leaves = leaves_of_round(self._database, lane, round_num, link.version)
            after = leaves.get(receipt["label"], [])
            may_lack = {LOCAL} if self._was_extended(now, leaves) else set()
            for change in _differences(receipt["rows"], after, may_lack):
                yield f"{about}: {change} in entry {now.position} of {now.fields.get('time')}"

    def _was_extended(self, link: Link, leaves: Leaves) -> bool:
        """Whether a round was the last one of a shorter run: its evaluation, of all clients, is deleted."""
        is_last = (*link.lane, link.number("round") + 1) not in self._live
        tables = {row.get("table") for rows in leaves.values() for row in rows}
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
        fault = _fault_of_signature(receipt["entry"], bytes.fromhex(receipt["signature"]), trusted)
        position = int(fields["position"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return "not a receipt of clientwise"
    if len(salt) != SALT_BYTES:  # what is hashed would not show where the salt ends
        return "not a receipt of clientwise"
    if fault is None and (own not in digests or hashed != fields.get("leaves")):
        fault = "its rows are not in the entry"
    return f"the receipt of entry {position} is not valid: {fault}" if fault else None


def _read_receipts(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
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


def _signed_again(chain: Sequence[Link]) -> Iterator[str]:
    """Rounds that a later entry replaces without a reason.

    A run that is extended signs its former last round again. Rounds that are run again are forgotten
    first.
    """
    done: dict[tuple[str, int], int] = {}
    for link in chain:
        last = done.get(link.lane, 0)
        if link.kind == "forget":
            done[link.lane] = min(last, link.number("after"))
        elif link.kind == "round":
            round_num = link.number("round")
            if round_num < last:
                place = _round(*link.lane, round_num)
                yield f"{place}: was signed a second time, after round {last} (entry {link.position})"
            done[link.lane] = max(last, round_num)


def _repeated(chain: Sequence[Link]) -> list[str]:
    """Rounds that were recorded and later deleted to be run again."""
    said = []
    done: dict[tuple[str, int], int] = {}
    for link in chain:
        lane = link.lane
        after = link.number("after")
        last = done.get(lane, 0)
        if link.kind == "round":
            round_num = link.number("round")
            if round_num == last:
                place = _round(*lane, last)
                said.append(f"{place}: signed again ({link.fields.get('time')})")
            done[lane] = max(last, round_num)
        elif link.kind == "forget" and last > after:
            first = after + 1
            rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
            said.append(
                f"{lane[0]}, seed {lane[1]}: {rounds} run again after an interruption "
                f"({link.fields.get('time')})"
            )
            done[lane] = after
    return said


def _lanes(database: sqlite3.Connection) -> dict[tuple[str, int], int]:
    found = database.execute("SELECT lane, method, seed FROM lanes").fetchall()
    return {(method, seed): lane for lane, method, seed in found}


def _round(method: object, seed: object, round_num: object) -> str:
    return f"{method}, seed {seed}, round {round_num}"
