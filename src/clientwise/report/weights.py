"""The weight audit: who got which weight in which round, and why."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..experiment.store import RunError
from .audit import Audit, audit
from .document import Json, cell, chart, counted, number, percent_of, section, table
from .figures import COLOURS
from .sections import MAX_CELLS
from .series import MAX_POINTS, Series, line_chart
from .summary import Run, thinned


def weights(series: Sequence[Series]) -> Json:
    """Weights over time, and the audit of every method's last round."""
    items: list[Json] = []
    if any(one.run.has_hostile for one in series):
        items.append(hostile_chart(series))
    with ThreadPoolExecutor() as pool:  # the database works while Python waits: most of the time of an overview
        items += pool.map(heat_map, series)
    for one in series:
        lane, seed = one.lanes()[0]
        last = one.run.query("SELECT MAX(round_num) FROM rounds WHERE lane = ?", lane)[0][0]
        if last is not None:
            found = audit(one.run, one.method, seed, last)
            items.append(
                audit_table(found, f"{one.label}: round {last}, seed {seed}", f"audit-{one.label}", found.explanation)
            )
    lead = "Who got which weight, and why. Click a client or a round to open its audit."
    return section("weights", "Weight audit", lead, [item for item in items if item.get("data") or item.get("rows")])


def hostile_chart(series: Sequence[Series]) -> Json:
    """The weight all hostile clients had together, over the rounds."""
    lines = [
        (one, [one.run.hostile_weights(one.method, seed, MAX_POINTS) for seed in one.summary.seeds]) for one in series
    ]
    return line_chart("hostile", "weight of all hostile clients together", lines, percent=True)


