"""The database of a run folder: four tables, frames as bytes, and reading, which writes nothing and needs no PyTorch.

No table changes when a value is added: the values of a round are a JSON object, and a frame is bytes. What is
recorded is said in `tables.py`.

A frame is compressed: the length of its header, the header, its columns. The header is JSON, with the number of rows
and the kind of every column. A value takes eight bytes; a text or a truth value is a number. The first bytes of all
values of a column stand together, then the second ones: they compress better so.
Rounds with the same header are unpacked together, which takes a tenth of the time.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from ..errors import RunError
from .files import holds, is_locked

DATABASE = "run.sqlite"
VERSION = 14  # of the format; a database says its own in `PRAGMA user_version`
CLIENTS = "clients"  # a frame of a seed, which stands in the place of the lane; its round is 0
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS facts (  -- about the whole run; values are JSON
        key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS lanes (  -- one method with one seed
        lane INTEGER PRIMARY KEY, method TEXT, seed INTEGER,
        finished INTEGER,  -- its rounds, once it has ended
        UNIQUE (method, seed))""",
    """CREATE TABLE IF NOT EXISTS rounds (  -- values by name, as JSON
        lane INTEGER, round INTEGER, value TEXT,
        PRIMARY KEY (lane, round))""",
    """CREATE TABLE IF NOT EXISTS frames (
        lane INTEGER, round INTEGER, name TEXT, data BLOB,
        PRIMARY KEY (name, lane, round))""",
)
# What a damaged file raises; the second where SQLite's message quotes the damaged bytes.
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
FLOAT = "float"
WHOLE = "whole"
TRUTH = "truth"
BYTES = 8  # of a value

Array = NDArray[Any]


# Reading ----------------------------------------------------------------------------------------------


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a run for reading; nothing is ever written. RunError where it cannot be read."""
    with readable(folder):
        # SQLite makes files beside the database to read it, unless it is told that nobody writes.
        mode = "mode=ro" if _is_written(folder) else "immutable=1"
        address = f"{(folder / DATABASE).resolve().as_uri()}?{mode}"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("BEGIN")  # all queries see the rounds that there are now
            refuse_other_format(folder, database)
            yield database


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """A context in which a damaged database is a RunError; a bug is not one."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (*DAMAGE, OSError) as error:
        raise RunError(
            f"{folder}: its database cannot be read ({error}); choose another folder"
        ) from None


def recorded_fact(folder: Path, key: str) -> Any:
    """A fact about the whole run; None where there is none."""
    if not (folder / DATABASE).exists():
        return None
    with reading(folder) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
            return None
        row = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    try:
        return None if row is None else json.loads(row[0])
    except (ValueError, RecursionError):
        raise RunError(f"{folder}: its database is damaged (its {key} cannot be read)") from None


def refuse_other_format(folder: Path, database: sqlite3.Connection) -> None:
    """RunError for a database of another format than that of this version; one without tables has none yet."""
    database.execute("PRAGMA trusted_schema = OFF")  # a folder of others runs no program
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise RunError(
            f"{folder}: was written by another version of clientwise (format {version}; this version reads "
            f"format {VERSION}). Use that version, or run the experiment again in another folder"
        )


def _is_written(folder: Path) -> bool:
    """Whether somebody writes to a database, or its log has rounds that it lacks."""
    log = folder / f"{DATABASE}-wal"
    if holds(folder):  # this process writes once its `Store` is open, which makes the log
        return log.exists()
    return is_locked(folder) or (log.exists() and log.stat().st_size > 0)


# Frames as bytes --------------------------------------------------------------------------------------


def pack(columns: Mapping[str, Any]) -> bytes:
    """A frame of arrays and lists, all of one length."""
    kinds: dict[str, Any] = {}
    stored: list[Array] = []
    for name, values in columns.items():
        kinds[name], numbers = _numbers(values)
        stored.append(numbers.view(numpy.uint8))
    by_byte = numpy.stack(stored).reshape(len(stored), -1, BYTES).transpose(0, 2, 1)
    header = json.dumps([by_byte.shape[-1], kinds]).encode()
    size = len(header).to_bytes(4, "little")
    return zlib.compress(b"".join([size, header, by_byte.tobytes()]), level=1)


def unpack(frames: Iterable[tuple[int, int, bytes]]) -> list[dict[str, Array]]:
    """Columns of frames, of which lane, round and bytes are given; ValueError or zlib.error for damaged ones.

    Frames with one header are joined. The columns `lane` and `round` are put in front.
    """
    groups: dict[bytes, list[tuple[int, int, bytes]]] = {}
    for lane, round_num, data in frames:
        content = zlib.decompress(data)
        end = 4 + int.from_bytes(content[:4], "little")
        groups.setdefault(content[4:end], []).append((lane, round_num, content[end:]))
    return [_unpacked(header, members) for header, members in groups.items()]


def _unpacked(header: bytes, members: list[tuple[int, int, bytes]]) -> dict[str, Array]:
    rows, kinds = json.loads(header)
    content = numpy.frombuffer(b"".join(body for *_, body in members), numpy.uint8)
    by_byte = content.reshape(len(members), len(kinds), BYTES, rows)
    words = numpy.ascontiguousarray(by_byte.transpose(1, 0, 3, 2)).reshape(len(kinds), -1)
    columns = {
        "lane": numpy.repeat([lane for lane, *_ in members], rows),
        "round": numpy.repeat([round_num for _, round_num, _ in members], rows),
    }
    for own, (name, kind) in zip(words, kinds.items(), strict=True):
        columns[name] = _values(kind, own)
    return columns


def _numbers(values: Any) -> tuple[Any, Array]:
    """The kind of a column, and its values as numbers of eight bytes; for texts, the kind lists them."""
    if hasattr(values, "cpu"):  # a tensor, perhaps on a GPU
        values = values.cpu()
    array = numpy.asarray(values)
    if array.dtype.kind == "f":
        return FLOAT, array.astype("<f8")
    if array.dtype.kind == "b":
        return TRUTH, array.astype("<i8")
    if array.dtype.kind in "iu":
        return WHOLE, array.astype("<i8")
    codes = {text: code for code, text in enumerate(dict.fromkeys(values))}
    return list(codes), numpy.array([codes[text] for text in values], "<i8")


def _values(kind: Any, words: Array) -> Any:
    if kind == FLOAT:
        return words.view("<f8")
    numbers = words.view("<i8")
    if kind == WHOLE:
        return numbers
    if kind == TRUTH:
        return numbers != 0
    return numpy.array(kind, dtype=object)[numbers]
