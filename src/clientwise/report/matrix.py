"""The report on a matrix: standings of all methods, and the results on every federation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from .charts import COLUMN, Format
from .files import write_items
from .items import Chart, Column, Item, Table, Unit, counted, fixed, percent, table
from .page import write_page
from .results import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_MEANS,
    TRAINS_ON_SERVER,
    TRAINS_ON_SERVER_MEANS,
    Frame,
)
from .standings import (
    Federation,
    MethodStanding,
    Ranks,
    Results,
    complete_methods,
    leads_significantly,
    mean_differences,
    rank,
    read_results,
    significant_leads,
    standings,
    worst_cell_difference,
)
from .statistics import Difference, p_number

OUTER_FENCE = 3  # interquartile ranges beyond the quartiles (Tukey, 1977)


@dataclass(frozen=True)
class MatrixReport:
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
        if found.margin is None
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
        if difference.margin is not None:
            said = f"{interval(difference, unit)}{unit.points}, {difference.significance(pairs)}"
            text += f" Over {count} {pairs}: {said}."
    return text


def interval(difference: Difference | None, unit: Unit) -> str:
    """A difference with half of its confidence interval."""
    if difference is None:
        return "–"
    text = unit.size(difference.mean)
    return text if difference.margin is None else f"{text} ± {unit.size(difference.margin)}"


def by_mean(lines: Sequence[MethodStanding], federation: Federation) -> list[MethodStanding]:
    """The best mean first."""
    return sorted(lines, key=lambda one: one.mean, reverse=federation.higher_is_better)


# Tables -------------------------------------------------------------------------------------------


def _standings(results: Results, metric: str, federations: Sequence[Federation]) -> Iterator[Item]:
    """All methods on the federations that share a metric, and against the one with the best mean."""
    lines = standings(results, federations)
    yield table(
        f"standings-{metric}",
        f"All methods on {counted(len(federations), 'federation')}",
        _standings_columns(results, metric, federations, lines),
        _standings_note(results, federations, lines),
    )
    usable = by_mean([one for one in lines if one.is_available], federations[0])
    if usable and len(lines) > 1:
        yield _differences_table(results, metric, federations, usable[0].method)


def _standings_columns(
    results: Results,
    metric: str,
    federations: Sequence[Federation],
    lines: Sequence[MethodStanding],
) -> Iterator[Column]:
    unit, lower = federations[0].unit, not federations[0].higher_is_better
    yield _method_column(results, [one.method for one in lines])
    yield Column(f"mean {metric}", [one.mean for one in lines], unit.text, lower=lower)
    yield Column("worst cell", [one.worst for one in lines], unit.text, lower=lower)
    yield Column("worst at", [one.worst_at for one in lines])
    yield Column("mean rank", _numbers(one.rank for one in lines), fixed(1), lower=True)
    if results.oracle:
        yield _difference_column("regret", [one.regret for one in lines], unit)
        yield _difference_column("largest regret", [one.worst_regret for one in lines], unit)
    yield Column("false alarms", _numbers(one.false_alarms for one in lines), percent, lower=True)
    yield Column("backdoor success", _numbers(one.success for one in lines), percent, lower=True)


def _numbers(values: Any) -> Any:
    return numpy.array(list(values), dtype=float)


def _difference_column(name: str, differences: Sequence[Difference | None], unit: Unit) -> Column:
    texts = [interval(one, unit) for one in differences]
    means = _numbers(one and one.mean for one in differences)
    margins = _numbers(one and one.margin for one in differences)
    return Column(name, means, texts, {"margin": margins}, lower=True)


def _method_column(results: Results, methods: Sequence[str]) -> Column:
    """Methods, with marks where they are not available or train on the server's samples."""
    available = ["no" if method in results.unavailable else "yes" for method in methods]
    return Column(
        "method",
        list(methods),
        [_marked(results, method) for method in methods],
        {"available": available},
    )


def _marked(results: Results, method: str) -> str:
    marks = NOT_AVAILABLE * (method in results.unavailable) + TRAINS_ON_SERVER * (
        method in results.on_server
    )
    return f"{method} {marks}" if marks else method


def _footnotes(results: Results, methods: Sequence[str]) -> str:
    """What the marks of these methods mean."""
    notes = [NOT_AVAILABLE_MEANS] if {*methods} & results.unavailable else []
    return " ".join([*notes, TRAINS_ON_SERVER_MEANS] if {*methods} & results.on_server else notes)


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
    sentences += _leads_in_words(results, federations, lines)
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
    sentences += _ranks_note(rank(results, federations), len(federations))
    absent = len(results.methods) - len(lines)
    if absent:
        sentences.append(f"Left out: {counted(absent, 'method')} without a result in all cells.")
    return " ".join(text for text in sentences if text)


def _leads_in_words(
    results: Results, federations: Sequence[Federation], lines: Sequence[MethodStanding]
) -> Iterator[str]:
    """In what the best available method is significantly better than every other."""
    usable = [one for one in lines if one.is_available]
    leads = dict(
        zip(
            ("mean", "worst cell", "mean rank"),
            significant_leads(results, federations),
            strict=True,
        )
    )
    first = {
        "mean": by_mean(usable, federations[0])[:1],
        "worst cell": usable[:1],
        "mean rank": sorted(usable, key=lambda one: one.rank or math.inf)[:1],
    }
    found = [f"{what} ({own[0].method})" for what, own in first.items() if leads[what]]
    if found:
        yield (
            f"Significantly better than every other available method: {', '.join(found)}; over the seeds (Holm), "
            "mean ranks by Nemenyi's critical difference."
        )


