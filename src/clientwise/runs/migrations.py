"""From the tables of older versions to those of `schema.py`, one version at a time.

A migration is a function of a connection and of the schema to add to:

- "main" changes the database itself. A writer does that, in one transaction, under the lock.
- "temp" adds what is missing to the reader's own connection. The file stays as it is. SQLite looks
  for a table or view in "temp" before "main", so that all queries see the new tables.

To add a column, use `ALTER TABLE` in "main" and a view (`SELECT *, NULL AS new FROM main.old`) in
"temp". Migrations stay as they were released: they do not refer to `schema.py`, which changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..errors import RunError
from .schema import SCHEMA_VERSION

OLDEST_VERSION = 4  # that can be read
Into = Literal["main", "temp"]
Migration = Callable[[sqlite3.Connection, Into], None]


def version_of(database: sqlite3.Connection) -> int:
    """The version of a database's tables; 0 where there are none yet."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0 and _has_table(database, "facts"):
        return OLDEST_VERSION  # the first versions made the tables before they said which
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


def _version_5(database: sqlite3.Connection, into: Into) -> None:
    """Every database has the tables `clock`, which some had before, and `look_back`."""
    if not _has_table(database, "clock"):
        database.execute(
            f"""CREATE TABLE {into}.clock (
                lane INTEGER, round_num INTEGER, ended REAL,
                PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
        )
    database.execute(
        f"""CREATE TABLE {into}.look_back (
            lane INTEGER, round_num INTEGER, client INTEGER, history_z REAL, copies REAL,
            PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID"""
    )


def _version_6(database: sqlite3.Connection, into: Into) -> None:
    """There is a table `privacy`."""
    database.execute(
        f"""CREATE TABLE {into}.privacy (
            lane INTEGER, round_num INTEGER, epsilon REAL, clip REAL, deviation REAL,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )


def _version_7(database: sqlite3.Connection, into: Into) -> None:
    """There are tables `policies`, `counterfactuals`, `contributions` and `chain`."""
    database.execute(
        f"""CREATE TABLE {into}.policies (
            lane INTEGER, round_num INTEGER, policy TEXT, note TEXT,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )
    database.execute(
        f"""CREATE TABLE {into}.counterfactuals (
            lane INTEGER, round_num INTEGER, kind TEXT, excluded INTEGER, tested INTEGER,
            metric REAL, loss REAL, reason TEXT,
            PRIMARY KEY (lane, round_num, tested, kind, excluded)) WITHOUT ROWID"""
    )
    database.execute(
        f"""CREATE TABLE {into}.contributions (
            lane INTEGER, round_num INTEGER, client INTEGER, shapley REAL, error REAL,
            PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID"""
    )
    database.execute(
        f"""CREATE TABLE {into}.chain (
            position INTEGER PRIMARY KEY, entry TEXT, signature BLOB, salt BLOB, leaves TEXT)"""
    )


def _version_8(database: sqlite3.Connection, into: Into) -> None:
    """There are tables `adapters`, `omitted` and `sampled`, and an index that readers can do without."""
    database.execute(
        f"""CREATE TABLE {into}.adapters (
            lane INTEGER, round_num INTEGER, residual REAL,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )
    database.execute(
        f"""CREATE TABLE {into}.omitted (
            lane INTEGER, round_num INTEGER,
            accepted INTEGER, without_weight INTEGER, weight REAL, hostile_weight REAL,
            refusals TEXT, scores REAL, scales TEXT,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )
    database.execute(
        f"""CREATE TABLE {into}.sampled (
            lane INTEGER, round_num INTEGER, drawn INTEGER, error REAL,
            PRIMARY KEY (lane, round_num)) WITHOUT ROWID"""
    )
    if into == "main":
        database.execute("CREATE INDEX hostile_clients ON clients (seed) WHERE hostile IS NOT NULL")


def _version_9(database: sqlite3.Connection, into: Into) -> None:
    """There are tables `kept` and `refusals`: what code asks of a round is no longer a sentence."""
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
MIGRATIONS: list[Migration] = [_version_5, _version_6, _version_7, _version_8, _version_9]


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    found = database.execute("SELECT 1 FROM main.sqlite_master WHERE name = ?", (name,))
    return found.fetchone() is not None
