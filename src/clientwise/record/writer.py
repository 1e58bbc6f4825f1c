"""Writing a run: one transaction a round."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.reasons import likely_cause
from ..core.types import RoundRecord, ServerState
from ..errors import RunError, shortened
from .checkpoint import load_checkpoint, save_checkpoint
from .database import DAMAGE, refuse_links
from .files import checkpoint_path, kept_path, kept_rounds
from .migrations import (
    migrate,
    refuse_newer,
    refuse_older,
    version_of,
)
from .round_rows import (
    COLUMNS,
    contribution_rows,
    counterfactual_rows,
    criterion_rows,
    local_rows,
    look_back_rows,
    omitted_row,
    participant_rows,
    refusal_rows,
    reported_evaluation,
    round_columns,
    sampled_rows,
    thinned,
)
from .schema import (
    DATABASE,
    SCHEMA,
    SCHEMA_VERSION,
    TABLES_BY_ROUND,
)
from .signed.chain import SignedChain
from .structure import refuse_missing_columns, refuse_programs

_ROUNDS = "(SELECT COUNT(*) FROM rounds WHERE rounds.lane = lanes.lane)"


class Store:
    """Writes a run folder, which others may read meanwhile. Hold its lock (`lock.py`)."""

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
            self._database = sqlite3.connect(folder / DATABASE)
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

    # Facts, clients and lanes -------------------------------------------------------------------

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
            sql = "INSERT OR IGNORE INTO facts (key, value) VALUES (?, ?)"
            if database.execute(sql, row).rowcount:
                self._facts_are_signed = False

    def set_machine(self, number: int) -> None:
        """Write with every round from now on which machine of the fact `machines` computes it, from 1."""
        self._machine = number

    def fact(self, key: str) -> str | None:
        """A fact about the whole run as JSON; None where there is none."""
        with self._explained():
            found = self._database.execute("SELECT value FROM facts WHERE key = ?", (key,))
            row = found.fetchone()
        if row is None:
            return None
        return str(row[0])

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
        called = [None] * len(num_train) if names is None else names
        columns = enumerate(zip(called, num_train, num_test, strict=True))
        rows = ((seed, client, *known, hostile.get(client)) for client, known in columns)
        with self._transaction() as database:
            self._facts_are_signed = False
            database.executemany(
                """INSERT OR REPLACE INTO clients (seed, client, name, num_train, num_test, hostile)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                rows,
            )

    def open_lane(self, method: str, seed: int) -> int:
        """The number of the lane of a method and seed, which is made where there is none."""
        pair = (method, seed)
        with self._transaction() as database:
            self._facts_are_signed = False
            database.execute("INSERT OR IGNORE INTO lanes (method, seed) VALUES (?, ?)", pair)
            found = database.execute("SELECT lane FROM lanes WHERE method = ? AND seed = ?", pair)
            return int(found.fetchone()[0])

    def keep_policy(self, lane: int, round_num: int, policy: Mapping[str, object] | None) -> None:
        """Write the bounds of a lane from this round on, where they differ from those before."""
        text = json.dumps(policy)
        with self._transaction() as database:
            found = database.execute(
                """SELECT policy FROM policies WHERE lane = ? AND round_num <= ?
                   ORDER BY round_num DESC LIMIT 1""",
                (lane, round_num),
            ).fetchone()
            before = found[0] if found else json.dumps(None)
            if text != before:
                note = policy.get("note") if policy else None
                row = (lane, round_num, text, note)
                self._insert("policies", [row])
                self._facts_are_signed = False

    def is_lane_finished(self, method: str, seed: int) -> bool:
        """Whether a method has run all its rounds with this seed."""
        with self._explained():
            sql = "SELECT finished FROM lanes WHERE method = ? AND seed = ?"
            row = self._database.execute(sql, (method, seed)).fetchone()
            return bool(row == (1,))

    def finish_lane(self, lane: int) -> None:
        """Mark a lane as finished."""
        with self._transaction() as database:
            database.execute("UPDATE lanes SET finished = 1 WHERE lane = ?", (lane,))
            if self._chain:
                self._chain.add_facts()

    def reopen_lanes(self, rounds: int) -> None:
        """Mark lanes with fewer rounds than this as not finished."""
        with self._transaction() as database:
            self._facts_are_signed = False
            database.execute(f"UPDATE lanes SET finished = 0 WHERE {_ROUNDS} < ?", (rounds,))

    def sign_facts(self) -> None:
        """Sign facts, clients, lanes and policies, if the record is signed and they changed."""
        if self._chain and not self._facts_are_signed:
            with self._transaction():
                self._chain.add_facts()
            self._facts_are_signed = True

    # Rounds -------------------------------------------------------------------------------------

    def rounds_done(self) -> int:
        """The rounds of all lanes together."""
        with self._explained():
            return int(self._database.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])

    def rounds_of(self, lane: int) -> int:
        """The rounds of a lane that are written."""
        with self._explained():
            sql = "SELECT COUNT(*) FROM rounds WHERE lane = ?"
            return int(self._database.execute(sql, (lane,)).fetchone()[0])

    def write_round(
        self,
        lane: int,
        record: RoundRecord,
        problem: Problem,
        hostile: Mapping[int, object],
        seconds: float,
        kept: Collection[int] | None = None,
    ) -> None:
        """Write a round in one transaction.

        Args:
            lane: the lane.
            record: what happened in the round.
            problem: what is predicted.
            hostile: the hostile clients.
            seconds: the time that the round took.
            kept: the clients that get rows of their own; None: all of them.
        """
        self.sign_facts()
        with self._transaction() as database:
            names: dict[int, str] = {}
            if record.local is not None and record.local.missing:
                names = self._names(lane)
            shown = reported_evaluation(record, hostile)
            row: dict[str, Any] = {"lane": lane, "seconds": seconds, "machine": self._machine}
            row |= round_columns(record, shown, problem, hostile, names)
            marks = ", ".join(f":{column}" for column in row)
            database.execute(f"INSERT INTO rounds ({', '.join(row)}) VALUES ({marks})", row)
            if record.kept is not None:
                why = (record.kept.cause, record.kept.detail)
                self._insert("kept", [(lane, record.round_num, *why)])
            if record.ended is not None:
                self._insert("clock", [(lane, record.round_num, record.ended)])
            if (released := record.released) is not None:
                spent = (released.epsilon, released.clip, released.deviation)
                self._insert("privacy", [(lane, record.round_num, *spent)])
            if record.residual is not None:
                self._insert("adapters", [(lane, record.round_num, record.residual)])
            if shown is not None and shown.right is not None:
                metric = float(shown.overall()[0])
                if self._is_best(lane, metric, problem):
                    self._write_right(lane, record.round_num, metric, shown.right[0])
            self._insert("sampled", sampled_rows(lane, record, hostile))
            self._insert("refusals", refusal_rows(lane, record, hostile))
            if kept is not None:
                self._insert("omitted", [omitted_row(lane, record, kept, hostile)])
                record = thinned(record, kept)
            self._insert("participants", participant_rows(lane, record))
            self._insert("look_back", look_back_rows(lane, record))
            self._insert("criteria", criterion_rows(lane, record))
            self._insert("local", local_rows(lane, record))
            self._insert("counterfactuals", counterfactual_rows(lane, record, hostile))
            self._insert("contributions", contribution_rows(lane, record))
            if self._chain:
                self._chain.add_round(lane, record.round_num)

    def round_values(self, lane: int, round_num: int, metric: str) -> dict[str, float]:
        """The values of a round that trackers plot, as they were written.

        Args:
            lane: the lane.
            round_num: the round.
            metric: the name under which the problem's metric is returned.
        """
        found = self._database.execute(
            """SELECT metric, macro_f1, loss, local_mean, local_p10, local_p90,
                attack_success, testing_rounds,
                (SELECT COALESCE(SUM(refused), 0) FROM refusals AS o
                    WHERE o.lane = r.lane AND o.round_num = r.round_num
                ) AS refused,
                (SELECT COUNT(*) FROM participants AS p
                    WHERE p.lane = r.lane AND p.round_num = r.round_num AND refusal IS NULL
                        AND weight = 0
                ) + (SELECT COALESCE(SUM(without_weight), 0) FROM omitted AS o
                    WHERE o.lane = r.lane AND o.round_num = r.round_num
                ) AS without_weight,
                (SELECT ended FROM clock AS c
                    WHERE c.lane = r.lane AND c.round_num = r.round_num
                ) AS ended,
                seconds FROM rounds AS r WHERE lane = ? AND round_num = ?""",
            (lane, round_num),
        )
        names = [metric, *(column[0] for column in found.description[1:])]
        values = zip(names, found.fetchone(), strict=True)
        return {name: value for name, value in values if value is not None}

    def refuse_nothing_learned(self) -> None:
        """RunError where no update ever had a weight: the model is still the initial one.

        Under secure aggregation, the weight of an accepted update is not known.
        """
        if self._has("participants", "weight > 0 OR (weight IS NULL AND refusal IS NULL)"):
            return
        if self._has("omitted", "weight > 0"):
            return
        if self._has("participants", "refusal IS NULL") or self._has("omitted", "accepted > 0"):
            raise RunError(
                f"{self.folder}: all weights were zero in every round: nothing was learned. Is a "
                "criterion zero for all clients? See `clientwise show FOLDER --round 1`"
            )
        with self._explained():
            row = self._database.execute(
                """SELECT reason, kind, SUM(refused) FROM refusals
                   GROUP BY reason, kind ORDER BY 3 DESC LIMIT 1"""
            ).fetchone()
        said = "no client answered"
        hint = ""
        if row is not None:
            reason, kind, times = row
            said = f"{reason}, {times:,} times"
            hint = likely_cause(kind)
        message = f"{self.folder}: no update was ever accepted ({said}): nothing was learned."
        raise RunError(f"{message} {hint}".strip())

    def forget_after(self, lane: int, round_num: int) -> None:
        """Delete the rounds after a checkpoint: they are run again, with the same result."""
        with self._transaction() as database:
            (kept,) = database.execute(
                "SELECT COUNT(*) FROM rounds WHERE lane = ? AND round_num <= ?", (lane, round_num)
            ).fetchone()
            if kept != round_num:
                missing = f"has {kept} of the {round_num} rounds before the checkpoint"
                raise RunError(
                    f"{self.folder}: its database {missing}; choose another output folder"
                )
            later = (lane, round_num)
            lost = "SELECT 1 FROM rounds WHERE lane = ? AND round_num > ? LIMIT 1"
            if self._chain and database.execute(lost, later).fetchone():
                self._chain.add_forgotten(lane, round_num)
                self._facts_are_signed = False  # policies of these rounds are deleted, too
            for table in TABLES_BY_ROUND:
                database.execute(f"DELETE FROM {table} WHERE lane = ? AND round_num > ?", later)
            for kept_round in kept_rounds(self.folder, lane):
                if kept_round > round_num:
                    kept_path(self.folder, lane, kept_round).unlink()

    def forget_undue(self, rounds: int, every: int, methods: Sequence[str]) -> None:
        """Delete evaluations of all clients that a longer run would not have made.

        A run evaluates all clients after its last round. That round is no longer the last one.

        Args:
            rounds: the rounds asked for now.
            every: clients are evaluated every so many rounds.
            methods: the methods that this applies to.
        """
        marks = ", ".join("?" * len(methods))
        undue = f"""SELECT lane, {_ROUNDS} AS last FROM lanes
                    WHERE last < ? AND last % ? > 0 AND method IN ({marks})"""
        with self._transaction() as database:
            found = database.execute(undue, (rounds, max(1, every), *methods)).fetchall()
            for key in found:
                for table in ("local", "sampled"):
                    database.execute(f"DELETE FROM {table} WHERE lane = ? AND round_num = ?", key)
                database.execute(
                    """UPDATE rounds
                       SET local_mean = NULL, local_p10 = NULL, local_p90 = NULL, reached = NULL
                       WHERE lane = ? AND round_num = ?""",
                    key,
                )
                if self._chain:
                    self._chain.add_round(*key)

    # Checkpoints and models ---------------------------------------------------------------------

    def save_checkpoint(
        self,
        lane: int,
        state: ServerState,
        engine_state: Mapping[str, Tensor],
    ) -> None:
        """Write all that a lane needs to go on. The old checkpoint stays until the new is whole."""
        # The database must not be behind the checkpoint, not even after a power failure.
        with self._explained():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            save_checkpoint(self._checkpoint(lane), state, engine_state, self._owner(lane))
        # A lane never goes back behind a checkpoint: of the rounds before it, the best is enough.
        with self._transaction() as database:
            database.execute(
                """DELETE FROM best WHERE lane = :lane AND round_num < (
                       SELECT MAX(round_num) FROM best
                       WHERE lane = :lane AND round_num <= :until)""",
                {"lane": lane, "until": state.round_num},
            )

    def load_checkpoint(
        self,
        lane: int,
        first: ServerState,
    ) -> tuple[ServerState, dict[str, Tensor]] | None:
        """The last checkpoint of a lane that began with `first`, and its engine's state.

        None where the lane has no checkpoint.
        """
        path = self._checkpoint(lane)
        if not path.exists():
            return None
        if self.fact("id") is None:  # the database was cut off
            return load_checkpoint(path, first)
        return load_checkpoint(path, first, self._owner(lane))

    def _owner(self, lane: int) -> str:
        """This lane of this run, and of no other."""
        self.keep_fact("id", secrets.token_hex(8))
        return f"{self.fact('id')} {lane}"

    def keep_model(self, lane: int, state: ServerState, every: int, problem: Problem) -> None:
        """Keep the model after every so many rounds, and after the best round so far.

        Call it before `save_checkpoint`.
        """
        round_num = state.round_num
        with self._explained():
            if round_num % every == 0 or round_num == self._best_round(lane, round_num, problem):
                model = ServerState(round_num, state.model, state.loss)
                save_checkpoint(kept_path(self.folder, lane, round_num), model, {})

    def drop_models(self, lane: int, until: int, every: int, problem: Problem) -> None:
        """Delete kept models that are no longer the best.

        Call it after `save_checkpoint`, since the rounds after a checkpoint may be run again.
        """
        with self._explained():
            best = self._best_round(lane, until, problem)
            for round_num in kept_rounds(self.folder, lane):
                if round_num < until and round_num != best and round_num % every:
                    kept_path(self.folder, lane, round_num).unlink()

    # Private ------------------------------------------------------------------------------------

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
            database.execute("BEGIN IMMEDIATE")
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
            reason = error.strerror if isinstance(error, OSError) else error
            raise RunError(
                f"{self.folder}: its files cannot be used ({reason}). Their content is kept: once "
                "that is solved, resume the run"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            try:
                yield self._database
                self._database.commit()
            except GeneratorExit:
                # A signal came before the body began. The database may be closed by now, which undoes the rest.
                raise
            except BaseException:
                self._database.rollback()
                raise

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        columns = COLUMNS[table]
        marks = ", ".join("?" * len(columns.split(", ")))
        self._database.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)

    def _names(self, lane: int) -> dict[int, str]:
        """The names of a lane's clients, where they have any."""
        found = self._database.execute(
            """SELECT client, name FROM clients JOIN lanes USING (seed)
               WHERE lane = ? AND name IS NOT NULL""",
            (lane,),
        )
        return dict(found.fetchall())

    def _is_best(self, lane: int, metric: float, problem: Problem) -> bool:
        """Whether no round before was as good."""
        extreme = "MAX" if problem.higher_is_better else "MIN"
        (before,) = self._database.execute(
            f"SELECT {extreme}(CAST(metric AS REAL)) FROM best WHERE lane = ?", (lane,)
        ).fetchone()
        if before is None:
            return True
        return bool(metric > before if problem.higher_is_better else metric < before)

    def _write_right(self, lane: int, round_num: int, metric: float, right: Tensor) -> None:
        """Write which samples were classified correctly."""
        bits = numpy.packbits(right.numpy()).tobytes()
        self._insert("best", [(lane, round_num, metric, len(right), bits)])

    def _has(self, table: str, condition: str) -> bool:
        with self._explained():
            found = self._database.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1")
            return found.fetchone() is not None

    def _best_round(self, lane: int, until: int, problem: Problem) -> int | None:
        """The first of the best rounds by the reported metric; None where none is measured yet."""
        order = "DESC" if problem.higher_is_better else "ASC"
        row = self._database.execute(
            f"""SELECT round_num FROM rounds
                WHERE lane = ? AND round_num <= ? AND metric IS NOT NULL
                ORDER BY metric {order}, round_num LIMIT 1""",
            (lane, until),
        ).fetchone()
        if row is None:
            return None
        return int(row[0])

    def _checkpoint(self, lane: int) -> Path:
        return checkpoint_path(self.folder, lane)
