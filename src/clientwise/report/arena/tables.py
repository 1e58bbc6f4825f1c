"""The tables and heat maps of the report on a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy

from ..differences import p_number
from ..document import (
    Cell,
    Chart,
    Content,
    Section,
    Table,
    counted,
    percent_cell,
    table,
)
from ..marks import HeatMap
from ..series import TRAINS_ON_SERVER, TRAINS_ON_SERVER_MEANS
from ..statistics import Difference
from ..units import Unit, number_text
from .standings import (
    Federation,
    MeanDifference,
    MethodStanding,
    Ranks,
    Results,
    complete_methods,
    leads_significantly,
    mean_differences,
    rank,
    significant_leads,
    standings,
)

Grid = Sequence[Sequence[float]]  # methods × columns
OUTER_FENCE = 3  # interquartile ranges beyond the quartiles (Tukey, 1977)
NOT_AVAILABLE = "†"
FOOTNOTE = (
    f"{NOT_AVAILABLE} Not available in practice: uses which clients are honest, or pools the "
    "samples of all clients. It is never marked as best."
)
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
    competing = [f"mean {metric}", "worst cell", "mean rank"]
    columns = ["method", f"mean {metric}", "worst cell", "worst at", "mean rank"]
    lower = ["mean rank", "regret", "largest regret", "false alarms", "backdoor success"]
    if not federations[0].higher_is_better:
        lower += competing
    leads = zip(competing, significant_leads(results, federations), strict=True)
    marked = [label for label, is_significant in leads if is_significant]
    unit = federations[0].unit
    rows = [_standing_row(one, results, unit) for one in lines]
    if results.oracle:
        columns += ["regret", "largest regret"]
        for row, one in zip(rows, lines, strict=True):
            row += [_difference_cell(one.regret, unit), _difference_cell(one.worst_regret, unit)]
    for label, values in (
        ("false alarms", [one.false_alarms for one in lines]),
        ("backdoor success", [one.success for one in lines]),
    ):
        if any(value is not None for value in values):
            columns.append(label)
            for row, value in zip(rows, values, strict=True):
                row.append(percent_cell(value))
    return table(
        f"standings-{metric}",
        f"All methods on {counted(len(federations), 'federation')}",
        columns,
        rows,
        _standings_note(results, federations, lines, is_marked=bool(marked)),
        [label not in ("method", "worst at") for label in columns],
        lower,
        marked=marked,
        never_best=_unavailable_rows([one.method for one in lines], results),
    )


def _standing_row(one: MethodStanding, results: Results, unit: Unit) -> list[Content]:
    rank_cell = Cell(None, "–") if one.rank is None else Cell(one.rank, f"{one.rank:.1f}")
    return [
        _method_cell(one.method, results),
        unit.cell(one.mean),
        unit.cell(one.worst),
        one.worst_at,
        rank_cell,
    ]


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
        notes.append(FOOTNOTE)
    if shown & results.on_server:
        notes.append(TRAINS_ON_SERVER_MEANS)
    return notes


def _unavailable_rows(methods: Sequence[str], results: Results) -> list[int]:
    return [row for row, method in enumerate(methods) if method in results.unavailable]


def _difference_cell(difference: Difference | None, unit: Unit) -> Content:
    if difference is None:
        return "–"
    numbers = {"mean": difference.mean, "margin": difference.margin}
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
    columns = ["method", f"over {counted(results.seeds, 'seed')}", "p over seeds"]
    has_several = len(federations) > 1
    if has_several:
        columns += [f"over {counted(len(federations), 'federation')}", "p over federations"]
    unit = federations[0].unit
    rows = [_difference_row(results, one, has_several, unit) for one in found]
    note = (
        f"Lead of {best}, the available method with the best mean over cells, over the method of the "
        f"row{unit.of_differences}; above zero, {best} is better. ± is the 95% confidence interval. p is "
        f"corrected for {counted(len(others), 'comparison')} (Holm). {best} was chosen by these "
        "same results, so its lead is optimistic."
    )
    if has_several:
        note += f" {WHAT_INTERVALS_SAY}"
    note = " ".join([note, *_footnotes([one.method for one in found], results)])
    title = f"Lead of {best} in the mean over cells"
    return table(f"differences-{metric}", title, columns, rows, note)


def _difference_row(
    results: Results, one: MeanDifference, has_several: bool, unit: Unit
) -> list[Content]:
    row: list[Content] = [_method_cell(one.method, results)]
    row += [_difference_cell(one.over_seeds, unit), _p_cell(one.over_seeds)]
    if has_several:
        row += [_difference_cell(one.over_federations, unit), _p_cell(one.over_federations)]
    return row


def _p_cell(difference: Difference) -> Content:
    if difference.p_value is None:
        return "–"
    return Cell(difference.p_value, p_number(difference.p_value))


def federation_section(results: Results, one: Federation) -> Section:
    """All methods in the columns of one federation."""
    worst = one.goodness.mean(2).min(1)
    known = numpy.flatnonzero(~numpy.isnan(worst)).tolist()
    order = sorted(known, key=lambda index: -worst[index])
    names = [results.methods[index] for index in order]
    grid = one.values.mean(2)[order].tolist()
    items: list[Chart | Table] = [
        _heat_map(results, one, names, grid),
        _values_table(results, one, names, grid, one.false_alarms[order].tolist()),
    ]
    success = one.success[order]
    attacked = numpy.flatnonzero(~numpy.isnan(success).all((0, 2))).tolist()
    if attacked:
        labels = [one.columns[column] for column in attacked]
        rates = success[:, attacked].mean(2).tolist()
        items.append(_backdoor_table(results, one, names, labels, rates))
    return Section(f"data-{one.name}", one.name, "", items)


def _values_table(
    results: Results,
    one: Federation,
    names: Sequence[str],
    grid: Grid,
    alarms: Sequence[float],
) -> Table:
    columns = ["method", *one.columns]
    rows = _rows(results, names, grid, one.unit.cell)
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst cell first."
    lower = [] if one.higher_is_better else list(one.columns)
    if not all(map(math.isnan, alarms)):
        columns.append("false alarms")
        lower.append("false alarms")
        for row, share in zip(rows, alarms, strict=True):
            row.append(percent_cell(None if math.isnan(share) else share))
    marked = _significant_columns(results, one, names)
    if marked:
        note += f" {BOLD}"
    note = " ".join([note, *_footnotes(names, results)])
    return table(
        f"{one.name}-values",
        f"{one.name}: {one.metric}",
        columns,
        rows,
        note,
        lower=lower,
        marked=marked,
        never_best=_unavailable_rows(names, results),
    )


def _significant_columns(results: Results, one: Federation, names: Sequence[str]) -> list[str]:
    """The columns in which the best available method leads significantly."""
    rivals = [results.methods.index(name) for name in names if name not in results.unavailable]
    if not rivals:
        return []
    good = one.goodness[rivals]
    return [
        label
        for position, label in enumerate(one.columns)
        if leads_significantly(good[:, position])
    ]


def _rows(
    results: Results, names: Sequence[str], grid: Grid, cell: Callable[[float], Cell]
) -> list[list[Content]]:
    rows: list[list[Content]] = []
    for name, values in zip(names, grid, strict=True):
        cells = map(cell, values)
        rows.append([_method_cell(name, results), *cells])
    return rows


def _backdoor_table(
    results: Results,
    one: Federation,
    names: Sequence[str],
    labels: Sequence[str],
    success: Grid,
) -> Table:
    note = "How often samples with the trigger get the attacker's label; accuracy does not show it."
    title = f"{one.name}: backdoor success rate"
    rows = _rows(results, names, success, percent_cell)
    return table(f"{one.name}-backdoors", title, ["method", *labels], rows, note, lower=labels)


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
