"""Read single facts about a run without changing any file of its folder."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..errors import RunError
from .database import DAMAGE, reading, refuse_links
from .migrations import refuse_newer, version_of
from .schema import DATABASE
from .structure import refuse_programs

LONGEST_OF_ORIGIN = 2**29  # bytes


def recorded_fact(folder: Path, key: str) -> str | None:
    """A fact about the whole run, as JSON; None where there is none."""
    if not (folder / DATABASE).exists():
        return None
    try:
        with _unchanged(folder) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
                return None
            row = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    except DAMAGE as error:
        message = f"{folder}: its database cannot be read ({error})"
        raise RunError(f"{message}; choose another output folder") from None
    return None if row is None else str(row[0])


@contextmanager
def _unchanged(folder: Path) -> Iterator[sqlite3.Connection]:
    """The database; where it has no log, SQLite is told to make no files beside it."""
    refuse_links(folder)
    path = folder / DATABASE
    log = path.with_name(f"{DATABASE}-wal")
    if log.exists() and log.stat().st_size > 0:
        with reading(folder) as database:
            # The origin of a million clients is longer than what is read of runs of others.
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_OF_ORIGIN)
            yield database
        return
    uri = f"{path.resolve().as_uri()}?immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        refuse_newer(folder, version_of(database))
        refuse_programs(database)
        yield database
