"""Writing a run: one transaction a round."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy
import torch
from torch import Tensor

from ..core.guard import likely_cause
from ..core.loss import RobustLoss
from ..core.metrics import macro_f1, per_class_f1
from ..core.problem import Problem
from ..core.types import Evaluation, RoundRecord, ServerState
from ..errors import RunError, shortened
from .checkpoint import load_checkpoint, save_checkpoint
from .database import DAMAGE, refuse_links, refuse_programs
from .files import checkpoint_path, kept_path, kept_rounds
from .rows import SHARES
from .schema import DATABASE, SCHEMA, SCHEMA_VERSION

_ROUNDS = "(SELECT COUNT(*) FROM rounds WHERE rounds.lane = lanes.lane)"


class Store:
    """Writes a run folder. One transaction a round; a reader may look at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checkpoints = folder / "checkpoints"
        refuse_links(folder)
        if self._checkpoints.is_symlink():
            raise RunError(f"{self._checkpoints}: is a link; it must be a folder of the run")
        with self._explained():
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(folder / DATABASE)
        try:
            self._refuse_what_cannot_be_added_to()
            with self._explained():
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
                self._database.executescript(f"{SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
        except BaseException:
            self._database.close()
            raise

    def _refuse_what_cannot_be_added_to(self) -> None:
        try:
            refuse_programs(self._database)
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise RunError(f"{self.folder}: was made by another version of clientwise; finish it with that one")
            (found,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(shortened(found, 200))
        except DAMAGE as error:
            raise RunError(f"{self.folder}: its database cannot be read ({error}); choose another --out") from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What keeps files from being used, a full disk above all, is told in a line; a fault of ours is not."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except (*DAMAGE, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            message = f"{self.folder}: its files cannot be used ({reason}); what is in them is kept"
            raise RunError(f"{message}: once that is mended, go on with --resume") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained(), self._database as database:
            yield database

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Facts about the whole run, for whoever reads it."""
        with self._transaction() as database:
            rows = [(key, json.dumps(value)) for key, value in facts.items()]
            database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def keep_fact(self, key: str, value: object) -> None:
        """A fact that stays what it was when the run began."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (key, json.dumps(value)))

    def set_clients(
        self,
        seed: int,
        num_train: Sequence[int],
        num_test: Sequence[int],
        hostile: Mapping[int, str],
        names: Sequence[str] | None = None,
    ) -> None:
        """Who there is under a seed; `hostile` names the attack of those who are, `names` the clients themselves."""
        known: Sequence[str | None] = names if names is not None else [None] * len(num_train)
        everyone = zip(known, num_train, num_test, strict=True)
        rows = [(seed, client, *facts, hostile.get(client)) for client, facts in enumerate(everyone)]
        with self._transaction() as database:
            database.executemany(
                """INSERT OR REPLACE INTO clients (seed, client, name, num_train, num_test, hostile)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                rows,
            )

    def open_lane(self, method: str, seed: int) -> int:
        """The lane of a method and seed."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO lanes (method, seed) VALUES (?, ?)", (method, seed))
            row = database.execute("SELECT lane FROM lanes WHERE method = ? AND seed = ?", (method, seed))
            return int(row.fetchone()[0])

    def is_lane_finished(self, method: str, seed: int) -> bool:
        """Whether a method has run all its rounds with this seed."""
        with self._explained():
            row = self._database.execute("SELECT finished FROM lanes WHERE method = ? AND seed = ?", (method, seed))
            return (row.fetchone() or (0,))[0] == 1

    def finish_lane(self, lane: int) -> None:
        """Mark a lane as finished."""
        with self._transaction() as database:
            database.execute("UPDATE lanes SET finished = 1 WHERE lane = ?", (lane,))

    def reopen_lanes(self, rounds: int) -> None:
        """Lanes that have run fewer rounds than are asked for now are not finished."""
        with self._transaction() as database:
            database.execute(f"UPDATE lanes SET finished = 0 WHERE {_ROUNDS} < ?", (rounds,))

    def forget_undue(self, rounds: int, every: int, methods: Sequence[str]) -> None:
        """Lanes that go on lose an evaluation of all clients that was made only because their last round ended then."""
        undue = f"""SELECT lane, {_ROUNDS} AS last FROM lanes
                    WHERE last < ? AND last % ? > 0 AND method IN ({", ".join("?" * len(methods))})"""
        with self._transaction() as database:
            for place in database.execute(undue, (rounds, max(1, every), *methods)).fetchall():
                database.execute("DELETE FROM local WHERE lane = ? AND round_num = ?", place)
                database.execute(
                    """UPDATE rounds SET local_mean = NULL, local_p10 = NULL, local_p90 = NULL, reached = NULL
                       WHERE lane = ? AND round_num = ?""",
                    place,
                )

    def fact(self, key: str) -> str | None:
        """A fact about the whole run, as JSON; None where it is not known."""
        with self._explained():
            row = self._database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def rounds_done(self) -> int:
        """Rounds of all lanes together."""
        with self._explained():
            return int(self._database.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])

    def refuse_nothing_learned(self) -> None:
        """RunError where no update was ever accepted, or had a weight: such a run reports its initial model."""
        with self._explained():
            if self._database.execute("SELECT 1 FROM participants WHERE weight > 0 LIMIT 1").fetchone():
                return
            if self._database.execute("SELECT 1 FROM participants WHERE refusal IS NULL LIMIT 1").fetchone():
                said = "all weights were zero in every round: nothing was learned. Is a criterion zero for all clients?"
                raise RunError(f"{self.folder}: {said} `clientwise show FOLDER --round 1` tells")
            row = self._database.execute(
                "SELECT refusal, COUNT(*) FROM participants GROUP BY refusal ORDER BY 2 DESC LIMIT 1"
            ).fetchone()
        reason, count = row or ("nobody answered", 0)
        said = f"no update was ever accepted ({reason}{f', {count:,} times' if count else ''}): nothing was learned"
        raise RunError(f"{self.folder}: {said}. {likely_cause(reason)}".strip())

    def forget_after(self, lane: int, round_num: int) -> None:
        """Drop the rounds after a checkpoint: they are run again, and come out the same."""
        with self._transaction() as database:
            (kept,) = database.execute(
                "SELECT COUNT(*) FROM rounds WHERE lane = ? AND round_num <= ?", (lane, round_num)
            ).fetchone()
            if kept != round_num:
                missing = f"its database has {kept} of the {round_num} rounds before the checkpoint"
                raise RunError(f"{self.folder}: {missing}; choose another --out")
            for table in ("rounds", "clock", "participants", "criteria", "local", "best"):
                database.execute(f"DELETE FROM {table} WHERE lane = ? AND round_num > ?", (lane, round_num))
            for later in kept_rounds(self.folder, lane):
                if later > round_num:
                    kept_path(self.folder, lane, later).unlink()

    def write_round(
        self, lane: int, record: RoundRecord, problem: Problem, hostile: Mapping[int, object], seconds: float
    ) -> None:
        """One round, in one transaction."""
        # Without a reporting set, what the honest clients measured.
        shown = record.report or (_of_honest(record.local, hostile) if record.local else None)
        with self._transaction() as database:
            names = self._names(lane) if record.local and record.local.missing else {}
            database.execute(
                f"INSERT INTO rounds VALUES ({', '.join('?' * 21)})",
                _round_row(lane, record, shown, problem, hostile, seconds, names),
            )
            if record.ended is not None:
                database.execute("INSERT INTO clock VALUES (?, ?, ?)", (lane, record.round_num, record.ended))
            if shown is not None and shown.right is not None:
                self._write_if_best(lane, record.round_num, float(shown.overall()[0]), shown.right[0])
            database.executemany(
                f"INSERT INTO participants VALUES ({', '.join('?' * 12)})", _participants(lane, record)
            )
            database.executemany("INSERT INTO criteria VALUES (?, ?, ?, ?, ?, ?)", _criteria(lane, record))
            database.executemany("INSERT INTO local VALUES (?, ?, ?, ?, ?)", _local(lane, record))

    def _names(self, lane: int) -> dict[int, str]:
        """What its clients are called, where they have names."""
        sql = "SELECT client, name FROM clients JOIN lanes USING (seed) WHERE lane = ? AND name IS NOT NULL"
        return dict(self._database.execute(sql, (lane,)).fetchall())

    def _write_if_best(self, lane: int, round_num: int, metric: float, right: Tensor) -> None:
        (before,) = self._database.execute(
            "SELECT MAX(CAST(metric AS REAL)) FROM best WHERE lane = ?", (lane,)
        ).fetchone()
        if before is None or metric > before:
            row = (lane, round_num, metric, len(right), numpy.packbits(right.numpy()).tobytes())
            self._database.execute("INSERT INTO best VALUES (?, ?, ?, ?, ?)", row)

    def round_values(self, lane: int, round_num: int, metric: str) -> dict[str, float]:
        """The numbers of a round that are worth a curve, as they were written; `metric` is what theirs is called."""
        row = self._database.execute(
            """SELECT metric, macro_f1, loss, local_mean, local_p10, local_p90, attack_success, testing_rounds,
                (SELECT COUNT(*) FROM participants AS p
                    WHERE p.lane = r.lane AND p.round_num = r.round_num AND refusal IS NOT NULL) AS refused,
                (SELECT COUNT(*) FROM participants AS p
                    WHERE p.lane = r.lane AND p.round_num = r.round_num AND refusal IS NULL AND weight = 0
                ) AS without_weight,
                (SELECT ended FROM clock AS c WHERE c.lane = r.lane AND c.round_num = r.round_num) AS ended,
                seconds FROM rounds AS r WHERE lane = ? AND round_num = ?""",
            (lane, round_num),
        )
        names = [metric, *(column[0] for column in row.description[1:])]
        return {name: value for name, value in zip(names, row.fetchone(), strict=True) if value is not None}

    def save_checkpoint(self, lane: int, state: ServerState, engine_state: Mapping[str, Tensor]) -> None:
        """All that a lane needs to go on. The old checkpoint is there until the new one is whole."""
        # The database must not be behind the checkpoint, not even after a power cut.
        with self._explained():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            save_checkpoint(self._checkpoint(lane), state, engine_state)
        # Nobody goes back behind this checkpoint: of the rounds before it, the best will do.
        with self._transaction() as database:
            database.execute(
                """DELETE FROM best WHERE lane = :lane
                   AND round_num < (SELECT MAX(round_num) FROM best WHERE lane = :lane AND round_num <= :until)""",
                {"lane": lane, "until": state.round_num},
            )

    def keep_model(self, lane: int, state: ServerState, every: int, problem: Problem) -> None:
        """The model after every so many rounds, and after the best, stays. Call it before `save_checkpoint`."""
        round_num = state.round_num
        with self._explained():
            if round_num % every == 0 or round_num == self._best_round(lane, round_num, problem):
                model = ServerState(round_num, state.model, state.loss)
                save_checkpoint(kept_path(self.folder, lane, round_num), model, {})

    def drop_models(self, lane: int, until: int, every: int, problem: Problem) -> None:
        """Models that are no longer the best go; after a checkpoint, since the rounds after it may be run again."""
        with self._explained():
            best = self._best_round(lane, until, problem)
            for round_num in kept_rounds(self.folder, lane):
                if round_num < until and round_num != best and round_num % every:
                    kept_path(self.folder, lane, round_num).unlink()

    def _best_round(self, lane: int, until: int, problem: Problem) -> int | None:
        """The first of the best rounds, by what the run reports; None where nothing was measured yet."""
        order = "DESC" if problem.higher_is_better else "ASC"
        row = self._database.execute(
            f"""SELECT round_num FROM rounds WHERE lane = ? AND round_num <= ? AND metric IS NOT NULL
                ORDER BY metric {order}, round_num LIMIT 1""",
            (lane, until),
        ).fetchone()
        return None if row is None else int(row[0])

    def load_checkpoint(self, lane: int, first: ServerState) -> tuple[ServerState, dict[str, Tensor]] | None:
        """The last checkpoint of a lane that began with `first`, and its engine's state; None where there is none."""
        path = self._checkpoint(lane)
        return load_checkpoint(path, first) if path.exists() else None

    def _checkpoint(self, lane: int) -> Path:
        return checkpoint_path(self.folder, lane)


def _participants(lane: int, record: RoundRecord) -> list[tuple[object, ...]]:
    """Rows of the table `participants`: the accepted, then the refused."""
    moved = record.posterior is not None or not torch.equal(record.prior, record.weights)
    columns = (
        record.scores,
        record.prior if moved else None,
        record.z,
        record.posterior,
        record.weights,
        record.influence,
        record.training_loss,
        record.seconds,
    )
    nothing = [None] * len(record.client_ids)
    accepted = zip(
        record.client_ids, *(nothing if column is None else column.tolist() for column in columns), strict=True
    )
    rows: list[tuple[object, ...]] = [(lane, record.round_num, client, None, *values) for client, *values in accepted]
    return rows + [
        (lane, record.round_num, refusal.client_id, refusal.reason, *[None] * 8) for refusal in record.refusals
    ]


def _criteria(lane: int, record: RoundRecord) -> list[tuple[object, ...]]:
    """Rows of the table `criteria`."""
    return [
        (lane, record.round_num, client, name, raw, normalised)
        for client, raws, normaliseds in zip(
            record.client_ids, record.raw.tolist(), record.normalised.tolist(), strict=True
        )
        for name, raw, normalised in zip(record.criteria, raws, normaliseds, strict=True)
    ]


def _local(lane: int, record: RoundRecord) -> list[tuple[object, ...]]:
    """Rows of the table `local`: of those who have test data."""
    local = record.local
    if local is None:
        return []
    everyone = zip(local.values[0].tolist(), local.losses[0].tolist(), local.num_samples.tolist(), strict=True)
    return [
        (lane, record.round_num, client, value, loss) for client, (value, loss, size) in enumerate(everyone) if size
    ]


def _round_row(
    lane: int,
    record: RoundRecord,
    shown: Evaluation | None,
    problem: Problem,
    hostile: Mapping[int, object],
    seconds: float,
    names: Mapping[int, str],
) -> tuple[object, ...]:
    """A row of the table `rounds`; `shown` is what the run reports on."""
    # The counts of classes are of all clients, and so only of use where all are honest.
    counted = shown is not None and problem.num_classes > 0 and (record.report is not None or not hostile)
    return (
        lane,
        record.round_num,
        float(shown.overall()[0]) if shown else None,
        float(macro_f1(shown.counts[0])) if shown and counted else None,
        float(shown.overall_loss()[0]) if shown else None,
        *(_honest_summary(record.local, hostile, problem) if record.local else [None] * 4),
        json.dumps(record.priority) if record.priority else None,
        json.dumps(record.candidates) if record.candidates else None,
        record.testing_rounds,
        json.dumps(record.loss.class_weights) if record.loss.class_weights else None,
        record.loss.shape if isinstance(record.loss, RobustLoss) else None,
        json.dumps(per_class_f1(shown.counts[0]).tolist()) if shown and counted else None,
        json.dumps(record.no_effect),
        json.dumps([*record.notes, *_not_evaluated(record.local, names)]),
        seconds,
        record.models_moved,
        record.evaluations,
        record.attack_success,
    )


def _not_evaluated(local: Evaluation | None, names: Mapping[int, str]) -> list[str]:
    """Who did not evaluate the model on its own test set, and why."""
    missing = sorted(local.missing, key=lambda refusal: refusal.client_id) if local else []
    called = {refusal.client_id: f"client {refusal.client_id}" for refusal in missing} | dict(names)
    return [f"{called[refusal.client_id]} did not evaluate: {refusal.reason}" for refusal in missing]


def _of_honest(local: Evaluation, hostile: Mapping[int, object]) -> Evaluation | None:
    """The evaluation on the honest clients that have test data; None where there are none."""
    honest = torch.tensor([client not in hostile for client in range(len(local.num_samples))])
    counted = honest & (local.num_samples > 0)
    if not bool(counted.any()):
        return None
    chosen = (local.num_samples[counted], local.values[:, counted], local.losses[:, counted])
    right = None if local.right is None else local.right[:, counted.repeat_interleave(local.num_samples)]
    return Evaluation(*chosen, local.counts, right=right)


def _honest_summary(local: Evaluation, hostile: Mapping[int, object], problem: Problem) -> list[float | str | None]:
    """Mean weighted by test size, 10th and 90th percentile, and what shares of the clients reach.

    Of honest clients: a liar's labels measure nothing.
    """
    honest = _of_honest(local, hostile)
    if honest is None:
        return [None] * 4
    values, mean = honest.values, honest.overall()
    low, high = torch.quantile(values[0], torch.tensor([0.1, 0.9], dtype=values.dtype)).tolist()
    best_first = values[0].sort(descending=problem.higher_is_better).values
    reached = [float(best_first[-(-share * len(best_first) // 100) - 1]) for share in SHARES]
    return [float(mean[0]), low, high, json.dumps(reached)]
