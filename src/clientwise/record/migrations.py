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
    """Rounds say which machine computed them. What code asks of a round is no longer a sentence."""
    add_column(database, into, "rounds", "machine INTEGER")
    database.execute(
        f"""CREATE TABLE {into}.server_steps (
            lane INTEGER, round_num INTEGER, position INTEGER, step TEXT, loss REAL, used INTEGER,
            PRIMARY KEY (lane, round_num, position)) WITHOUT ROWID"""
    )
    if into == "temp":
        database.execute(f"CREATE TEMP VIEW kept AS {KEPT_OF_0_2_0}")
        database.execute(f"CREATE TEMP VIEW refusals AS {REFUSALS_OF_0_2_0}")
        return
    database.execute(
        """CREATE TABLE main.kept (
            lane INTEGER, round_num INTEGER, cause TEXT, detail TEXT,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )
    database.execute(
        """CREATE TABLE main.refusals (
            lane INTEGER, round_num INTEGER, reason TEXT, kind TEXT,
            refused INTEGER, honest INTEGER,
            PRIMARY KEY (lane, round_num, reason)) WITHOUT ROWID"""
    )
    database.execute(f"INSERT INTO main.kept {KEPT_OF_0_2_0}")
    database.execute(f"INSERT INTO main.refusals {REFUSALS_OF_0_2_0}")


def _version_10(database: sqlite3.Connection, into: Into) -> None:
    """Large rounds have compressed columns, and sums over their participants."""
    database.execute(
        f"""CREATE TABLE {into}.packed (
            lane INTEGER, round_num INTEGER, name TEXT, data BLOB,
            PRIMARY KEY (name, lane, round_num))"""
    )
    database.execute(
        f"""CREATE TABLE {into}.sums (
            lane INTEGER, round_num INTEGER, participants INTEGER, hostile_influence REAL,
            clients_per_cell INTEGER, cells BLOB,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )


def _version_11(database: sqlite3.Connection, into: Into) -> None:
    """Evidence has a size."""
    add_column(database, into, "rounds", "held_out_change REAL")
    add_column(database, into, "participants", "harm REAL")
    add_column(database, into, "participants", "harm_error REAL")


# Version 0.2.0 knew causes and kinds by its sentences. Nothing else reads them. A detail stands
# between the beginning of a sentence and its end.
KEPT_OF_0_2_0 = """WITH said (cause, start, finish) AS (VALUES
        ('no update', 'no update was accepted: the model stays as it was', ''),
        ('bounds', 'no weights meet the bounds (', '): the model stays as it was'),
        ('overflow', 'the scores overflow: the model stays as it was', ''),
        ('zero weights', 'all weights are zero: the model stays as it was', ''),
        ('zero criteria', 'all weights are zero (',
            ': zero for all clients): the model stays as it was'),
        ('aggregate', 'the aggregate has NaN or Inf: the model stays as it was', ''),
        ('predictions', 'the aggregate predicts NaN or Inf: the model stays as it was', ''),
        ('no evaluation', 'no client evaluated the aggregate: the model stays as it was', ''),
        ('brake', 'braked: the new model is worse on the server''s set by ',
            ': the old one stays'))
    SELECT lane, round_num, cause, MAX(substr(value, length(start) + 1,
            length(value) - length(start) - length(finish))) AS detail
    FROM rounds, json_each(CASE WHEN json_valid(notes) THEN notes ELSE '[]' END) JOIN said
        ON value = start OR finish != '' AND substr(value, 1, length(start)) = start
            AND substr(value, -length(finish)) = finish
    GROUP BY lane, round_num"""
REFUSALS_OF_0_2_0 = """SELECT lane, round_num, refusal AS reason,
        CASE refusal WHEN 'late: the round had ended' THEN 'absent'
            WHEN 'dropped out' THEN 'absent'
            WHEN 'model has NaN or Inf' THEN 'diverged'
            WHEN 'update norm is not finite' THEN 'diverged' END AS kind,
        SUM(refused) AS refused, SUM(honest) AS honest
    FROM (SELECT lane, round_num, refusal, 1 AS refused,
            NOT EXISTS (SELECT 1 FROM lanes JOIN clients USING (seed)
                WHERE lanes.lane = participants.lane AND clients.client = participants.client
                    AND hostile IS NOT NULL) AS honest
        FROM participants WHERE refusal IS NOT NULL
        UNION ALL
        SELECT lane, round_num, json_extract(value, '$[0]'), json_extract(value, '$[1]'),
            json_extract(value, '$[2]')
        FROM omitted, json_each(refusals))
    GROUP BY lane, round_num, refusal"""

# The first leads from OLDEST_VERSION to the next.
MIGRATIONS: list[Migration] = [_version_9, _version_10, _version_11]
