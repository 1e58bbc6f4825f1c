"""The weight audit: who got which weight in which round, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..runs.folder import RunFolder
from ..runs.reader import thinned
from ..runs.rows import ClientRoundRow, WeightGrid
from .audit import Audit, audit
from .chain import INFLUENCE, PRIOR, WEIGHT, Chain, Place, Z, places
from .document import (
    AuditLink,
    Cell,
    Chart,
    Content,
    Document,
    Plotly,
    Section,
    Table,
    client_cell,
    counted,
    number,
    percent_of,
    table,
)
from .figures import COLOURS, value_axis
from .sections import MAX_CELLS
from .series import MAX_POINTS, Series, line_chart

MAX_BARS = 20  # clients in the picture of a round
EQUAL = {"width": 1, "dash": "dot", "color": "#999999"}

Curve = list[tuple[int, float | None]]  # (round, value)
Text = Callable[[float | None], str]


def weights(series: Sequence[Series]) -> Section:
    """Weights over time, and the audit of every method's last round; what is not federated weighs nobody."""
    series = [one for one in series if not is_control(one)]
    items: list[Chart | Table] = []
    if any(one.run.has_hostile for one in series):
        items.append(hostile_chart(series))
    items += heat_maps(series)
    for one in series:
        last = one.run.last_round(one.method, one.seed)
        if last is not None:
            found = audit(one.run, one.method, one.seed, last)
            title = f"{one.label}: round {last}, seed {one.seed}"
            items.append(steps_chart(found, f"{title}, from an equal share to the weight", f"steps-{one.label}"))
            items.append(audit_table(found, title, f"audit-{one.label}", found.explanation))
    lead = "Who got which weight, and why. Click a client or a round to open its audit."
    shown = [item for item in items if (item.data if isinstance(item, Chart) else item.rows)]
    return Section("weights", "Weight audit", lead, shown, series[0].seed if series else None)


def is_control(one: Series) -> bool:
    """Whether a method is no federated learning at all, but there to compare with."""
    parts = Chain.of(one.run, one.method).parts
    return parts is not None and parts.control is not None


def hostile_chart(series: Sequence[Series]) -> Chart:
    """The weight all hostile clients had together, over the rounds."""

    def curves(one: Series) -> list[list[tuple[int, float]]]:
        return [one.run.hostile_weights(one.method, seed, MAX_POINTS) for seed in one.summary.seeds]

    with ThreadPoolExecutor() as pool:  # the database works while Python waits: most of the time of an overview
        lines = list(zip(series, pool.map(curves, series), strict=True))
    return line_chart("hostile", "weight of all hostile clients together", lines, percent=True)


def heat_maps(series: Sequence[Series]) -> list[Chart]:
    """One heat map per method, the same colour for the same weight in all of them."""

    def grid_of(one: Series) -> WeightGrid | None:
        return one.run.weight_grid(one.method, one.seed, MAX_CELLS)

    with ThreadPoolExecutor() as pool:
        grids = list(pool.map(grid_of, series))
    known = [value for grid in grids if grid for row in grid.means for value in row if value is not None]
    most = max(known, default=0.0) or 1.0
    return [_heat_map(one, grid, most) for one, grid in zip(series, grids, strict=True) if grid]


def _heat_map(one: Series, grid: WeightGrid, most: float) -> Chart:
    """Weight of every client over the rounds of a seed; of many rounds some. `most` has the last colour."""
    seed, digits = one.seed, 4 - math.floor(math.log10(most))
    hostile = one.run.hostile_clients(seed)
    size = grid.clients_per_cell
    firsts = [row * size for row in range(len(grid.means))]
    names = {row.client: f" {row.name}" for row in one.run.clients(seed, MAX_CELLS) if row.name and size == 1}
    labels = [f"{k}{names.get(k, '')}{' hostile' if hostile & set(range(k, k + size)) else ''}" for k in firsts]
    trace = {
        "type": "heatmap",
        "x": [column * grid.rounds_per_cell + 1 for column in range(grid.width)],
        "y": labels,
        "z": [[None if value is None else round(value, digits) for value in row] for row in grid.means],
        "meta": {**one.opens("client"), "numbers": firsts},
        "colorscale": "Cividis",
        "zmin": 0,
        "zmax": most,
        "hoverongaps": False,
        "hovertemplate": "client %{y}<br>round %{x}: weight %{z:.2%}<extra></extra>",
        "colorbar": {"tickformat": "~%", "thickness": 12},
        "name": one.label,
    }
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": "client"}, "type": "category"},
        "height": max(260, min(900, 90 + 16 * len(firsts))),
    }
    alt = (
        f"Weight of every client in every round under {one.label}, in colours that are the same for all methods. "
        f"Heaviest on average: {_heaviest(grid, labels)}."
    )
    return Chart(f"map-{one.label}", f"{one.label}: weight of every client, seed {seed}", alt, [trace], layout)


