"""Matrices: every method's mean over cells, worst cell, rank and regret, and the report on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray
from pandas import DataFrame as Frame

from ..errors import RunError
from ..experiment.matrix.grid import Matrix, look_at
from ..record.run import RunFolder
from .charts import Format
from .items import Chart, Column, Item, Table, Unit, counted, fixed, percent, table
from .page import write_items, write_page
from .results import has_hostile, marked, marks_in_words
from .sections import difference_column
from .statistics import Difference, holm, p_number, paired_difference

OUTER_FENCE = 3  # interquartile ranges beyond the quartiles (Tukey, 1977)
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
        tuple(_read_federation(name, matrix, runs, [*about], seeds) for name in matrix.federations),
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


def _read_federation(
    name: str,
    matrix: Matrix,
    runs: Mapping[str, RunFolder],
    methods: Sequence[str],
    seeds: Sequence[int],
) -> Federation:
    cells = [cell for cell in matrix.cells if cell.data == name]
    found = numpy.full((3, len(methods), len(cells), len(seeds)), numpy.nan)
    facts: Any = None
    for column, cell in enumerate(cells):
        run = runs.get(cell.folder)
        if run is None:
            continue
        facts = run.facts
        rounds = run.frame("rounds")
        ended = rounds[rounds["round"] == facts.rounds]
        wanted = ended.reindex(columns=["method", "seed", "metric", "attack_success"])
        alarms = {} if has_hostile(run) else dict(false_alarms(run))
        for method, seed, *values in wanted.itertuples(index=False):
            place = methods.index(method), column, seeds.index(seed)
            # As numbers: NaN is what is absent
            found[:, *place] = numpy.array([*values, alarms.get((method, seed))], dtype=float)
    columns = tuple(cell.column for cell in cells)
    values, success, false = found
    if facts is None:
        return Federation(name, "accuracy", True, columns, values, success, false)
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
    regret: Difference | None = None  # to the method that is told which clients are honest
    worst_regret: Difference | None = None  # in the cell where it is largest


def standings(results: Results, federations: Sequence[Federation]) -> list[MethodStanding]:
    """All methods that have a result everywhere, the best worst cell first."""
    good = _cells(federations)
    names = _cell_names(federations)
    complete = complete_methods(results, federations)
    sign = 1 if federations[0].higher_is_better else -1
    ranks = rank(results, federations).means
    alarms = _known_means(numpy.stack([one.false_alarms for one in federations], 1))
    success = _known_means(numpy.concatenate([one.success for one in federations], 1))
    oracle = good[results.methods.index(results.oracle)] if results.oracle in complete else None
    found = []
    for method in complete:
        index = results.methods.index(method)
        by_cell = good[index].mean(1)
        one = MethodStanding(
            method,
            is_available=method not in results.unavailable,
            mean=sign * float(by_cell.mean()),
            worst=sign * float(by_cell.min()),
            worst_at=names[int(by_cell.argmin())],
            rank=ranks.get(method),
            false_alarms=_or_none(alarms[index]),
            success=_or_none(success[index]),
        )
        if oracle is not None:
            behind = oracle - good[index]
            largest = int(behind.mean(1).argmax())
            one = replace(
                one, regret=_interval(behind.mean(0)), worst_regret=_interval(behind[largest])
            )
        found.append(one)
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


def worst_cell_difference(
    results: Results, federations: Sequence[Federation], ours: str, theirs: str
) -> Difference:
    """The worst cell of one method minus that of another, paired by seed; above zero, ours is better."""
    good = _cells(federations)[[results.methods.index(one) for one in (ours, theirs)]]
    worst = good[[0, 1], good.mean(2).argmin(1)]  # each is the worst by the mean over the seeds
    return _interval(worst[0] - worst[1])


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


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


# The report ---------------------------------------------------------------------------------------


class MatrixReport(NamedTuple):
    """What there is to say of a matrix."""

    title: str
    subtitle: str
    lead: list[str]
    sections: dict[str, list[Item]]


def write_matrix(folder: Path, out: Path, figures: Sequence[Format] = ()) -> Path:
    """The report on disk: a page, tables as CSV and LaTeX, heat maps in these formats."""
    found = matrix_report(folder)
    head = {"title": found.title, "subtitle": found.subtitle, "lead": found.lead}
    page = write_page({**head, "status": "matrix"}, found.sections, out / "report.html")
    write_items([item for items in found.sections.values() for item in items], out, figures)
    return page


def matrix_report(folder: Path) -> MatrixReport:
    """The report on a matrix."""
    results = read_results(folder)
    groups = results.metrics()
    sections = {
        f"Standings: {metric}": list(_standings(results, metric, own))
        for metric, own in groups.items()
    }
    sections |= {one.name: list(_federation(results, one)) for one in results.federations}
    cells = counted(results.cells, "cell")
    lead = [f"Not finished: {results.missing} of {cells} are missing."] if results.missing else []
    for warning, count in results.warnings.items():
        lead.append(f"Warning in {count} of {cells}: {warning}.")
    for metric, own in groups.items():
        lead += _verdict(results, metric if len(groups) > 1 else "", own)
    sizes = {
        "method": len(results.methods),
        "federation": len(results.federations),
        "cell": results.cells,
        "seed": results.seeds,
    }
    subtitle = " · ".join(counted(size, noun) for noun, size in sizes.items())
    return MatrixReport(results.name, subtitle, lead, sections)


# In words -----------------------------------------------------------------------------------------


def _verdict(results: Results, metric: str, federations: Sequence[Federation]) -> Iterator[str]:
    """The best worst cell, the best mean and the best mean rank of the available methods."""
    lines = [one for one in standings(results, federations) if one.is_available]
    if len(lines) < 2:
        return
    where = f" ({metric})" if metric else ""
    unit = federations[0].unit
    best, second = lines[:2]
    found = worst_cell_difference(results, federations, best.method, second.method)
    sure = "With one seed, no confidence interval can be given."
    if found.corrected_margin is not None:
        sure = (
            f"Difference {interval(found, unit)}{unit.points} (95% confidence interval, paired over "
            f"{results.seeds} seeds; the cells were chosen by these same results)."
        )
    yield (
        f"Best worst cell{where}: {best.method} with {unit.text(best.worst)} ({best.worst_at}); next {second.method} "
        f"with {unit.text(second.worst)} ({second.worst_at}). {sure}"
    )
    yield f"Best mean over cells{where}: {_lead_in_mean(results, federations, lines)}"
    ranks = rank(results, federations)
    if len(federations) > 1:  # the rank on one federation is the order by its mean
        first = min(ranks.means, key=lambda method: ranks.means[method])
        yield f"Best mean rank{where}: {first} with {ranks.means[first]:.1f} among {len(ranks.means)}."


def _lead_in_mean(
    results: Results, federations: Sequence[Federation], lines: Sequence[MethodStanding]
) -> str:
    best, second, *_ = by_mean(lines, federations[0])
    others = [method for method in complete_methods(results, federations) if method != best.method]
    found = mean_differences(results, federations, best.method, others)[others.index(second.method)]
    unit = federations[0].unit
    text = f"{best.method} with {unit.text(best.mean)}; next {second.method} with {unit.text(second.mean)}."
    for pairs, difference in (("seeds", found.over_seeds), ("federations", found.over_federations)):
        if difference.corrected_margin is not None:
            said = f"{interval(difference, unit)}{unit.points}, {difference.significance(pairs)}"
            text += f" Over {difference.pairs} {pairs}: {said}."
    return text


def interval(difference: Difference, unit: Unit) -> str:
    """A difference with half of its confidence interval."""
    margin = difference.corrected_margin
    text = unit.size(difference.mean)
    return text if margin is None else f"{text} ± {unit.size(margin)}"


def by_mean(lines: Sequence[MethodStanding], federation: Federation) -> list[MethodStanding]:
    """The best mean first."""
    return sorted(lines, key=lambda one: one.mean, reverse=federation.higher_is_better)


# Tables -------------------------------------------------------------------------------------------


def _standings(results: Results, metric: str, federations: Sequence[Federation]) -> Iterator[Item]:
    """All methods on the federations that share a metric, and against the one with the best mean."""
    lines = standings(results, federations)
    unit = federations[0].unit
    regrets = {
        "regret": [one.regret for one in lines],
        "largest regret": [one.worst_regret for one in lines],
    }
    rates = {
        "false alarms": [one.false_alarms for one in lines],
        "backdoor success": [one.success for one in lines],
    }
    ranks = numpy.array([one.rank for one in lines], dtype=float)
    columns = [
        _method_column(results, [one.method for one in lines]),
        Column(f"mean {metric}", [one.mean for one in lines], unit.text),
        Column("worst cell", [one.worst for one in lines], unit.text),
        Column("worst at", [one.worst_at for one in lines]),
        Column("mean rank", ranks, fixed(1)),
    ]
    for name, own in regrets.items():
        columns.append(difference_column(name, own, unit.signed))
    for name, values in rates.items():
        columns.append(Column(name, numpy.array(values, dtype=float), percent))
    title = f"All methods on {counted(len(federations), 'federation')}"
    yield table(f"standings-{metric}", title, columns, _standings_note(results, federations, lines))
    usable = by_mean([one for one in lines if one.is_available], federations[0])
    if usable and len(lines) > 1:
        yield _differences_table(results, metric, federations, usable[0].method)


def _method_column(results: Results, methods: Sequence[str]) -> Column:
    """Methods, with marks where they are not available or train on the server's samples."""
    available = ["no" if method in results.unavailable else "yes" for method in methods]
    texts = [
        marked(method, method in results.unavailable, method in results.on_server)
        for method in methods
    ]
    return Column("method", list(methods), texts, {"available": available})


