"""The tables and heat maps of the report on a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy

from ..differences import p_number
from ..document import (
    Cell,
    Chart,
    Column,
    Content,
    Section,
    Table,
    counted,
    number_cell,
    percent_cell,
    tabulate,
)
from ..marks import HeatMap
from ..series import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_MEANS,
    TRAINS_ON_SERVER,
    TRAINS_ON_SERVER_MEANS,
)
from ..statistics import Difference
from ..units import Unit, number_text
from .standings import (
    Federation,
    MeanDifference,
    MethodStanding,
    Ranks,
    Results,
    Values,
    complete_methods,
    leads_significantly,
    mean_differences,
    rank,
    significant_leads,
    standings,
)

Grid = Sequence[Sequence[float]]  # methods × columns
OUTER_FENCE = 3  # interquartile ranges beyond the quartiles (Tukey, 1977)
BOLD = (
    "Bold: statistically significantly better than every other available method, over the seeds "
    "(Holm); mean ranks by Nemenyi's critical difference."
)
WHAT_INTERVALS_SAY = (
    "The interval over seeds says what other seeds would give on these federations. The interval "
    "over federations says what other federations would give, if these are a random choice of them."
)


def standings_section(results: Results, metric: str, federations: Sequence[Federation]) -> Section:
    """All methods on the federations that share a metric."""
    lines = standings(results, federations)
    items: list[Chart | Table] = [_standings_table(results, metric, federations, lines)]
    usable = by_mean([one for one in lines if one.is_available], federations[0])
    if usable and len(lines) > 1:
        items.append(_differences_table(results, metric, federations, usable[0].method))
    return Section(f"standings-{metric}", f"Standings: {metric}", "", items)


def by_mean(lines: Sequence[MethodStanding], federation: Federation) -> list[MethodStanding]:
    """The best mean first."""
    return sorted(lines, key=lambda one: one.mean, reverse=federation.higher_is_better)


def _standings_table(
    results: Results,
    metric: str,
    federations: Sequence[Federation],
    lines: Sequence[MethodStanding],
) -> Table:
    columns = [*_standings_columns(results, metric, federations, lines)]
    is_marked = any(column.marks_best for column in columns)
    return tabulate(
        f"standings-{metric}",
        f"All methods on {counted(len(federations), 'federation')}",
        columns,
        lines,
        _standings_note(results, federations, lines, is_marked=is_marked),
        _unavailable_rows([one.method for one in lines], results),
    )


def _standings_columns(
    results: Results,
    metric: str,
    federations: Sequence[Federation],
    lines: Sequence[MethodStanding],
) -> Iterator[Column[MethodStanding]]:
    """The columns that have values in this matrix."""
    unit = federations[0].unit
    lower = not federations[0].higher_is_better
    leads_mean, leads_worst, leads_rank = significant_leads(results, federations)
    yield Column("method", lambda one: _method_cell(one.method, results), numeric=False)
    yield Column(
        f"mean {metric}",
        lambda one: unit.cell(one.mean),
        lower_is_better=lower,
        marks_best=leads_mean,
    )
    yield Column(
        "worst cell",
        lambda one: unit.cell(one.worst),
        lower_is_better=lower,
        marks_best=leads_worst,
    )
    yield Column("worst at", lambda one: one.worst_at, numeric=False)
    yield Column(
        "mean rank",
        lambda one: number_cell(one.rank, 1),
        lower_is_better=True,
        marks_best=leads_rank,
    )
    if results.oracle:
        yield Column("regret", lambda one: _difference_cell(one.regret, unit), lower_is_better=True)
        yield Column(
            "largest regret",
            lambda one: _difference_cell(one.worst_regret, unit),
            lower_is_better=True,
        )
    if any(one.false_alarms is not None for one in lines):
        yield Column(
            "false alarms", lambda one: percent_cell(one.false_alarms), lower_is_better=True
        )
    if any(one.success is not None for one in lines):
        yield Column(
            "backdoor success", lambda one: percent_cell(one.success), lower_is_better=True
        )


def _method_cell(method: str, results: Results) -> Cell:
    """A method, with marks where it is not available or trains on the server's samples."""
    is_available = method not in results.unavailable
    text = method if is_available else f"{method} {NOT_AVAILABLE}"
    if method in results.on_server:
        text += f" {TRAINS_ON_SERVER}"
    return Cell(method, text, numbers={"": method, "available": "yes" if is_available else "no"})


