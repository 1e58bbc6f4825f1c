"""The report on a matrix: heat maps, what every method does at its worst, what it costs not to know who is honest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

from ..errors import RunError
from ..experiment.matrix import Matrix, look_at
from ..runs.folder import RunFolder
from .chain import Chain
from .document import Cell, Chart, Content, Document, Section, Table, counted, percent_of, table
from .export import write_items
from .html import write_html
from .statistics import Difference, paired_difference

Values = NDArray[numpy.float64]


@dataclass(frozen=True)
class Federation:
    """What came out on one federation."""

    name: str
    metric: str
    higher_is_better: bool
    columns: tuple[str, ...]
    values: Values  # [methods, columns, seeds] of the metric; NaN: not there yet
    success: Values  # likewise, how often the trigger of a backdoor works; NaN: there is none

    @property
    def goodness(self) -> Values:
        """The same, the higher the better."""
        return self.values if self.higher_is_better else -self.values


@dataclass(frozen=True)
class Results:
    """What came out of a matrix so far."""

    matrix: Matrix
    methods: tuple[str, ...]
    controls: frozenset[str]  # methods that nobody could use: they know who is honest, or are not federated
    seeds: int
    federations: tuple[Federation, ...]

    @property
    def missing(self) -> int:
        """Cells that are not finished."""
        return sum(int(numpy.isnan(one.values).any((0, 2)).sum()) for one in self.federations)


def read_results(folder: Path) -> Results:
    """The results of all cells that are finished, and of the methods that are in the others.

    By what the runs say of themselves: to look at a matrix must never execute what its config names.
    """
    matrix = look_at(folder)
    runs = {cell: found for cell in matrix.cells if (found := _read(folder / cell.folder))}
    if not runs:
        raise RunError(f"{folder}: none of its cells has begun")
    methods = tuple(dict.fromkeys(method for run, _ in runs.values() for method in run.methods))
    seeds = list(dict.fromkeys(lane.seed for run, _ in runs.values() for lane in run.lanes))
    federations = []
    for name in matrix.federations:
        cells = [cell for cell in matrix.cells if cell.data == name]
        values, success = numpy.full((2, len(methods), len(cells), len(seeds)), numpy.nan)
        metric, higher = "accuracy", True
        for column, cell in enumerate(cells):
            if cell not in runs:
                continue
            run, rows = runs[cell]
            metric, higher = run.metric, run.higher_is_better
            for method, seed, value, works in rows:
                place = methods.index(method), column, seeds.index(seed)
                values[place] = numpy.nan if value is None else value
                success[place] = numpy.nan if works is None else works
        federations.append(Federation(name, metric, higher, tuple(cell.column for cell in cells), values, success))
    run, _ = next(iter(runs.values()))
    controls = frozenset(method for method in methods if (parts := Chain.of(run, method).parts) and parts.is_control)
    return Results(matrix, methods, controls, len(seeds), tuple(federations))


def _read(folder: Path) -> tuple[RunFolder, list[tuple[str, int, float | None, float | None]]] | None:
    """The run of a cell and its last round; None where it has not begun, or cannot be read."""
    try:
        run = RunFolder(folder)
        return run, run.at_round(run.rounds)
    except RunError:
        return None


@dataclass(frozen=True)
class Standing:
    """How a method stands on some federations, each counting alike."""

    method: str
    mean: float
    worst: float  # the worst column, mean over seeds and federations
    worst_at: str
    rank: float | None  # mean over federations and columns, without the controls; 1 is best
    regret: Difference | None  # to the method that knows who is honest, mean over the columns
    worst_regret: Difference | None  # the largest over the columns


def standings(results: Results, federations: Sequence[Federation]) -> list[Standing]:
    """All methods that have a result everywhere, the best worst case first."""
    from scipy.stats import rankdata

    good = numpy.stack([one.goodness for one in federations])  # [federations, methods, columns, seeds]
    complete = numpy.flatnonzero(~numpy.isnan(good).any((0, 2, 3)))
    good, methods = good[:, complete], [results.methods[place] for place in complete]
    sign = 1 if federations[0].higher_is_better else -1
    by_cell = good.mean(3)  # [federations, methods, columns]
    rivals = [place for place, method in enumerate(methods) if method not in results.controls]
    ranked = dict(zip(rivals, rankdata(-by_cell[:, rivals], axis=1).mean((0, 2)).tolist(), strict=True))
    oracle = methods.index(results.matrix.oracle) if results.matrix.oracle in methods else None
    found = []
    for place, method in enumerate(methods):
        at = numpy.unravel_index(by_cell[:, place].argmin(), by_cell[:, place].shape)
        behind = None if oracle is None else good[:, oracle] - good[:, place]  # [federations, columns, seeds]
        found.append(
            Standing(
                method,
                sign * float(good[:, place].mean()),
                sign * float(good[:, place].min(1).mean()),
                (f"{federations[at[0]].name}: " if len(federations) > 1 else "") + federations[at[0]].columns[at[1]],
                ranked.get(place),
                None if behind is None else _interval(behind.mean((0, 1))),
                None if behind is None else _interval(behind.max(1).mean(0)),
            )
        )
    return sorted(found, key=lambda one: -sign * one.worst)


def _interval(per_seed: Values) -> Difference | None:
    return paired_difference(per_seed.tolist(), [0.0] * len(per_seed))


def worst_case_difference(
    results: Results, federations: Sequence[Federation], ours: str, theirs: str
) -> Difference | None:
    """The difference of two worst cases, seed by seed, mean over the federations; above zero: ours is better."""
    one, other = (
        numpy.stack([group.goodness[results.methods.index(method)].min(0) for group in federations]).mean(0)
        for method in (ours, theirs)
    )
    return paired_difference(one.tolist(), other.tolist())


def critical_difference(methods: int, blocks: int) -> float | None:
    """Nemenyi's: mean ranks that differ by less cannot be told apart at 5% (Demšar, 2006).

    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    if methods < 2 or blocks < 2:
        return None
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