def _footnotes(results: Results, methods: Sequence[str]) -> list[str]:
    """What the marks of these methods mean."""
    shown = {*methods}
    return marks_in_words(bool(shown & results.unavailable), bool(shown & results.on_server))


def _standings_note(
    results: Results, federations: Sequence[Federation], lines: Sequence[MethodStanding]
) -> str:
    seeds = counted(results.seeds, "seed")
    cells = "all cells"
    if len(federations) < len(results.federations):
        cells = f"the cells of {', '.join(one.name for one in federations)}"
    sentences = [
        f"A cell is a federation with a column. Mean and worst cell are over {cells}, each the mean of {seeds}."
    ]
    sentences += _footnotes(results, [one.method for one in lines])
    if results.oracle:
        sentences.append(
            f"Regret: how far a method is behind “{results.oracle}”, which is told which clients are "
            f"honest{federations[0].unit.in_points}: mean over the cells, and in the cell where "
            f"it is largest, with the 95% confidence interval over {seeds}."
        )
    if any(one.false_alarms is not None for one in lines):
        sentences.append(
            "False alarms: the share of honest clients whose evidence factor falls below half of "
            "the largest factor of a round, in columns without hostile clients."
        )
    ranks = rank(results, federations)
    sentences.append(
        "Mean rank: the available methods are ranked on every federation by their mean over its columns."
    )
    if ranks.p_value is not None:
        sentences.append(
            f"Friedman's test with {len(federations)} federations as blocks: p = {ranks.p_value:.2g}."
        )
    if ranks.critical_difference is not None:
        closer = f"{ranks.critical_difference:.1f}"
        sentences.append(f"Mean ranks closer than {closer} do not differ significantly (Nemenyi).")
    if len(results.methods) > len(lines):
        absent = counted(len(results.methods) - len(lines), "method")
        sentences.append(f"Left out: {absent} without a result in all cells.")
    return " ".join(sentences)