def _heaviest(grid: WeightGrid, labels: Sequence[str]) -> str:
    """The three rows with the most weight, in words."""
    rows = sorted((row for row, total in enumerate(grid.totals) if total > 0), key=lambda row: -grid.totals[row])[:3]
    size = grid.clients_per_cell
    names = [
        f"client {labels[row]}" if size == 1 else f"clients {row * size} to {row * size + size - 1}" for row in rows
    ]
    shares = [percent_of(grid.totals[row] / grid.width) for row in rows]
    return ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True)) or "none"


def steps_chart(found: Audit, title: str, name: str) -> Chart:
    """How an equal share becomes each client's weight: above the bar of its weight, the steps that led there."""
    known = [one for one in found.participants if len(one.path) == len(found.steps)]  # a damaged record may lack some
    equal = 1 / len(known) if known else 0.0
    farthest = sorted(known, key=lambda one: -max(abs(value - equal) for value in one.path))[:MAX_BARS]
    shown = [one for one in known if one in farthest]
    labels = [f"{client_cell(one.client, one.name).text} {one.remark}".strip() for one in shown]
    usual: Plotly = {
        "type": "bar",
        "orientation": "h",
        "y": labels,
        "textposition": "none",
        "hovertemplate": "client %{y}<br>%{fullData.name}: %{text}<extra></extra>",
        "meta": {
            **{"open": "client", "method": found.method, "seed": found.seed, "run": found.run.id},
            "numbers": [one.client for one in shown],
        },
    }
    traces: list[Plotly] = []
    for place, step in enumerate(found.steps):
        before = [one.path[place - 1] if place else equal for one in shown]
        after = [one.path[place] for one in shown]
        traces.append(
            {
                **usual,
                "name": step,
                "base": before,
                "x": [end - start for start, end in zip(before, after, strict=True)],
                "text": [f"{percent_of(start)} → {percent_of(end)}" for start, end in zip(before, after, strict=True)],
                "marker": {"color": COLOURS[1 + place % (len(COLOURS) - 1)]},
            }
        )
    ends = [one.path[-1] for one in shown]
    last = found.places[-1].label
    bar = {"name": last, "x": ends, "text": [percent_of(end) for end in ends], "marker": {"color": "#999999"}}
    axis = value_axis([0.0, *(value for one in shown for value in one.path)], percent=True)
    layout = {
        "xaxis": {"title": {"text": last}, **axis},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "barmode": "group",
        "bargap": 0.3,
        "shapes": [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": equal, "x1": equal, "line": EQUAL}],
        "height": 110 + max(22, 8 * (len(traces) + 2)) * len(shown),
    }
    left_out = f" The {len(shown)} of {len(known)} farthest from it are shown." if len(shown) < len(known) else ""
    alt = (
        f"Every client begins with an equal share of {percent_of(equal)} (the line); {' and then '.join(found.steps)} "
        f"{'move' if len(found.steps) > 1 else 'moves'} it to its {last}, the grey bar.{left_out}"
    )
    return Chart(name, title, alt, [*traces, {**usual, **bar}] if shown else [], layout)


def audit_table(found: Audit, title: str, name: str, note: str = "") -> Table:
    """Every participant of a round: from score to influence, its criteria, and what would change its weight."""
    columns = ["client", "remark", *(place.label for place in found.places)]
    columns += [f"{name}, {kind}" for name in found.criteria for kind in ("measured", "normalised")]
    columns += [f"{found.what_if_label} {name}" for name in found.criteria] if found.what_if else []
    rows: list[list[Content]] = []
    for one in found.participants:
        link = AuditLink("client", found.run.id, found.method, found.seed, one.client)
        cells: list[Content] = [client_cell(one.client, one.name, link), one.remark, *one.chain]
        for raw, normalised in zip(one.raw, one.normalised, strict=True):
            cells += [Cell(raw, number(raw, 4)), Cell(normalised, number(normalised, 3))]
        cells += [Cell(value, percent_of(value)) for value in one.what_if] if found.what_if else []
        rows.append(cells)
    numeric = [True, False] + [True] * (len(columns) - 2)
    if found.what_if:
        best = f"“{found.what_if_label.capitalize()}” is what a client would have"
        note = f"{note} {best}, had it the best value of the round in that criterion.".strip()
    return table(name, title, columns, rows, note, numeric)


def audit_round(run: RunFolder, method: str, seed: int, round_num: int) -> Document:
    """The audit of one round as a document of its own."""
    found = audit(run, method, seed, round_num)
    picture = steps_chart(found, "From an equal share to the weight", "steps")
    items: list[Chart | Table] = [*([picture] if picture.data else []), audit_table(found, "Clients", "audit")]
    if moved := [one for one in found.participants if one.moved]:
        said: list[list[Content]] = [
            [
                client_cell(one.client, one.name, AuditLink("client", run.id, method, seed, one.client)),
                "; ".join(one.moved),
            ]
            for one in moved
        ]
        items.append(table("moved", "What moved the weights", ["client", "its weight"], said, "", [True, False]))
    if found.candidates:
        rows = [
            [" > ".join(order), Cell(value, percent_of(value)), "chosen" if order == found.priority else ""]
            for order, value in found.candidates
        ]
        note = f"{counted(found.testing_rounds, 'testing round')}."
        items.append(table("orders", "Orders tried", ["order of priority", run.metric, ""], rows, note))
    lead = [line for line in (found.explanation, *found.notes) if line]
    return Document(f"{method}, seed {seed}, round {round_num}", lead, [Section("audit", "Weights", "", items)])


def audit_client(run: RunFolder, method: str, seed: int, client: int) -> Document:
    """One client under one method: its weight and its own accuracy over the rounds, and every round it took part in."""
    run.lane(method, seed)  # says so if there is none
    facts = run.client(seed, client)
    rows = run.client_rounds(method, seed, client)
    shares, own = (WEIGHT, PRIOR, INFLUENCE), f"{run.metric} on its own test data"
    curves: tuple[tuple[str, str, dict[str, Curve], Text], ...] = (
        ("weight", "weight", {place.label: _curve(place, rows) for place in shares}, percent_of),
        ("z", "z: what the evidence says against it, in standard errors", {Z.label: _curve(Z, rows)}, Z.text),
        ("own", own, {own: run.client_curve(method, seed, client)}, percent_of),
    )
    charts = [_client_chart(run, method, seed, client, *chart) for chart in curves if any(chart[2].values())]
    items: list[Chart | Table] = [*charts, _client_rounds(run, method, seed, rows)]
    held = (
        f"{facts.num_train} training and {facts.num_test} test samples."
        if facts.num_train
        else "Its samples are with it, uncounted."
    )
    lead = [held + (f" Hostile: {facts.hostile}." if facts.hostile else "")]
    if accepted := [row for row in rows if row.refusal is None]:
        last = accepted[-1]
        moved = Chain.of(run, method).remarks(run, method, seed, last.round_num, {client: last})[client]
        lead += [f"Round {last.round_num}: {'; '.join(moved)}."] if moved else []
    title = f"Client {client}{f' ({facts.name})' if facts.name else ''} under {method}, seed {seed}"
    return Document(title, lead, [Section("client", "Over the rounds", "", items)])


def _curve(place: Place, rows: Sequence[ClientRoundRow]) -> Curve:
    known = [(row.round_num, place.value(row)) for row in rows]
    return [(round_num, value) for round_num, value in known if value is not None]


def _client_chart(
    run: RunFolder,
    method: str,
    seed: int,
    client: int,
    name: str,
    title: str,
    curves: Mapping[str, Curve],
    text: Text,
) -> Chart:
    """Curves over the rounds, the first in the method's colour."""
    curves = {label: curve for label, curve in curves.items() if curve}
    changes = [f"{label} from {text(curve[0][1])} to {text(curve[-1][1])}" for label, curve in curves.items()]
    colour, shape = run.methods.index(method), ".1%" if text is percent_of else ".3g"
    traces = [
        {
            "x": [r for r, _ in curve],
            "y": [v for _, v in curve],
            "mode": "lines+markers",
            "name": label,
            "line": {"color": COLOURS[(colour + index) % len(COLOURS)]},
            "hovertemplate": f"%{{fullData.name}}<br>round %{{x}}: %{{y:{shape}}}<extra></extra>",
            "meta": {"open": "round", "method": method, "seed": seed, "run": run.id},
        }
        for index, (label, whole) in enumerate(curves.items())
        for curve in [thinned(whole, MAX_POINTS)]
    ]
    heights = [value for curve in curves.values() for _, value in curve if value is not None]
    axis = value_axis(heights, percent=text is percent_of)
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": axis, "height": 260}
    return Chart(f"client-{name}", title, f"Client {client}: {', '.join(changes)}.", traces, layout)


def _client_rounds(run: RunFolder, method: str, seed: int, rows: Sequence[ClientRoundRow]) -> Table:
    passed = places(rows)
    lines: list[list[Content]] = [
        [
            Cell(row.round_num, str(row.round_num), AuditLink("round", run.id, method, seed, row.round_num)),
            *(place.cell(row) for place in passed),
            Cell(row.training_loss, number(row.training_loss, 3)),
            row.refusal or "",
        ]
        for row in rows[-200:]
    ]
    note = f"The last {len(lines)} of {len(rows)} rounds it took part in." if len(rows) > len(lines) else ""
    head = ["round", *(place.label for place in passed), "training loss", "refused because"]
    return table("rounds", "Rounds it took part in", head, lines, note, [True] * (len(head) - 1) + [False])