def _ranks_note(ranks: Ranks, federations: int) -> Iterator[str]:
    yield "Mean rank: the available methods are ranked on every federation by their mean over its columns."
    if ranks.p_value is not None:
        yield f"Friedman's test with {federations} federations as blocks: p = {ranks.p_value:.2g}."
    if ranks.critical_difference is not None:
        yield f"Mean ranks closer than {ranks.critical_difference:.1f} do not differ significantly (Nemenyi)."


def _differences_table(
    results: Results, metric: str, federations: Sequence[Federation], best: str
) -> Table:
    """All methods against the available method with the best mean."""
    others = [method for method in complete_methods(results, federations) if method != best]
    found = sorted(
        mean_differences(results, federations, best, others), key=lambda one: one.over_seeds.mean
    )
    unit = federations[0].unit
    names = [one.method for one in found]
    columns = [_method_column(results, names)]
    kinds = [(results.seeds, "seed", [one.over_seeds for one in found])]
    if len(federations) > 1:
        kinds.append((len(federations), "federation", [one.over_federations for one in found]))
    for count, noun, own in kinds:
        columns.append(_difference_column(f"over {counted(count, noun)}", own, unit))
        columns.append(Column(f"p over {noun}s", _numbers(one.p_value for one in own), p_number))
    note = (
        f"Lead of {best}, the available method with the best mean over cells, over the method of the "
        f"row{unit.in_points}; above zero, {best} is better. ± is the 95% confidence interval. It and p "
        f"are corrected for {counted(len(others), 'comparison')} (Holm). {best} was chosen by these "
        "same results, so its lead is optimistic."
    )
    if len(federations) > 1:
        note += (
            " The interval over seeds says what other seeds would give on these federations. The interval "
            "over federations says what other federations would give, if these are a random choice of them."
        )
    title = f"Lead of {best} in the mean over cells"
    return table(
        f"differences-{metric}", title, columns, f"{note} {_footnotes(results, names)}".strip()
    )


def _federation(results: Results, one: Federation) -> Iterator[Item]:
    """All methods in the columns of one federation: those with a result in every column."""
    worst = one.goodness.mean(2).min(1)
    order = sorted(numpy.flatnonzero(~numpy.isnan(worst)).tolist(), key=lambda index: -worst[index])
    names = [results.methods[index] for index in order]
    means = one.values.mean(2)[order]
    if order:
        yield _heat_map(results, one, names, means)
    columns = [_method_column(results, names)]
    leads = []
    rivals = [index for index in order if results.methods[index] not in results.unavailable]
    for place, label in enumerate(one.columns):
        columns.append(
            Column(label, means[:, place], one.unit.text, lower=not one.higher_is_better)
        )
        if len(rivals) > 1 and leads_significantly(one.goodness[rivals, place]):
            first = max(rivals, key=lambda index, place=place: one.goodness[index, place].mean())
            leads.append(f"{label} ({results.methods[first]})")
    columns.append(Column("false alarms", one.false_alarms[order], percent, lower=True))
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst cell first."
    if leads:
        note += f" Significantly better than every other available method, over the seeds (Holm): {', '.join(leads)}."
    yield table(
        f"{one.name}-values",
        f"{one.name}: {one.metric}",
        columns,
        f"{note} {_footnotes(results, names)}".strip(),
    )
    rates = one.success.mean(2)[order]
    attacked = numpy.flatnonzero(~numpy.isnan(rates).all(0)).tolist() if order else []
    if attacked:
        shown = [
            Column(one.columns[place], rates[:, place], percent, lower=True) for place in attacked
        ]
        note = "How often samples with the trigger get the attacker's label; accuracy does not show it."
        title = f"{one.name}: backdoor success rate"
        yield table(f"{one.name}-backdoors", title, [_method_column(results, names), *shown], note)


def _heat_map(results: Results, one: Federation, methods: Sequence[str], grid: Any) -> Chart:
    """Methods × columns; values beyond the range of colours have the colour of its end."""
    labels = [_marked(results, name) for name in methods]
    rows = [
        (column, method, value)
        for method, values in zip(labels, grid.tolist(), strict=True)
        for column, value in zip(one.columns, values, strict=True)
    ]
    return Chart(
        f"{one.name}-heat",
        f"{one.name}: {one.metric}{'' if one.higher_is_better else ' (lower is better)'}, the best worst cell on top",
        Frame(rows, columns=["column", "method", one.metric]),
        "cells",
        "column",
        "method",
        one.metric,
        format=one.unit.axis,
        limits=(0.0, 1.0) if one.is_share else without_outliers(grid),
        alt=f"{one.metric} of {len(methods)} methods in {len(one.columns)} columns on {one.name}.",
    )


def without_outliers(grid: Any) -> tuple[float, float]:
    """The least and the largest value within Tukey's outer fences, so that a diverged method takes no colours.

    >>> without_outliers(numpy.array([[8.0, 9.0, 10.0], [9.0, 11.0, 1e9]]))
    (8.0, 16.0)
    """
    values = grid[numpy.isfinite(grid)]
    if not values.size:
        return 0.0, 1.0
    first, third = numpy.quantile(values, [0.25, 0.75])
    reach = OUTER_FENCE * (third - first)
    lowest, highest = (
        float(max(values.min(), first - reach)),
        float(min(values.max(), third + reach)),
    )
    return (lowest, highest) if lowest < highest else (lowest, lowest + 1.0)