def _differences_table(
    results: Results, metric: str, federations: Sequence[Federation], best: str
) -> Table:
    """All methods against the available method with the best mean."""
    unit = federations[0].unit
    others = [method for method in complete_methods(results, federations) if method != best]
    found = mean_differences(results, federations, best, others)
    found.sort(key=lambda one: one.over_seeds.mean)
    names = [one.method for one in found]
    columns = [_method_column(results, names)]
    kinds = {"seed": [one.over_seeds for one in found]}
    if len(federations) > 1:
        kinds["federation"] = [one.over_federations for one in found]
    for noun, own in kinds.items():
        name = f"over {counted(own[0].pairs, noun)}"
        columns.append(difference_column(name, own, unit.signed))
        p_values = numpy.array([one.p_value for one in own], dtype=float)
        columns.append(Column(f"p over {noun}s", p_values, p_number))
    sentences = [
        f"Lead of {best}, the available method with the best mean over cells, over the method of the "
        f"row{unit.in_points}; above zero, {best} is better. 95% confidence intervals and p "
        f"are corrected for {counted(len(others), 'comparison')} (Holm). {best} was chosen by these "
        "same results, so its lead is optimistic. The interval over seeds says what other seeds would give on these "
        "federations; one over federations what others would give, if these are a random choice of them.",
        *_footnotes(results, names),
    ]
    title = f"Lead of {best} in the mean over cells"
    return table(f"differences-{metric}", title, columns, " ".join(sentences))


