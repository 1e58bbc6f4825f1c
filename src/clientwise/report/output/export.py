"""A report on disk: an HTML page, tables (CSV, Markdown, LaTeX), and figures (PDF, PNG, SVG) if asked for."""

from __future__ import annotations

import csv
import gc
import io
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ...record.database import reading
from ...record.run import RunFolder
from ...writing import ENDING, make_folder, write_atomically
from ..document import (
    Cell,
    Chart,
    Content,
    Document,
    Table,
    value_of,
)
from ..sections.refusals import MAX_REFUSALS
from ..views import (
    audit_client,
    audit_round,
    one_seed,
    overview,
)
from .figures import draw, require_matplotlib
from .html import write_html
from .latex import as_latex
from .paper import COLUMN, draw_for_print

MAX_AUDITED_CLIENTS = 100
MAX_CARRIED_SEEDS = 20
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a text begins that a spreadsheet computes

Format = Literal["pdf", "png", "svg"]
FORMATS: tuple[Format, ...] = ("pdf", "png", "svg")  # of figures
OnFigure = Callable[[int, int], None]  # called before a figure is drawn: its number, how many


def write_report(
    runs: Sequence[RunFolder],
    folder: Path,
    on_figure: OnFigure = lambda number, total: None,
    width: float = COLUMN,
    figures: Collection[Format] = (),
) -> Path:
    """Write the report on one run, or several compared, and return the path of its page.

    Args:
        runs: at least one.
        folder: the folder of the report.
        on_figure: called before each figure with its number and how many there are.
        width: of PDF figures, in inches.
        figures: the formats in which figures are drawn. Drawing takes longer than all the rest.
    """
    if figures:
        require_matplotlib()
    with _without_garbage_collection():
        document, carried = _read(runs)
        page = write_html(document, carried, folder / "report.html")
    write_items(document, folder, on_figure, width, figures)
    return page


def _read(runs: Sequence[RunFolder]) -> tuple[Document, dict[str, dict[str, Document]]]:
    """The page, and what it carries. Every database is opened once."""
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(reading(run.folder))
        document = overview(runs)
        seeds = (document.seeds or ())[:MAX_CARRIED_SEEDS]
        carried = audits(runs)
        carried["seed"] = {str(seed): one_seed(runs, seed) for seed in seeds[1:]}
    return replace(document, seeds=seeds), carried


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A page has a million objects and no cycles: to look for some takes a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def write_items(
    document: Document,
    folder: Path,
    on_figure: OnFigure = lambda number, total: None,
    width: float = COLUMN,
    figures: Collection[Format] = (),
) -> None:
    """Every table as CSV, Markdown and LaTeX, and every figure in these formats."""
    make_folder(folder / "tables")
    if figures:
        make_folder(folder / "figures")
    used: set[str] = set()
    items = [(section.id, item) for section in document.sections for item in section.items]
    total = sum(isinstance(item, Chart) for _, item in items)
    number = 0
    for section_id, item in items:
        name = _file_name(f"{section_id}-{item.id}", used)
        if isinstance(item, Table):
            _write_table(item, folder / "tables", name)
        elif figures:
            number += 1
            on_figure(number, total)
            _write_figure(item, folder / "figures" / name, figures, width)


def _write_figure(chart: Chart, stem: Path, figures: Collection[Format], width: float) -> None:
    paths = {format: stem.with_name(f"{stem.name}.{format}") for format in figures}
    if "pdf" in paths:
        draw_for_print(chart, paths.pop("pdf"), width)
    if paths:
        draw([chart], *paths.values())


def _write_table(table: Table, folder: Path, name: str) -> None:
    texts = {"csv": as_csv(table), "md": as_markdown(table), "tex": as_latex(table)}
    for suffix, text in texts.items():
        write_atomically(folder / f"{name}.{suffix}", text.encode())


