"""The report on a matrix: standings of all methods, and the results on every federation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from pandas import DataFrame as Frame

from .charts import COLUMN, Format
from .files import write_items
from .items import Chart, Column, Item, Table, Unit, counted, fixed, percent, table
from .page import write_page
from .results import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_MEANS,
    TRAINS_ON_SERVER,
    TRAINS_ON_SERVER_MEANS,
)
from .standings import (
    Federation,
    MethodStanding,
    Results,
    complete_methods,
    mean_differences,
    rank,
    read_results,
    significant_leads,
    standings,
    worst_cell_difference,
)
from .statistics import Difference, p_number

OUTER_FENCE = 3  # interquartile ranges beyond the quartiles (Tukey, 1977)


class MatrixReport(NamedTuple):
    """What there is to say of a matrix."""

    title: str
    subtitle: str
    lead: list[str]
    sections: dict[str, list[Item]]


def write_matrix(
    folder: Path, out: Path, figures: Sequence[Format] = (), width: float = COLUMN
) -> Path:
    """The report on disk: a page, tables as CSV, Markdown and LaTeX, heat maps in these formats."""
    found = matrix_report(folder)
    head = {
        "title": found.title,
        "subtitle": found.subtitle,
        "lead": found.lead,
        "state": "",
        "status": "matrix",
    }
    page = write_page(head, found.sections, out / "report.html")
    write_items(
        [item for items in found.sections.values() for item in items], out, figures, width=width
    )
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
    lead += [
        f"Warning in {count} of {cells}: {warning}." for warning, count in results.warnings.items()
    ]
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
    text = (
        f"Best worst cell{where}: {best.method} with {unit.text(best.worst)} ({best.worst_at}); next {second.method} "
        f"with {unit.text(second.worst)} ({second.worst_at})."
    )
    found = worst_cell_difference(results, federations, best.method, second.method)
    yield (
        f"{text} With one seed, no confidence interval can be given."
        if found.corrected_margin is None
        else f"{text} Difference {interval(found, unit)}{unit.points} (95% confidence interval, paired over "
        f"{results.seeds} seeds; the cells were chosen by these same results)."
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
    tested = {
        "seeds": (results.seeds, found.over_seeds),
        "federations": (len(federations), found.over_federations),
    }
    for pairs, (count, difference) in tested.items():
        if difference.corrected_margin is not None:
            said = f"{interval(difference, unit)}{unit.points}, {difference.significance(pairs)}"
            text += f" Over {count} {pairs}: {said}."
    return text


def interval(difference: Difference | None, unit: Unit) -> str:
    """A difference with half of its confidence interval."""
    if difference is None:
        return "–"
    text = unit.size(difference.mean)
    return (
        text
        if difference.corrected_margin is None
        else f"{text} ± {unit.size(difference.corrected_margin)}"
    )


def by_mean(lines: Sequence[MethodStanding], federation: Federation) -> list[MethodStanding]:
    """The best mean first."""
    return sorted(lines, key=lambda one: one.mean, reverse=federation.higher_is_better)


# Tables -------------------------------------------------------------------------------------------


def _standings(results: Results, metric: str, federations: Sequence[Federation]) -> Iterator[Item]:
    """All methods on the federations that share a metric, and against the one with the best mean."""
    lines = standings(results, federations)
    unit, lower = federations[0].unit, not federations[0].higher_is_better
    columns = [
        _method_column(results, [one.method for one in lines]),
        Column(f"mean {metric}", [one.mean for one in lines], unit.text, lower=lower),
        Column("worst cell", [one.worst for one in lines], unit.text, lower=lower),
        Column("worst at", [one.worst_at for one in lines]),
        Column("mean rank", _numbers(one.rank for one in lines), fixed(1), lower=True),
        _difference_column("regret", [one.regret for one in lines], unit),
        _difference_column("largest regret", [one.worst_regret for one in lines], unit),
        Column("false alarms", _numbers(one.false_alarms for one in lines), percent, lower=True),
        Column("backdoor success", _numbers(one.success for one in lines), percent, lower=True),
    ]
    title = f"All methods on {counted(len(federations), 'federation')}"
    yield table(f"standings-{metric}", title, columns, _standings_note(results, federations, lines))
    usable = by_mean([one for one in lines if one.is_available], federations[0])
    if usable and len(lines) > 1:
        yield _differences_table(results, metric, federations, usable[0].method)


def _numbers(values: Any) -> Any:
    return numpy.array(list(values), dtype=float)


def _difference_column(name: str, differences: Sequence[Difference | None], unit: Unit) -> Column:
    texts = [interval(one, unit) for one in differences]
    margins = _numbers(one and one.corrected_margin for one in differences)
    return Column(
        name,
        _numbers(one and one.mean for one in differences),
        texts,
        {"margin": margins},
        lower=True,
    )


def _method_column(results: Results, methods: Sequence[str]) -> Column:
    """Methods, with marks where they are not available or train on the server's samples."""
    available = ["no" if method in results.unavailable else "yes" for method in methods]
    texts = []
    for method in methods:
        marks = NOT_AVAILABLE * (method in results.unavailable) + TRAINS_ON_SERVER * (
            method in results.on_server
        )
        texts.append(f"{method} {marks}".rstrip())
    return Column("method", list(methods), texts, {"available": available})


