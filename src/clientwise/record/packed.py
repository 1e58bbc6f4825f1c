"""Columns of large rounds: one compressed value per column in place of a row per client.

A round with MANY accepted updates or more has no rows of these updates. Its only rows in `participants`
are a block, which has no client, and those of refused updates. The table `packed` has the columns:
"client", the numbers of the clients; those of `participants` by their names; and of every criterion
"raw NAME" and "normalised NAME". In place of a column, "scale COLUMN" is the number that gives it as
the quotient of another one (`_bases`). Values are float64, "client" is int64. The first bytes of all
values stand together, then the second ones: they compress better so.

Readers have views of the names `participants` and `criteria`, with a row per client
(`unpack_for_reading`).
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.types import RoundRecord

MANY = 1_000  # accepted updates
MOST_CLIENTS = 2**20  # with more, a column would be too long
KEPT_COLUMNS = 16  # in memory, once they are unpacked
# Callbacks of SQLite: the clients of a round as JSON, and the value at a place among these
CLIENTS = "packed_clients"
VALUE = "packed_value"

_CRITERIA = f"""SELECT lane, round_num, one.value AS client, SUBSTR(name, 5) AS criterion,
        {VALUE}(lane, round_num, name, one.key) AS raw,
        {VALUE}(lane, round_num, 'normalised ' || SUBSTR(name, 5), one.key) AS normalised
    FROM main.packed, json_each({CLIENTS}(lane, round_num)) AS one
    WHERE name >= 'raw ' AND name < 'raw!'"""

BY_ROUND = "participants_of_rounds"  # a view
NOT_PACKED = ("lane", "round_num", "client", "refusal")  # columns of `participants`

# The clients that readers ask for at present; None: all of them
_wanted: ContextVar[Collection[int] | None] = ContextVar("_wanted", default=None)


@contextmanager
def only_clients(clients: Collection[int]) -> Iterator[None]:
    """Unpack no other clients in queries within, which have to leave them out of their results."""
    before = _wanted.set(clients)
    try:
        yield
    finally:
        _wanted.reset(before)


def is_packed(record: RoundRecord) -> bool:
    """Whether a round is large enough."""
    num_clients = len(set(record.client_ids))
    return MANY <= num_clients <= MOST_CLIENTS and num_clients == len(record.client_ids)


def packed_columns(
    record: RoundRecord, columns: Mapping[str, Tensor | None]
) -> Iterator[tuple[str, bytes]]:
    """The columns of a round, by name.

    Args:
        record: the round.
        columns: the columns of `participants` by name; None for one that the round has not.
    """
    yield "client", _packed(numpy.array(record.client_ids, numpy.int64))
    found = {name: one.double().numpy() for name, one in columns.items() if one is not None}
    if not bool(record.raw.isnan().all()):  # secure aggregation hides them from the server
        for index, name in enumerate(record.criteria):
            found[f"raw {name}"] = record.raw[:, index].double().numpy()
            found[f"normalised {name}"] = record.normalised[:, index].double().numpy()
    for name, values in found.items():
        base = next((found[one] for one in _bases(name) if one in found), None)
        scale = None if base is None else _scale(base, values)
        if scale is None:
            yield name, _packed(values)
        else:
            yield f"scale {name}", _packed(numpy.array([scale]))


def unpack_for_reading(database: sqlite3.Connection) -> None:
    """Make views with a row for every client, in a reader's own connection.

    `participants` and `criteria` are for all queries: SQLite goes through them once, or makes an index of
    them. BY_ROUND has the rows of `participants`, too: SQLite finds a round in it at once, but goes through
    the whole round for a client.

    Args:
        database: the connection.
    """
    if not _has_packed(database):
        database.execute(f"CREATE TEMP VIEW {BY_ROUND} AS SELECT * FROM participants")
        return
    _add_callbacks(database)
    columns = _columns(database)
    clients = _clients(database)
    rows = "SELECT *, NULL AS place FROM main.participants WHERE client IS NOT NULL"
    database.execute(f"CREATE TEMP VIEW {BY_ROUND} AS SELECT {columns} FROM ({clients})")
    database.execute(
        f"""CREATE TEMP VIEW participants AS SELECT {columns}
            FROM ({rows} UNION ALL {clients} WHERE p.client IS NULL)"""
    )
    database.execute(
        f"CREATE TEMP VIEW criteria AS SELECT * FROM main.criteria UNION ALL {_CRITERIA}"
    )


def _clients(database: sqlite3.Connection) -> str:
    """The rows of `participants` in SQL, with a row for every client of a block, and the client's place."""
    client = "COALESCE(p.client, one.value) AS client"
    columns = [client if name == "client" else f"p.{name}" for name in _names(database)]
    clients = f"CASE WHEN p.client IS NULL THEN {CLIENTS}(p.lane, p.round_num) ELSE '[0]' END"
    return f"""SELECT {", ".join(columns)}, CASE WHEN p.client IS NULL THEN one.key END AS place
        FROM main.participants AS p, json_each({clients}) AS one"""


def _columns(database: sqlite3.Connection) -> str:
    """The columns of `participants` in SQL, for rows of `_clients`. SQLite computes those that a query uses."""
    columns = []
    for name in _names(database):
        column = name
        packed = database.execute(
            "SELECT 1 FROM main.packed WHERE name IN (?, ?) LIMIT 1", (name, f"scale {name}")
        )
        if name not in NOT_PACKED and packed.fetchone():
            value = f"{VALUE}(lane, round_num, '{name}', place)"
            column = f"CASE WHEN place IS NULL THEN {name} ELSE {value} END AS {name}"
        columns.append(column)
    return ", ".join(columns)


