"""The results of a matrix: every method's mean, worst case, rank and regret."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

from ..errors import RunError
from ..experiment.matrix import Matrix, look_at
from ..runs.folder import RunFolder
from .chain import Chain
from .statistics import Difference, paired_difference

Values = NDArray[numpy.float64]
LastRound = list[tuple[str, int, float | None, float | None]]  # method, seed, metric, backdoor


@dataclass(frozen=True)
class Federation:
    """The results on one federation."""

    name: str
    metric: str
    higher_is_better: bool
    columns: tuple[str, ...]
    values: Values  # [methods, columns, seeds] of the metric; NaN: not there yet
    success: Values  # likewise, the success rate of a backdoor; NaN: there is none

    @property
    def goodness(self) -> Values:
        """The metric with its sign changed where lower is better."""
        return self.values if self.higher_is_better else -self.values


@dataclass(frozen=True)
class Results:
    """The results of a matrix so far."""

    matrix: Matrix
    methods: tuple[str, ...]
    controls: frozenset[str]  # told which clients are honest, or not federated
    seeds: int
    federations: tuple[Federation, ...]

    @property
    def missing(self) -> int:
        """Cells that are not finished."""
        unfinished = [numpy.isnan(one.values).any((0, 2)).sum() for one in self.federations]
        return int(sum(unfinished))

    def metrics(self) -> dict[str, list[Federation]]:
        """The federations by what they measure."""
        groups: dict[str, list[Federation]] = {}
        for one in self.federations:
            groups.setdefault(one.metric, []).append(one)
        return groups


def read_results(folder: Path) -> Results:
    """The results of all finished cells, and of the finished methods of the others.

    Read from the runs alone: looking at a matrix never executes what its config names.
    """
    matrix = look_at(folder)
    runs = {}
    for cell in matrix.cells:
        found = _read(folder / cell.folder)
        if found is not None:
            runs[cell.folder] = found
    if not runs:
        raise RunError(f"{folder}: none of its cells has begun")
    first, _ = next(iter(runs.values()))
    methods = tuple(dict.fromkeys(method for run, _ in runs.values() for method in run.methods))
    seeds = list(dict.fromkeys(lane.seed for run, _ in runs.values() for lane in run.lanes))
    return Results(
        matrix,
        methods,
        frozenset(method for method in methods if _is_control(first, method)),
        len(seeds),
        tuple(_federation(name, matrix, runs, methods, seeds) for name in matrix.federations),
    )


def _read(folder: Path) -> tuple[RunFolder, LastRound] | None:
    """The run of a cell and its last round; None where it has not begun or cannot be read."""
    try:
        run = RunFolder(folder)
        return run, run.at_round(run.rounds)
    except RunError:
        return None


def _is_control(run: RunFolder, method: str) -> bool:
    parts = Chain.of(run, method).parts
    return parts is not None and parts.is_control


def _federation(
    name: str,
    matrix: Matrix,
    runs: Mapping[str, tuple[RunFolder, LastRound]],
    methods: Sequence[str],
    seeds: Sequence[int],
) -> Federation:
    cells = [cell for cell in matrix.cells if cell.data == name]
    values = numpy.full((len(methods), len(cells), len(seeds)), numpy.nan)
    success = values.copy()
    metric = "accuracy"
    higher_is_better = True
    for column, cell in enumerate(cells):
        if cell.folder not in runs:
            continue
        run, rows = runs[cell.folder]
        metric = run.metric
        higher_is_better = run.higher_is_better
        for method, seed, value, works in rows:
            index = methods.index(method), column, seeds.index(seed)
            values[index] = numpy.nan if value is None else value
            success[index] = numpy.nan if works is None else works
    columns = tuple(cell.column for cell in cells)
    return Federation(name, metric, higher_is_better, columns, values, success)


@dataclass(frozen=True)
class MethodStanding:
    """How a method does on some federations, each counting alike."""

    method: str
    mean: float
    worst: float  # the worst column, mean over seeds and federations
    worst_at: str
    rank: float | None  # mean over federations and columns, without the controls; 1 is best
    regret: Difference | None  # to the method that is told which clients are honest, mean
    worst_regret: Difference | None  # the largest over the columns


def standings(results: Results, federations: Sequence[Federation]) -> list[MethodStanding]:
    """All methods that have a result everywhere, the best worst case first."""
    # [federations, methods, columns, seeds]
    good = numpy.stack([one.goodness for one in federations])
    complete = numpy.flatnonzero(~numpy.isnan(good).any((0, 2, 3)))
    good = good[:, complete]
    methods = [results.methods[index] for index in complete]
    sign = 1 if federations[0].higher_is_better else -1
    ranks = _mean_ranks(results, methods, good)
    oracle = results.matrix.oracle
    found = []
    for index, method in enumerate(methods):
        own = good[:, index]  # [federations, columns, seeds]
        regret = None
        worst_regret = None
        if oracle in methods:
            behind = good[:, methods.index(oracle)] - own
            regret = _interval(behind.mean((0, 1)))
            worst_regret = _interval(behind.max(1).mean(0))
        found.append(
            MethodStanding(
                method,
                mean=sign * float(own.mean()),
                worst=sign * float(own.min(1).mean()),
                worst_at=_worst_column(own, federations),
                rank=ranks.get(method),
                regret=regret,
                worst_regret=worst_regret,
            )
        )
    return sorted(found, key=lambda one: -sign * one.worst)


def _mean_ranks(results: Results, methods: Sequence[str], good: Values) -> dict[str, float]:
    """Mean over federations and columns, without the controls; 1 is best."""
    from scipy.stats import rankdata

    rivals = [index for index, method in enumerate(methods) if method not in results.controls]
    by_cell = good.mean(3)[:, rivals]  # [federations, rivals, columns]
    ranks = rankdata(-by_cell, axis=1).mean((0, 2)).tolist()
    return {methods[index]: rank for index, rank in zip(rivals, ranks, strict=True)}


def _worst_column(own: Values, federations: Sequence[Federation]) -> str:
    """Where a method is worst, mean over the seeds; `own` is [federations, columns, seeds]."""
    means = own.mean(2)
    row, column = numpy.unravel_index(means.argmin(), means.shape)
    federation = federations[row]
    label = federation.columns[column]
    return f"{federation.name}: {label}" if len(federations) > 1 else label


def _interval(per_seed: Values) -> Difference | None:
    return paired_difference(per_seed.tolist(), [0.0] * len(per_seed))


def worst_case_difference(
    results: Results, federations: Sequence[Federation], ours: str, theirs: str
) -> Difference | None:
    """The difference of two worst cases, paired by seed, mean over the federations.

    Above zero, ours is better.
    """

    def worst_case(method: str) -> list[float | None]:
        index = results.methods.index(method)
        worst = numpy.stack([one.goodness[index].min(0) for one in federations])
        means: list[float | None] = worst.mean(0).tolist()
        return means

    return paired_difference(worst_case(ours), worst_case(theirs))


def critical_difference(methods: int, blocks: int) -> float | None:
    """Nemenyi's critical difference of mean ranks at 5% (Demšar, 2006).

    q · √(k(k + 1) / (6N)) for k methods and N blocks, q the studentised range over √2.

    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    if methods < 2 or blocks < 2:
        return None
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))
