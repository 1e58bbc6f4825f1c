"""Wipes tables of a database, so that their rows are in none of its files any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path


def wipe_tables(file: Path, tables: Sequence[str]) -> None:
    """Delete all rows of some tables, also from free pages and from the write-ahead log.

    Rows that were deleted before disappear as well. Nothing else may use the database.

    Args:
        file: an SQLite database.
        tables: names; a table that does not exist is skipped.
    """
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA secure_delete = ON")
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for table in tables:
            if (table,) in found:
                database.execute(f"DELETE FROM {table}")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
