"""Columns of large rounds: one compressed value per column in place of a value per client.

A round with MANY accepted updates or more has no rows in `criteria`, and empty columns PACKED in
`participants`. The table `packed` has these columns: "client", the numbers of the clients; a column
of `participants` by its name; and of every criterion "raw NAME" and "normalised NAME", or in place of
the latter "scale NAME": the number that the raw values were divided by. Values are float64, "client"
is int64. The first bytes of all values stand together, then the second ones: they compress better so.

Readers have views of the names `participants` and `criteria`, with all values (`unpack_for_reading`).
A record that is signed is not packed: an entry is about the rows of single clients.
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..core.types import RoundRecord

MANY = 1_000  # accepted updates
MOST_CLIENTS = 2**20  # with more, a column would be too long for readers (`database.LONGEST`)
PACKED = ("score", "influence", "training_loss", "seconds")
KEPT_COLUMNS = 8  # in memory, once they are unpacked
# Two callbacks of SQLite: the value of a client, and the clients of a round as JSON
VALUE = "packed_value"
CLIENTS = "packed_clients"


def _whole(name: str) -> str:
    """A column of `participants` in SQL; a refused update has none of these values."""
    packed = f"{VALUE}(lane, round_num, '{name}', client)"
    return f"COALESCE({name}, CASE WHEN refusal IS NULL THEN {packed} END)"


_CRITERIA = f"""SELECT lane, round_num, one.value AS client, SUBSTR(name, 5) AS criterion,
        {VALUE}(lane, round_num, name, one.value) AS raw,
        {VALUE}(lane, round_num, 'normalised ' || SUBSTR(name, 5), one.value) AS normalised
    FROM main.packed, json_each({CLIENTS}(lane, round_num)) AS one
    WHERE name >= 'raw ' AND name < 'raw!'"""


def is_packed(record: RoundRecord) -> bool:
    """Whether a round is large enough."""
    num_clients = len(set(record.client_ids))
    return MANY <= num_clients <= MOST_CLIENTS and num_clients == len(record.client_ids)


def packed_columns(record: RoundRecord) -> Iterator[tuple[str, bytes]]:
    """The columns of a round, by name."""
    yield "client", _packed(numpy.array(record.client_ids, numpy.int64))
    found = (record.scores, record.influence, record.training_loss, record.seconds)
    for name, column in zip(PACKED, found, strict=True):
        if column is not None:
            yield name, _packed(column.double().numpy())
    if bool(record.raw.isnan().all()):
        return  # secure aggregation hides them from the server
    raws = record.raw.double().numpy()
    normaliseds = record.normalised.double().numpy()
    for index, name in enumerate(record.criteria):
        raw = raws[:, index]
        normalised = normaliseds[:, index]
        yield f"raw {name}", _packed(raw)
        scale = _scale(raw, normalised)
        if scale is None:
            yield f"normalised {name}", _packed(normalised)
        else:
            yield f"scale {name}", _packed(numpy.array([scale]))


def unpack_for_reading(database: sqlite3.Connection) -> None:
    """Make views of `participants` and `criteria` with all values, in a reader's own connection."""
    if not _has_packed(database):
        return
    _add_callbacks(database)
    found = database.execute("SELECT * FROM main.participants LIMIT 0")
    names = [column[0] for column in found.description]
    columns = [f"{_whole(name)} AS {name}" if name in PACKED else name for name in names]
    database.execute(
        f"CREATE TEMP VIEW participants AS SELECT {', '.join(columns)} FROM main.participants"
    )
    database.execute(
        f"CREATE TEMP VIEW criteria AS SELECT * FROM main.criteria UNION ALL {_CRITERIA}"
    )


def unpack_into_rows(database: sqlite3.Connection) -> None:
    """Write all packed columns as rows, within the caller's transaction."""
    if not _has_packed(database):
        return
    _add_callbacks(database)
    whole = ", ".join(f"{name} = {_whole(name)}" for name in PACKED)
    database.execute(f"UPDATE participants SET {whole}")
    database.execute(f"INSERT INTO criteria {_CRITERIA}")
    database.execute("DELETE FROM packed")


def _has_packed(database: sqlite3.Connection) -> bool:
    found = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = 'packed'"
    if database.execute(found).fetchone() is None:
        return False
    return database.execute("SELECT 1 FROM main.packed LIMIT 1").fetchone() is not None


def _add_callbacks(database: sqlite3.Connection) -> None:
    columns = _Columns(database)
    database.create_function(VALUE, 4, columns.value, deterministic=True)
    database.create_function(CLIENTS, 2, columns.clients, deterministic=True)


class _Column(NamedTuple):
    """The values of a column, and the place of every client among them."""

    places: dict[int, int]
    values: array[float]


class _Columns:
    """The packed columns of a database. Anybody may have written them."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._column = lru_cache(KEPT_COLUMNS)(self._read_column)
        self._places = lru_cache(2)(self._read_places)

    def value(self, lane: int, round_num: int, name: str, client: int) -> float | None:
        """The value of a client in a column of a round; None where there is none."""
        column = self._column(lane, round_num, name)
        if column is None:
            return None
        places, values = column
        place = places.get(client)
        return None if place is None else values[place]

    def clients(self, lane: int, round_num: int) -> str:
        """The clients of a round in the order of their numbers, as JSON."""
        return str(sorted(self._places(lane, round_num)))

    def _read_places(self, lane: int, round_num: int) -> dict[int, int]:
        data = self._data(lane, round_num, "client")
        if data is None:
            return {}
        clients = _unpacked(data, numpy.int64).tolist()
        return {client: place for place, client in enumerate(clients)}

    def _read_column(self, lane: int, round_num: int, name: str) -> _Column | None:
        data = self._data(lane, round_num, name)
        if data is None:
            values = self._normalised(lane, round_num, name)
        else:
            values = _unpacked(data, numpy.float64)
        if values is None:
            return None
        places = self._places(lane, round_num)
        if len(values) != len(places):
            raise ValueError(f"{len(values)} values of {name}")
        return _Column(places, array("d", values.tobytes()))

    def _normalised(self, lane: int, round_num: int, name: str) -> NDArray[Any] | None:
        """Normalised values of which only the scale is written."""
        kind, _, criterion = name.partition(" ")
        raw = self._data(lane, round_num, f"raw {criterion}")
        scale = self._data(lane, round_num, f"scale {criterion}")
        if kind != "normalised" or raw is None or scale is None:
            return None
        return _divided(_unpacked(raw, numpy.float64), _unpacked(scale, numpy.float64)[:1])

    def _data(self, lane: int, round_num: int, name: str) -> bytes | None:
        row = self._database.execute(
            "SELECT data FROM main.packed WHERE lane = ? AND round_num = ? AND name = ?",
            (lane, round_num, name),
        ).fetchone()
        return None if row is None else bytes(row[0])


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
