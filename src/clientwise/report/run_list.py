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
    Column,
    Content,
    Document,
    Section,
    Table,
)
from .series import ranked, series_of
from .views import run_state


def _link(run: RunFolder) -> Cell:
    return Cell(run.id, run.id, href=f"/runs/{quote(run.id, safe='')}")


def _num_seeds(run: RunFolder) -> int:
    return len({lane.seed for lane in run.lanes})


def _progress(run: RunFolder) -> Cell:
    done = run.rounds_done()
    total = run.num_lanes * run.rounds
    return Cell(done / total, f"{done} of {total}")


def _best_so_far(run: RunFolder) -> Cell:
    for one in ranked(series_of([run])):
        if one.mean_metric is not None:
            text = f"{one.label}: {run.metric} {one.unit.text(one.mean_metric)}"
            return Cell(one.mean_metric, text)
    return Cell(None, "–")


COLUMNS: tuple[Column[RunFolder], ...] = (
    Column("run", _link, numeric=False),
    Column("state", run_state, numeric=False),
    Column("begun", lambda run: run.begun, numeric=False),
    Column("data", data_name, numeric=False),
    Column("methods", lambda run: ", ".join(run.methods), numeric=False),
    Column("seeds", _num_seeds),
    Column("rounds", _progress),
    Column("best so far", _best_so_far, numeric=False),
    Column("tags", lambda run: labels(run)[1], numeric=False),
    Column("note", lambda run: labels(run)[0], numeric=False),
)


def run_row(folder: Path, name: str) -> list[Content]:
    """A row of the list of runs; for a folder that cannot be read, the reason."""
    try:
        run = RunFolder(folder, name)
        return [column.content(run) for column in COLUMNS]
    except RunError as error:
        reason = str(error).replace(f"{folder}: ", "")
        return [name, "unreadable", *[None] * (len(COLUMNS) - 3), reason]


def runs_table(rows: Sequence[Sequence[Content]]) -> Table:
    """The list of runs as a table."""
    return Table("runs", "Runs", COLUMNS, rows, "")


def runs_document(rows: Sequence[Sequence[Content]]) -> Document:
    """The list of runs as a document."""
    lead = [] if rows else ["No runs yet. `clientwise demo` makes one."]
    tables = [runs_table(rows)] if rows else []
    return Document("Runs", lead, [Section("runs", "Runs", "", tables)])
