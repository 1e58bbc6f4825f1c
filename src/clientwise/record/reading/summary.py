"""One line per method: how it did, for every seed."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from .clients import ClientReader
from .rounds import RoundReader
from .rows import MethodSummary
from .weights import WeightReader

MANY_CLIENTS = 20  # from here on, a tenth of the clients is more than one or two


class _Totals(NamedTuple):
    """Sums over the rounds of a seed."""

    seed: int
    rounds: int
    testing_rounds: int
    seconds: float


class SummaryReader(RoundReader, WeightReader, ClientReader):
    """How the methods of a run did."""

    def summary(self) -> list[MethodSummary]:
        """One line per method."""
        return [self._summarise(method) for method in self.methods]

    def _summarise(self, method: str) -> MethodSummary:
        seeds = self.seeds(method)
        by_seed = self._totals(method)
        totals = [by_seed[seed] for seed in seeds]
        refused = self._refused(method)
        # Round 3 of one seed and round 30 of another do not compare: only the farthest seeds count.
        stopped = self._stopped(method)
        ended = [self.rounds if one.seed in stopped else one.rounds for one in totals]
        most_rounds = max(ended, default=0)
        farthest = {seed for seed, last in zip(seeds, ended, strict=True) if last == most_rounds}
        clients = self._metrics_of_clients(method, farthest)
        to_target = {seed: self.rounds_to(self.target, method, seed) for seed in seeds}
        return MethodSummary(
            method=method,
            seeds=seeds,
            rounds=[one.rounds for one in totals],
            ended=ended,
            metric=self._last("metric", method, farthest),
            macro_f1=self._last("macro_f1", method, farthest),
            worst_client=[_worst(clients[seed]) for seed in seeds],
            worst_decile=[_worst_decile(clients[seed]) for seed in seeds],
            best_decile=[_best_decile(clients[seed]) for seed in seeds],
            rounds_to_target=[to_target[seed] for seed in seeds],
            time_to_target=[self._time_at(method, seed, to_target[seed]) for seed in seeds],
            bytes_to_target=[self._bytes_at(method, seed, to_target[seed]) for seed in seeds],
            hostile_influence=[self._mean_hostile_influence(method, seed) for seed in seeds],
            attack_success=self._last("attack_success", method, farthest),
            testing_rounds=[one.testing_rounds for one in totals],
            refused=[refused[seed] for seed in seeds],
            seconds=[one.seconds for one in totals],
        )

    def _stopped(self, method: str) -> set[int]:
        """The seeds with which a method stopped early."""
        found = self.best_of_lanes
        seeds = set()
        for lane in self.lanes:
            best = found.get(lane.lane)
            if lane.method == method and best is not None and best.stopped:
                seeds.add(lane.seed)
        return seeds

    def _totals(self, method: str) -> dict[int, _Totals]:
        rows = self._rows(
            _Totals,
            """SELECT seed, COUNT(round_num), COALESCE(SUM(testing_rounds), 0),
                   TOTAL(rounds.seconds)
               FROM lanes LEFT JOIN rounds USING (lane) WHERE method = ? GROUP BY seed""",
            method,
        )
        return {row.seed: row for row in rows}

    def _refused(self, method: str) -> dict[int, int]:
        """How many updates were refused, by seed."""
        rows = self._rows(
            tuple[int, int],
            """SELECT seed, (SELECT COALESCE(SUM(refused), 0) FROM refusals AS r
                             WHERE r.lane = lanes.lane)
               FROM lanes WHERE method = ?""",
            method,
        )
        return dict(rows)

    def _last(self, column: str, method: str, farthest: set[int]) -> list[float | None]:
        """The last value of a curve for every seed; None for seeds that are not as far."""
        found: list[float | None] = []
        for seed in self.seeds(method):
            curve = self.curve(column, method, seed, 1) if seed in farthest else []
            found.append(curve[-1][1] if curve else None)
        return found

    def _metrics_of_clients(self, method: str, farthest: set[int]) -> dict[int, list[float]]:
        """The honest clients' own metrics by seed, the worst first; none for seeds not as far."""
        found: dict[int, list[float]] = {seed: [] for seed in self.seeds(method)}
        for row in self.client_metrics(method):
            if row.seed in farthest:
                found[row.seed].append(row.metric)
        for values in found.values():
            values.sort(reverse=not self.higher_is_better)
        return found

    def _time_at(self, method: str, seed: int, round_num: int | None) -> float | None:
        if round_num is None or not self.has_clock:
            return None
        return self.times(method, seed).get(round_num)

    def _bytes_at(self, method: str, seed: int, round_num: int | None) -> float | None:
        if round_num is None or not self.has_clock:
            return None
        return self.bytes_moved(method, seed).get(round_num)

    def _mean_hostile_influence(self, method: str, seed: int) -> float | None:
        if not self.has_hostile:
            return None
        found = [influence for _, influence in self.hostile_influences(method, seed)]
        return statistics.fmean(found) if found else None


def _worst(worst_first: list[float]) -> float | None:
    return worst_first[0] if worst_first else None


def _worst_decile(worst_first: list[float]) -> float | None:
    """The value that a tenth of the clients do not exceed."""
    if len(worst_first) < MANY_CLIENTS:
        return None
    return worst_first[math.ceil(len(worst_first) / 10) - 1]


def _best_decile(worst_first: list[float]) -> float | None:
    """The value that a tenth of the clients reach or exceed."""
    if len(worst_first) < MANY_CLIENTS:
        return None
    return worst_first[-math.ceil(len(worst_first) / 10)]
