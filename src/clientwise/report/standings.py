"""Matrices: every method's mean over cells, worst cell, rank and regret, and the report on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pandas
from numpy.typing import NDArray
from pandas import DataFrame as Frame
from pandas import MultiIndex, Series

from ..errors import RunError
from ..experiment.matrix.grid import MatrixCell, look_at
from ..record.run import RunFolder
from .charts import Format
from .items import Chart, Column, Item, Table, Unit, counted, fixed, percent, table
from .page import write_sections
from .results import has_hostile, marked, marks_in_words
from .sections import difference_column
from .statistics import Difference, holm, p_number, paired_difference

PLACE = ["federation", "method", "column", "seed"]
# What is known of a federation none of whose cells has begun
UNKNOWN = SimpleNamespace(metric="accuracy", higher_is_better=True, is_share=True)
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
        return known_means(self.alarms)


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

    def by_metric(self) -> dict[str, Results]:
        """The federations that share a metric, by what that is; the functions below compare such federations."""
        groups: dict[str, list[Federation]] = {}
        for one in self.federations:
            groups.setdefault(one.metric, []).append(one)
        return {metric: replace(self, federations=tuple(own)) for metric, own in groups.items()}

    @property
    def unit(self) -> Unit:
        """How the metric is written."""
        return self.federations[0].unit

    @cached_property
    def goodness(self) -> Values:
        """[methods, cells, seeds] of the metric, the higher the better."""
        return numpy.concatenate([one.goodness for one in self.federations], 1)

    @property
    def complete(self) -> list[str]:
        """The methods that have a result in all cells with all seeds."""
        totals = self.goodness.sum((1, 2))  # NaN where a value is missing
        return [str(method) for method in numpy.array(self.methods)[~numpy.isnan(totals)]]

    def places(self, methods: Iterable[str]) -> list[int]:
        """The rows of these methods in arrays."""
        return [self.methods.index(method) for method in methods]


def read_results(folder: Path) -> Results:
    """The results of all finished cells, and of the finished methods of the others.

    Read from the runs alone: looking at a matrix never executes what its config names.
    """
    matrix = look_at(folder)
    opened = [(cell, _opened(folder / cell.folder)) for cell in matrix.cells]
    runs = [(cell, run) for cell, run in opened if run is not None]
    if not runs:
        raise RunError(f"{folder}: none of its cells has begun")
    about = {name: run.about(name) for _, run in runs for name in run.methods}
    seeds = pandas.concat([run.lanes["seed"] for _, run in runs]).unique()
    cells = pandas.concat([_last_round(cell, run) for cell, run in runs])
    federations = []
    for name in matrix.federations:
        columns = [cell.column for cell in matrix.cells if cell.data == name]
        every = MultiIndex.from_product([[name], [*about], columns, seeds])
        grid = cells.reindex(every).to_numpy().reshape(len(about), len(columns), len(seeds), 3)
        values, success, alarms = numpy.moveaxis(grid, -1, 0)
        facts: Any = next((run.facts for cell, run in runs if cell.data == name), UNKNOWN)
        federations.append(
            Federation(
                name,
                facts.metric,
                facts.higher_is_better,
                tuple(columns),
                values,
                success,
                alarms,
                facts.is_share,
            )
        )
    return Results(
        matrix.name,
        matrix.oracle,
        tuple(about),
        frozenset(name for name, one in about.items() if not one.is_available),
        len(seeds),
        tuple(federations),
        frozenset(name for name, one in about.items() if one.trains_on_server),
        Counter(text for _, run in runs for text in run.facts.warnings),
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


def _last_round(cell: MatrixCell, run: RunFolder) -> Frame:
    """Metric, backdoor success and false alarms of the last round, by federation, method, column and seed."""
    rounds = run.frame("rounds")
    last = rounds[rounds["round"] == run.facts.rounds].set_index(["method", "seed"])
    found = last.reindex(columns=["metric", "attack_success"]).astype(float)
    found["alarms"] = numpy.nan if has_hostile(run) else false_alarms(run)
    places = [(cell.data, method, cell.column, seed) for method, seed in found.index]
    return found.set_axis(MultiIndex.from_tuples(places, names=PLACE))


def false_alarms(run: RunFolder) -> Series:
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
    lowered = (factor < 0.5 * most).groupby([judged[key] for key in ("method", "seed", "client")])
    return lowered.any().groupby(level=["method", "seed"]).mean()


def standings(results: Results) -> Frame:
    """All methods that have a result everywhere, the best worst cell first; a cell is a federation with a column.

    Columns:
        method, is_available: its name, and whether it can be used in practice.
        mean: over cells and seeds.
        worst, worst_at: the worst cell, mean over the seeds, and its name.
        rank: among the available methods, mean over the federations; 1 is best.
        false_alarms: mean over the federations; NaN without evidence.
        success: of backdoors, mean over the cells that have one.
        regret, largest_regret: to the method that is told which clients are honest, over all cells and in the cell
            where it is largest; without such a method, they are absent.
    """
    methods, federations = results.complete, results.federations
    places = results.places(methods)
    good = results.goodness[places]
    by_cell = good.mean(2)
    is_one = len(federations) == 1
    cells = [(one.name, column) for one in federations for column in one.columns]
    names = numpy.array([column if is_one else f"{name}: {column}" for name, column in cells])
    sign = 1 if federations[0].higher_is_better else -1
    alarms = known_means(numpy.stack([one.false_alarms for one in federations], 1))
    success = known_means(numpy.concatenate([one.success for one in federations], 1))
    found = Frame(
        {
            "method": methods,
            "is_available": ~numpy.isin(methods, [*results.unavailable]),
            "mean": sign * by_cell.mean(1),
            "worst": sign * by_cell.min(1),
            "worst_at": names[by_cell.argmin(1)],
            "false_alarms": alarms[places],
            "success": success[places],
        }
    )
    found["rank"] = found["method"].map(mean_ranks(results))
    if results.oracle in methods:
        behind = good[methods.index(results.oracle)] - good
        largest = behind.mean(2).argmax(1)
        found["regret"] = [_difference(own.mean(0)) for own in behind]
        found["largest_regret"] = [
            _difference(own[place]) for own, place in zip(behind, largest, strict=True)
        ]
    return found.sort_values("worst", ascending=sign < 0, kind="stable", ignore_index=True)


def by_mean(found: Frame, results: Results) -> Frame:
    """Standings with the best mean first."""
    lowest_first = not results.federations[0].higher_is_better
    return found.sort_values("mean", ascending=lowest_first, kind="stable")


@dataclass(frozen=True)
class MeanDifference:
    """The mean over cells of one method minus that of another; above zero, the first is better."""

    method: str  # the other
    over_seeds: Difference  # paired by seed: what other seeds of these federations would give
    over_federations: Difference  # paired by federation: what other federations would give
    worst: Difference  # of the worst cells of the federations, paired by federation


def mean_differences(results: Results, ours: str) -> list[MeanDifference]:
    """One method against all others that have a result in all cells, with Holm's correction for their number."""
    federations = results.federations
    by_federation = numpy.stack([one.goodness.mean((1, 2)) for one in federations], 1)
    worst = numpy.stack([one.goodness.mean(2).min(1) for one in federations], 1)
    others = [method for method in results.complete if method != ours]
    found = []
    for values in (results.goodness.mean(1), by_federation, worst):  # by seed or federation
        behind = values[results.methods.index(ours)] - values[results.places(others)]
        found.append(holm([_difference(own) for own in behind]))
    return [MeanDifference(*row) for row in zip(others, *found, strict=True)]


