"""The report on a matrix: standings of all methods, and a heat map per federation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from ..differences import significance
from ..document import Document, counted
from ..output.export import Format, OnFigure, write_items
from ..output.figures import require_matplotlib
from ..output.html import write_html
from ..output.paper import COLUMN
from ..statistics import Difference
from ..units import Unit
from .standings import (
    Federation,
    MethodStanding,
    Ranks,
    Results,
    complete_methods,
    mean_differences,
    rank,
    read_results,
    standings,
    worst_cell_difference,
)
from .standings_tables import by_mean, federation_section, standings_section


def write_arena(
    folder: Path,
    out: Path,
    on_figure: OnFigure = lambda number, total: None,
    width: float = COLUMN,
    figures: Collection[Format] = (),
) -> Path:
    """The report on disk: a page, tables as CSV, Markdown and LaTeX, heat maps in these formats."""
    if figures:
        require_matplotlib()
    document = arena(folder)
    page = write_html(document, {"round": {}, "client": {}}, out / "report.html")
    write_items(document, out, on_figure, width, figures)
    return page


def arena(folder: Path) -> Document:
    """The report on a matrix."""
    results = read_results(folder)
    groups = results.metrics()
    sections = [standings_section(results, *group) for group in groups.items()]
    sections += [federation_section(results, one) for one in results.federations]
    cells = counted(results.cells, "cell")
    lead = []
    if results.missing:
        lead.append(f"Not finished: {results.missing} of {cells} are missing.")
    for warning, count in results.warnings.items():
        lead.append(f"Warning in {count} of {cells}: {warning}.")
    for metric, group in groups.items():
        lead += _verdict(results, metric, group)
    about = [
        counted(len(results.methods), "method"),
        counted(len(results.federations), "federation"),
        cells,
        counted(results.seeds, "seed"),
    ]
    return Document(results.name, lead, sections, subtitle=" · ".join(about))


def _verdict(results: Results, metric: str, federations: Sequence[Federation]) -> list[str]:
    """The best worst cell, the best mean and the best mean rank of the available methods."""
    lines = [one for one in standings(results, federations) if one.is_available]
    if len(lines) < 2:
        return []
    where = f" ({metric})" if len(results.metrics()) > 1 else ""
    return [
        f"Best worst cell{where}: {_lead_in_worst_cell(results, federations, lines)}",
        f"Best mean over cells{where}: {_lead_in_mean(results, federations, lines)}",
        *_lead_in_rank(rank(results, federations), where, len(federations)),
    ]


def _lead_in_worst_cell(
    results: Results, federations: Sequence[Federation], lines: Sequence[MethodStanding]
) -> str:
    best, second = lines[:2]
    unit = federations[0].unit
    text = (
        f"{best.method} with {unit.text(best.worst)} ({best.worst_at}); next {second.method} with "
        f"{unit.text(second.worst)} ({second.worst_at})."
    )
    difference = worst_cell_difference(results, federations, best.method, second.method)
    if difference.margin is None:
        return f"{text} With one seed, no confidence interval can be given."
    return (
        f"{text} Difference {unit.interval(difference)}{unit.points} (95% confidence interval, paired over "
        f"{results.seeds} seeds; the cells were chosen by these same results)."
    )


def _lead_in_mean(
    results: Results, federations: Sequence[Federation], lines: Sequence[MethodStanding]
) -> str:
    best, second, *_ = by_mean(lines, federations[0])
    others = [method for method in complete_methods(results, federations) if method != best.method]
    differences = mean_differences(results, federations, best.method, others)
    found = differences[others.index(second.method)]
    unit = federations[0].unit
    sentences = [
        f"{best.method} with {unit.text(best.mean)}; next {second.method} with "
        f"{unit.text(second.mean)}."
    ]
    if found.over_seeds.margin is not None:
        tested = _tested(found.over_seeds, "seeds", unit)
        sentences.append(f"Over {results.seeds} seeds: {tested}.")
    if found.over_federations.margin is not None:
        tested = _tested(found.over_federations, "federations", unit)
        sentences.append(f"Over {len(federations)} federations: {tested}.")
    return " ".join(sentences)


def _tested(difference: Difference, pairs: str, unit: Unit) -> str:
    return f"{unit.interval(difference)}{unit.points}, {significance(difference, pairs)}"


def _lead_in_rank(ranks: Ranks, where: str, federations: int) -> list[str]:
    if federations < 2:
        return []  # the rank on one federation is the order by its mean
    first = min(ranks.means, key=lambda method: ranks.means[method])
    text = f"Best mean rank{where}: {first} with {ranks.means[first]:.1f} among {len(ranks.means)}."
    return [text]
