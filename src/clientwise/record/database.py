"""Open the database of a run for reading; nothing is ever written to the file.

It has to be a regular file in its folder, of the present format.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ..errors import RunError
from .packed import unpack_for_reading
from .schema import DATABASE, SCHEMA_VERSION

# What a damaged file raises; the second where SQLite's message quotes the damaged bytes.
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)

# The databases that this thread is reading.
_open: ContextVar[dict[Path, sqlite3.Connection]] = ContextVar("_open")


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a run. A file that cannot be read is a RunError; a wrong call is not.

    Nested calls for the same folder share one connection: opening and checking a database takes
    longer than most queries.
    """
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
        raise RunError(f"{folder}: its database cannot be read ({error})") from None


def refuse_other_format(folder: Path, database: sqlite3.Connection) -> None:
    """RunError for a database of another format than that of this version; one without tables has none yet."""
    database.execute("PRAGMA trusted_schema = OFF")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        raise RunError(
            f"{folder}: was written by another version of clientwise (format {version}; this version reads "
            f"format {SCHEMA_VERSION}). Use that version, or run the experiment again in another folder"
        )


def refuse_links(folder: Path) -> None:
    """RunError where a file of the database is a link, a folder or a device.

    A link leads out of the folder, and a pipe has no end.
    """
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(folder / name).st_mode):
                reason = "it is a link, a folder or a device, not a file"
                raise RunError(f"{folder}: its {name} cannot be read ({reason})")


def _connect(folder: Path) -> sqlite3.Connection:
    refuse_links(folder)
    database = sqlite3.connect(_address(folder), uri=True)
    try:
        database.execute("PRAGMA temp_store = MEMORY")
        database.execute("BEGIN")  # all queries see the rounds that there are now
        refuse_other_format(folder, database)
        unpack_for_reading(database)
    except BaseException:
        database.close()
        raise
    return database


def _address(folder: Path) -> str:
    path = folder / DATABASE
    mode = "mode=ro"
    # SQLite needs to write beside the database to read it, unless it is told that nobody writes.
    if not os.access(folder, os.W_OK) and not _has_log(path):
        mode = "immutable=1"
    return f"{path.resolve().as_uri()}?{mode}"


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0