def mean_ranks(results: Results) -> Series:
    """By available method, its rank by the mean over the columns and seeds of a federation, mean over federations."""
    means = {one.name: one.goodness.mean((1, 2)) for one in results.federations}
    usable = [method for method in results.complete if method not in results.unavailable]
    return Frame(means, results.methods).loc[usable].rank(ascending=False).mean(axis=1)


def _difference(paired: Values) -> Difference:
    found = paired_difference(paired, numpy.zeros_like(paired))
    assert found is not None
    return found


def known_means(values: Values) -> Values:
    """The means of what is known of each method; NaN where nothing is."""
    means: Values = Frame(values.reshape(len(values), -1)).mean(axis=1).to_numpy()
    return means


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
    return write_sections({**head, "status": "matrix"}, found.sections, out, figures)


def matrix_report(folder: Path) -> MatrixReport:
    """The report on a matrix."""
    results = read_results(folder)
    groups = results.by_metric()
    sections = {
        f"Standings: {metric}": [*_standings(own, metric)] for metric, own in groups.items()
    }
    sections |= {one.name: [*_federation(results, one)] for one in results.federations}
    cells = counted(results.cells, "cell")
    lead = [f"Not finished: {results.missing} of {cells} are missing."] if results.missing else []
    for warning, times in results.warnings.items():
        lead.append(f"Warning in {times} of {cells}: {warning}.")
    for metric, own in groups.items():
        lead += _verdict(own, f" ({metric})" if len(groups) > 1 else "")
    sizes = {
        "method": len(results.methods),
        "federation": len(results.federations),
        "cell": results.cells,
        "seed": results.seeds,
    }
    subtitle = " · ".join(counted(size, noun) for noun, size in sizes.items())
    return MatrixReport(results.name, subtitle, lead, sections)


