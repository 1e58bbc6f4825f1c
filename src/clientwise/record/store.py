"""Writing a run: one transaction a round. What is recorded is said in `tables.py`."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from safetensors.torch import save
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.reasons import likely_cause
from ..core.types import RoundRecord, ServerState
from ..errors import RunError, shortened
from ..writing import ENDING, write_atomically
from .checkpoint import load_checkpoint, save_checkpoint
from .database import (
    CLIENTS,
    DAMAGE,
    DATABASE,
    SCHEMA,
    VERSION,
    pack,
    readable,
    refuse_other_format,
    unpack,
)
from .files import checkpoint_path, initial_path
from .tables import VALUES_OF_CLIENTS, Round, frames_of, values_of


class Store:
    """Writes a run folder, which others may read meanwhile. Hold its lock (`files.locked`)."""

    def __init__(self, folder: Path) -> None:
        """Open a run folder; its tables are made where there are none."""
        self.folder = folder
        self._machine: int | None = None
        self._names: dict[int, dict[int, str]] = {}  # of clients, by seed
        self._seeds: dict[int, int] = {}  # by lane
        checkpoints = folder / "checkpoints"
        with self._explained():
            checkpoints.mkdir(parents=True, exist_ok=True)
            for left in checkpoints.glob(f"*{ENDING}"):  # as large as a model
                left.unlink()
            # Python begins no transaction by itself: it goes by the statement's name in lower case, and
            # a Turkish locale has another one for INSERT. `_transaction` does.
            self._database = sqlite3.connect(folder / DATABASE, isolation_level=None)
        try:
            with readable(folder):
                refuse_other_format(folder, self._database)
                (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    raise sqlite3.DatabaseError(shortened(found, 200))
            with self._explained():
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
            with self._transaction() as database:
                for statement in SCHEMA:
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    # The whole run --------------------------------------------------------------------------------

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Write facts about the whole run; a value is anything that JSON has."""
        rows = [(key, _as_json(value)) for key, value in facts.items()]
        with self._transaction() as database:
            database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def keep_fact(self, key: str, value: object) -> None:
        """Write a fact that never changes once it is there."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (key, _as_json(value)))

    def fact(self, key: str) -> Any:
        """A fact about the whole run; None where there is none."""
        row = self._row("SELECT value FROM facts WHERE key = ?", key)
        return None if row is None else json.loads(row[0])

    def set_machine(self, number: int) -> None:
        """Write with every round from now on which machine of the fact `machines` computes it, from 1."""
        self._machine = number

    def set_clients(
        self,
        seed: int,
        num_train: Sequence[int],
        num_test: Sequence[int],
        hostile: Mapping[int, str],
        names: Sequence[str] | None = None,
    ) -> None:
        """Write the clients of a seed.

        Args:
            seed: the seed.
            num_train: training samples of every client.
            num_test: test samples of every client.
            hostile: the attack of every hostile client, by its number.
            names: the clients' names, where they have any.
        """
        clients = range(len(num_train))
        called: Sequence[str | None] = names or [None for _ in clients]
        self._names[seed] = dict(enumerate(names or ()))
        columns = {
            "client": list(clients),
            "name": list(called),
            "num_train": list(num_train),
            "num_test": list(num_test),
            "hostile": [hostile.get(client) for client in clients],
        }
        if clients:
            with self._transaction():
                self._write_frame(seed, 0, CLIENTS, columns)

    def open_lane(self, method: str, seed: int) -> int:
        """The number of the lane of a method and seed, which is made where there is none."""
        pair = (method, seed)
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO lanes (method, seed) VALUES (?, ?)", pair)
            found = database.execute("SELECT lane FROM lanes WHERE method = ? AND seed = ?", pair)
            lane = int(found.fetchone()[0])
        self._seeds[lane] = seed
        return lane

    def is_lane_finished(self, method: str, seed: int) -> bool:
        """Whether a method has run all its rounds with this seed."""
        row = self._row("SELECT finished FROM lanes WHERE method = ? AND seed = ?", method, seed)
        return row is not None and row[0] is not None

    def finish_lane(self, lane: int) -> None:
        """Mark a lane as finished."""
        with self._transaction() as database:
            database.execute(
                "UPDATE lanes SET finished = ? WHERE lane = ?", (self.rounds_of(lane), lane)
            )

    def reopen_lanes(self, rounds: int) -> None:
        """Mark lanes with fewer rounds than this as not finished."""
        with self._transaction() as database:
            database.execute("UPDATE lanes SET finished = NULL WHERE finished < ?", (rounds,))

    # Rounds ---------------------------------------------------------------------------------------

    def rounds_done(self) -> int:
        """The rounds of all lanes together."""
        return self._count("SELECT COUNT(*) FROM rounds")

    def rounds_of(self, lane: int) -> int:
        """The rounds of a lane that are written."""
        return self._count("SELECT COUNT(*) FROM rounds WHERE lane = ?", lane)

    def write_round(
        self,
        lane: int,
        record: RoundRecord,
        problem: Problem,
        hostile: Mapping[int, object],
        seconds: float,
        held_out_loss: float | None = None,
    ) -> dict[str, Any]:
        """Write a round in one transaction, and return its values.

        Args:
            lane: the lane.
            record: what happened in the round.
            problem: what is predicted.
            hostile: the hostile clients.
            seconds: the time that the round took.
            held_out_loss: by which the run keeps the best model, where it does.
        """
        names = self._names.get(self._seeds[lane], {})
        done = Round(record, problem, hostile, names, seconds, self._machine, held_out_loss)
        values = values_of(done)
        with self._transaction() as database:
            row = (lane, record.round_num, _as_json(values))
            database.execute("INSERT INTO rounds VALUES (?, ?, ?)", row)
            for name, columns in frames_of(done).items():
                self._write_frame(lane, record.round_num, name, columns)
        return values

    def forget_after(self, lane: int, round_num: int) -> None:
        """Delete the rounds after a checkpoint: they are run again, with the same result."""
        with self._transaction() as database:
            kept = self._count(
                "SELECT COUNT(*) FROM rounds WHERE lane = ? AND round <= ?", lane, round_num
            )
            if kept != round_num:
                missing = f"has {kept} of the {round_num} rounds before the checkpoint"
                raise RunError(
                    f"{self.folder}: its database {missing}; choose another output folder"
                )
            for table in ("rounds", "frames"):
                later = f"DELETE FROM {table} WHERE lane = ? AND round > ?"
                database.execute(later, (lane, round_num))

    def forget_undue(self, rounds: int, every: int, methods: Sequence[str]) -> None:
        """Delete evaluations of all clients that a longer run would not have made.

        A run evaluates all clients after its last round. That round is no longer the last one.

        Args:
            rounds: the rounds asked for now.
            every: clients are evaluated every so many rounds.
            methods: the methods that this applies to.
        """
        with self._transaction() as database:
            last_rounds = database.execute(
                """SELECT lane, method, MAX(round), value FROM lanes JOIN rounds USING (lane)
                   GROUP BY lane"""  # `value` is that of the last round: SQLite's rule for MAX
            ).fetchall()
            for lane, method, last, text in last_rounds:
                if method not in methods or last >= rounds or last % max(1, every) == 0:
                    continue
                values = json.loads(text)
                due = {name: one for name, one in values.items() if name not in VALUES_OF_CLIENTS}
                where = "WHERE lane = ? AND round = ?"
                row = (_as_json(due), lane, last)
                database.execute(f"UPDATE rounds SET value = ? {where}", row)
                database.execute(f"DELETE FROM frames {where} AND name = 'local'", (lane, last))

    def refuse_nothing_learned(self) -> None:
        """RunError where no update ever had a weight: the model is still the initial one."""
        accepted = "json_extract(value, '$.participants') - json_extract(value, '$.refused')"
        weighed = f"{accepted} > json_extract(value, '$.without_weight')"
        if self._count(f"SELECT COUNT(*) FROM rounds WHERE {weighed}"):
            return
        if self._count(f"SELECT COUNT(*) FROM rounds WHERE {accepted} > 0"):
            raise RunError(
                f"{self.folder}: all weights were zero in every round: nothing was learned. Is a "
                "criterion zero for all clients? See `clientwise show FOLDER --round 1`"
            )
        refusals = unpack(
            self._database.execute("SELECT lane, round, data FROM frames WHERE name = 'refusals'")
        )
        reasons = Counter(
            pair for one in refusals for pair in zip(one["reason"], one["kind"], strict=True)
        )
        said = "no client answered"
        hint = ""
        for (reason, kind), times in reasons.most_common(1):
            said = f"{reason}, {times:,} times"
            hint = likely_cause(kind)
        message = f"{self.folder}: no update was ever accepted ({said}): nothing was learned."
        raise RunError(f"{message} {hint}".strip())

    # Models ---------------------------------------------------------------------------------------

    def save_checkpoint(
        self, lane: int, state: ServerState, engine_state: Mapping[str, Tensor]
    ) -> None:
        """Write all that a lane needs to go on. The old checkpoint stays until the new is whole."""
        # The database must not be behind the checkpoint, not even after a power failure.
        with self._explained():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            path = checkpoint_path(self.folder, lane)
            save_checkpoint(path, state, engine_state, self._owner(lane))

    def load_checkpoint(
        self, lane: int, first: ServerState
    ) -> tuple[ServerState, dict[str, Tensor]] | None:
        """The last checkpoint of a lane that began with `first`, and its engine's state; None without one."""
        path = checkpoint_path(self.folder, lane)
        if not path.exists():
            return None
        was_cut_off = self.fact("id") is None  # the database
        return load_checkpoint(path, first, None if was_cut_off else self._owner(lane))

    def keep_initial(self, vector: Tensor) -> None:
        """Keep the parameters that every seed begins with, unless the folder has them."""
        path = initial_path(self.folder)
        with self._explained():
            if not path.exists():
                write_atomically(path, save({"model": vector}))

    def _owner(self, lane: int) -> str:
        """This lane of this run, and of no other."""
        self.keep_fact("id", secrets.token_hex(8))
        return f"{self.fact('id')} {lane}"

    # The database ---------------------------------------------------------------------------------

    def _write_frame(
        self, lane: int, round_num: int, name: str, columns: Mapping[str, Any]
    ) -> None:
        """Within a transaction."""
        row = (lane, round_num, name, pack(columns))
        self._database.execute("INSERT OR REPLACE INTO frames VALUES (?, ?, ?, ?)", row)

    def _row(self, sql: str, *values: object) -> Any:
        with self._explained():
            return self._database.execute(sql, values).fetchone()

    def _count(self, sql: str, *values: object) -> int:
        return int(self._row(sql, *values)[0])

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


def _as_json(value: object) -> str:
    """JSON, which has neither NaN nor Infinity: they are null."""
    return to_json(value, inf_nan_mode="null").decode()
