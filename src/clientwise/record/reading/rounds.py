"""Reading a run round by round: curves, priorities, times, and when targets were reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy
from pydantic import Json

from ...core.reasons import Cause, Kept
from ...errors import RunError
from .reader import Row, RunReader, thinned
from .rows import (
    DECILES,
    SHARES,
    BestRound,
    CostRow,
    LaneRow,
    Names,
    PerClass,
    PriorityRow,
    PrivacyRow,
    Reached,
    RoundRow,
    StepRow,
)

CURVES = {
    "metric",
    "macro_f1",
    "loss",
    "local_mean",
    "local_p10",
    "local_p90",
    "attack_success",
    "testing_rounds",
    "seconds",
}


class RoundReader(RunReader):
    """The rounds of a run."""

    def rounds_done(self) -> int:
        """The rounds of all lanes together."""
        return self._number("SELECT COUNT(*) FROM rounds")

    def round_nums(self, method: str, seed: int) -> list[int]:
        """The rounds that a lane has run."""
        rows = self._lane_rows(
            tuple[int],
            "SELECT round_num FROM rounds WHERE lane = ? ORDER BY 1",
            method,
            seed,
        )
        return [number for (number,) in rows]

    def last_round(self, method: str, seed: int) -> int | None:
        """The last round of a lane; None before its first."""
        ((last,),) = self._lane_rows(
            tuple[int | None],
            "SELECT MAX(round_num) FROM rounds WHERE lane = ?",
            method,
            seed,
        )
        return last

    def lanes_with_round(self, round_num: int) -> list[LaneRow]:
        """The lanes that have run a round."""
        rows = self._rows(tuple[int], "SELECT lane FROM rounds WHERE round_num = ?", round_num)
        found = {lane for (lane,) in rows}
        return [lane for lane in self.lanes if lane.lane in found]

    def round(self, method: str, seed: int, round_num: int) -> RoundRow:
        """How the weights of a round came about."""
        rows = self._lane_rows(
            RoundRow,
            """SELECT priority, candidates, testing_rounds, no_effect, notes, held_out_change,
                   cause, detail
               FROM rounds LEFT JOIN kept USING (lane, round_num)
               WHERE lane = ? AND round_num = ?""",
            method,
            seed,
            round_num,
        )
        if not rows:
            raise RunError(f"{self.id}: {method}, seed {seed}, has no round {round_num} (yet)")
        return rows[0]

    def at_round(self, round_num: int) -> list[tuple[str, int, float | None, float | None]]:
        """Method, seed, metric and backdoor success of all lanes that have run a round."""
        return self._rows(
            tuple[str, int, float | None, float | None],
            """SELECT method, seed, metric, attack_success
               FROM rounds JOIN lanes USING (lane) WHERE round_num = ?""",
            round_num,
        )

    def curve(
        self,
        column: str,
        method: str,
        seed: int,
        max_points: int | None = None,
    ) -> list[tuple[int, float]]:
        """(round, value) of a column of the table `rounds`, where it has a value.

        Args:
            column: "metric", "macro_f1", "loss", "local_mean", "local_p10", "local_p90",
                "attack_success", "testing_rounds" or "seconds".
            method: the method.
            seed: the seed.
            max_points: the most points, about; by default all of them.
        """
        if column not in CURVES:
            raise ValueError(f"{column!r} is not a curve")
        return self._column(tuple[int, float], column, method, seed, max_points)

    def reached(
        self,
        method: str,
        seed: int,
        max_points: int | None = None,
    ) -> list[tuple[int, tuple[float, ...]]]:
        """(round, what 10, 20 ... 90%, and 75%, of the honest clients reach on their test data)."""
        return self._column(tuple[int, Json[Reached]], "reached", method, seed, max_points)

    def classes(
        self,
        column: Literal["per_class_f1", "class_weights"],
        method: str,
        seed: int,
        max_points: int | None = None,
    ) -> list[tuple[int, tuple[float, ...]]]:
        """(round, a value for every class)."""
        rows = self._column(tuple[int, Json[PerClass]], column, method, seed, max_points)
        lengths = {len(values) for _, values in rows}
        if len(lengths) > 1:
            raise self._damage(f"{column} of different lengths")
        return rows

    def spent(self, method: str, seed: int) -> list[PrivacyRow]:
        """What every round of a lane with differential privacy spent; empty without."""
        return self._lane_rows(
            PrivacyRow,
            """SELECT round_num, epsilon, clip, deviation FROM privacy
               WHERE lane = ? ORDER BY round_num""",
            method,
            seed,
        )

    def residuals(self, method: str, seed: int) -> list[tuple[int, float]]:
        """(round, share of the adapters' mean that their rank leaves out); empty without adapters."""
        return self._lane_rows(
            tuple[int, float],
            "SELECT round_num, residual FROM adapters WHERE lane = ? ORDER BY round_num",
            method,
            seed,
        )

    def server_steps(self, method: str, seed: int, round_num: int) -> list[StepRow]:
        """The server steps that a round tried; empty for methods that take one."""
        return self._lane_rows(
            StepRow,
            """SELECT step, loss, used FROM server_steps
               WHERE lane = ? AND round_num = ? ORDER BY position""",
            method,
            seed,
            round_num,
        )

    def sampling_errors(self, method: str, seed: int) -> list[tuple[int, float | None]]:
        """(round, standard error of the clients' mean metric), where a sample of them evaluated it."""
        return self._lane_rows(
            tuple[int, float | None],
            "SELECT round_num, error FROM sampled WHERE lane = ? ORDER BY round_num",
            method,
            seed,
        )

    def clients_drawn(self) -> int | None:
        """The size of the sample of clients that evaluates models; None where all of them do."""
        ((drawn,),) = self._rows(tuple[int | None], "SELECT MAX(drawn) FROM sampled")
        return drawn

    def priorities(self, method: str, seed: int) -> list[PriorityRow]:
        """The order of priority of every round that has one."""
        return self._lane_rows(
            PriorityRow,
            """SELECT round_num, priority, testing_rounds FROM rounds
               WHERE lane = ? AND priority IS NOT NULL ORDER BY round_num""",
            method,
            seed,
        )

    def times(self, method: str, seed: int) -> dict[int, float]:
        """When every round ended, in seconds on the clients' clock; empty where there is none."""
        rows = self._lane_rows(
            tuple[int, float],
            "SELECT round_num, ended FROM clock WHERE lane = ? ORDER BY round_num",
            method,
            seed,
        )
        return dict(rows)

    def bytes_moved(self, method: str, seed: int) -> dict[int, float]:
        """The bytes of models sent until every round ended, both ways together."""
        rows = self._lane_rows(
            tuple[int, int],
            """SELECT round_num, SUM(models_moved) OVER (ORDER BY round_num)
               FROM rounds WHERE lane = ?""",
            method,
            seed,
        )
        return {round_num: float(models * self.model_bytes) for round_num, models in rows}

    def rounds_to(self, target: float | None, method: str, seed: int) -> int | None:
        """The first round whose reported metric reaches a target; None where none does."""
        if target is None:
            return None
        for round_num, value in self.curve("metric", method, seed):
            if self._reaches(value, target):
                return round_num
        return None

    def rounds_until_clients_reach(
        self, method: str, seed: int, target: float, shares: Sequence[int] = DECILES
    ) -> list[int | None]:
        """The first round in which 10, 20 ... 90% of the honest clients reach a target (P1)."""
        first: dict[int, int | None] = dict.fromkeys(shares)
        for round_num, values in self.reached(method, seed):
            for share, value in zip(SHARES, values, strict=True):
                is_open = share in first and first[share] is None
                if is_open and self._reaches(value, target):
                    first[share] = round_num
        return [first[share] for share in shares]

    def best_round(self, method: str, seed: int) -> BestRound | None:
        """The round with the best reported accuracy; None where no samples were recorded."""
        rows = self._lane_rows(
            tuple[int, float, int, bytes],
            """SELECT round_num, metric, num_samples, bits FROM best
               WHERE lane = ? ORDER BY round_num DESC LIMIT 1""",
            method,
            seed,
        )
        if not rows:
            return None
        round_num, metric, count, bits = rows[0]
        if len(bits) != math.ceil(count / 8):
            raise self._damage(f"{len(bits)} bytes for {count} samples")
        right = numpy.unpackbits(numpy.frombuffer(bits, numpy.uint8), count=count).astype(bool)
        return BestRound(round_num, metric, right)

    def no_effect(self, method: str) -> list[Names]:
        """The criteria that were constant across clients, for every round."""
        rows = self._rows(
            tuple[Json[Names]],
            "SELECT no_effect FROM rounds JOIN lanes USING (lane) WHERE method = ?",
            method,
        )
        return [names for (names,) in rows]

    def notes(self, method: str, *, stops: bool = True) -> list[Names]:
        """The notes of every round that has any.

        Args:
            method: the method.
            stops: with those that a lane stops early, which `best_of_lanes` has, too. Such a note is
                the last one of its round.
        """
        rows = self._rows(
            tuple[int, int, Json[Names]],
            """SELECT lane, round_num, notes FROM rounds JOIN lanes USING (lane)
               WHERE method = ? AND notes != '[]'""",
            method,
        )
        best = {} if stops else self.best_of_lanes
        last = {(lane, one.last) for lane, one in best.items() if one.stopped}
        return [
            notes[:-1] if (lane, round_num) in last else notes for lane, round_num, notes in rows
        ]

    def kept(self, method: str) -> list[Kept]:
        """Why rounds kept the model of the round before, for every round that did."""
        rows = self._rows(
            tuple[Cause, str],
            "SELECT cause, detail FROM kept JOIN lanes USING (lane) WHERE method = ?",
            method,
        )
        return [Kept(cause, detail) for cause, detail in rows]

    def cost(self, method: str) -> CostRow:
        """Time, models and evaluations of a method, summed over its rounds and seeds."""
        lanes = [self.lane(method, seed) for seed in self.seeds(method)]
        marks = ", ".join("?" * len(lanes))
        (row,) = self._rows(
            CostRow,
            f"""SELECT TOTAL(seconds), TOTAL(models_moved), TOTAL(evaluations),
                    TOTAL(testing_rounds), COUNT(*)
                FROM rounds WHERE lane IN ({marks})""",
            *lanes,
        )
        return row

    def _reaches(self, value: float, target: float) -> bool:
        if self.higher_is_better:
            return value >= target
        return value <= target

    def _column(
        self,
        kind: type[Row],
        column: str,
        method: str,
        seed: int,
        max_points: int | None,
    ) -> list[Row]:
        """A column of `rounds` where it has a value, thinned before it is checked."""
        rows = self._fetch(
            f"""SELECT round_num, {column} FROM rounds
                WHERE lane = ? AND {column} IS NOT NULL ORDER BY round_num""",
            self.lane(method, seed),
        )
        return self._checked(kind, thinned(rows, max_points))
