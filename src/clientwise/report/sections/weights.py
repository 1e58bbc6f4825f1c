"""The weights of all clients over the rounds, and how those of the last round came about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...record.reading.config_view import recorded_config
from ...record.reading.rows import WeightGrid
from ..audit.pages import audit_table, steps_charts
from ..audit.round_audit import audit
from ..document import (
    Chart,
    Section,
    Table,
    percent_of,
)
from ..lines import Curve, has_lines, line_chart
from ..marks import MAX_CELLS, MAX_POINTS, HeatMap
from ..series import Series

HEAVIEST = 3  # clients that the description of a heat map names


def weights_section(series: Sequence[Series]) -> Section:
    """Weights over time and the audit of every method's last round; controls have no weights."""
    weighed = [one for one in series if not is_control(one)]
    items: list[Chart | Table] = []
    if any(one.run.has_hostile for one in weighed):
        chart = hostile_chart(weighed)
        if has_lines(chart):
            items.append(chart)
    items += heat_maps(weighed)
    for one in weighed:
        items += _last_round(one)
    lead = "The weight of every client, and its reasons. Click a client or a round for its audit."
    seed = weighed[0].seed if weighed else None
    return Section("weights", "Weight audit", lead, items, seed)


def is_control(one: Series) -> bool:
    """Whether a method is not federated, but there to compare with."""
    parts = recorded_config(one.run.folder).method(one.method)
    return parts is not None and parts.control is not None


def hostile_chart(series: Sequence[Series]) -> Chart:
    """The influence of all hostile clients together over the rounds."""

    def curves(one: Series) -> list[Curve]:
        seeds = one.summary.seeds
        return [one.run.hostile_influences(one.method, seed, MAX_POINTS) for seed in seeds]

    with ThreadPoolExecutor() as pool:  # these queries take most of an overview's time
        found = list(zip(series, pool.map(curves, series), strict=True))
    return line_chart("hostile", "influence of all hostile clients together", found, percent=True)


def heat_maps(series: Sequence[Series]) -> list[Chart]:
    """One heat map per method, on the same colour scale."""

    def grid_of(one: Series) -> WeightGrid | None:
        return one.run.weight_grid(one.method, one.seed, MAX_CELLS)

    with ThreadPoolExecutor() as pool:
        grids = list(pool.map(grid_of, series))
    highest = max((_highest(grid) for grid in grids if grid), default=0.0) or 1.0
    pairs = zip(series, grids, strict=True)
    return [_heat_map(one, grid, highest) for one, grid in pairs if grid]


def _highest(grid: WeightGrid) -> float:
    highest = 0.0
    for row in grid.means:
        highest = max([highest, *(value for value in row if value is not None)])
    return highest


def _heat_map(one: Series, grid: WeightGrid, highest: float) -> Chart:
    """Weight of every client over the rounds of a seed; `highest` has the last colour."""
    digits = 4 - math.floor(math.log10(highest))
    firsts = [row * grid.clients_per_cell for row in range(len(grid.means))]
    labels = _row_labels(one, firsts, grid.clients_per_cell)
    mark = HeatMap(
        [column * grid.rounds_per_cell + 1 for column in range(grid.width)],
        labels,
        [[_rounded(value, digits) for value in row] for row in grid.means],
        highest,
        percent=True,
        column_label="round",
        row_label="client",
        value_label="weight",
        links=one.links("client", firsts),
    )
    alt = (
        f"Weight of every client in every round under {one.label}, on one colour scale for all "
        f"methods. Heaviest on average: {_heaviest(grid, labels)}."
    )
    title = f"{one.label}: weight of every client, seed {one.seed}"
    return Chart(f"map-{one.label}", title, alt, mark)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _row_labels(one: Series, firsts: Sequence[int], size: int) -> list[str]:
    """The first client of every row with its name, and whether any of the row is hostile."""
    hostile = one.run.hostile_clients(one.seed)
    names: dict[int, str | None] = {}
    if size == 1:
        names = {row.client: row.name for row in one.run.clients(one.seed, MAX_CELLS)}
    hostile_rows = {client // size for client in hostile}
    labels = []
    for first in firsts:
        parts = [str(first)]
        name = names.get(first)
        if name:
            parts.append(name)
        if first // size in hostile_rows:
            parts.append("hostile")
        labels.append(" ".join(parts))
    return labels


def _heaviest(grid: WeightGrid, labels: Sequence[str]) -> str:
    """The rows with the most weight, in words."""
    weighted = [row for row, total in enumerate(grid.totals) if total > 0]
    heaviest = sorted(weighted, key=lambda row: -grid.totals[row])[:HEAVIEST]
    size = grid.clients_per_cell
    found = []
    for row in heaviest:
        name = f"client {labels[row]}"
        if size > 1:
            name = f"clients {row * size} to {row * size + size - 1}"
        found.append(f"{name} {percent_of(grid.totals[row] / grid.width)}")
    return ", ".join(found) or "none"


def _last_round(one: Series) -> list[Chart | Table]:
    """How the weights of a method's last round came about."""
    last = one.run.last_round(one.method, one.seed)
    if last is None:
        return []
    found = audit(one.run, one.method, one.seed, last, notable=True)
    title = f"{one.label}: round {last}, seed {one.seed}"
    steps = steps_charts(found, title, f"steps-{one.label}")
    note = ""
    if len(found.participants) < found.num_participants:
        shown = f"{len(found.participants):,} of {found.num_participants:,} participants"
        note = f"{shown}: those with the largest weights, or farthest from an equal share."
        note += " The audit of the round lists all of them."
    details = audit_table(found, title, f"audit-{one.label}", note)
    return [*steps, details] if details.rows else [*steps]
