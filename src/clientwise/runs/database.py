"""The database of a run, for reading. Anybody may have made it: it is a file of its folder, and read with limits."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path

from ..errors import RunError
from .schema import DATABASE, SCHEMA

LONGEST = 2**24  # bytes of a value
MOST_CHARACTERS = 5_000  # of what makes a table
STEPS = 500_000  # of SQLite's machine between two looks at the clock
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)  # the second where SQLite's message quotes what is damaged
_until = ContextVar("_until", default=math.inf)  # the processor time of this thread at which to stop reading
_open: ContextVar[dict[Path, sqlite3.Connection]] = ContextVar("_open")  # what this thread is reading


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """What is read within takes this thread so many seconds of processor time, or a `RunError` ends it."""
    before = _until.set(min(_until.get(), time.thread_time() + seconds))
    try:
        yield
    finally:
        _until.reset(before)


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """The database of a run, for reading; trouble with the file is a `RunError`, a wrong call is not.

    What is read within uses the same connection: opening and checking takes longer than most queries.
    """
    if _is_late():
        raise RunError(f"{folder}: its database takes too long to read")
    try:
        already_open = _open.get({})
        if folder in already_open:
            yield already_open[folder]
            return
        with closing(_connect(folder)) as database:
            token = _open.set({**already_open, folder: database})
            try:
                yield database
            finally:
                _open.reset(token)
    except sqlite3.ProgrammingError:
        raise
    except (*DAMAGE, OSError) as error:
        reason = "it takes too long" if str(error) == "interrupted" else error
        raise RunError(f"{folder}: its database cannot be read ({reason})") from None


def _connect(folder: Path) -> sqlite3.Connection:
    path = folder / DATABASE
    refuse_links(folder)
    # Where nothing can be written, SQLite cannot even look after a log, and there is none to look after.
    mode = "immutable=1" if not os.access(folder, os.W_OK) and not _has_log(path) else "mode=ro"
    database = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    database.set_progress_handler(_is_late, STEPS)
    try:
        refuse_programs(database)
    except BaseException:
        database.close()
        raise
    return database


def refuse_links(folder: Path) -> None:
    """A link would lead out of the folder, and a pipe has no end."""
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(folder / name).st_mode):
                raise RunError(f"{folder}: its {name} cannot be read (it is a link, a folder or a device, not a file)")


def refuse_programs(database: sqlite3.Connection) -> None:
    """Nothing but our own tables: views, triggers and computed columns can do anything, for any time."""
    database.execute("PRAGMA trusted_schema = OFF")
    for name, sql in database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
        if len(str(sql)) > MOST_CHARACTERS or not _is_ours(str(sql)):
            raise sqlite3.DatabaseError(f"{str(name)[:100]!r} in it is no table of this version of clientwise")


@lru_cache(64)
def _is_ours(sql: str) -> bool:
    return _without_comments(sql) in _our_tables()


@cache
def _our_tables() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        made = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        return frozenset(_without_comments(sql) for (sql,) in made)


def _without_comments(sql: str) -> str:
    return " ".join(re.sub("--[^\n]*", "", sql).split())


def _is_late() -> bool:
    return time.thread_time() > _until.get()


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
