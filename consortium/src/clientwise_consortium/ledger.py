"""What a site approved, was asked and answered: an SQLite file in which nothing is changed or deleted.

"Once" is a UNIQUE index, and the allowance is a count, so the rules hold for several processes at once. Triggers refuse
changes: they guard against faults of this code, not against someone who can write the file.
"""

from __future__ import annotations

import hmac
import json
import math
import re
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from .canonical import ConsortiumError, encode

TABLES = """
PRAGMA synchronous = FULL;
PRAGMA recursive_triggers = ON;  -- otherwise REPLACE passes the triggers
CREATE TABLE IF NOT EXISTS secret (
    only INTEGER PRIMARY KEY CHECK (only = 1), key BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, event TEXT NOT NULL,
    approval TEXT NOT NULL, kind TEXT, seed INTEGER, round INTEGER, question TEXT,
    mu_squared REAL, facts TEXT NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS once ON events (event, approval, question)
    WHERE event IN ('approved', 'rows', 'asked', 'measured', 'head');
CREATE UNIQUE INDEX IF NOT EXISTS summed ON events (seed, round, kind) WHERE event = 'summed';
CREATE TRIGGER IF NOT EXISTS kept_secret BEFORE UPDATE ON secret
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER IF NOT EXISTS left_secret BEFORE DELETE ON secret
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER IF NOT EXISTS kept_events BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER IF NOT EXISTS left_events BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
"""
MOST_EVENTS = 2**53
COLUMNS = ("event", "approval", "kind", "seed", "round", "question", "mu_squared")


class LedgerError(ConsortiumError):
    """What the ledger does not allow, and why. The text may go to the server."""


@dataclass(frozen=True)
class Limits:
    """How many different requests of a kind are answered under an approval.

    Args:
        a_round: for one seed and round.
        in_all: for all seeds and rounds.
        mu_squared: most that they may spend together; None: no limit.
    """

    a_round: int
    in_all: int
    mu_squared: float | None = None


