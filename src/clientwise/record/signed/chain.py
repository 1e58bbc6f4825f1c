"""The signed record: a chain of hashes over a run's rows, signed entry by entry.

The table `chain` has one row per entry. The entry itself is canonical JSON (RFC 8785), for example

    {"key": ..., "kind": "round", "leaves": HASH, "method": "FedAvg", "position": 7,
     "previous": HASH, "round": 5, "run": ID, "seed": 1, "time": ..., "version": 3}

- `previous` is the SHA-256 of the entry before it, so no entry can be removed, inserted or moved.
- `leaves` is the hash of all rows that the entry is about. A *leaf* is what the record says about
  one client in the round, about the round as a whole, or one fact about the run.
- The server signs the entry with its Ed25519 key.

The hash of the leaves is over their sorted digests. So the *receipt* of a client proves that its rows
are in an entry, and shows the digests of the other leaves, not their rows. Every leaf has a salt:
without it, whoever has a digest could guess the rows.

JSON has fewer types than SQLite: a row has bytes as their hexadecimal digits, for example. So every row
says the types of its values under "$types", one letter per column in the order of their names:
integer, real, text or blob. Entries of version 0.2.0 have no types and are of version 2.

Kinds of entries:

- "facts": facts, clients and lanes of the run, as they are from here on.
- "round": the rows of a round. A later entry about the same round replaces it.
- "forget": the rounds of a lane after the round `after` are deleted, since they are run again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from ...errors import needing
from ..schema import TABLES_BY_ROUND

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PURPOSE = b"clientwise record 1\n"  # what is signed for this purpose is worth nothing for others
FIRST = "0" * 64  # the hash before the first entry
SALT_BYTES = 32
LARGEST_INTEGER = 2**53  # RFC 8785 has no larger ones
VERSION = 3  # of entries
WITH_TYPES = 3  # the first version whose rows have types
TYPES = "$types"  # no column has such a name
NEGATIVE_ZERO = "negative zero"  # a type of its own, since JSON has one zero
LETTERS: dict[object, str] = {int: "i", float: "r", str: "t", bytes: "b", NEGATIVE_ZERO: "n"}
# Tables that were added since 0.2.0, by the first version of the entries that cover them.
SINCE = {"kept": 3, "refusals": 3}
# Tables about the run as a whole, and what names one of their rows.
OF_THE_RUN = {
    "facts": ("key",),
    "clients": ("seed", "client"),
    "lanes": ("method", "seed"),
    "policies": ("lane", "round_num"),
}
# Packed columns are seen as rows of other tables
TABLES = tuple(table for table in TABLES_BY_ROUND if table not in (*OF_THE_RUN, "packed"))
BEST = "best"  # its rows have a leaf of their own: a later best round replaces them
Leaves = dict[str, list[str]]  # rows as canonical JSON, by the label of their leaf


def canonical(value: Any) -> bytes:
    """A value as canonical JSON (RFC 8785); ValueError where it has none."""
    with needing("signed", "a signed record"):
        import rfc8785
    encoded: bytes = rfc8785.dumps(value)
    return encoded


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def signed_bytes(entry: str) -> bytes:
    """What the signature of an entry is over."""
    return PURPOSE + entry.encode()


def client_label(client: int) -> str:
    """The label of the leaf about a client."""
    return f"client {client}"


def leaf_salt(salt: bytes, label: str) -> bytes:
    """The salt of one leaf, from that of its entry."""
    return hmac.digest(salt, label.encode(), "sha256")


def leaf_digest(own_salt: bytes, label: str, rows: list[dict[str, Any]]) -> str:
    """The digest of a leaf."""
    return digest(own_salt + canonical([label, rows]))


def hash_of_leaves(digests: Iterable[str]) -> str:
    """The hash of all leaves of an entry."""
    return digest(canonical(sorted(digests)))


def digests_of(salt: bytes, leaves: Leaves) -> dict[str, str]:
    """The digest of every leaf by its label; see `leaf_digest`."""
    digests = {}
    for label, rows in leaves.items():
        leaf = f"[{encode_basestring(label)},[{','.join(rows)}]]"
        digests[label] = digest(leaf_salt(salt, label) + leaf.encode())
    return digests


def leaves_of_round(
    database: sqlite3.Connection, lane: int, round_num: int, version: int = VERSION
) -> Leaves:
    """The rows of a round, by client and for the round as a whole, as entries of a version have them."""
    leaves: Leaves = {}
    for table in TABLES:
        if version < SINCE.get(table, 0):
            continue
        where = "WHERE lane = ? AND round_num = ?"
        found = database.execute(f"SELECT * FROM {table} {where}", (lane, round_num))
        label = BEST if table == BEST else "round"
        for (client, _), row in _by_client(
            _encoded(found, version, ("client", "criterion"), table)
        ):
            own = label if client is None else client_label(client)
            leaves.setdefault(own, []).append(row)
    return leaves


def leaves_of_run(database: sqlite3.Connection, version: int = VERSION) -> Leaves:
    """Facts, clients, lanes and policies of a run, as entries of a version have them."""
    leaves: Leaves = {}
    for table, key in OF_THE_RUN.items():
        found = database.execute(f"SELECT * FROM {table}")
        for named, row in _encoded(found, version, key):
            # A table without its key, which anybody can make, may have several rows of one name.
            leaves.setdefault(f"{table} {' '.join(map(str, named))}", []).append(row)
    return leaves


@dataclass(frozen=True)
class Link:
    """A row of the table `chain`."""

    position: int
    entry: str
    signature: bytes
    salt: bytes
    leaves: Mapping[str, str]  # digests by label

    @property
    def fields(self) -> dict[str, Any]:
        """What the entry says; empty where it cannot be read."""
        return _parsed(self.entry)

    @property
    def kind(self) -> str:
        """The kind of the entry."""
        return str(self.fields.get("kind"))

    @property
    def lane(self) -> tuple[str, int]:
        """The method and seed that the entry is about."""
        return str(self.fields.get("method")), self.number("seed")

    @property
    def version(self) -> int:
        """The version of the entry."""
        return max(1, self.number("version"))

    def number(self, name: str) -> int:
        """A whole number in the entry; −1 where there is none."""
        try:
            return int(self.fields[name])
        except (KeyError, TypeError, ValueError, OverflowError):
            return -1


def links(database: sqlite3.Connection, newest_first: bool = False) -> Iterator[Link]:
    """The chain in its order. Anybody may have written it: its values are only given their types."""
    order = "DESC" if newest_first else "ASC"
    found = database.execute(
        f"SELECT position, entry, signature, salt, leaves FROM chain ORDER BY position {order}"
    )
    for position, entry, signature, salt, leaves in found:
        digests = {label: str(value) for label, value in _parsed(leaves).items()}
        number = position if isinstance(position, int) else -1
        yield Link(number, str(entry), _as_bytes(signature), _as_bytes(salt), digests)


def _parsed(text: object) -> dict[str, Any]:
    """The JSON object in a text; empty where there is none."""
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class SignedChain:
    """Appends entries to the chain of a run, within the caller's transactions.

    Args:
        database: the run's database.
        key: the key that signs.
        run: the run's id.
    """

    def __init__(self, database: sqlite3.Connection, key: Ed25519PrivateKey, run: str) -> None:
        from .keys import public_bytes

        self._database = database
        self._key = key
        self._about = {"run": run, "key": public_bytes(key).hex(), "version": VERSION}
        self._facts = ""  # the digest of what the last "facts" entry says

    def add_facts(self) -> None:
        """An entry about the facts of the run, if they changed since the last one."""
        leaves = leaves_of_run(self._database)
        found = digest(json.dumps(leaves).encode())
        if found != self._facts:
            self._add("facts", {}, leaves)
            self._facts = found

    def add_round(self, lane: int, round_num: int) -> None:
        """An entry about a round."""
        leaves = leaves_of_round(self._database, lane, round_num)
        self._add("round", self._lane(lane) | {"round": round_num}, leaves)

    def add_forgotten(self, lane: int, after: int) -> None:
        """An entry that says that the later rounds of a lane are run again."""
        self._add("forget", self._lane(lane) | {"after": after}, {})

    def add_missing(self) -> None:
        """Entries about rounds that have none: they were recorded without a key."""
        recorded = self._database.execute("SELECT lane, round_num FROM rounds").fetchall()
        known = set(live_rounds(links(self._database)))
        missing = []
        for lane, round_num in sorted(recorded):
            named = self._lane(lane)
            if (named["method"], named["seed"], round_num) not in known:
                missing.append((lane, round_num))
        if missing:
            self.add_facts()  # first: they list the clients of these rounds
        for lane, round_num in missing:
            self.add_round(lane, round_num)

    def _lane(self, lane: int) -> dict[str, Any]:
        sql = "SELECT method, seed FROM lanes WHERE lane = ?"
        method, seed = self._database.execute(sql, (lane,)).fetchone()
        return {"method": method, "seed": seed}

    def _add(self, kind: str, about: Mapping[str, Any], leaves: Leaves) -> None:
        # Read again every time: a transaction that failed took its entry with it.
        sql = "SELECT position, entry FROM chain ORDER BY position DESC LIMIT 1"
        last = self._database.execute(sql).fetchone()
        position = last[0] + 1 if last else 1
        salt = secrets.token_bytes(SALT_BYTES)
        digests = digests_of(salt, leaves)
        entry = {
            **self._about,
            **about,
            "kind": kind,
            "leaves": hash_of_leaves(digests.values()),
            "position": position,
            "previous": digest(last[1].encode()) if last else FIRST,
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        text = canonical(entry).decode()
        signature = self._key.sign(signed_bytes(text))
        self._database.execute(
            "INSERT INTO chain (position, entry, signature, salt, leaves) VALUES (?, ?, ?, ?, ?)",
            (position, text, signature, salt, json.dumps(digests)),
        )


def live_rounds(chain: Iterable[Link]) -> dict[tuple[str, int, int], Link]:
    """The entry that counts for every round (method, seed, round): the last, unless forgotten."""
    found: dict[tuple[str, int, int], Link] = {}
    for link in chain:
        lane = link.lane
        if link.kind == "round":
            found[*lane, link.number("round")] = link
        elif link.kind == "forget":
            after = link.number("after")
            found = {key: one for key, one in found.items() if key[:2] != lane or key[2] <= after}
    return found


def receipts_of_round(
    database: sqlite3.Connection, lane: int, round_num: int, link: Link
) -> dict[int, dict[str, Any]]:
    """What proves to every client that its rows are in the entry about a round."""
    receipts = {}
    for label, texts in leaves_of_round(database, lane, round_num, link.version).items():
        rows = [json.loads(text) for text in texts]
        if "client" not in rows[0]:
            continue
        receipts[rows[0]["client"]] = {
            "entry": link.entry,
            "signature": link.signature.hex(),
            "label": label,
            "salt": leaf_salt(link.salt, label).hex(),
            "rows": rows,
            "digests": sorted(link.leaves.values()),
        }
    return receipts


Encoded = tuple[Sequence[Any], str]  # some values of a row, and all of them as canonical JSON


def _encoded(
    found: sqlite3.Cursor, version: int, key: Sequence[str], table: str | None = None
) -> list[Encoded]:
    """Rows as canonical JSON, without empty values: a column added later changes no hash.

    A run waits for this in every round. So values are encoded column by column, in rows of the same
    types; `rfc8785` would take six times as long.

    Args:
        found: the rows.
        version: of the entries.
        key: columns whose values are returned with every row; None for one that is missing.
        table: what the rows are said to be of.
    """
    columns = tuple(column[0] for column in found.description)
    rows = found.fetchall()
    texts = [""] * len(rows)
    for kinds, indices in _alike(rows).items():
        order, template = _template(columns, kinds, version, table)
        values = list(zip(*(rows[index] for index in indices), strict=True))
        encoded: Iterable[tuple[str, ...]] = zip(
            *(_each(ENCODERS[kinds[place]], values[place]) for place in order), strict=True
        )
        if not order:  # rows without any value, which anybody can write
            encoded = [()] * len(indices)
        for index, text in zip(indices, map(template.__mod__, encoded), strict=True):
            texts[index] = text
    named = [_column(columns, rows, name) for name in key]
    return list(zip(zip(*named, strict=True), texts, strict=True))


def _alike(rows: Sequence[Sequence[Any]]) -> dict[tuple[object, ...], list[int]]:
    """Which rows have values of the same types."""
    found: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        kinds: tuple[object, ...] = tuple(map(type, row))
        if 0 in row:
            kinds = tuple(map(_kind, row))
        found.setdefault(kinds, []).append(index)
    return found


def _each(encode: Callable[[Any], str], column: Sequence[Any]) -> Iterable[str]:
    """Every value of a column, of which many are equal."""
    texts = {value: encode(value) for value in set(column)}
    return map(texts.__getitem__, column)


def _column(columns: Sequence[str], rows: Sequence[Sequence[Any]], name: str) -> list[Any]:
    """The values of a column; None for one that is missing."""
    if name not in columns:
        return [None] * len(rows)
    place = columns.index(name)
    return [_plain(row[place]) for row in rows]


@lru_cache(64)
def _template(
    columns: tuple[str, ...], kinds: tuple[object, ...], version: int, table: str | None
) -> tuple[list[int], str]:
    """Which columns a row of these types has, and its canonical JSON with a place for each."""
    present = sorted(
        (name, index, LETTERS[kind])
        for index, (name, kind) in enumerate(zip(columns, kinds, strict=True))
        if kind in LETTERS
    )
    fields = {name: "%s" for name, _, _ in present}
    if table is not None:
        fields["table"] = encode_basestring(table)
    if version >= WITH_TYPES:
        fields[TYPES] = encode_basestring("".join(letter for _, _, letter in present))
    items = [f"{encode_basestring(name)}:{text}" for name, text in sorted(fields.items())]
    return [index for _, index, _ in present], f"{{{','.join(items)}}}"


def _by_client(rows: list[Encoded]) -> list[Encoded]:
    """Rows by client, and those of a client by criterion."""
    if all(client is None for (client, _), _ in rows):
        return rows

    def place(row: Encoded) -> tuple[tuple[float, str], str]:
        client, criterion = row[0]
        return rank(0 if client is None else client), str(criterion or "")

    return sorted(rows, key=place)


def rank(value: object) -> tuple[float, str]:
    """A key that sorts numbers, and puts whatever else a table may hold behind them."""
    if isinstance(value, (int, float)):
        return value, ""
    return math.inf, str(value)


def _plain(value: Any) -> Any:
    """A value of SQLite as JSON has it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        return str(value)
    return value


def _kind(value: Any) -> object:
    """The type of a value."""
    if value == 0 and str(value) == "-0.0":
        return NEGATIVE_ZERO
    return type(value)


def _integer(value: int) -> str:
    return str(value) if abs(value) < LARGEST_INTEGER else f'"{value}"'


def _float(value: float) -> str:
    text = repr(value)
    if text.endswith(".0") or "e" in text or "n" in text:
        return canonical(_plain(value)).decode()  # whole numbers, exponents and "inf"
    return text


def _digits(value: bytes) -> str:
    return f'"{value.hex()}"'


ENCODERS: dict[object, Callable[[Any], str]] = {
    int: _integer,
    float: _float,
    NEGATIVE_ZERO: _float,
    str: encode_basestring,
    bytes: _digits,
}


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""