def _footnotes(methods: Iterable[str], results: Results) -> list[str]:
    """What the marks of these methods mean."""
    shown = {*methods}
    notes = []
    if shown & results.unavailable:
        notes.append(NOT_AVAILABLE_MEANS)
    if shown & results.on_server:
        notes.append(TRAINS_ON_SERVER_MEANS)
    return notes


def _unavailable_rows(methods: Sequence[str], results: Results) -> list[int]:
    return [row for row, method in enumerate(methods) if method in results.unavailable]


def _difference_cell(difference: Difference | None, unit: Unit) -> Content:
    if difference is None:
        return "–"
    numbers = {"mean": difference.mean, "margin": difference.corrected_margin}
    return Cell(difference.mean, unit.interval(difference), numbers=numbers)


def _standings_note(
    results: Results,
    federations: Sequence[Federation],
    lines: Sequence[MethodStanding],
    *,
    is_marked: bool,
) -> str:
    seeds = counted(results.seeds, "seed")
    cells = "all cells"
    if len(federations) < len(results.federations):
        cells = f"the cells of {', '.join(one.name for one in federations)}"
    sentences = [
        f"A cell is a federation with a column. Mean and worst cell are over {cells}, each the "
        f"mean of {seeds}."
    ]
    if is_marked:
        sentences.append(BOLD)
    sentences += _footnotes([one.method for one in lines], results)
    if results.oracle:
        sentences.append(
            f"Regret: how far a method is behind “{results.oracle}”, which is told which clients are "
            f"honest{federations[0].unit.of_differences}: mean over the cells, and in the cell where "
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
    return " ".join(sentences)


def _ranks_note(ranks: Ranks, federations: int) -> list[str]:
    sentences = [
        "Mean rank: the available methods are ranked on every federation by their mean over its "
        "columns."
    ]
    if ranks.p_value is not None:
        sentences.append(
            f"Friedman's test with {federations} federations as blocks: p = {ranks.p_value:.2g}."
        )
    if ranks.critical_difference is not None:
        sentences.append(
            f"Mean ranks closer than {ranks.critical_difference:.1f} do not differ significantly "
            "(Nemenyi)."
        )
    return sentences


def _differences_table(
    results: Results, metric: str, federations: Sequence[Federation], best: str
) -> Table:
    """All methods against the available method with the best mean."""
    others = [method for method in complete_methods(results, federations) if method != best]
    found = mean_differences(results, federations, best, others)
    found.sort(key=lambda one: one.over_seeds.mean)
    has_several = len(federations) > 1
    unit = federations[0].unit
    columns: list[Column[MeanDifference]] = [
        Column("method", lambda one: _method_cell(one.method, results), numeric=False),
        Column(
            f"over {counted(results.seeds, 'seed')}",
            lambda one: _difference_cell(one.over_seeds, unit),
        ),
        Column("p over seeds", lambda one: _p_cell(one.over_seeds)),
    ]
    if has_several:
        columns += [
            Column(
                f"over {counted(len(federations), 'federation')}",
                lambda one: _difference_cell(one.over_federations, unit),
            ),
            Column("p over federations", lambda one: _p_cell(one.over_federations)),
        ]
    note = (
        f"Lead of {best}, the available method with the best mean over cells, over the method of the "
        f"row{unit.of_differences}; above zero, {best} is better. ± is the 95% confidence interval. It and p "
        f"are corrected for {counted(len(others), 'comparison')} (Holm). {best} was chosen by these "
        "same results, so its lead is optimistic."
    )
    if has_several:
        note += f" {WHAT_INTERVALS_SAY}"
    note = " ".join([note, *_footnotes([one.method for one in found], results)])
    title = f"Lead of {best} in the mean over cells"
    return tabulate(f"differences-{metric}", title, columns, found, note)


def _p_cell(difference: Difference) -> Content:
    if difference.p_value is None:
        return "–"
    return Cell(difference.p_value, p_number(difference.p_value))


def federation_section(results: Results, one: Federation) -> Section:
    """All methods in the columns of one federation."""
    worst = one.goodness.mean(2).min(1)
    known = numpy.flatnonzero(~numpy.isnan(worst)).tolist()
    order = sorted(known, key=lambda index: -worst[index])
    grid = one.values.mean(2)[order].tolist()
    items: list[Chart | Table] = [
        _heat_map(results, one, [results.methods[index] for index in order], grid),
        _values_table(results, one, order),
        *_backdoor_tables(results, one, order),
    ]
    return Section(f"data-{one.name}", one.name, "", items)


def _values_table(results: Results, one: Federation, order: Sequence[int]) -> Table:
    names = [results.methods[index] for index in order]
    means = one.values.mean(2)
    rivals = [index for index in order if results.methods[index] not in results.unavailable]
    columns = [_index_column(results)]
    for place, label in enumerate(one.columns):
        columns.append(
            Column(
                label,
                _value_of(means[:, place], one.unit.cell),
                lower_is_better=not one.higher_is_better,
                marks_best=bool(rivals) and leads_significantly(one.goodness[rivals, place]),
            )
        )
    is_marked = any(column.marks_best for column in columns)
    if not numpy.isnan(one.false_alarms[order]).all():
        alarms = _value_of(one.false_alarms, percent_cell)
        columns.append(Column("false alarms", alarms, lower_is_better=True))
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst cell first."
    if is_marked:
        note += f" {BOLD}"
    return tabulate(
        f"{one.name}-values",
        f"{one.name}: {one.metric}",
        columns,
        order,
        " ".join([note, *_footnotes(names, results)]),
        _unavailable_rows(names, results),
    )


def _backdoor_tables(results: Results, one: Federation, order: Sequence[int]) -> list[Table]:
    """How well backdoors work; nothing where no column has one."""
    rates = one.success.mean(2)
    attacked = numpy.flatnonzero(~numpy.isnan(one.success[order]).all((0, 2))).tolist()
    if not attacked:
        return []
    columns = [_index_column(results)]
    for place in attacked:
        cell = _value_of(rates[:, place], percent_cell)
        columns.append(Column(one.columns[place], cell, lower_is_better=True))
    note = "How often samples with the trigger get the attacker's label; accuracy does not show it."
    title = f"{one.name}: backdoor success rate"
    return [tabulate(f"{one.name}-backdoors", title, columns, order, note)]


def _index_column(results: Results) -> Column[int]:
    """The method with an index."""
    return Column(
        "method", lambda index: _method_cell(results.methods[index], results), numeric=False
    )


def _value_of(values: Values, cell: Callable[[float | None], Cell]) -> Callable[[int], Cell]:
    """The cell of a method by its index; NaN is no value."""
    return lambda index: cell(None if math.isnan(values[index]) else float(values[index]))


def _heat_map(results: Results, one: Federation, methods: Sequence[str], grid: Grid) -> Chart:
    """Methods × columns; values beyond the range of colours have the colour of its end."""
    labels = [_method_cell(name, results).text for name in methods]
    lowest, highest = (0.0, 1.0) if one.is_share else _without_outliers(grid)
    mark = HeatMap(
        one.columns,
        labels[::-1],
        [[min(max(value, lowest), highest) for value in row] for row in reversed(grid)],
        highest,
        lowest=lowest,
        percent=one.is_share,
        texts=[[_in_cell(value, one.unit) for value in row] for row in reversed(grid)],
        lower_is_better=not one.higher_is_better,
    )
    size = f"{len(methods)} methods in {len(one.columns)} columns"
    alt = f"{one.metric} of {size} on {one.name}"
    title = f"{one.name}: {one.metric}"
    if one.is_share:
        alt += ", in percent"
        title += " in %"
    if not one.higher_is_better:
        title += " (lower is better)"
    return Chart(f"{one.name}-heat", f"{title}, the best worst cell on top", f"{alt}.", mark)


def _without_outliers(grid: Grid) -> tuple[float, float]:
    """The least and the largest value within Tukey's outer fences, so that a diverged method takes no colours.

    >>> _without_outliers([[8.0, 9.0, 10.0], [9.0, 11.0, 1e9]])
    (8.0, 16.0)
    """
    values = numpy.array(grid)
    values = values[numpy.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    first, third = numpy.quantile(values, [0.25, 0.75])
    reach = OUTER_FENCE * (third - first)
    lowest = float(max(values.min(), first - reach))
    highest = float(min(values.max(), third + reach))
    return (lowest, highest) if lowest < highest else (lowest, lowest + 1.0)


def _in_cell(value: float, unit: Unit) -> str:
    """A value in the little room of a heat map."""
    if not unit.percent:
        return number_text(value, 3)
    return f"{100 * value:.0f}" if value < 9.995 else "> 999"