def older_files(page: Path) -> dict[Path, int]:
    """By folder, how many files beside a page are of an earlier report: a page is written first."""
    written = page.stat().st_mtime_ns
    found = {}
    for name in ("tables", "figures"):
        folder = page.with_name(name)
        # Another process may be writing this report as well
        whole = (path for path in folder.glob("*") if path.suffix != ENDING)
        older = [path for path in whole if path.lstat().st_mtime_ns < written]
        if older:
            found[folder] = len(older)
    return found


def unique_names(folders: Sequence[Path]) -> dict[str, Path]:
    """RunFolder folders by name; equal names are numbered."""
    names: dict[str, Path] = {}
    for folder in folders:
        plain = os.fsencode(folder.resolve().name).decode(errors="replace")
        name = plain
        number = 1
        while name in names:
            number += 1
            name = f"{plain}~{number}"
        names[name] = folder
    return names


def audits(runs: Sequence[RunFolder]) -> dict[str, dict[str, Document]]:
    """The audits that a page contains: of each lane the last round, rounds with refusals, and clients."""
    found: dict[str, dict[str, Document]] = {"round": {}, "client": {}}
    for run in runs:
        prefix = f"{run.id}|" if len(runs) > 1 else ""
        refused = _rounds_of_refusals(run)
        for _, method, seed in run.lanes:
            lane = f"{prefix}{method}|{seed}"
            last = run.last_round(method, seed)
            for number in sorted({*refused[method, seed], *([] if last is None else [last])}):
                found["round"][f"{lane}|{number}"] = audit_round(run, method, seed, number)
            for row in run.clients(seed, MAX_AUDITED_CLIENTS):
                audit = audit_client(run, method, seed, row.client)
                found["client"][f"{lane}|{row.client}"] = audit
    return found


def _rounds_of_refusals(run: RunFolder) -> dict[tuple[str, int], set[int]]:
    """By method and seed, the rounds that the table of refusals opens."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for method in run.methods:
        for row in run.refusals(method, MAX_REFUSALS):
            found[method, row.seed].add(row.first_round)
    return found


def as_csv(table: Table) -> str:
    """The values of a table, not their wording; every number has its own column."""
    parts = [_parts_of(table, index) for index in range(len(table.columns))]
    head: list[str] = []
    for column, own in zip(table.columns, parts, strict=True):
        name = column.name or column.label
        head += [f"{name} {part}".rstrip() for part in own] or [name]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_inert, head))
    for row in table.rows:
        values: list[float | str | None] = []
        for cell, own in zip(row, parts, strict=True):
            values += [_numbers(cell).get(part) for part in own] or [value_of(cell)]
        writer.writerow(map(_inert, values))
    return out.getvalue()


def _inert(value: float | str | None) -> float | str | None:
    """A value that no spreadsheet takes for a formula: members choose their names.

    >>> _inert("=1+1"), _inert(-1.5), _inert("north")
    ("'=1+1", -1.5, 'north')
    """
    is_formula = isinstance(value, str) and value.startswith(FORMULAS)
    return f"'{value}" if is_formula else value


def _parts_of(table: Table, index: int) -> list[str]:
    """The names of the numbers in the cells of a column; none where a cell is one value."""
    names: dict[str, None] = {}
    for row in table.rows:
        names |= dict.fromkeys(_numbers(row[index]))
    return list(names)


def _numbers(cell: Content) -> Mapping[str, float | str | None]:
    return cell.numbers if isinstance(cell, Cell) else {}


def as_markdown(table: Table) -> str:
    """A table for a README; the best values are bold."""
    head = [_in_markdown(column.label) for column in table.columns]
    rule = ["--:" if column.numeric else ":--" for column in table.columns]
    rows = [head, rule, *table.texts(_in_markdown, "**{}**".format)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"**{table.title}**\n\n{lines}\n\n{table.note}\n"


def _in_markdown(text: str) -> str:
    return text.replace("|", "\\|")


def _file_name(text: str, used: set[str]) -> str:
    """A name that is valid on every file system and not used yet, whatever its case."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:80].strip("-.")
    name = plain
    number = 1
    while name.lower() in used:
        number += 1
        name = f"{plain}-{number}"
    used.add(name.lower())
    return name
