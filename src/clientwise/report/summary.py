"""Read a run folder: curves, and one line per method."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiment.store import RunError, is_locked
from ..registry import suggest


@dataclass(frozen=True)
class MethodSummary:
    """How one method did. A list has one value per seed, in the order of the seeds; None where there is none."""

    method: str
    seeds: list[int]
    rounds: list[int]  # done so far
    metric: list[float | None]  # at the last round, on the server's reporting part
    macro_f1: list[float | None]
    worst_decile: list[float | None]  # of the honest clients' own test sets
    rounds_to_target: list[int | None]
    hostile_weight: list[float | None]  # mean over the rounds of the weight all hostile clients had together
    testing_rounds: list[int]
    refused: list[int]
    seconds: list[float]


class NotBegunError(RunError):
    """A run of which nothing is recorded yet."""


class Run:
    """A run folder, read-only. It may still be growing.

    `run.summary()` is one line per method, `run.curve("metric", "AdaFed", seed=1)` a list over rounds, and
    `run.query(sql)` asks the database; its tables are described in `clientwise/experiment/store.py`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise RunError(f"{self.folder}: no such folder")
        if not (self.folder / "run.sqlite").exists():
            if is_locked(self.folder):
                raise NotBegunError(f"{self.folder}: the run is just beginning")
            raise RunError(f"{self.folder}: not a run of clientwise (it has no run.sqlite)")
        try:
            facts = {key: json.loads(value) for key, value in self.query("SELECT key, value FROM facts")}
        except ValueError as error:
            raise RunError(f"{self.folder}: its database is damaged ({error})") from None
        except RunError:
            if is_locked(self.folder):  # its tables are being made at this moment
                raise NotBegunError(f"{self.folder}: the run is just beginning") from None
            raise
        if not {"name", "metric", "target", "rounds", "lanes"} <= facts.keys():
            raise NotBegunError(f"{self.folder}: the run has not begun; start it again with --resume")
        self.name: str = facts["name"]
        self.metric: str = facts["metric"]
        self.target: float | None = facts["target"]
        self.rounds: int = facts["rounds"]  # planned, per lane
        self.num_lanes: int = facts["lanes"]  # planned
        self.model_bytes: int = facts.get("model_bytes", 0)
        self.lanes: list[tuple[int, str, int]] = self.query("SELECT lane, method, seed FROM lanes ORDER BY lane")
        (finished,) = self.query("SELECT COUNT(*) FROM lanes WHERE finished")[0]
        self.finished: bool = finished == self.num_lanes

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the metric is the better one."""
        return self.metric == "accuracy"

    @property
    def methods(self) -> list[str]:
        """The methods in the order they ran."""
        return list(dict.fromkeys(method for _, method, _ in self.lanes))

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Rows of a query against the run's database."""
        with self._connect() as database:
            return database.execute(sql, values).fetchall()

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(
                sqlite3.connect(f"{(self.folder / 'run.sqlite').resolve().as_uri()}?mode=ro", uri=True)
            ) as database:
                yield database
        except sqlite3.DatabaseError as error:
            raise RunError(f"{self.folder}: its database cannot be read ({error})") from None

    def lane(self, method: str, seed: int) -> int:
        """The number of a method and seed in the database."""
        for lane, name, number in self.lanes:
            if (name, number) == (method, seed):
                return lane
        if method not in self.methods:
            raise RunError(f"{self.folder.name}: no method {method!r}{suggest(method, self.methods)}")
        raise RunError(f"{self.folder.name}: no seed {seed} of {method}")

    def curve(self, column: str, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, float]]:
        """(round, value) of a column of the table `rounds`, where it has one; at most about `max_points` of them."""
        if column not in (
            "metric",
            "macro_f1",
            "loss",
            "local_mean",
            "local_p10",
            "local_p90",
            "testing_rounds",
            "seconds",
        ):
            raise ValueError(f"{column!r} is not a curve")
        return self._thinned(column, self.lane(method, seed), max_points)

    def reached(self, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, list[float]]]:
        """(round, what 10, 20 ... 90% of the honest clients reach on their own test data)."""
        rows = self._thinned("reached", self.lane(method, seed), max_points)
        return [(round_num, json.loads(values)) for round_num, values in rows]

    def rounds_until_clients_reach(self, method: str, seed: int, target: float) -> list[int | None]:
        """The first round in which 10, 20 ... 90% of the honest clients reach a target (P1's tables)."""
        first: list[int | None] = [None] * 9
        for round_num, values in self.reached(method, seed):
            for place, value in enumerate(values):
                if first[place] is None and (value >= target if self.higher_is_better else value <= target):
                    first[place] = round_num
        return first

    def hostile_weights(self, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, float]]:
        """(round, weight all hostile clients had together)."""
        lane = self.lane(method, seed)
        return self.query(
            """SELECT rounds.round_num, TOTAL(weight) FROM rounds LEFT JOIN participants
               ON participants.lane = rounds.lane AND participants.round_num = rounds.round_num
                  AND client IN (SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL)
               WHERE rounds.lane = ? AND (rounds.round_num - 1) % ? = 0
               GROUP BY rounds.round_num ORDER BY rounds.round_num""",
            seed,
            lane,
            self._stride(lane, max_points),
        )

    def _thinned(self, column: str, lane: int, max_points: int | None) -> list[Any]:
        """A column of `rounds` where it is known, in steps that leave at most about `max_points`, and the last."""
        return self.query(
            f"""SELECT round_num, {column} FROM rounds WHERE lane = ?1 AND {column} IS NOT NULL
                AND (?2 = 1 OR (round_num - 1) % ?2 = 0
                     OR round_num = (SELECT MAX(round_num) FROM rounds WHERE lane = ?1)) ORDER BY round_num""",
            lane,
            self._stride(lane, max_points),
        )

    def _stride(self, lane: int, max_points: int | None) -> int:
        if max_points is None:
            return 1
        (last,) = self.query("SELECT COALESCE(MAX(round_num), 1) FROM rounds WHERE lane = ?", lane)[0]
        return -(-int(last) // max_points)

    @property
    def has_hostile(self) -> bool:
        """Whether any client of the run is hostile."""
        return bool(self.query("SELECT 1 FROM clients WHERE hostile IS NOT NULL LIMIT 1"))

    def summary(self) -> list[MethodSummary]:
        """One line per method."""
        return [self._summarise(method) for method in self.methods]

    def _summarise(self, method: str) -> MethodSummary:
        seeds = [seed for _, name, seed in self.lanes if name == method]
        worst = "local_p10" if self.higher_is_better else "local_p90"
        totals = {
            seed: (count, testing, seconds)
            for seed, count, testing, seconds in self.query(
                """SELECT seed, COUNT(round_num), COALESCE(SUM(testing_rounds), 0), TOTAL(rounds.seconds)
                   FROM lanes LEFT JOIN rounds USING (lane) WHERE method = ? GROUP BY seed""",
                method,
            )
        }
        refused = dict(
            self.query(
                """SELECT seed, COUNT(refusal) FROM lanes LEFT JOIN participants USING (lane)
                   WHERE method = ? GROUP BY seed""",
                method,
            )
        )
        return MethodSummary(
            method=method,
            seeds=seeds,
            rounds=[totals[seed][0] for seed in seeds],
            metric=[_last(self.curve("metric", method, seed)) for seed in seeds],
            macro_f1=[_last(self.curve("macro_f1", method, seed)) for seed in seeds],
            worst_decile=[_last(self.curve(worst, method, seed)) for seed in seeds],
            rounds_to_target=[self._rounds_to_target(method, seed) for seed in seeds],
            hostile_weight=[self._mean_hostile_weight(method, seed) for seed in seeds],
            testing_rounds=[totals[seed][1] for seed in seeds],
            refused=[refused[seed] for seed in seeds],
            seconds=[totals[seed][2] for seed in seeds],
        )

    def _rounds_to_target(self, method: str, seed: int) -> int | None:
        if self.target is None:
            return None
        for round_num, value in self.curve("metric", method, seed):
            if value >= self.target if self.higher_is_better else value <= self.target:
                return round_num
        return None

    def _mean_hostile_weight(self, method: str, seed: int) -> float | None:
        weights = [weight for _, weight in self.hostile_weights(method, seed)]
        return statistics.fmean(weights) if weights and self.has_hostile else None


def _last(curve: list[tuple[int, float]]) -> float | None:
    return curve[-1][1] if curve else None
