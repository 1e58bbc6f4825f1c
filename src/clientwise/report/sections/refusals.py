"""Updates that were refused and rounds that changed nothing, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..document import (
    AuditLink,
    Cell,
    Content,
    Section,
    client_cell,
    table,
)
from ..series import Series

MAX_REFUSALS = 100  # of a method


def refusals_section(series: Sequence[Series]) -> Section:
    """One row per client and reason, and one per note on a round."""
    rows = [row for one in series for row in _rows(one)]
    shown = table(
        "refused",
        "Refused updates, and rounds that changed nothing",
        ["method", "client", "seed", "reason", "times", "first in round"],
        rows,
        "",
        [False, True, True, False, True, True],
    )
    lead = "An invalid update never ends a run. Refused updates are not part of the aggregate."
    return Section("refusals", "Refusals", lead, [shown] if rows else [])


def _rows(one: Series) -> list[list[Content]]:
    rows: list[list[Content]] = []
    for refusal in one.run.refusals(one.method, MAX_REFUSALS):
        round_num = refusal.first_round
        link = AuditLink("round", one.run.id, one.method, refusal.seed, round_num)
        rows.append(
            [
                one.label,
                client_cell(refusal.client, refusal.name),
                refusal.seed,
                refusal.reason,
                refusal.times,
                Cell(round_num, str(round_num), link),
            ]
        )
    rounds = one.run.notes(one.method, stops=False)  # the headline has the stops
    notes = Counter(note for notes in rounds for note in notes)
    for note, times in notes.items():
        rows.append([one.label, None, None, note, times, None])
    return rows