def heat_map(one: Series) -> Json:
    """Weight of every client over the rounds of the first seed; of many rounds some, evenly spaced."""
    lane, seed = one.lanes()[0]
    (last, clients) = one.run.query(
        """SELECT (SELECT MAX(round_num) FROM rounds WHERE lane = ?),
                  (SELECT MAX(client) + 1 FROM clients WHERE seed = ?)""",
        lane,
        seed,
    )[0]
    title = f"{one.label}: weight of every client, seed {seed}"
    if not last or not clients:
        return chart(f"map-{one.label}", title, "", [], {})
    rounds_per_cell, clients_per_cell = -(-last // MAX_CELLS), -(-clients // MAX_CELLS)
    cells = one.run.query(
        """SELECT (round_num - 1) / ?, client / ?, AVG(weight), TOTAL(weight)
           FROM rounds CROSS JOIN participants INDEXED BY participants_by_round USING (lane, round_num)
           WHERE lane = ? AND (round_num - 1) % ? = 0 AND weight IS NOT NULL GROUP BY 1, 2""",
        rounds_per_cell,
        clients_per_cell,
        lane,
        rounds_per_cell,
    )
    width, height = -(-last // rounds_per_cell), -(-clients // clients_per_cell)
    grid: list[list[float | None]] = [[None] * width for _ in range(height)]
    totals = [0.0] * height
    for column, row, weight, total in cells:
        if 0 <= row < height and column < width:  # a round may have been added since its end was asked for
            grid[row][column] = weight
            totals[row] += total
    hostile = {
        client for (client,) in one.run.query("SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL", seed)
    }
    firsts = [row * clients_per_cell for row in range(height)]
    marks = [f"{k}{' hostile' if hostile & set(range(k, k + clients_per_cell)) else ''}" for k in firsts]
    rounds = [column * rounds_per_cell + 1 for column in range(width)]
    heaviest = sorted((row for row in range(height) if totals[row] > 0), key=lambda row: -totals[row])[:3]
    several = " to {}" if clients_per_cell > 1 else ""
    said = ", ".join(
        f"client{'s' if several else ''} {firsts[row]}{several.format(firsts[row] + clients_per_cell - 1)} "
        f"{percent_of(totals[row] / width)}"
        for row in heaviest
    )
    alt = f"Weight of every client in every round under {one.label}. Heaviest on average: {said or 'none'}."
    trace = {
        "type": "heatmap",
        "x": rounds,
        "y": marks,
        "z": grid,
        "meta": {**one.opens("client", seed), "numbers": firsts},
        "colorscale": "Cividis",
        "zmin": 0,
        "hoverongaps": False,
        "colorbar": {"tickformat": ".0%", "thickness": 12},
        "name": one.label,
    }
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": "client"}, "type": "category"},
        "height": max(260, min(900, 90 + 16 * height)),
    }
    return chart(f"map-{one.label}", title, alt, [trace], layout)


def audit_table(found: Audit, title: str, name: str, note: str = "") -> Json:
    """Every participant of a round: criteria as measured and normalised, score, weight, and what would change it."""
    columns = [
        "client",
        "remark",
        "weight",
        "score",
        *(f"{name}, {kind}" for name in found.criteria for kind in ("measured", "normalised")),
    ]
    columns += [f"weight with the best {name}" for name in found.criteria] if found.what_if else []
    rows = []
    for person in found.people:
        place = {"method": found.method, "seed": found.seed, "client": person.client, "run": found.run.id}
        cells: list[Any] = [
            {"value": person.client, "text": f"{person.client}", "open": {"client": place}},
            person.remark,
        ]
        cells += [cell(person.weight, percent_of(person.weight)), cell(person.score, number(person.score, 4))]
        for raw, normalised in zip(person.raw, person.normalised, strict=True):
            cells += [cell(raw, number(raw, 4)), cell(normalised, number(normalised, 3))]
        cells += [cell(value, percent_of(value)) for value in person.what_if] if found.what_if else []
        rows.append(cells)
    numeric = [True, False] + [True] * (len(columns) - 2)
    return table(name, title, columns, rows, note, numeric)


def audit_round(run: Run, method: str, seed: int, round_num: int) -> Json:
    """The audit of one round as a document of its own."""
    found = audit(run, method, seed, round_num)
    items = [audit_table(found, "Clients", "audit")]
    if found.candidates:
        rows = [
            [
                " > ".join(order),
                cell(value, percent_of(value)),
                "chosen" if list(order) == list(found.priority or ()) else "",
            ]
            for order, value in found.candidates
        ]
        items.append(
            table(
                "orders",
                "Orders tried",
                ["order of priority", run.metric, ""],
                rows,
                f"{counted(found.testing_rounds, 'testing round')}.",
            )
        )
    lead = [line for line in (found.explanation, *found.notes) if line]
    return {
        "title": f"{method}, seed {seed}, round {round_num}",
        "lead": lead,
        "sections": [section("audit", "Weights", "", items)],
    }


def audit_client(run: Run, method: str, seed: int, client: int) -> Json:
    """One client under one method: its weight and its own accuracy over the rounds, and every round it took part in."""
    lane = run.lane(method, seed)
    facts = run.query("SELECT num_train, num_test, hostile FROM clients WHERE seed = ? AND client = ?", seed, client)
    if not facts:
        raise RunError(f"{run.folder.name}: no client {client} under seed {seed}")
    (num_train, num_test, hostile) = facts[0]
    rows = run.query(
        """SELECT round_num, score, weight, training_loss, refusal
           FROM rounds CROSS JOIN participants INDEXED BY participants_by_round USING (lane, round_num)
           WHERE lane = ? AND client = ? ORDER BY round_num""",
        lane,
        client,
    )
    weights = [(row[0], row[2]) for row in rows if row[2] is not None]
    own = run.query(
        "SELECT round_num, metric FROM local WHERE lane = ? AND client = ? ORDER BY round_num", lane, client
    )
    shown = (("weight", "weight", weights), ("own", f"{run.metric} on its own test data", own))
    charts = [_client_chart(run, method, seed, client, *one) for one in shown if one[2]]
    items = [*charts, _client_rounds(run, method, seed, rows)]
    held = f"{num_train} training and {num_test} test samples." if num_train else "Its samples are with it, uncounted."
    lead = held + (f" Hostile: {hostile}." if hostile else "")
    return {
        "title": f"Client {client} under {method}, seed {seed}",
        "lead": [lead],
        "sections": [section("client", "Over the rounds", "", items)],
    }


def _client_chart(
    run: Run, method: str, seed: int, client: int, name: str, title: str, curve: list[tuple[int, float]]
) -> Json:
    said = f"from {percent_of(curve[0][1])} to {percent_of(curve[-1][1])}"
    curve = thinned(curve, MAX_POINTS)
    trace = {
        "x": [r for r, _ in curve],
        "y": [v for _, v in curve],
        "mode": "lines+markers",
        "name": title,
        "line": {"color": COLOURS[run.methods.index(method) % len(COLOURS)]},
        "meta": {"open": "round", "method": method, "seed": seed, "run": run.id},
    }
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"tickformat": ".0%"}, "height": 260}
    return chart(f"client-{name}", title, f"{title} of client {client}: {said}.", [trace], layout)


def _client_rounds(run: Run, method: str, seed: int, rows: list[tuple[Any, ...]]) -> Json:
    lines = [
        [
            {
                "value": r,
                "text": str(r),
                "open": {"round": {"method": method, "seed": seed, "round": r, "run": run.id}},
            },
            cell(score, number(score, 4)),
            cell(weight, percent_of(weight)),
            cell(loss, number(loss, 3)),
            refusal or "",
        ]
        for r, score, weight, loss, refusal in rows[-200:]
    ]
    note = f"The last {len(lines)} of {len(rows)} rounds it took part in." if len(rows) > len(lines) else ""
    head = ["round", "score", "weight", "training loss", "refused because"]
    return table("rounds", "Rounds it took part in", head, lines, note, [True] * 4 + [False])
