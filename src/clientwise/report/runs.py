"""The list of runs, filtered and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import RunError
from ..record.reading.config_view import CONFIG
from ..record.schema import DATABASE
from ..registry import suggest
from .document import (
    Cell,
    Content,
    Table,
    text_of,
)
from .output.export import unique_names
from .run_list import RUNS, run_row, runs_table


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
    return runs_table([run_row(named[name], name) for name in newest_first])


def chosen(runs: Table, containing: str | None = None, sort: str | None = None) -> Table:
    """The runs whose line contains a text, sorted by a column; the start of its name is enough."""
    rows = [row for row in runs.rows if _contains(row, containing or "")]
    if sort is not None:
        columns = [index for index, name in enumerate(RUNS) if name.startswith(sort)]
        if len(columns) != 1:
            raise RunError(f"--sort {sort}: no such column{suggest(sort, RUNS)}")
        rows.sort(key=lambda row: _key(row[columns[0]]))
    return replace(runs, rows=rows)


def _contains(row: Sequence[Content], text: str) -> bool:
    return any(text.lower() in text_of(cell).lower() for cell in row)


def _key(cell: Content) -> tuple[bool, float, str]:
    """Sorts numbers from the largest on, words alphabetically, and empty cells last."""
    value = cell.value if isinstance(cell, Cell) else cell
    if isinstance(value, str):
        return (value == "", 0.0, value)
    if value is None:
        return (True, 0.0, "")
    return (False, -value, "")
