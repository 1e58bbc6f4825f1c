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

from ...errors import RunError
from ..database import reading
from ..files import VERSIONS, read_whole
from ..migrations import KEPT_OF_0_2_0, REFUSALS_OF_0_2_0
from .chain import (
    BEST,
    FIRST,
    SINCE,
    TABLES,
    Leaves,
    Link,
    canonical,
    digest,
    digests_of,
    hash_of_leaves,
    leaves_of_round,
    leaves_of_run,
    links,
    live_rounds,
    rank,
)
from .receipts import Comparison, fault_of_signature, lanes_of, read_receipts, round_in_words

CLIENTS = "clients "  # the labels of leaves about clients begin with it, then the seed
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
        compared = Comparison(database, chain, signers)
        for file in receipts:
            for source, receipt in read_receipts(file):
                found.receipts += 1
                found.faults += [f"{source}: {fault}" for fault in compared.faults(receipt)]
        found.unreceipted = compared.rounds_without_receipt()
    return found


def _faults_of_chain(
    chain: Sequence[Link], trusted: Collection[bytes], found: Verified
) -> Iterator[str]:
    previous = FIRST
    for expected, link in enumerate(chain, start=1):
        fields = link.fields
        entry = f"entry {link.position}"
        if link.position != expected or fields.get("position") != link.position:
            yield f"{entry}: out of place: entries were deleted, inserted or moved before it"
            return
        if fields.get("previous") != previous:
            yield f"{entry}: does not follow from the entry before it, which was changed"
        previous = digest(link.entry.encode())
        if _hash(link.leaves.values()) != fields.get("leaves"):
            yield f"{entry}: its list of digests was changed"
        if not _is_canonical(link.entry, fields):
            yield f"{entry}: not in canonical form"
        fault = fault_of_signature(link.entry, link.signature, trusted)
        if fault:
            yield f"{entry}: {fault}"
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


def _faults_of_rounds(
    database: sqlite3.Connection, chain: Sequence[Link], found: Verified
) -> Iterator[str]:
    lanes = lanes_of(database)
    live = live_rounds(chain)
    found.rounds = len(live)
    found.repeated += _repeated(chain)
    yield from _signed_again(chain)
    recorded = set()
    for table in TABLES:
        recorded |= set(database.execute(f"SELECT DISTINCT lane, round_num FROM {table}"))
    named = {lane: pair for pair, lane in lanes.items()}
    for lane, round_num in sorted(recorded, key=lambda key: [rank(one) for one in key]):
        method, seed = named.get(lane, ("unknown", lane))
        if (method, seed, round_num) not in live:
            yield f"{round_in_words(method, seed, round_num)}: was inserted: no entry is about it"
    best = _best_rounds(live)
    for (method, seed, round_num), link in live.items():
        signed_round = round_in_words(method, seed, round_num)
        if (method, seed) not in lanes:
            yield f"{signed_round}: was deleted with its whole method"
            continue
        leaves = leaves_of_round(database, lanes[method, seed], round_num, link.version)
        is_replaced = round_num < best.get((method, seed), 0) and BEST not in leaves
        for fault in _faults_of_leaves(link, leaves, without={BEST} if is_replaced else ()):
            yield f"{signed_round}, {fault}"
    yield from _faults_of_migrated(database, live, named)


def _faults_of_migrated(
    database: sqlite3.Connection,
    live: Mapping[tuple[str, int, int], Link],
    named: Mapping[int, tuple[str, int]],
) -> Iterator[str]:
    """Rows that older entries do not cover, and that do not follow from what these cover."""
    for table, query in MIGRATED.items():
        older = {key for key, link in live.items() if link.version < SINCE[table]}
        if not older:
            continue
        present = {repr(row): row for row in database.execute(f"SELECT * FROM {table}")}
        expected = {repr(row): row for row in database.execute(query)}
        differing = {**present, **expected}
        for row in differing.keys() - (present.keys() & expected.keys()):
            lane, round_num = differing[row][:2]
            method, seed = named.get(lane, ("unknown", lane))
            if (method, seed, round_num) in older:
                yield f"{round_in_words(method, seed, round_num)}, {table}: was changed"


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
                signed_round = round_in_words(*link.lane, round_num)
                yield f"{signed_round}: was signed a second time, after round {last} (entry {link.position})"
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
                signed_round = round_in_words(*lane, last)
                said.append(f"{signed_round}: signed again ({link.fields.get('time')})")
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
