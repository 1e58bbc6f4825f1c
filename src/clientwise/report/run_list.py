"""The list of runs: found, as a table, filtered and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import RunError
from ..record.database import DATABASE
from ..record.files import CONFIG
from ..record.run import RunFolder
from ..registry import listed, suggest
from .about import data_name, labels
from .document import (
    Cell,
    Column,
    Content,
    Table,
    text_of,
    value_of,
)
from .output.export import unique_names
from .series import ranked, series_of
from .views import run_state


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
    Column("run", lambda run: run.id, numeric=False),
    Column("state", run_state, numeric=False),
    Column("begun", lambda run: run.begun, numeric=False),
    Column("data", data_name, numeric=False),
    Column("methods", lambda run: listed(run.methods), numeric=False),
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


def find_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """All run folders by id: the given folders that are runs, and the runs inside the others."""
    found: list[Path] = []
    for folder in folders:
        if _is_run(folder):
            found.append(folder)
        elif folder.is_dir():
            # Links may lead out of the folder and are not followed. To see such a run, name it.
            inside = [one for one in sorted(folder.iterdir()) if not one.is_symlink()]
            found += [one for one in inside if _is_run(one)]
    return unique_names([folder for folder in found if _is_visible_folder(folder)])


def _is_run(folder: Path) -> bool:
    return (folder / DATABASE).exists() or (folder / CONFIG).exists()


def _is_visible_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def list_runs(folders: Sequence[Path]) -> Table:
    """All runs, the newest first."""
    named = find_runs(folders)
    newest_first = sorted(named, key=lambda name: named[name].stat().st_mtime, reverse=True)
    rows = [run_row(named[name], name) for name in newest_first]
    return Table("runs", "Runs", COLUMNS, rows, "")


def chosen(runs: Table, containing: str | None = None, sort: str | None = None) -> Table:
    """The runs whose line contains a text, sorted by a column; the start of its name is enough."""
    rows = [row for row in runs.rows if _contains(row, containing or "")]
    if sort is not None:
        labels = [column.label for column in runs.columns]
        columns = [place for place, label in enumerate(labels) if label.startswith(sort)]
        if len(columns) != 1:
            raise RunError(f"--sort {sort}: no such column{suggest(sort, labels)}")
        rows.sort(key=lambda row: _key(row[columns[0]]))
    return replace(runs, rows=rows)


def _contains(row: Sequence[Content], text: str) -> bool:
    return any(text.lower() in text_of(cell).lower() for cell in row)


def _key(cell: Content) -> tuple[bool, float, str]:
    """Sorts numbers from the largest on, words alphabetically, and empty cells last."""
    value = value_of(cell)
    if isinstance(value, str):
        return (value == "", 0.0, value)
    if value is None:
        return (True, 0.0, "")
    return (False, -value, "")
