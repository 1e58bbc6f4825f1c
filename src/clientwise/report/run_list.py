"""The list of runs as a table and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ..errors import RunError
from ..record.reading.folder import RunFolder
from .about import data_name, labels
from .document import (
    Cell,
    Content,
    Document,
    Section,
    Table,
    table,
)
from .series import ranked, series_of
from .views import run_state

# The columns, and whether they are numbers.
RUNS = {
    "run": False,
    "state": False,
    "begun": False,
    "data": False,
    "methods": False,
    "seeds": True,
    "rounds": True,
    "best so far": False,
    "tags": False,
    "note": False,
}


def run_row(folder: Path, name: str) -> list[Content]:
    """A row of the list of runs; for a folder that cannot be read, the reason."""
    try:
        return _row(RunFolder(folder, name), name)
    except RunError as error:
        reason = str(error).replace(f"{folder}: ", "")
        return [name, "unreadable", *[None] * (len(RUNS) - 3), reason]


def _row(run: RunFolder, name: str) -> list[Content]:
    done = run.rounds_done()
    total = run.num_lanes * run.rounds
    note, tags = labels(run)
    return [
        Cell(name, name, href=f"/runs/{quote(name, safe='')}"),
        run_state(run),
        run.begun,
        data_name(run),
        ", ".join(run.methods),
        len({lane.seed for lane in run.lanes}),
        Cell(done / total, f"{done} of {total}"),
        _best_so_far(run),
        tags,
        note,
    ]


def _best_so_far(run: RunFolder) -> Cell:
    for one in ranked(series_of([run])):
        if one.mean_metric is not None:
            text = f"{one.label}: {run.metric} {one.unit.text(one.mean_metric)}"
            return Cell(one.mean_metric, text)
    return Cell(None, "–")


def runs_table(rows: Sequence[Sequence[Content]]) -> Table:
    """The list of runs as a table."""
    return table("runs", "Runs", [*RUNS], rows, "", [*RUNS.values()])


def runs_document(rows: Sequence[Sequence[Content]]) -> Document:
    """The list of runs as a document."""
    lead = [] if rows else ["No runs yet. `clientwise demo` makes one."]
    tables = [runs_table(rows)] if rows else []
    return Document("Runs", lead, [Section("runs", "Runs", "", tables)])
