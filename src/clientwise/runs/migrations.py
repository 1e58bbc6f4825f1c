"""From the tables of older versions to those of `schema.py`, one version at a time.

A migration is a function of a connection and of the schema to add to:

- "main" changes the database itself. A writer does that, in one transaction, under the lock.
- "temp" adds what is missing to the reader's own connection. The file stays as it is. SQLite looks
  for a table or view in "temp" before "main", so that all queries see the new tables.

`add_column` adds a column. Migrations stay as they were released: they do not refer to `schema.py`,
which changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..errors import RunError
from .schema import SCHEMA_VERSION

OLDEST_VERSION = 8  # that can be read: the one of clientwise 0.2.0
Into = Literal["main", "temp"]
Migration = Callable[[sqlite3.Connection, Into], None]


def version_of(database: sqlite3.Connection) -> int:
    """The version of a database's tables; 0 where there are none yet."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def refuse_newer(folder: Path, version: int) -> None:
    """RunError for a database of a later version than this one."""
    if version > SCHEMA_VERSION:
        raise RunError(
            f"{folder}: was written by a newer version of clientwise (format {version}; this "
            f"version reads formats {OLDEST_VERSION} to {SCHEMA_VERSION}). Upgrade clientwise"
        )


def refuse_older(folder: Path, version: int) -> None:
    """RunError for a database that no migration begins with; 0 is one without tables."""
    if version != 0 and version < OLDEST_VERSION:
        raise RunError(
            f"{folder}: was written by an older version of clientwise (format {version}; this "
            f"version reads formats {OLDEST_VERSION} to {SCHEMA_VERSION}). Use that older version"
        )


def migrate(database: sqlite3.Connection, version: int, into: Into) -> None:
    """Lead a database of some version to the present one, within the caller's transaction."""
    if version >= OLDEST_VERSION:
        for migration in MIGRATIONS[version - OLDEST_VERSION :]:
            migration(database, into)


def add_column(database: sqlite3.Connection, into: Into, table: str, column: str) -> None:
    """Add a column to a table, with its type as in "machine INTEGER"; readers see it as NULL in a view of that name."""
    if into == "main":
        database.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        return
    name = column.split()[0]
    found = database.execute("SELECT sql FROM temp.sqlite_master WHERE name = ?", (table,))
    (view,) = found.fetchone() or (f"CREATE VIEW {table} AS SELECT * FROM main.{table}",)
    database.execute(f"DROP VIEW IF EXISTS temp.{table}")
    more = view.replace("SELECT *", f"SELECT *, NULL AS {name}")
    database.execute(more.replace("CREATE VIEW", "CREATE TEMP VIEW"))


def _version_9(database: sqlite3.Connection, into: Into) -> None:
    """Rounds say which machine computed them."""
    add_column(database, into, "rounds", "machine INTEGER")


# The first leads from OLDEST_VERSION to the next.
MIGRATIONS: list[Migration] = [_version_9]
