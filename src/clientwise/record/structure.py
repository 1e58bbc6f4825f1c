"""Whether a database is made of plain tables. Anybody may have written the file.

Views, triggers, virtual tables, computed columns, checks and indexes on expressions are programs:
SQLite would run them as we read or write. So the text of every table and index has to fit a grammar
that has columns, keys and nothing else. The grammar does not depend on the version of the tables.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import cache, lru_cache

from .schema import SCHEMA

MOST_CHARACTERS = 5_000  # of the text that makes a table

_NAME = "[a-z_][a-z0-9_]*"  # keywords are in capitals
_NAMES = rf"\({_NAME}(?:,{_NAME})*\)"
_TYPE = "(?: (?:INTEGER|REAL|TEXT|BLOB))?"
_COLUMN = rf"{_NAME}{_TYPE}(?: PRIMARY KEY)?(?: DEFAULT [0-9]+)?"
_KEY = rf"(?:PRIMARY KEY|UNIQUE){_NAMES}"
_ITEM = rf"(?:{_COLUMN}|{_KEY})"
_TABLE = re.compile(rf"CREATE TABLE ({_NAME})\({_ITEM}(?:,{_ITEM})*\)(?:WITHOUT ROWID)?")
_INDEX = re.compile(rf"CREATE INDEX {_NAME} ON ({_NAME}){_NAMES}(?:WHERE {_NAME} IS NOT NULL)?")


def refuse_programs(database: sqlite3.Connection) -> None:
    """DatabaseError where anything in a database is not a plain table or index of ours."""
    database.execute("PRAGMA trusted_schema = OFF")
    made = database.execute("SELECT name, sql FROM main.sqlite_master WHERE sql IS NOT NULL")
    for name, sql in made:
        if not _is_plain(str(sql)):
            found = repr(str(name)[:100])
            raise sqlite3.DatabaseError(f"{found} in it is no table of this version of clientwise")


def refuse_missing_columns(database: sqlite3.Connection) -> None:
    """DatabaseError where a table lacks a column that the present version writes."""
    for table, columns in _our_columns().items():
        missing = sorted(columns - _columns(database, table))
        if missing:
            raise sqlite3.DatabaseError(f"its table {table!r} has no column {missing[0]!r}")


@lru_cache(64)  # the same few texts are met whenever a database is opened
def _is_plain(sql: str) -> bool:
    """Whether this text makes one of our tables, or an index on one."""
    if len(sql) > MOST_CHARACTERS:
        return False
    text = _compact(sql)
    found = _TABLE.fullmatch(text) or _INDEX.fullmatch(text)
    return found is not None and found[1] in _our_columns()


def _compact(sql: str) -> str:
    """SQL without comments, and without spaces that mean nothing.

    >>> _compact("CREATE TABLE a ( -- why\\n  b TEXT,\\n  c)")
    'CREATE TABLE a(b TEXT,c)'
    """
    # A quote or bracket before the dashes would make them no comment; the grammar has neither.
    without_comments = re.sub("--[^\n]*", "", sql)
    without_breaks = re.sub("[ \t\n\r]+", " ", without_comments).strip(" ")
    return re.sub(" ?([(),]) ?", r"\1", without_breaks)


@cache
def _our_columns() -> dict[str, set[str]]:
    """The columns of every table of the present version."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in SCHEMA:
            database.execute(statement)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name: _columns(database, name) for (name,) in tables}


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_xinfo({table})")}
