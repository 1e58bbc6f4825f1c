"""What other weights would have given: tables for the audit of a round, and over a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...record.reading.other_weights import NOBODY, REPORTED
from ...record.reading.rows import CounterfactualRow
from ...record.run import RunFolder
from ..document import (
    Cell,
    Content,
    Table,
    table,
)
from ..units import Unit

MOST_TESTED = 12  # clients that have a column of their own
KINDS = {
    "chosen": "the chosen weights",
    "uniform": "equal weights",
    "size": "weights by size",
    "without": "without",
}
NOTE = (
    "All rows aggregate the same updates of this round. “Without” leaves one client out and brings "
    "the other weights within the same bounds. Differences are to the chosen "
    "weights{unit}. What a run without a client would have learned needs a run of its own: "
    "`clientwise counterfactual`."
)
OVER_ROUNDS = (
    "The mean is over all rounds in which the candidate could be computed. Every round starts from the "
    "model of the run itself, so that these are effects of single rounds; they do not add up to a "
    "run with other weights."
)


class _Candidate(NamedTuple):
    kind: str
    excluded: int


def round_table(run: RunFolder, method: str, seed: int, round_num: int) -> list[Table]:
    """Other weights of one round; nothing where they were not evaluated."""
    rows = run.counterfactuals(method, seed, round_num)
    if not rows:
        return []
    unit = Unit(run.is_share)
    names = _names(run, seed)
    by_candidate = _by_candidate(rows)
    tested = sorted({row.tested for row in rows} - {REPORTED})[:MOST_TESTED]
    chosen = by_candidate.get(_Candidate("chosen", NOBODY), {}).get(REPORTED)
    lines: list[list[Content]] = []
    for candidate, own in by_candidate.items():
        reported = own.get(REPORTED)
        line: list[Content] = [_label(candidate, names), unit.cell(_metric(reported))]
        line.append(_difference_cell(_metric(reported), _metric(chosen), unit))
        line += [unit.cell(_metric(own.get(client))) for client in tested]
        line.append((reported and reported.reason) or "")
        lines.append(line)
    own_columns = [f"{run.metric} of {_called(client, names)}" for client in tested]
    columns = ["weights", run.metric, "difference", *own_columns, "remark"]
    numeric = [False] + [True] * (len(columns) - 2) + [False]
    title = "What other weights would have given"
    return [table("counterfactuals", title, columns, lines, _note(unit), numeric)]


def run_table(run: RunFolder, method: str, seed: int, label: str) -> list[Table]:
    """Other weights over the rounds of a lane; nothing where they were not evaluated."""
    rows = run.reported_counterfactuals(method, seed)
    if not rows:
        return []
    unit = Unit(run.is_share)
    names = _names(run, seed)
    chosen = {row.round_num: row.metric for row in rows if row.kind == "chosen"}
    last = max(chosen)
    found: dict[_Candidate, dict[int, float]] = {}
    for row in sorted(rows, key=_order):
        own = found.setdefault(_Candidate(row.kind, row.excluded), {})
        if row.metric is not None:
            own[row.round_num] = row.metric
    lines: list[list[Content]] = []
    for candidate, own in found.items():
        differences = _differences(own, chosen)
        mean = statistics.fmean(differences) if differences else None
        lines.append(
            [
                _label(candidate, names),
                unit.cell(own.get(last)),
                _difference_cell(own.get(last), chosen[last], unit),
                _signed_cell(mean, unit),
                Cell(len(differences), str(len(differences))),
            ]
        )
    columns = ["weights", run.metric, "difference", "mean difference", "rounds"]
    title = f"{label}, round {last}: what other weights would have given"
    name = f"counterfactuals-{label}"
    return [table(name, title, columns, lines, f"{_note(unit)} {OVER_ROUNDS}")]


def _by_candidate(
    rows: Sequence[CounterfactualRow],
) -> dict[_Candidate, dict[int, CounterfactualRow]]:
    found: dict[_Candidate, dict[int, CounterfactualRow]] = {}
    for row in sorted(rows, key=_order):
        found.setdefault(_Candidate(row.kind, row.excluded), {})[row.tested] = row
    return found


def _order(row: CounterfactualRow) -> tuple[int, int]:
    kinds = list(KINDS)
    position = kinds.index(row.kind) if row.kind in kinds else len(kinds)
    return position, row.excluded


def _differences(own: Mapping[int, float], chosen: Mapping[int, float | None]) -> list[float]:
    found = []
    for round_num, value in own.items():
        against = chosen.get(round_num)
        if against is not None:
            found.append(value - against)
    return found


def _metric(row: CounterfactualRow | None) -> float | None:
    return None if row is None else row.metric


def _note(unit: Unit) -> str:
    return NOTE.format(unit=unit.of_differences)


def _difference_cell(value: float | None, against: float | None, unit: Unit) -> Cell:
    return _signed_cell(None if value is None or against is None else value - against, unit)


def _signed_cell(value: float | None, unit: Unit) -> Cell:
    return Cell(value, "–" if value is None else unit.signed(value))


def _label(candidate: _Candidate, names: Mapping[int, str | None]) -> Cell:
    text = KINDS.get(candidate.kind, candidate.kind)
    if candidate.excluded == NOBODY:
        return Cell(text, text)
    text = f"{text} {_called(candidate.excluded, names)}"
    return Cell(text, text)


def _names(run: RunFolder, seed: int) -> dict[int, str | None]:
    return {row.client: row.name for row in run.clients(seed)}


def _called(client: int, names: Mapping[int, str | None]) -> str:
    return names.get(client) or f"client {client}"
