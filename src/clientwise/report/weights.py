"""The weight audit: who got which weight in which round, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..runs.reader import Run, thinned
from ..runs.rows import ClientRoundRow, WeightGrid
from .audit import Audit, audit
from .chain import INFLUENCE, PRIOR, WEIGHT, Chain, Place, Z, places
from .document import (
    AuditLink,
    Cell,
    Chart,
    Content,
    Document,
    Section,
    Table,
    client_cell,
    counted,
    number,
    percent_of,
    table,
)
from .figures import COLOURS
from .sections import MAX_CELLS
from .series import MAX_POINTS, Series, line_chart

Curve = list[tuple[int, float | None]]  # (round, value)
Text = Callable[[float | None], str]


def weights(series: Sequence[Series]) -> Section:
    """Weights over time, and the audit of every method's last round."""
    items: list[Chart | Table] = []
    if any(one.run.has_hostile for one in series):
        items.append(hostile_chart(series))
    with ThreadPoolExecutor() as pool:  # the database works while Python waits: most of the time of an overview
        items += [chart for chart in pool.map(heat_map, series) if chart]
    for one in series:
        seed = one.first_seed
        last = one.run.last_round(one.method, seed)
        if last is not None:
            found = audit(one.run, one.method, seed, last)
            items.append(
                audit_table(found, f"{one.label}: round {last}, seed {seed}", f"audit-{one.label}", found.explanation)
            )
    lead = "Who got which weight, and why. Click a client or a round to open its audit."
    shown = [item for item in items if (item.data if isinstance(item, Chart) else item.rows)]
    return Section("weights", "Weight audit", lead, shown)


def hostile_chart(series: Sequence[Series]) -> Chart:
    """The weight all hostile clients had together, over the rounds."""
    lines = [
        (one, [one.run.hostile_weights(one.method, seed, MAX_POINTS) for seed in one.summary.seeds]) for one in series
    ]
    return line_chart("hostile", "weight of all hostile clients together", lines, percent=True)


def heat_map(one: Series) -> Chart | None:
    """Weight of every client over the rounds of the first seed; of many rounds some, evenly spaced."""
    seed = one.first_seed
    grid = one.run.weight_grid(one.method, seed, MAX_CELLS)
    if grid is None:
        return None
    hostile = one.run.hostile_clients(seed)
    size = grid.clients_per_cell
    firsts = [row * size for row in range(len(grid.means))]
    names = {row.client: f" {row.name}" for row in one.run.clients(seed, MAX_CELLS) if row.name and size == 1}
    labels = [f"{k}{names.get(k, '')}{' hostile' if hostile & set(range(k, k + size)) else ''}" for k in firsts]
    trace = {
        "type": "heatmap",
        "x": [column * grid.rounds_per_cell + 1 for column in range(grid.width)],
        "y": labels,
        "z": grid.means,
        "meta": {**one.opens("client"), "numbers": firsts},
        "colorscale": "Cividis",
        "zmin": 0,
        "hoverongaps": False,
        "colorbar": {"tickformat": ".0%", "thickness": 12},
        "name": one.label,
    }
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": "client"}, "type": "category"},
        "height": max(260, min(900, 90 + 16 * len(firsts))),
    }
    alt = f"Weight of every client in every round under {one.label}. Heaviest on average: {_heaviest(grid)}."
    return Chart(f"map-{one.label}", f"{one.label}: weight of every client, seed {seed}", alt, [trace], layout)


def _heaviest(grid: WeightGrid) -> str:
    """The three rows with the most weight, in words."""
    rows = sorted((row for row, total in enumerate(grid.totals) if total > 0), key=lambda row: -grid.totals[row])[:3]
    size = grid.clients_per_cell
    names = [f"client {row}" if size == 1 else f"clients {row * size} to {row * size + size - 1}" for row in rows]
    shares = [percent_of(grid.totals[row] / grid.width) for row in rows]
    return ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True)) or "none"


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


def audit_round(run: Run, method: str, seed: int, round_num: int) -> Document:
    """The audit of one round as a document of its own."""
    found = audit(run, method, seed, round_num)
    items = [audit_table(found, "Clients", "audit")]
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


def audit_client(run: Run, method: str, seed: int, client: int) -> Document:
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
    run: Run,
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
    colour = run.methods.index(method)
    traces = [
        {
            "x": [r for r, _ in curve],
            "y": [v for _, v in curve],
            "mode": "lines+markers",
            "name": label,
            "line": {"color": COLOURS[(colour + index) % len(COLOURS)]},
            "meta": {"open": "round", "method": method, "seed": seed, "run": run.id},
        }
        for index, (label, whole) in enumerate(curves.items())
        for curve in [thinned(whole, MAX_POINTS)]
    ]
    axis = {"tickformat": ".0%"} if text is percent_of else {}
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": axis, "height": 260}
    return Chart(f"client-{name}", title, f"Client {client}: {', '.join(changes)}.", traces, layout)


def _client_rounds(run: Run, method: str, seed: int, rows: Sequence[ClientRoundRow]) -> Table:
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