def _federation(results: Results, one: Federation) -> Iterator[Item]:
    """All methods in the columns of one federation: those with a result in every column."""
    worst = one.goodness.mean(2).min(1)
    order = sorted(numpy.flatnonzero(~numpy.isnan(worst)).tolist(), key=lambda index: -worst[index])
    if not order:
        return
    methods = [results.methods[index] for index in order]
    named = _method_column(results, methods)
    means, rates = one.values.mean(2)[order], one.success.mean(2)[order]
    better = "" if one.higher_is_better else " (lower is better)"
    frame = Frame(means, columns=one.columns).assign(method=named.text)
    yield Chart(
        f"{one.name}-heat",
        f"{one.name}: {one.metric}{better}, the best worst cell on top",
        frame.melt("method", var_name="column", value_name=one.metric),
        "cells",
        x="column",
        y="method",
        colour=one.metric,
        format=one.unit.axis,
        limits=(0.0, 1.0) if one.is_share else without_outliers(means),
        alt=f"{one.metric} of {len(order)} methods in {len(one.columns)} columns on {one.name}.",
    )
    columns = [named]
    for name, own in zip(one.columns, means.T, strict=True):
        columns.append(Column(name, own, one.unit.text))
    columns.append(Column("false alarms", one.false_alarms[order], percent))
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst cell first."
    notes = " ".join([note, *_footnotes(results, methods)])
    yield table(f"{one.name}-values", f"{one.name}: {one.metric}", columns, notes)
    if not numpy.isnan(rates).all():
        doors = [Column(name, own, percent) for name, own in zip(one.columns, rates.T, strict=True)]
        note = "How often samples with the trigger get the attacker's label; accuracy does not show it."
        title = f"{one.name}: backdoor success rate"
        yield table(f"{one.name}-backdoors", title, [named, *doors], note)


def without_outliers(grid: Values) -> tuple[float, float]:
    """The least and the largest value within Tukey's outer fences, so that a diverged method takes no colours.

    >>> without_outliers(numpy.array([[8.0, 9.0, 10.0], [9.0, 11.0, 1e9]]))
    (8.0, 16.0)
    """
    values = grid[numpy.isfinite(grid)]
    first, third = numpy.quantile(values, [0.25, 0.75])
    reach = OUTER_FENCE * (third - first)
    return float(max(values.min(), first - reach)), float(min(values.max(), third + reach))