class Ledger:
    """The ledger of one site.

    Args:
        path: the file.
        begin: make a new ledger where there is none. A site does so once: its rounds and sums so far are forgotten
            with the file.
    """

    def __init__(self, path: Path, *, begin: bool = False) -> None:
        if not begin and not path.exists():
            raise LedgerError(
                "this site's ledger is missing: restore it, or begin anew with the consent of all members"
            )
        self._path = path
        if begin:
            with self._connected() as database:
                database.executescript(TABLES)
                key = secrets.token_bytes(32)
                database.execute("INSERT OR IGNORE INTO secret VALUES (1, ?)", (key,))
        try:  # an empty file is a valid database, in which nothing was ever released
            self.state()
        except (sqlite3.DatabaseError, IndexError) as error:
            raise LedgerError(f"this site's ledger is damaged: restore it ({error})") from None

    @property
    def key(self) -> bytes:
        """The site's secret: names of rows and the noise of training follow from it."""
        return bytes(self._read("SELECT key FROM secret")[0][0])

    @property
    def length(self) -> int:
        """The number of events."""
        return int(self._read("SELECT coalesce(max(number), 0) FROM events")[0][0])

    def state(self) -> list[Any]:
        """The number of events and their name. It is in every reply: see `has`."""
        length = self.length
        return [length, self._name(length)]

    def has(self, length: int, name: str) -> bool:
        """Whether the ledger still begins with the events that had this name."""
        return hmac.compare_digest(self._name(length), name)

    def _name(self, length: int) -> str:
        """Names the first events. Without the key, they could be guessed and confirmed."""
        events = self._read("SELECT * FROM events WHERE number <= ? ORDER BY number", length)
        return hmac.digest(self.key, encode(["clientwise ledger", events]), "sha256").hex()

    def note(self, event: str, approval: str, facts: Any = None, **columns: Any) -> bool:
        """Write an event to the disk. False where it may be there only once and is there already.

        Args:
            event: what happened.
            approval: the id of the approval under which it happened.
            facts: anything JSON can hold.
            columns: kind, seed, round, question, mu_squared.
        """
        with self._connected() as database:
            return _insert(database, event, approval, facts, **columns)

    def ask(
        self,
        approval: str,
        kind: str,
        seed: int,
        round_num: int,
        questions: Sequence[str],
        mu_squared: float | None,
        limits: Limits,
    ) -> list[str]:
        """Admit and note questions together; those that are new. LedgerError where the approval does not cover them.

        Args:
            approval: its id.
            kind: "train" or "evaluate".
            seed: of the request.
            round_num: of the request.
            questions: names of what is asked.
            mu_squared: what each new question spends of a row's privacy; None: no noise hides it.
            limits: of this kind.
        """
        with self._connected() as database:
            database.execute("BEGIN IMMEDIATE")
            new = [
                one
                for one in dict.fromkeys(questions)
                if not _count(database, approval=approval, question=one)
            ]
            of_kind = {"approval": approval, "kind": kind}
            in_round = _count(database, **of_kind, seed=seed, round=round_num) + len(new)
            in_all = _count(database, **of_kind) + len(new)
            if new and (in_round > limits.a_round or in_all > limits.in_all):
                raise LedgerError(
                    f"{kind}, round {round_num}: the approval covers {limits.a_round} a round and "
                    f"{limits.in_all} in all, this would be {in_round} and {in_all}"
                )
            if new and limits.mu_squared is not None:
                spent = _spent(database, **of_kind) + len(new) * (
                    math.inf if mu_squared is None else mu_squared
                )
                if spent > limits.mu_squared * (1 + 1e-9):
                    raise LedgerError(
                        f"{kind}, round {round_num}: the approval covers μ = {limits.mu_squared**0.5:.4g}, "
                        f"this would be {spent**0.5:.4g}"
                    )
            for one in new:
                columns = {"kind": kind, "seed": seed, "round": round_num}
                _insert(database, "asked", approval, question=one, mu_squared=mu_squared, **columns)
            database.execute("COMMIT")
        return new

    def answers(self, approval: str, questions: Sequence[str]) -> dict[str, Any]:
        """The answers that were given under an approval, by question."""
        found = self._read(
            "SELECT question, facts FROM events WHERE event = 'measured' AND approval = ?",
            approval,
        )
        return {question: json.loads(facts) for question, facts in found if question in questions}

    def approved(self, approval: str) -> Any:
        """The content of an approval, as it was noted."""
        query = "SELECT facts FROM events WHERE event = 'approved' AND approval = ?"
        return json.loads(self._read(query, approval)[0][0])

    def last(self, event: str) -> str | None:
        """The approval of the last event of a kind."""
        query = "SELECT approval FROM events WHERE event = ? ORDER BY number DESC LIMIT 1"
        found = self._read(query, event)
        return str(found[0][0]) if found else None

    def questions(self, event: str, approval: str | None = None) -> list[str]:
        """The questions of all events of a kind: of an approval, or of all."""
        found = self._read("SELECT question, approval FROM events WHERE event = ?", event)
        return [str(one) for one, under in found if approval in (None, under)]

    def rounds(self, approval: str) -> list[list[int]]:
        """Seed and number of every round in which the site trained under an approval."""
        found = self._read(
            "SELECT DISTINCT seed, round FROM events WHERE event = 'asked' AND kind = 'train' "
            "AND approval = ? ORDER BY seed, round",
            approval,
        )
        return [list(one) for one in found]

    def released(self, *, but: str = "") -> dict[str, Any]:
        """How many different requests were answered, by kind, and what they spent.

        Args:
            but: an approval that is left out; "": over all approvals.
        """
        rows = self._read(
            "SELECT kind, count(*), sum(mu_squared IS NULL), coalesce(sum(mu_squared), 0) FROM events "
            "WHERE event = 'asked' AND approval != ? GROUP BY kind ORDER BY kind",
            but,
        )
        return {
            kind: {"requests": count, "without_noise": bare, "mu": squares**0.5}
            for kind, count, bare, squares in rows
        }

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._connected() as database:
            return database.execute(query, values).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection; what was not committed is rolled back when it is closed."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60)) as database:
            database.execute("PRAGMA recursive_triggers = ON")
            database.execute("PRAGMA synchronous = FULL")
            yield database


def is_state(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is what `Ledger.state` returns: others wrote it, and it goes on record."""
    if not isinstance(value, list) or list(map(type, value)) != [int, str]:
        return False
    length, name = value
    return 0 <= length <= MOST_EVENTS and bool(re.fullmatch("[0-9a-f]{64}", name))


def _insert(
    database: sqlite3.Connection, event: str, approval: str, facts: Any = None, **columns: Any
) -> bool:
    values = [time.time(), json.dumps(facts)]
    row = {"event": event, "approval": approval, **columns}
    values += [row.get(column) for column in COLUMNS]
    try:
        database.execute(
            f"INSERT INTO events (time, facts, {', '.join(COLUMNS)}) VALUES (?{8 * ', ?'})", values
        )
    except sqlite3.IntegrityError as error:
        if "UNIQUE" in str(error):
            return False
        raise
    return True


def _count(database: sqlite3.Connection, **columns: Any) -> int:
    where = " AND ".join(f"{name} = ?" for name in columns)
    query = f"SELECT count(*) FROM events WHERE event = 'asked' AND {where}"
    return int(database.execute(query, list(columns.values())).fetchone()[0])


def _spent(database: sqlite3.Connection, **columns: Any) -> float:
    """The sum of μ²; infinite where a request without noise was answered."""
    where = " AND ".join(f"{name} = ?" for name in columns)
    sums = "coalesce(sum(mu_squared), 0), coalesce(sum(mu_squared IS NULL), 0)"
    query = f"SELECT {sums} FROM events WHERE event = 'asked' AND {where}"
    total, bare = database.execute(query, list(columns.values())).fetchone()
    return math.inf if bare else float(total)
