"""The report on a matrix: standings of all methods, and a heat map per federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy

from .document import (
    Cell,
    Chart,
    Content,
    Document,
    Section,
    Table,
    counted,
    percent_cell,
    percent_of,
    table,
)
from .export import write_items
from .html import write_html
from .marks import HeatMap
from .standings import (
    Federation,
    MethodStanding,
    Results,
    critical_difference,
    read_results,
    standings,
    worst_case_difference,
)
from .statistics import Difference

Grid = Sequence[Sequence[float]]  # methods × columns


def write_arena(
    folder: Path,
    out: Path,
    on_file: Callable[[Path], None] = lambda path: None,
) -> Path:
    """The report on disk: a page, heat maps as PNG and SVG, tables as CSV, Markdown and LaTeX."""
    document = arena(folder)
    page = write_html(document, {"round": {}, "client": {}}, out / "report.html")
    write_items(document, out, on_file)
    return page


def arena(folder: Path) -> Document:
    """The report on a matrix."""
    results = read_results(folder)
    groups = results.metrics()
    sections = [_standings_section(results, *group) for group in groups.items()]
    sections += [_federation_section(results, one) for one in results.federations]
    cells = counted(len(results.matrix.cells), "cell")
    lead = []
    if results.missing:
        lead.append(f"Not finished: {results.missing} of {cells} are missing.")
    for metric, group in groups.items():
        lead += _verdict(results, metric, group)
    about = [
        counted(len(results.methods), "method"),
        counted(len(results.federations), "federation"),
        cells,
        counted(results.seeds, "seed"),
    ]
    return Document(results.matrix.name, lead, sections, subtitle=" · ".join(about))


def _verdict(results: Results, metric: str, federations: Sequence[Federation]) -> list[str]:
    """The best worst case and the best mean rank, without the controls."""
    all_lines = standings(results, federations)
    lines = [one for one in all_lines if one.method not in results.controls]
    if len(lines) < 2:
        return []
    best, second = lines[:2]
    where = f" ({metric})" if len(results.metrics()) > 1 else ""
    text = (
        f"Best worst case{where}: {best.method} with {percent_of(best.worst)}; "
        f"next {second.method} with {percent_of(second.worst)}"
    )
    difference = worst_case_difference(results, federations, best.method, second.method)
    text += _uncertainty(difference, results.seeds, len(lines))
    ranks = {one.method: one.rank for one in lines if one.rank is not None}
    first = min(ranks, key=lambda method: ranks[method])
    return [text, f"Best mean rank{where}: {first} with {ranks[first]:.1f} among {len(ranks)}."]


def _uncertainty(difference: Difference | None, seeds: int, methods: int) -> str:
    if difference is None or difference.margin is None:
        return ". With one seed, no confidence interval can be given."
    return (
        f" (difference {_points(difference)} points, 95% confidence interval, paired over {seeds} "
        f"seeds; not corrected for choosing these two of {methods} methods)."
    )


def _points(difference: Difference) -> str:
    """A difference in percentage points, with its interval."""
    text = f"{100 * difference.mean:.1f}"
    return text if difference.margin is None else f"{text} ± {100 * difference.margin:.1f}"


def _standings_section(results: Results, metric: str, federations: Sequence[Federation]) -> Section:
    lines = standings(results, federations)
    columns = ["method", f"mean {metric}", "worst case", "worst at", "mean rank"]
    lower = ["mean rank", "regret", "largest regret"]
    if not federations[0].higher_is_better:
        lower += columns[1:3]
    has_oracle = bool(results.matrix.oracle)
    if has_oracle:
        columns += ["regret", "largest regret"]
    shown = table(
        f"standings-{metric}",
        f"All methods on {counted(len(federations), 'federation')}",
        columns,
        [_standing_row(one, has_oracle) for one in lines],
        _standings_note(results, federations, lines),
        [label not in ("method", "worst at") for label in columns],
        lower,
    )
    return Section(f"standings-{metric}", f"Standings: {metric}", "", [shown])


def _standing_row(one: MethodStanding, has_oracle: bool) -> list[Content]:
    rank = "control" if one.rank is None else Cell(one.rank, f"{one.rank:.1f}")
    row: list[Content] = [
        one.method,
        percent_cell(one.mean),
        percent_cell(one.worst),
        one.worst_at,
        rank,
    ]
    if has_oracle:
        row += [_regret_cell(one.regret), _regret_cell(one.worst_regret)]
    return row


def _regret_cell(regret: Difference | None) -> Content:
    return "–" if regret is None else Cell(regret.mean, _points(regret))


def _standings_note(
    results: Results,
    federations: Sequence[Federation],
    lines: Sequence[MethodStanding],
) -> str:
    note = (
        "Mean over the federations and their columns. The worst case is the worst column of a "
        "federation, mean over the seeds and federations."
    )
    if results.matrix.oracle:
        note += (
            f" Regret: points behind “{results.matrix.oracle}”, which is told which clients are "
            f"honest; ± is the 95% confidence interval over {counted(results.seeds, 'seed')}."
        )
    blocks = sum(len(one.columns) for one in federations)
    difference = critical_difference(sum(one.rank is not None for one in lines), blocks)
    if difference:
        note += f" Mean ranks closer than {difference:.1f} do not differ significantly (Nemenyi)."
    return note


def _federation_section(results: Results, one: Federation) -> Section:
    worst = one.goodness.mean(2).min(1)
    known = numpy.flatnonzero(~numpy.isnan(worst)).tolist()
    order = sorted(known, key=lambda index: -worst[index])
    names = [results.methods[index] for index in order]
    grid = one.values.mean(2)[order].tolist()
    values = table(
        f"{one.name}-values",
        f"{one.name}: {one.metric}",
        ["method", *one.columns],
        _rows(names, grid),
        f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst case first.",
        lower=() if one.higher_is_better else one.columns,
    )
    items: list[Chart | Table] = [_heat_map(one, names, grid), values]
    success = one.success[order]
    attacked = numpy.flatnonzero(~numpy.isnan(success).all((0, 2))).tolist()
    if attacked:
        labels = [one.columns[column] for column in attacked]
        items.append(_backdoor_table(one, names, labels, success[:, attacked].mean(2).tolist()))
    return Section(f"data-{one.name}", one.name, "", items)


def _rows(names: Sequence[str], grid: Grid) -> list[list[Content]]:
    pairs = zip(names, grid, strict=True)
    return [[name, *(percent_cell(value) for value in values)] for name, values in pairs]


def _backdoor_table(
    one: Federation,
    names: Sequence[str],
    labels: Sequence[str],
    success: Grid,
) -> Table:
    note = "How often samples with the trigger get the attacker's label; accuracy does not show it."
    title = f"{one.name}: backdoor success rate"
    rows = _rows(names, success)
    return table(f"{one.name}-backdoors", title, ["method", *labels], rows, note, lower=labels)


def _heat_map(one: Federation, methods: Sequence[str], grid: Grid) -> Chart:
    """Methods × columns; errors above 100% have the colour of 100%."""
    mark = HeatMap(
        one.columns,
        methods[::-1],
        [[min(value, 1.0) for value in row] for row in reversed(grid)],
        1,
        percent=True,
        texts=[[_percentage(value) for value in row] for row in reversed(grid)],
        lower_is_better=not one.higher_is_better,
    )
    size = f"{len(methods)} methods in {len(one.columns)} columns"
    alt = f"{one.metric} of {size} on {one.name}, in percent."
    title = f"{one.name}: {one.metric} in %, the best worst case on top"
    return Chart(f"{one.name}-heat", title, alt, mark)


def _percentage(value: float) -> str:
    return f"{100 * value:.0f}" if value < 9.995 else "> 999"