# What is shown ---------------------------------------------------------------------------------------------------


def arena(folder: Path) -> Document:
    """The report on a matrix."""
    results = read_results(folder)
    groups: dict[str, list[Federation]] = {}
    for one in results.federations:
        groups.setdefault(one.metric, []).append(one)
    sections = [_standing_section(results, metric, group) for metric, group in groups.items()]
    sections += [_federation_section(results, one) for one in results.federations]
    lead = [line for metric, group in groups.items() for line in _verdict(results, metric, group)]
    if results.missing:
        lead.insert(0, f"Not finished: {results.missing} of {counted(len(results.matrix.cells), 'cell')} are missing.")
    about = (
        f"{counted(len(results.methods), 'method')} · {counted(len(results.federations), 'federation')} · "
        f"{counted(len(results.matrix.cells), 'cell')} · {counted(results.seeds, 'seed')}"
    )
    return Document(results.matrix.name, lead, sections, subtitle=about)


def _verdict(results: Results, metric: str, federations: Sequence[Federation]) -> list[str]:
    lines = [one for one in standings(results, federations) if one.method not in results.controls]
    if len(lines) < 2:
        return []
    best, second = lines[:2]
    where = f" ({metric})" if len({one.metric for one in results.federations}) > 1 else ""
    text = (
        f"Best worst case{where}: {best.method} with {percent_of(best.worst)}; "
        f"next {second.method} with {percent_of(second.worst)}"
    )
    surely = worst_case_difference(results, federations, best.method, second.method)
    if surely and surely.margin is not None:
        text += f" ({_points(surely)} points between them, paired over {results.seeds} seeds; "
        text += f"the 95% interval is of these two, which were picked of {len(lines)} afterwards)."
    else:
        text += "; with one seed there is no telling how sure that is."
    ranks = {one.method: one.rank for one in lines if one.rank is not None}
    first = min(ranks, key=lambda method: ranks[method])
    return [text, f"Best mean rank{where}: {first} with {ranks[first]:.1f} among {len(ranks)}."]


def _points(difference: Difference) -> str:
    """A difference of percentages, with its interval."""
    margin = "" if difference.margin is None else f" ± {100 * difference.margin:.1f}"
    return f"{100 * difference.mean:.1f}{margin}"


