"""Writing a run: one transaction a round."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.reasons import likely_cause
from ..core.types import RoundRecord
from ..errors import RunError
from .database import reading
from .files import kept_path, kept_rounds
from .packed import BY_ROUND
from .round_rows import reported_evaluation, round_columns, rows_of_round
from .run_models import RunModels
from .schema import TABLES_BY_ROUND
from .sums import CELLS, sums_of_round

_ROUNDS = "(SELECT COUNT(*) FROM rounds WHERE rounds.lane = lanes.lane)"


class Store(RunModels):
    """Writes a run folder, which others may read meanwhile. Hold its lock (`lock.py`)."""

    # Clients and lanes ---------------------------------------------------------------------------

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
        called = [None] * len(num_train) if names is None else names
        columns = enumerate(zip(called, num_train, num_test, strict=True))
        rows = ((seed, client, *known, hostile.get(client)) for client, known in columns)
        with self._transaction() as database:
            database.executemany(
                """INSERT OR REPLACE INTO clients (seed, client, name, num_train, num_test, hostile)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                rows,
            )

    def open_lane(self, method: str, seed: int) -> int:
        """The number of the lane of a method and seed, which is made where there is none."""
        pair = (method, seed)
        with self._transaction() as database:
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
                self._insert("policies", lane, round_num, [(text, note)])

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

    def reopen_lanes(self, rounds: int) -> None:
        """Mark lanes with fewer rounds than this as not finished."""
        with self._transaction() as database:
            database.execute(f"UPDATE lanes SET finished = 0 WHERE {_ROUNDS} < ?", (rounds,))

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
        with self._transaction() as database:
            names: dict[int, str] = {}
            if record.local is not None and record.local.missing:
                names = self._names(lane)
            shown = reported_evaluation(record, hostile)
            row: dict[str, Any] = {"lane": lane, "seconds": seconds, "machine": self._machine}
            row |= round_columns(record, shown, problem, hostile, names)
            places = ", ".join(f":{column}" for column in row)
            database.execute(f"INSERT INTO rounds ({', '.join(row)}) VALUES ({places})", row)
            if shown is not None and shown.right is not None:
                metric = float(shown.overall()[0])
                if self._is_best(lane, metric, problem):
                    self._write_right(lane, record.round_num, metric, shown.right[0])
            for table, rows in rows_of_round(record, hostile, kept).items():
                self._insert(table, lane, record.round_num, rows)
            num_clients = self._num_clients(lane)
            if num_clients > (CELLS if kept is None else 0):
                sums = sums_of_round(record, hostile, kept, num_clients)
                self._insert("sums", lane, record.round_num, [sums])

    def round_values(self, lane: int, round_num: int, metric: str) -> dict[str, float]:
        """The values of a round that trackers plot, as they were written.

        Args:
            lane: the lane.
            round_num: the round.
            metric: the name under which the problem's metric is returned.
        """
        with reading(self.folder) as database:  # it has the rows of large rounds, too
            found = database.execute(
                f"""SELECT metric, macro_f1, loss, local_mean, local_p10, local_p90,
                    attack_success, testing_rounds,
                    (SELECT COALESCE(SUM(refused), 0) FROM refusals AS o
                        WHERE o.lane = r.lane AND o.round_num = r.round_num
                    ) AS refused,
                    (SELECT COUNT(*) FROM {BY_ROUND} AS p
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
            row = found.fetchone()
        names = [metric, *(column[0] for column in found.description[1:])]
        values = zip(names, row, strict=True)
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

    def _num_clients(self, lane: int) -> int:
        """The clients of a lane; 0 where they are not written."""
        (highest,) = self._database.execute(
            """SELECT MAX(client) FROM clients
               WHERE seed = (SELECT seed FROM lanes WHERE lane = ?)""",
            (lane,),
        ).fetchone()
        return 0 if highest is None else int(highest) + 1

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
        self._insert("best", lane, round_num, [(metric, len(right), bits)])

    def _has(self, table: str, condition: str) -> bool:
        with reading(self.folder) as database:  # it has the rows of large rounds, too
            found = database.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1")
            return found.fetchone() is not None
