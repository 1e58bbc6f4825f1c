"""What each method costs: seconds, bytes and evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...record.reading.rows import CostRow
from ..document import (
    Cell,
    Column,
    Section,
    in_bytes,
    in_time,
    number_cell,
    tabulate,
)
from ..scales import scales
from ..series import Series


class _Costed(NamedTuple):
    one: Series
    total: CostRow

    def per_round(self, sum_of_rounds: float, digits: int) -> Cell:
        return number_cell(sum_of_rounds / self.total.rounds, digits)


NOTE = (
    "Bytes are models of four bytes a parameter, both ways, as a real federation would send "
    "them. Evaluations are those the method needs, by a client or by the server; evaluations "
    "for the report are not counted."
)


def cost_section(series: Sequence[Series]) -> Section:
    """Costs per round, and the seconds of all rounds."""
    costs = [_Costed(one, one.run.cost(one.method)) for one in series]
    known = [row for row in costs if row.total.rounds]
    columns = [*_columns(has_clock=bool(scales(series)))]
    shown = tabulate("costs", "Cost of each method", columns, known, NOTE)
    return Section("cost", "Cost", "", [shown] if known else [])


def _columns(*, has_clock: bool) -> Iterator[Column[_Costed]]:
    def lower(label: str, content: Callable[[_Costed], Cell]) -> Column[_Costed]:
        return Column(label, content, lower_is_better=True)

    yield Column("method", lambda row: row.one.label, numeric=False)
    if has_clock:
        yield lower("time on the clients' clock per round", _clock_cell)
    yield lower("seconds per round", lambda row: row.per_round(row.total.seconds, 3))
    yield lower("bytes over the wire per round", _size_cell)
    yield lower("evaluations per round", lambda row: row.per_round(row.total.evaluations, 1))
    yield lower("testing rounds per round", lambda row: row.per_round(row.total.testing_rounds, 2))
    yield lower("seconds in total", lambda row: number_cell(row.total.seconds, 1))


def _size_cell(row: _Costed) -> Cell:
    size = row.total.models_moved * row.one.run.model_bytes / row.total.rounds
    return Cell(size, in_bytes(size))


def _clock_cell(row: _Costed) -> Cell:
    """Time per round on the clients' clock; a control has none."""
    one = row.one
    times = [one.run.times(one.method, seed) for seed in one.summary.seeds]
    ends = [max(own.values()) for own in times if own]
    if not ends:
        return Cell(None, "–")
    per_round = sum(ends) / row.total.rounds
    return Cell(per_round, in_time(per_round))
