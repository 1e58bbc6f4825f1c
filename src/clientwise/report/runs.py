"""The list of runs: which there are, and some of them in some order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import RunError
from ..registry import suggest
from ..runs.schema import DATABASE
from .document import Cell, Content, Table
from .export import unique_names
from .run_list import RUNS, run_row, runs_table


def find_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """All run folders by id: what was given, or what lies in it."""
    found: list[Path] = []
    for folder in folders:
        is_run = (folder / DATABASE).exists() or (folder / "config.toml").exists()
        inside = [] if is_run or not folder.is_dir() else sorted(folder.iterdir())
        for run in [folder] if is_run else inside:
            # A link that leads out of the folder is not followed: who wants that run can name it.
            if run.is_dir() and not run.name.startswith(".") and (is_run or not run.is_symlink()):
                found.append(run)
    return unique_names(found)


def list_runs(folders: Sequence[Path]) -> Table:
    """All runs, the newest first."""
    newest_first = sorted(find_runs(folders).items(), key=lambda item: item[1].stat().st_mtime, reverse=True)
    return runs_table([run_row(folder, name) for name, folder in newest_first])


def chosen(runs: Table, containing: str | None = None, sort: str | None = None) -> Table:
    """The runs with a word anywhere in their line; in the order of a column, which may be named by its beginning."""
    rows = [
        row for row in runs.rows if not containing or any(containing.lower() in _text(cell).lower() for cell in row)
    ]
    if sort is not None:
        columns = [place for place, name in enumerate(RUNS) if name.startswith(sort)]
        if len(columns) != 1:
            raise RunError(f"--sort {sort}: no such column{suggest(sort, RUNS)}")
        rows.sort(key=lambda row: _key(row[columns[0]]))
    return replace(runs, rows=rows)


def _text(cell: Content) -> str:
    return cell.text if isinstance(cell, Cell) else "" if cell is None else str(cell)


def _key(cell: Content) -> tuple[bool, float, str]:
    """Numbers by their size, the largest first; then words; then nothing."""
    value = cell.value if isinstance(cell, Cell) else cell
    if isinstance(value, str):
        return (not value, 0.0, value)
    return (value is None, -value if value is not None else 0.0, "")
