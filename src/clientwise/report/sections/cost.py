"""What each method costs: seconds, bytes and evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from ..document import (
    Cell,
    Content,
    Section,
    in_bytes,
    in_time,
    number_cell,
    table,
)
from ..scales import scales
from ..series import Series

COLUMNS = [
    "seconds per round",
    "bytes over the wire per round",
    "evaluations per round",
    "testing rounds per round",
    "seconds in total",
]
CLOCK = "time on the clients' clock per round"


def cost_section(series: Sequence[Series]) -> Section:
    """Costs per round, and the seconds of all rounds."""
    has_clock = bool(scales(series))
    rows = [_row(one, has_clock) for one in series if one.run.cost(one.method).rounds]
    if not rows:
        return Section("cost", "Cost", "", [])
    costs = [CLOCK, *COLUMNS] if has_clock else COLUMNS
    note = (
        "Bytes are models of four bytes a parameter, both ways, as a real federation would send "
        "them. Evaluations are those the method needs, by a client or by the server; evaluations "
        "for the report are not counted."
    )
    title = "Cost of each method"
    shown = table("costs", title, ["method", *costs], rows, note, lower=costs)
    return Section("cost", "Cost", "", [shown])


def _row(one: Series, has_clock: bool) -> list[Content]:
    total = one.run.cost(one.method)
    size = total.models_moved * one.run.model_bytes / total.rounds
    row: list[Content] = [one.label]
    if has_clock:
        row.append(_clock_cell(one, total.rounds))
    row.append(number_cell(total.seconds / total.rounds, 3))
    row.append(Cell(size, in_bytes(size)))
    row.append(number_cell(total.evaluations / total.rounds, 1))
    row.append(number_cell(total.testing_rounds / total.rounds, 2))
    row.append(number_cell(total.seconds, 1))
    return row


def _clock_cell(one: Series, rounds: int) -> Cell:
    """Time per round on the clients' clock; a control has none."""
    times = [one.run.times(one.method, seed) for seed in one.summary.seeds]
    ends = [max(own.values()) for own in times if own]
    if not ends:
        return Cell(None, "–")
    per_round = sum(ends) / rounds
    return Cell(per_round, in_time(per_round))
