"""The database of a run folder, open for writing: its tables and its transactions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError, shortened
from ..writing import ENDING
from .database import DAMAGE, refuse_links, refuse_other_format
from .round_rows import COLUMNS
from .schema import DATABASE, SCHEMA, SCHEMA_VERSION


class RunDatabase:
    """A run folder's database, which others may read meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Open a run folder; its tables are made where there are none."""
        self.folder = folder
        self._machine: int | None = None
        self._checkpoints = folder / "checkpoints"
        refuse_links(folder)
        if self._checkpoints.is_symlink():
            raise RunError(f"{self._checkpoints}: is a link; it must be a folder of the run")
        with self._explained():
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            for left in self._checkpoints.glob(f"*{ENDING}"):  # as large as a model
                left.unlink()
            # Python begins no transaction by itself: it goes by the statement's name in lower case, and
            # a Turkish locale has another one for INSERT. `_transaction` does.
            self._database = sqlite3.connect(folder / DATABASE, isolation_level=None)
        try:
            with self._unreadable():
                self._refuse_what_cannot_be_added_to()
            with self._explained():
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
            self._make_tables()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Write facts about the whole run; a value is anything that JSON has."""
        rows = [(key, json.dumps(value)) for key, value in facts.items()]
        with self._transaction() as database:
            database.executemany("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", rows)

    def keep_fact(self, key: str, value: object) -> None:
        """Write a fact that never changes once it is there."""
        row = (key, json.dumps(value))
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO facts (key, value) VALUES (?, ?)", row)

    def fact(self, key: str) -> str | None:
        """A fact about the whole run as JSON; None where there is none."""
        with self._explained():
            found = self._database.execute("SELECT value FROM facts WHERE key = ?", (key,))
            row = found.fetchone()
        if row is None:
            return None
        return str(row[0])

    def _refuse_what_cannot_be_added_to(self) -> None:
        refuse_other_format(self.folder, self._database)
        (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(shortened(found, 200))

    def _make_tables(self) -> None:
        """Make the tables where there are none."""
        with self._transaction() as database:
            for statement in SCHEMA:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _unreadable(self) -> Iterator[None]:
        """Turn what a damaged database raises into a RunError."""
        try:
            yield
        except DAMAGE as error:
            message = f"{self.folder}: its database cannot be read ({error}); choose another output folder"
            raise RunError(message) from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn files that cannot be used, on a full disk say, into a RunError; a bug is not one."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except (*DAMAGE, OSError) as error:
            if not (self.folder / DATABASE).exists():
                hint = "run the experiment again, in another folder or this one"
                raise RunError(f"{self.folder}: was removed during the run; {hint}") from error
            reason = error.strerror if isinstance(error, OSError) else error
            raise RunError(
                f"{self.folder}: its files cannot be used ({reason}). Their content is kept: once "
                "that is solved, resume the run"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written within, or nothing. Everything that writes to the database is in one."""
        with self._explained():
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except GeneratorExit:
                # A signal came before the body began. The database may be closed by now, which undoes the rest.
                raise
            except BaseException:
                self._database.rollback()
                raise

    def _insert(
        self, table: str, lane: int, round_num: int, rows: Iterable[tuple[Any, ...]]
    ) -> None:
        """Insert rows of a round; see `COLUMNS`."""
        columns = COLUMNS[table]
        places = ", ".join("?" * len(columns.split(", ")))
        self._database.executemany(
            f"INSERT INTO {table} (lane, round_num, {columns}) "
            f"VALUES ({int(lane)}, {int(round_num)}, {places})",
            rows,
        )