# In words -----------------------------------------------------------------------------------------


def _verdict(results: Results, where: str) -> Iterator[str]:
    """The best worst cell, the best mean and the best mean rank of the available methods."""
    found = standings(results)
    usable = found[found["is_available"]]
    if len(usable) < 2:
        return
    unit = results.unit
    best, second, *_ = usable.itertuples()
    good = results.goodness[results.places([best.method, second.method])]
    worst = good[[0, 1], good.mean(2).argmin(1)]  # each is the worst by the mean over the seeds
    difference = _difference(worst[0] - worst[1])
    sure = "With one seed, no confidence interval can be given."
    if difference.corrected_margin is not None:
        sure = (
            f"Difference {interval(difference, unit)}{unit.points} (95% confidence interval, paired over "
            f"{results.seeds} seeds; the cells were chosen by these same results)."
        )
    yield (
        f"Best worst cell{where}: {best.method} with {unit.text(best.worst)} ({best.worst_at}); next {second.method} "
        f"with {unit.text(second.worst)} ({second.worst_at}). {sure}"
    )
    yield f"Best mean over cells{where}: {_lead_in_mean(results, usable)}"
    if len(results.federations) > 1:  # the rank on one federation is the order by its mean
        ranks = usable.set_index("method")["rank"]
        yield f"Best mean rank{where}: {ranks.idxmin()} with {ranks.min():.1f} among {len(ranks)}."


def _lead_in_mean(results: Results, usable: Frame) -> str:
    best, second, *_ = by_mean(usable, results).itertuples()
    leads = {one.method: one for one in mean_differences(results, best.method)}
    found, unit = leads[second.method], results.unit
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


# Tables -------------------------------------------------------------------------------------------


def _standings(results: Results, metric: str) -> Iterator[Item]:
    """All methods on the federations that share a metric, and against the one with the best mean."""
    found, unit = standings(results), results.unit
    columns = [
        _method_column(results, found["method"]),
        Column(f"mean {metric}", found["mean"], unit.text),
        Column("worst cell", found["worst"], unit.text),
        Column("worst at", found["worst_at"]),
        Column("mean rank", found["rank"], fixed(1)),
    ]
    for name in ("regret", "largest_regret"):
        if name in found:
            columns.append(difference_column(name.replace("_", " "), found[name], unit.signed))
    columns.append(Column("false alarms", found["false_alarms"], percent))
    columns.append(Column("backdoor success", found["success"], percent))
    title = f"All methods on {counted(len(results.federations), 'federation')}"
    yield table(f"standings-{metric}", title, columns, _standings_note(results, found))
    usable = by_mean(found[found["is_available"]], results)
    if len(usable) and len(found) > 1:
        yield _differences_table(results, metric, usable["method"].iloc[0])