def _standing_section(results: Results, metric: str, federations: Sequence[Federation]) -> Section:
    lines = standings(results, federations)
    oracle = results.matrix.oracle
    columns = ["method", f"mean {metric}", "worst case", "worst at", "mean rank"]
    if oracle:
        columns += ["regret", "largest regret"]
    rows: list[list[Content]] = []
    for one in lines:
        row: list[Content] = [
            one.method,
            Cell(one.mean, percent_of(one.mean)),
            Cell(one.worst, percent_of(one.worst)),
            one.worst_at,
            "control" if one.rank is None else Cell(one.rank, f"{one.rank:.1f}"),
        ]
        if oracle:
            row += [Cell(d.mean, _points(d)) if d else "–" for d in (one.regret, one.worst_regret)]
        rows.append(row)
    blocks = sum(len(one.columns) for one in federations)
    difference = critical_difference(sum(one.rank is not None for one in lines), blocks)
    note = (
        "Mean over the federations and their columns; the worst case is the worst column of a federation, in its mean "
        "over the seeds and federations."
    )
    if oracle:
        note += (
            f" Regret: points behind “{oracle}”, which is told who is honest; "
            f"± is the 95% interval over {counted(results.seeds, 'seed')}."
        )
    if difference:
        note += f" Mean ranks that differ by less than {difference:.1f} cannot be told apart (Nemenyi, 5%)."
    numeric = [label not in ("method", "worst at") for label in columns]
    lower = ["mean rank", "regret", "largest regret"]
    if not federations[0].higher_is_better:
        lower += columns[1:3]
    title = f"All methods on {counted(len(federations), 'federation')}"
    shown = table(f"standings-{metric}", title, columns, rows, note, numeric, lower)
    return Section(f"standings-{metric}", f"Who stands where: {metric}", "", [shown])


def _federation_section(results: Results, one: Federation) -> Section:
    means = one.values.mean(2)  # [methods, columns]
    worst = one.goodness.mean(2).min(1)
    order = sorted(numpy.flatnonzero(~numpy.isnan(worst)).tolist(), key=lambda place: -worst[place])
    names, grid = [results.methods[place] for place in order], means[order].tolist()
    rows: list[list[Content]] = [
        [method, *(Cell(value, percent_of(value)) for value in row)] for method, row in zip(names, grid, strict=True)
    ]
    lower = () if one.higher_is_better else one.columns
    note = f"{one.metric}, mean of {counted(results.seeds, 'seed')}; the best worst case first."
    values = table(f"{one.name}-values", f"{one.name}: {one.metric}", ["method", *one.columns], rows, note, None, lower)
    items: list[Chart | Table] = [_heat_map(one, names, grid), values]
    planted = [column for column in range(len(one.columns)) if not numpy.isnan(one.success[order, column]).all()]
    if planted:
        note = "How often samples with the trigger are called what the attacker wants; accuracy does not show it."
        works: list[list[Content]] = [
            [method, *(Cell(value, percent_of(value)) for value in row)]
            for method, row in zip(names, one.success[order][:, planted].mean(2).tolist(), strict=True)
        ]
        heads = [one.columns[column] for column in planted]
        title = f"{one.name}: success of backdoors"
        items.append(table(f"{one.name}-backdoors", title, ["method", *heads], works, note, None, heads))
    return Section(f"data-{one.name}", one.name, "", items)


def _heat_map(one: Federation, methods: Sequence[str], grid: Sequence[Sequence[float]]) -> Chart:
    """Methods × columns; errors are cut at 100%, or one diverged method would take all the colour."""
    shown = [[min(value, 1.0) for value in row] for row in grid]
    trace = {
        "type": "heatmap",
        "x": list(one.columns),
        "y": list(methods)[::-1],
        "z": shown[::-1],
        "zmin": 0,
        "zmax": 1,
        "text": [[f"{100 * value:.0f}" if value < 9.995 else "> 999" for value in row] for row in grid][::-1],
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}<br>%{x}: %{text}%<extra></extra>",
        "reversescale": not one.higher_is_better,
        "colorbar": {"tickformat": "~%"},
        "name": one.metric,
    }
    layout = {
        "xaxis": {"tickangle": -40, "automargin": True, "type": "category"},
        "yaxis": {"automargin": True, "type": "category"},
        "height": 160 + 24 * len(methods),
    }
    alt = f"{one.metric} of {len(methods)} methods in {len(one.columns)} columns on {one.name}, in percent."
    title = f"{one.name}: {one.metric} in %, the best worst case on top"
    return Chart(f"{one.name}-heat", title, alt, [trace], layout)


def write_arena(folder: Path, out: Path, on_file: Callable[[Path], None] = lambda path: None) -> Path:
    """The report on disk: one page, heat maps as PNG and SVG, tables as CSV, Markdown and LaTeX."""
    document = arena(folder)
    page = write_html(document, {"round": {}, "client": {}}, out / "report.html")
    write_items(document, out, on_file)
    return page
