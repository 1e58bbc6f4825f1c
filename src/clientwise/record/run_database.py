"""The database of a run folder, open for writing: its tables, its transactions, its signatures."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError, shortened
from ..writing import ENDING
from .database import DAMAGE, refuse_links
from .migrations import migrate, refuse_newer, refuse_older, version_of
from .packed import unpack_into_rows
from .round_rows import COLUMNS
from .schema import DATABASE, SCHEMA, SCHEMA_VERSION
from .signed.chain import SignedChain
from .structure import refuse_missing_columns, refuse_programs


class RunDatabase:
    """A run folder's database, which others may read meanwhile."""

    def __init__(self, folder: Path, signing_key: Path | None = None) -> None:
        """Open a run folder; its tables are made, or migrated to the present version.

        Args:
            folder: the run folder.
            signing_key: the file of the key that signs the record; None for a record without
                signatures.
        """
        self.folder = folder
        self._chain: SignedChain | None = None
        self._facts_are_signed = False
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
            with self._unreadable():
                refuse_missing_columns(self._database)
            self._chain = self._signed_chain(signing_key)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the database."""
        try:
            self.sign_facts()
        finally:
            self._database.close()

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Write facts about the whole run; a value is anything that JSON has."""
        rows = [(key, json.dumps(value)) for key, value in facts.items()]
        with self._transaction() as database:
            self._facts_are_signed = False
            database.executemany("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", rows)

    def keep_fact(self, key: str, value: object) -> None:
        """Write a fact that never changes once it is there."""
        row = (key, json.dumps(value))
        with self._transaction() as database:
            before = database.total_changes
            database.execute("INSERT OR IGNORE INTO facts (key, value) VALUES (?, ?)", row)
            if database.total_changes > before:
                self._facts_are_signed = False

    def fact(self, key: str) -> str | None:
        """A fact about the whole run as JSON; None where there is none."""
        with self._explained():
            found = self._database.execute("SELECT value FROM facts WHERE key = ?", (key,))
            row = found.fetchone()
        if row is None:
            return None
        return str(row[0])

    def sign_facts(self) -> None:
        """Sign facts, clients, lanes and policies, if the record is signed and they changed."""
        if self._chain and not self._facts_are_signed:
            with self._transaction():
                self._chain.add_facts()
            self._facts_are_signed = True

    def _signed_chain(self, signing_key: Path | None) -> SignedChain | None:
        """The chain of a signed record; None for one without signatures."""
        if signing_key is None:
            if self._database.execute("SELECT 1 FROM chain LIMIT 1").fetchone():
                raise RunError(
                    f"{self.folder}: its record is signed; resume it with --sign and the file of "
                    "the key"
                )
            return None
        from .signed.keys import private_key

        self.keep_fact("id", secrets.token_hex(8))
        run = str(json.loads(self.fact("id") or '""'))
        chain = SignedChain(self._database, private_key(signing_key), run)
        with self._transaction():
            unpack_into_rows(self._database)
            chain.add_missing()
        return chain

    def _refuse_what_cannot_be_added_to(self) -> None:
        version = version_of(self._database)
        refuse_newer(self.folder, version)
        refuse_programs(self._database)
        refuse_older(self.folder, version)
        (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(shortened(found, 200))

    def _make_tables(self) -> None:
        """Make the tables of the present version, or migrate older ones to it."""
        with self._transaction() as database:
            migrate(database, version_of(database), "main")
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