def _footnotes(results: Results, methods: Sequence[str]) -> str:
    """What the marks of these methods mean."""
    notes = {NOT_AVAILABLE_MEANS: results.unavailable, TRAINS_ON_SERVER_MEANS: results.on_server}
    return " ".join(note for note, marked in notes.items() if {*methods} & marked)


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
    measures = ("mean", "worst cell", "mean rank")
    ahead = [
        what
        for what, is_ahead in zip(measures, significant_leads(results, federations), strict=True)
        if is_ahead
    ]
    if ahead:
        sentences.append(
            f"The best available method is significantly better than every other in: {', '.join(ahead)} "
            "(over the seeds, Holm; mean ranks by Nemenyi's critical difference)."
        )
    sentences.append(_footnotes(results, [one.method for one in lines]))
    if results.oracle:
        sentences.append(
            f"Regret: how far a method is behind “{results.oracle}”, which is told which clients are "
            f"honest{federations[0].unit.in_points}: mean over the cells, and in the cell where "
            f"it is largest; ± is the 95% confidence interval over {seeds}."
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
    return " ".join(text for text in sentences if text)


def _differences_table(
    results: Results, metric: str, federations: Sequence[Federation], best: str
) -> Table:
    """All methods against the available method with the best mean."""
    others = [method for method in complete_methods(results, federations) if method != best]
    found = sorted(
        mean_differences(results, federations, best, others), key=lambda one: one.over_seeds.mean
    )
    names = [one.method for one in found]
    columns = [_method_column(results, names)]
    kinds = {"seed": (results.seeds, [one.over_seeds for one in found])}
    if len(federations) > 1:
        kinds["federation"] = (len(federations), [one.over_federations for one in found])
    for noun, (count, own) in kinds.items():
        columns.append(_difference_column(f"over {counted(count, noun)}", own, federations[0].unit))
        columns.append(Column(f"p over {noun}s", _numbers(one.p_value for one in own), p_number))
    note = (
        f"Lead of {best}, the available method with the best mean over cells, over the method of the "
        f"row{federations[0].unit.in_points}; above zero, {best} is better. ± is the 95% confidence interval. It and p "
        f"are corrected for {counted(len(others), 'comparison')} (Holm). {best} was chosen by these "
        "same results, so its lead is optimistic. The interval over seeds says what other seeds would give on these "
        f"federations; one over federations what others would give, if these are a random choice of them. "
    )
    title = f"Lead of {best} in the mean over cells"
    return table(
        f"differences-{metric}", title, columns, (note + _footnotes(results, names)).strip()
    )


def _federation(results: Results, one: Federation) -> Iterator[Item]:
    """All methods in the columns of one federation: those with a result in every column."""
    worst = one.goodness.mean(2).min(1)
    order = sorted(numpy.flatnonzero(~numpy.isnan(worst)).tolist(), key=lambda index: -worst[index])
    if not order:
        return
    named = _method_column(results, [results.methods[index] for index in order])
    means, rates = one.values.mean(2)[order], one.success.mean(2)[order]
    frame = Frame(means, columns=one.columns).assign(method=named.text)
    better = "" if one.higher_is_better else " (lower is better)"
    title = f"{one.name}: {one.metric}{better}, the best worst cell on top"
    yield Chart(
        f"{one.name}-heat",
        title,
        frame.melt("method", var_name="column", value_name=one.metric),
        "cells",
        "column",
        "method",
        one.metric,
        format=one.unit.axis,
        limits=(0.0, 1.0) if one.is_share else without_outliers(means),
        alt=f"{one.metric} of {len(order)} methods in {len(one.columns)} columns on {one.name}.",
    )
    columns = [
        Column(name, means[:, place], one.unit.text, lower=not one.higher_is_better)
        for place, name in enumerate(one.columns)
    ]
    alarms = Column("false alarms", one.false_alarms[order], percent, lower=True)
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst cell first."
    note = f"{note} {_footnotes(results, list(named.values))}".strip()
    yield table(f"{one.name}-values", f"{one.name}: {one.metric}", [named, *columns, alarms], note)
    doors = [
        Column(name, rates[:, place], percent, lower=True) for place, name in enumerate(one.columns)
    ]
    if not numpy.isnan(rates).all():
        note = "How often samples with the trigger get the attacker's label; accuracy does not show it."
        yield table(
            f"{one.name}-backdoors", f"{one.name}: backdoor success rate", [named, *doors], note
        )


def without_outliers(grid: Any) -> tuple[float, float]:
    """The least and the largest value within Tukey's outer fences, so that a diverged method takes no colours.

    >>> without_outliers(numpy.array([[8.0, 9.0, 10.0], [9.0, 11.0, 1e9]]))
    (8.0, 16.0)
    """
    values = grid[numpy.isfinite(grid)]
    first, third = numpy.quantile(values, [0.25, 0.75])
    reach = OUTER_FENCE * (third - first)
    return float(max(values.min(), first - reach)), float(min(values.max(), third + reach))