def _names(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT * FROM main.participants LIMIT 0")
    return [column[0] for column in found.description]


def _has_packed(database: sqlite3.Connection) -> bool:
    found = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = 'packed'"
    if database.execute(found).fetchone() is None:
        return False
    return database.execute("SELECT 1 FROM main.packed LIMIT 1").fetchone() is not None


def _add_callbacks(database: sqlite3.Connection) -> None:
    columns = _Columns(database)
    database.create_function(CLIENTS, 2, columns.clients, deterministic=True)
    database.create_function(VALUE, 4, columns.value, deterministic=True)


class _Round(NamedTuple):
    """The clients of a round that are asked for, in the order of their numbers."""

    size: int  # of all clients of the round
    places: NDArray[Any]  # of those asked for, in the columns
    clients: str  # their numbers as JSON


class _Columns:
    """The packed columns of a database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._wanted: Collection[int] | None = None
        self._round = lru_cache(2)(self._read_round)
        self._column = lru_cache(KEPT_COLUMNS)(self._read_column)
        self._values = lru_cache(2)(self._read_values)

    def clients(self, lane: int, round_num: int) -> str:
        """The clients of a round as JSON. SQLite asks for them before it asks for their values."""
        wanted = _wanted.get()
        if wanted is not self._wanted:
            self._wanted = wanted
            self._round.cache_clear()
            self._column.cache_clear()
        return self._round(lane, round_num).clients

    def value(self, lane: int, round_num: int, name: str, place: int) -> float | None:
        """The value of a column at a place among the clients; None where there is no such column."""
        values = self._column(lane, round_num, name)
        return None if values is None else values[place]

    def _read_column(self, lane: int, round_num: int, name: str) -> array[float] | None:
        """The values of the clients that are asked for."""
        values = self._values(lane, round_num, name)
        if values is None:
            return None
        asked = self._round(lane, round_num)
        if len(values) != asked.size:
            raise ValueError(f"{len(values)} values of {name}")
        return array("d", values[asked.places].tobytes())

    def _read_round(self, lane: int, round_num: int) -> _Round:
        data = self._data(lane, round_num, "client")
        if data is None:
            raise ValueError("no clients")
        clients = _unpacked(data, numpy.int64)
        places = numpy.argsort(clients, kind="stable")
        if self._wanted is not None:
            places = places[numpy.isin(clients[places], list(self._wanted))]
        return _Round(len(clients), places, str(clients[places].tolist()))

    def _read_values(self, lane: int, round_num: int, name: str) -> NDArray[Any] | None:
        """A column of a round in the order in which it is packed; None where there is none."""
        data = self._data(lane, round_num, name)
        if data is not None:
            return _unpacked(data, numpy.float64)
        scale = self._data(lane, round_num, f"scale {name}")
        if scale is None:
            return None
        bases = (self._values(lane, round_num, one) for one in _bases(name))
        base = next((one for one in bases if one is not None), None)
        return None if base is None else _divided(base, _unpacked(scale, numpy.float64)[:1])

    def _data(self, lane: int, round_num: int, name: str) -> bytes | None:
        row = self._database.execute(
            "SELECT data FROM main.packed WHERE lane = ? AND round_num = ? AND name = ?",
            (lane, round_num, name),
        ).fetchone()
        if row is None:
            return None
        (data,) = row
        if not isinstance(data, bytes):
            raise ValueError(f"a packed column that is no bytes but {type(data).__name__}")
        return data


def _bases(name: str) -> tuple[str, ...]:
    """The columns of which the first one that a round has may give this one as a quotient."""
    if name == "prior":
        return ("score",)
    if name == "weight":
        return ("posterior", "score")
    kind, _, criterion = name.partition(" ")
    return (f"raw {criterion}",) if kind == "normalised" else ()


def _packed(values: NDArray[Any]) -> bytes:
    by_byte = numpy.ascontiguousarray(values).view(numpy.uint8).reshape(len(values), -1)
    return zlib.compress(numpy.ascontiguousarray(by_byte.T).tobytes(), level=1)


def _unpacked(data: bytes, kind: type) -> NDArray[Any]:
    reader = zlib.decompressobj()
    content = reader.decompress(data, 8 * MOST_CLIENTS + 1)
    if not reader.eof:
        raise ValueError("a packed column is cut off or too long")
    by_byte = numpy.frombuffer(content, numpy.uint8).reshape(8, -1)
    return numpy.ascontiguousarray(by_byte.T).view(kind).ravel()


def _scale(raw: NDArray[Any], normalised: NDArray[Any]) -> float | None:
    """The number that gives the normalised values to the bit; None where none is found."""
    largest = int(numpy.abs(raw).argmax())
    with numpy.errstate(all="ignore"):
        about = float(raw[largest] / normalised[largest])
    for candidate in (about, math.nextafter(about, math.inf), math.nextafter(about, -math.inf)):
        if _same_bits(_divided(raw, candidate), normalised):
            return candidate
    return None


def _divided(raw: NDArray[Any], scale: Any) -> NDArray[Any]:
    with numpy.errstate(all="ignore"):
        divided: NDArray[Any] = raw / scale
    return divided


def _same_bits(some: NDArray[Any], others: NDArray[Any]) -> bool:
    return some.tobytes() == numpy.ascontiguousarray(others).tobytes()