def _method_column(results: Results, methods: Iterable[str]) -> Column:
    """Methods, with marks where they are not available or train on the server's samples."""
    available = ["no" if method in results.unavailable else "yes" for method in methods]
    texts = [
        marked(method, method in results.unavailable, method in results.on_server)
        for method in methods
    ]
    return Column("method", list(methods), texts, {"available": available})


def _footnotes(results: Results, methods: Iterable[str]) -> list[str]:
    """What the marks of these methods mean."""
    shown = {*methods}
    return marks_in_words(bool(shown & results.unavailable), bool(shown & results.on_server))


def _standings_note(results: Results, found: Frame) -> str:
    seeds = counted(results.seeds, "seed")
    names = ", ".join(one.name for one in results.federations)
    sentences = [
        f"A cell is a federation with a column. Mean and worst cell are over the cells of {names}, each the mean of "
        f"{seeds}.",
        "Mean rank: the available methods are ranked on every federation by their mean over its columns.",
        *_footnotes(results, found["method"]),
    ]
    if results.oracle:
        sentences.append(
            f"Regret: how far a method is behind “{results.oracle}”, which is told which clients are "
            f"honest{results.unit.in_points}: mean over the cells, and in the cell where "
            f"it is largest, with the 95% confidence interval over {seeds}."
        )
    if found["false_alarms"].notna().any():
        sentences.append(
            "False alarms: the share of honest clients whose evidence factor falls below half of "
            "the largest factor of a round, in columns without hostile clients."
        )
    if len(results.methods) > len(found):
        absent = counted(len(results.methods) - len(found), "method")
        sentences.append(f"Left out: {absent} without a result in all cells.")
    return " ".join(sentences)


def _differences_table(results: Results, metric: str, best: str) -> Table:
    """All methods against the available method with the best mean."""
    unit = results.unit
    found = sorted(mean_differences(results, best), key=lambda one: one.over_seeds.mean)
    names = [one.method for one in found]
    columns = [_method_column(results, names)]
    kinds = {"seed": [one.over_seeds for one in found]}
    if len(results.federations) > 1:
        kinds["federation"] = [one.over_federations for one in found]
    for noun, own in kinds.items():
        name = f"over {counted(own[0].pairs, noun)}"
        columns.append(difference_column(name, own, unit.signed))
        p_values = numpy.array([one.p_value for one in own], dtype=float)
        columns.append(Column(f"p over {noun}s", p_values, p_number))
    sentences = [
        f"Lead of {best}, the available method with the best mean over cells, over the method of the "
        f"row{unit.in_points}; above zero, {best} is better. 95% confidence intervals and p "
        f"are corrected for {counted(len(found), 'comparison')} (Holm). {best} was chosen by these "
        "same results, so its lead is optimistic. The interval over seeds says what other seeds would give on these "
        "federations; one over federations what others would give, if these are a random choice of them.",
        *_footnotes(results, names),
    ]
    title = f"Lead of {best} in the mean over cells"
    return table(f"differences-{metric}", title, columns, " ".join(sentences))


def _federation(results: Results, one: Federation) -> Iterator[Item]:
    """All methods in the columns of one federation: those with a result in every column."""
    methods = list(standings(replace(results, federations=(one,)))["method"])
    if not methods:
        return
    places = results.places(methods)
    named = _method_column(results, methods)
    means = Frame(one.values.mean(2)[places], columns=one.columns)
    better = "" if one.higher_is_better else " (lower is better)"
    frame = means.assign(method=named.text)
    yield Chart(
        f"{one.name}-heat",
        f"{one.name}: {one.metric}{better}, the best worst cell on top",
        frame.melt("method", var_name="column", value_name=one.metric),
        "cells",
        x="column",
        y="method",
        colour=one.metric,
        format=one.unit.axis,
        limits=(0.0, 1.0) if one.is_share else None,
        alt=f"{one.metric} of {len(methods)} methods in {len(one.columns)} columns on {one.name}.",
    )
    columns = [named, *(Column(name, means[name], one.unit.text) for name in means)]
    columns.append(Column("false alarms", one.false_alarms[places], percent))
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst cell first."
    notes = " ".join([note, *_footnotes(results, methods)])
    yield table(f"{one.name}-values", f"{one.name}: {one.metric}", columns, notes)
