"""The database of a run, for reading. Anybody may have made it: it is a file of its folder, and reading it has limits."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ..errors import RunError
from .schema import DATABASE

LONGEST = 2**26  # bytes of a value
STEPS = 500_000  # of SQLite's machine between two looks at the clock
_until = ContextVar("_until", default=math.inf)  # the processor time of this thread at which to stop reading


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
    """The database of a run, for reading; trouble with the file is a `RunError`, a wrong call is not."""
    path = folder / DATABASE
    refuse_links(folder)
    if _is_late():
        raise RunError(f"{folder}: its database takes too long to read")
    try:
        # Where nothing can be written, SQLite cannot even look after a log, and there is none to look after.
        mode = "immutable=1" if not os.access(folder, os.W_OK) and not _has_log(path) else "mode=ro"
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            if _until.get() < math.inf:
                database.set_progress_handler(_is_late, STEPS)
            refuse_programs(database)
            yield database
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.DatabaseError, OSError) as error:
        reason = "it takes too long" if str(error) == "interrupted" else error
        raise RunError(f"{folder}: its database cannot be read ({reason})") from None


def refuse_links(folder: Path) -> None:
    """A link would lead out of the folder, and a pipe has no end."""
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(folder / name).st_mode):
                raise RunError(f"{folder}: its {name} cannot be read (it is a link, a folder or a device, not a file)")


def refuse_programs(database: sqlite3.Connection) -> None:
    """Only tables and their indexes: views and triggers can do anything, for any time."""
    database.execute("PRAGMA trusted_schema = OFF")
    found = database.execute(
        """SELECT name FROM sqlite_master WHERE NOT (sql LIKE 'CREATE TABLE %' OR sql LIKE 'CREATE INDEX %'
           OR sql LIKE 'CREATE UNIQUE INDEX %') LIMIT 1"""
    ).fetchone()
    if found is not None:
        raise sqlite3.DatabaseError(f"{str(found[0])[:100]!r} in it is neither a table nor an index")


def _is_late() -> bool:
    return time.thread_time() > _until.get()


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
