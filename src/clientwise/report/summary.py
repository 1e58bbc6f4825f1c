"""Read a run folder: curves, and one line per method."""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from ..experiment.store import SCHEMA_VERSION, RunError, is_locked
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


def thinned(rows: list[Any], max_points: int | None) -> list[Any]:
    """At most about `max_points` of the rows, evenly spaced, and always the last.

    >>> thinned([1, 2, 3, 4, 5, 6, 7, 8], 3)
    [1, 4, 7, 8]
    """
    if max_points is None or len(rows) <= max_points:
        return rows
    step = -(-len(rows) // max_points)
    return rows[::step] + ([] if (len(rows) - 1) % step == 0 else rows[-1:])


def _log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


# What damage to a run folder looks like from here: broken SQL, broken JSON in it, values of another kind.
UNREADABLE = (RunError, sqlite3.Error, ValueError, TypeError, KeyError, IndexError, OSError)


def what_is_wrong(error: Exception, folder: Path | None = None) -> str:
    """What to tell the user about a run folder that could not be read; no traceback, and no path but its name."""
    text = str(error) if isinstance(error, RunError) else f"this run is damaged ({type(error).__name__}: {error})"
    return text.replace(f"{folder}: ", "") if folder else text


class NotBegunError(RunError):
    """A run of which nothing is recorded yet."""


class Run:
    """A run folder, read-only. It may still be growing.

    `run.summary()` is one line per method, `run.curve("metric", "AdaFed", seed=1)` a list over rounds, and
    `run.query(sql)` asks the database; its tables are described in `clientwise/experiment/store.py`.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self.folder = Path(folder)
        self.id = name or self.folder.name  # what pages and comparisons call it
        if not self.folder.is_dir():
            raise RunError(f"{self.folder}: no such folder")
        if not (self.folder / "run.sqlite").exists():
            if is_locked(self.folder):
                raise NotBegunError(f"{self.folder}: the run is just beginning")
            raise RunError(f"{self.folder}: not a run of clientwise (it has no run.sqlite)")
        (version,) = self.query("PRAGMA user_version")[0]
        if version not in (0, SCHEMA_VERSION):  # 0: its tables are not made yet, or it is none of ours
            raise RunError(f"{self.folder}: was made by another version of clientwise; look at it with that one")
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
        self.client_targets: list[float] = facts.get("client targets") or ([self.target] if self.target else [])
        self.rounds: int = facts["rounds"]  # planned, per lane
        self.num_lanes: int = facts["lanes"]  # planned
        self.model_bytes: int = facts.get("model_bytes", 0)
        self.reported_on: str = facts.get("reported on", "held-out samples")
        self.data: dict[str, str] = {key: value for key, value in facts.items() if key.startswith("data of seed")}
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
        path = self.folder / "run.sqlite"
        # Where nothing can be written, SQLite cannot even look after a log, and there is none to look after.
        mode = "immutable=1" if not os.access(self.folder, os.W_OK) and not _log(path) else "mode=ro"
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as database:
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

    def best_round(self, method: str, seed: int) -> tuple[int, float, NDArray[numpy.bool_]] | None:
        """The round with the best reported accuracy, that accuracy, and which samples were right in it."""
        rows = self.query(
            "SELECT round_num, metric, num_samples, bits FROM best WHERE lane = ? ORDER BY round_num DESC LIMIT 1",
            self.lane(method, seed),
        )
        if not rows:
            return None
        round_num, metric, count, bits = rows[0]
        return round_num, metric, numpy.unpackbits(numpy.frombuffer(bits, numpy.uint8), count=count).astype(bool)

    def hostile_weights(self, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, float]]:
        """(round, weight all hostile clients had together)."""
        lane = self.lane(method, seed)
        weights: dict[int, float] = dict(
            self.query(
                """SELECT round_num, TOTAL(weight) FROM participants WHERE lane = ?
                   AND client IN (SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL)
                   GROUP BY round_num""",
                lane,
                seed,
            )
        )
        rounds = [number for (number,) in self.query("SELECT round_num FROM rounds WHERE lane = ? ORDER BY 1", lane)]
        return thinned([(number, weights.get(number, 0.0)) for number in rounds], max_points)

    def _thinned(self, column: str, lane: int, max_points: int | None) -> list[Any]:
        """A column of `rounds` where it is known, thinned."""
        rows = self.query(
            f"SELECT round_num, {column} FROM rounds WHERE lane = ? AND {column} IS NOT NULL ORDER BY round_num", lane
        )
        return thinned(rows, max_points)

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
                """SELECT seed, (SELECT COUNT(*) FROM participants
                                 WHERE participants.lane = lanes.lane AND refusal IS NOT NULL)
                   FROM lanes WHERE method = ?""",
                method,
            )
        )
        farthest = max((totals[seed][0] for seed in seeds), default=0)

        def last(column: str) -> list[float | None]:
            """Of the seeds that came as far as the farthest: round 3 of one and round 30 of another do not compare."""
            curves = [self.curve(column, method, seed) if totals[seed][0] == farthest else [] for seed in seeds]
            return [curve[-1][1] if curve else None for curve in curves]

        return MethodSummary(
            method=method,
            seeds=seeds,
            rounds=[totals[seed][0] for seed in seeds],
            metric=last("metric"),
            macro_f1=last("macro_f1"),
            worst_decile=last(worst),
            rounds_to_target=[self.rounds_to(self.target, method, seed) for seed in seeds],
            hostile_weight=[self._mean_hostile_weight(method, seed) for seed in seeds],
            testing_rounds=[totals[seed][1] for seed in seeds],
            refused=[refused[seed] for seed in seeds],
            seconds=[totals[seed][2] for seed in seeds],
        )

    def rounds_to(self, target: float | None, method: str, seed: int) -> int | None:
        """The first round whose reported metric reaches a target; None where it was not reached, or there is none."""
        if target is None:
            return None
        for round_num, value in self.curve("metric", method, seed):
            if value >= target if self.higher_is_better else value <= target:
                return round_num
        return None

    def _mean_hostile_weight(self, method: str, seed: int) -> float | None:
        if not self.has_hostile:
            return None
        weights = [weight for _, weight in self.hostile_weights(method, seed)]
        return statistics.fmean(weights) if weights else None
