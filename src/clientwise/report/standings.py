"""The results of a matrix: every method's mean over cells, worst cell, rank and regret."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from numpy.typing import NDArray

from ..errors import RunError
from ..experiment.matrix.grid import Matrix, look_at
from ..record.run import RunFolder
from .items import Unit
from .results import has_hostile
from .statistics import Difference, holm, paired_difference

Values = NDArray[numpy.float64]


@dataclass(frozen=True)
class Federation:
    """The results on one federation."""

    name: str
    metric: str
    higher_is_better: bool
    columns: tuple[str, ...]
    values: Values  # [methods, columns, seeds] of the metric; NaN: not there yet
    success: Values  # likewise, the success rate of a backdoor; NaN: there is none
    alarms: Values  # likewise, the share of false alarms; NaN: a column with hostile clients
    is_share: bool = True  # whether the metric is shown in percent

    @property
    def unit(self) -> Unit:
        """How the metric is written."""
        return Unit(self.is_share)

    @property
    def goodness(self) -> Values:
        """The metric with its sign changed where lower is better."""
        return self.values if self.higher_is_better else -self.values

    @property
    def false_alarms(self) -> Values:
        """The share of false alarms over columns and seeds [methods]; NaN: no evidence."""
        return _known_means(self.alarms)


@dataclass(frozen=True)
class Results:
    """The results of a matrix so far."""

    name: str
    oracle: str | None  # the method that regrets are counted against
    methods: tuple[str, ...]
    unavailable: frozenset[str]  # they use which clients are honest, or pool all samples
    seeds: int
    federations: tuple[Federation, ...]
    on_server: frozenset[str] = frozenset()  # they train on the server's samples
    warnings: Mapping[str, int] = field(default_factory=dict)  # and how many cells have each

    @property
    def cells(self) -> int:
        """The number of cells, finished or not."""
        return sum(len(one.columns) for one in self.federations)

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
    runs = {
        cell.folder: run
        for cell in matrix.cells
        if (run := _opened(folder / cell.folder)) is not None
    }
    if not runs:
        raise RunError(f"{folder}: none of its cells has begun")
    about = {name: run.about(name) for run in runs.values() for name in run.methods}
    seeds = list(
        dict.fromkeys(seed for run in runs.values() for seed in run.lanes["seed"].tolist())
    )
    return Results(
        matrix.name,
        matrix.oracle,
        tuple(about),
        frozenset(name for name, one in about.items() if not one.is_available),
        len(seeds),
        tuple(_federation(name, matrix, runs, [*about], seeds) for name in matrix.federations),
        frozenset(name for name, one in about.items() if one.trains_on_server),
        Counter(text for run in runs.values() for text in run.facts.warnings),
    )


def _opened(folder: Path) -> RunFolder | None:
    """The run of a cell; None where it has not begun or cannot be read."""
    try:
        run = RunFolder(folder)
        run.frame("rounds")
        for name in run.methods:
            run.about(name)
    except RunError:
        return None
    return run


def _federation(
    name: str,
    matrix: Matrix,
    runs: Mapping[str, RunFolder],
    methods: Sequence[str],
    seeds: Sequence[int],
) -> Federation:
    cells = [cell for cell in matrix.cells if cell.data == name]
    found = numpy.full((3, len(methods), len(cells), len(seeds)), numpy.nan)
    known = {column: runs[cell.folder] for column, cell in enumerate(cells) if cell.folder in runs}
    for column, run in known.items():
        rounds = run.frame("rounds")
        alarms = {} if has_hostile(run) else dict(false_alarms(run))
        for row in rounds[rounds["round"] == run.facts.rounds].to_dict("records"):
            place = methods.index(row["method"]), column, seeds.index(row["seed"])
            alarm = alarms.get((row["method"], row["seed"]))
            found[:, *place] = [
                _or_nan(one) for one in (row.get("metric"), row.get("attack_success"), alarm)
            ]
    columns = tuple(cell.column for cell in cells)
    values, success, false = found
    if not known:
        return Federation(name, "accuracy", True, columns, values, success, false)
    facts = next(iter(known.values())).facts
    return Federation(
        name, facts.metric, facts.higher_is_better, columns, values, success, false, facts.is_share
    )


def false_alarms(run: RunFolder) -> Iterable[tuple[tuple[str, int], float]]:
    """By method and seed, the share of honest clients that ever lost half of their weight by evidence.

    The evidence multiplies the prior weight of a client by a factor. A client is lowered if its
    factor is below half of the largest factor of an honest client of the round, in any round.
    Updates that share the weight of one because they are almost equal are not lowered by that.
    """
    judged = run.frame("weights")
    judged = judged[judged["posterior"].notna() & judged["hostile"].isna()]
    copies = judged["copies"].astype(float).fillna(1.0) if "copies" in judged else 1.0
    factor = judged["posterior"].astype(float) * copies / judged["prior"]
    most = factor.groupby([judged[key] for key in ("method", "seed", "round")]).transform("max")
    ever = (
        (factor < 0.5 * most).groupby([judged[key] for key in ("method", "seed", "client")]).any()
    )
    found: Iterable[tuple[tuple[str, int], float]] = (
        ever.groupby(level=["method", "seed"]).mean().items()
    )
    return found


@dataclass(frozen=True)
class MethodStanding:
    """How a method does on some federations; a cell is a federation with a column."""

    method: str
    is_available: bool
    mean: float  # over cells and seeds
    worst: float  # the worst cell, mean over the seeds
    worst_at: str
    rank: float | None  # among the available methods, mean over the federations; 1 is best
    false_alarms: float | None  # mean over the federations
    success: float | None  # of backdoors, mean over the cells that have one
    regret: Difference | None  # to the method that is told which clients are honest, over seeds
    worst_regret: Difference | None  # in the cell where it is largest
    worst_regret_at: str


def standings(results: Results, federations: Sequence[Federation]) -> list[MethodStanding]:
    """All methods that have a result everywhere, the best worst cell first."""
    good = _cells(federations)
    names = _cell_names(federations)
    complete = complete_methods(results, federations)
    sign = 1 if federations[0].higher_is_better else -1
    ranks = rank(results, federations).means
    alarms = _known_means(numpy.stack([one.false_alarms for one in federations], 1))
    success = _known_means(numpy.concatenate([one.success for one in federations], 1))
    found = []
    for method in complete:
        index = results.methods.index(method)
        by_cell = good[index].mean(1)
        regret = None
        worst_regret = None
        worst_regret_at = ""
        if results.oracle in complete:
            behind = good[results.methods.index(results.oracle)] - good[index]
            largest = int(behind.mean(1).argmax())
            regret = _interval(behind.mean(0))
            worst_regret = _interval(behind[largest])
            worst_regret_at = names[largest]
        found.append(
            MethodStanding(
                method,
                is_available=method not in results.unavailable,
                mean=sign * float(by_cell.mean()),
                worst=sign * float(by_cell.min()),
                worst_at=names[int(by_cell.argmin())],
                rank=ranks.get(method),
                false_alarms=_or_none(alarms[index]),
                success=_or_none(success[index]),
                regret=regret,
                worst_regret=worst_regret,
                worst_regret_at=worst_regret_at,
            )
        )
    return sorted(found, key=lambda one: -sign * one.worst)


def complete_methods(results: Results, federations: Sequence[Federation]) -> list[str]:
    """The methods that have a result in all cells with all seeds."""
    totals = _cells(federations).sum((1, 2)).tolist()  # NaN where a value is missing
    both = zip(results.methods, totals, strict=True)
    return [method for method, total in both if not math.isnan(total)]


@dataclass(frozen=True)
class MeanDifference:
    """The mean over cells of one method minus that of another; above zero, the first is better."""

    method: str  # the other
    over_seeds: Difference  # paired by seed: what other seeds of these federations would give
    over_federations: Difference  # paired by federation: what other federations would give
    worst: Difference  # of the worst cells of the federations, paired by federation


def mean_differences(
    results: Results,
    federations: Sequence[Federation],
    ours: str,
    others: Sequence[str],
) -> list[MeanDifference]:
    """One method against others, with Holm's correction for their number.

    Args:
        results: the results that the methods are in.
        federations: the federations to compare on; all methods must have a result in all cells.
        ours: the method that is compared with all others.
        others: the other methods.
    """
    good = _cells(federations)
    by_federation = numpy.stack([one.goodness.mean((1, 2)) for one in federations], 1)
    worst = numpy.stack([one.goodness.mean(2).min(1) for one in federations], 1)
    found = []
    for of_unit in (good.mean(1), by_federation, worst):  # [methods, seeds or federations]
        own = of_unit[results.methods.index(ours)]
        rows = [_interval(own - of_unit[results.methods.index(other)]) for other in others]
        found.append(holm(rows))
    return [MeanDifference(*row) for row in zip(others, *found, strict=True)]


def leads_significantly(goodness: Values) -> bool:
    """Whether the best method is significantly better than every other, paired by seed (Holm).

    Args:
        goodness: [methods, seeds], the higher the better.
    """
    best = int(goodness.mean(1).argmax())
    others = [row for index, row in enumerate(goodness) if index != best]
    leads = holm([_interval(goodness[best] - row) for row in others])
    return bool(leads) and all(one.is_significant for one in leads)


def significant_leads(results: Results, federations: Sequence[Federation]) -> tuple[bool, ...]:
    """Whether the lead of the best available method is significant: in the mean over cells, in the
    worst cell (both over seeds, by `leads_significantly`) and in the mean rank (Nemenyi).
    """
    complete = complete_methods(results, federations)
    rivals = [results.methods.index(one) for one in complete if one not in results.unavailable]
    if len(rivals) < 2:
        return False, False, False
    good = _cells(federations)[rivals]  # [methods, cells, seeds]
    worst = good[numpy.arange(len(rivals)), good.mean(2).argmin(1)]
    ranks = rank(results, federations)
    first, second, *_ = sorted(ranks.means.values())
    is_apart = ranks.critical_difference is not None and second - first > ranks.critical_difference
    return leads_significantly(good.mean(1)), leads_significantly(worst), is_apart


def worst_cell_difference(
    results: Results, federations: Sequence[Federation], ours: str, theirs: str
) -> Difference:
    """The worst cell of one method minus that of another, paired by seed.

    Above zero, ours is better. Each cell is the worst by the mean over the seeds.
    """
    good = _cells(federations)

    def worst(method: str) -> Values:
        own: Values = good[results.methods.index(method)]
        in_worst: Values = own[own.mean(1).argmin()]
        return in_worst

    return _interval(worst(ours) - worst(theirs))


@dataclass(frozen=True)
class Ranks:
    """Ranks of the available methods, with federations as blocks (Demšar, 2006)."""

    means: Mapping[str, float]  # over the federations; 1 is best
    p_value: float | None  # Friedman's test that all methods are alike
    critical_difference: float | None  # Nemenyi's, of two mean ranks at 5%


def rank(results: Results, federations: Sequence[Federation]) -> Ranks:
    """Rank the available methods on every federation by their mean over its columns and seeds."""
    from scipy.stats import friedmanchisquare, rankdata

    complete = complete_methods(results, federations)
    rivals = [method for method in complete if method not in results.unavailable]
    if not rivals:
        return Ranks({}, None, None)
    indices = [results.methods.index(method) for method in rivals]
    means = numpy.stack([one.goodness[indices].mean((1, 2)) for one in federations])
    mean_ranks = rankdata(-means, axis=1).mean(0).tolist()
    p_value = None
    if len(rivals) > 2 and len(federations) > 1:
        p_value = _or_none(friedmanchisquare(*means.T).pvalue)
    difference = critical_difference(len(rivals), len(federations))
    return Ranks(dict(zip(rivals, mean_ranks, strict=True)), p_value, difference)


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


def _cells(federations: Sequence[Federation]) -> Values:
    """[methods, cells, seeds], the higher the better."""
    return numpy.concatenate([one.goodness for one in federations], 1)


def _cell_names(federations: Sequence[Federation]) -> list[str]:
    """As `_cells` has them; with the federation's name where there are several."""
    if len(federations) == 1:
        return list(federations[0].columns)
    return [f"{one.name}: {column}" for one in federations for column in one.columns]


def _interval(paired: Values) -> Difference:
    found = paired_difference(paired.tolist(), [0.0] * len(paired))
    assert found is not None
    return found


def _known_means(values: Values) -> Values:
    """The means of what is known of each method; NaN where nothing is."""
    rows = [row[~numpy.isnan(row)] for row in values.reshape(len(values), -1)]
    return numpy.array([row.mean() if row.size else numpy.nan for row in rows])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
