"""A report on disk: one HTML file, every figure as PNG and SVG, every table as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..runs.files import make_way, naming
from ..runs.folder import RunFolder
from .document import Cell, Chart, Content, Document, Table
from .figures import draw
from .html import write_html
from .views import audit_client, audit_round, one_seed, overview

MAX_AUDITED_ROUNDS = 40  # per method and seed, in the file; `clientwise serve` has all of them
MAX_AUDITED_CLIENTS = 100
MAX_CARRIED_SEEDS = 20


def write_report(runs: Sequence[RunFolder], folder: Path, on_file: Callable[[Path], None] = lambda path: None) -> Path:
    """Write the report on one run, or several compared, and return the path of its page."""
    document = overview(runs)
    seeds = {str(seed): one_seed(runs, seed) for seed in (document.seeds or ())[1:MAX_CARRIED_SEEDS]}
    page = write_html(document, {**audits(runs), "seed": seeds}, folder / "report.html")
    on_file(page)
    write_items(document, folder, on_file)
    return page


def write_items(document: Document, folder: Path, on_file: Callable[[Path], None]) -> None:
    """Every figure as PNG and SVG, every table as CSV, Markdown and LaTeX."""
    for kind in ("figures", "tables"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    used: set[str] = set()
    for section in document.sections:
        for item in section.items:
            name = _file_name(f"{section.id}-{item.id}", used)
            if isinstance(item, Chart):
                draw([item], *(folder / "figures" / f"{name}.{suffix}" for suffix in ("png", "svg")))
            else:
                for suffix, write in (("csv", as_csv), ("md", as_markdown), ("tex", as_latex)):
                    path = folder / "tables" / f"{name}.{suffix}"
                    with naming(path):
                        make_way(path).write_text(write(item), encoding="utf-8")
            on_file(folder / name)


def unique_names(folders: Sequence[Path]) -> dict[str, Path]:
    """What to call run folders: by their names, numbered where two have the same."""
    names: dict[str, Path] = {}
    for folder in folders:
        plain, number = os.fsencode(folder.resolve().name).decode(errors="replace"), 2
        name = plain
        while name in names:
            name, number = f"{plain}~{number}", number + 1
        names[name] = folder
    return names


def audits(runs: Sequence[RunFolder]) -> dict[str, dict[str, Document]]:
    """The audits a page carries with it: evenly spaced rounds and the last, and every client, of every lane."""
    found: dict[str, dict[str, Document]] = {"round": {}, "client": {}}
    for run in runs:
        prefix = f"{run.id}|" if len(runs) > 1 else ""
        for _, method, seed in run.lanes:
            rounds = run.round_nums(method, seed)
            step = -(-len(rounds) // MAX_AUDITED_ROUNDS) or 1
            for round_num in sorted({*rounds[::step], *rounds[-1:]}):
                found["round"][f"{prefix}{method}|{seed}|{round_num}"] = audit_round(run, method, seed, round_num)
            for client in (row.client for row in run.clients(seed, MAX_AUDITED_CLIENTS)):
                found["client"][f"{prefix}{method}|{seed}|{client}"] = audit_client(run, method, seed, client)
    return found


def as_csv(table: Table) -> str:
    """Values, not their wording, for other programs: every number in a column of its own."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    parts = [list(dict.fromkeys(part for cell in column for part in _numbers(cell))) for column in columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        f"{head.name or head.label} {part}" if part else head.name or head.label
        for head, own in zip(table.columns, parts, strict=True)
        for part in own or [""]
    )
    for row in table.rows:
        writer.writerow(
            _numbers(cell).get(part) if own else cell.value if isinstance(cell, Cell) else cell
            for cell, own in zip(row, parts, strict=True)
            for part in own or [""]
        )
    return out.getvalue()


def _numbers(cell: Content) -> Mapping[str, float | str | None]:
    return cell.numbers if isinstance(cell, Cell) else {}


def as_markdown(table: Table) -> str:
    """A table for a README."""
    columns = table.columns
    lines = [[column.label for column in columns], ["--:" if column.numeric else ":--" for column in columns]]
    lines += list(_texts(table))
    rows = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"**{table.title}**\n\n{rows}\n\n{table.note}\n"


def as_latex(table: Table) -> str:
    """A booktabs table for a paper, as P1 prints its tables; the best of rivals is bold."""
    kinds = "".join("r" if column.numeric else "l" for column in table.columns)
    head = " & ".join(_latex(column.label) for column in table.columns)
    best = table.best()
    lines = (
        [f"\\textbf{{{_latex(text)}}}" if (row, place) in best else _latex(text) for place, text in enumerate(line)]
        for row, line in enumerate(_texts(table))
    )
    body = "\n".join(f"  {' & '.join(line)} \\\\" for line in lines)
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{table}}\n\\caption{{{_latex(table.title)}. {_latex(table.note)}}}\n"
        f"\\label{{tab:{_file_name(table.id, set())}}}\n"
        f"\\begin{{tabular}}{{{kinds}}}\n"
        f"  \\toprule\n  {head} \\\\\n  \\midrule\n{body}\n  \\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _texts(table: Table) -> Iterator[list[str]]:
    for row in table.rows:
        yield [cell.text if isinstance(cell, Cell) else "" if cell is None else str(cell) for cell in row]


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "–": "--",
        "−": "$-$",
        "“": "``",
        "”": "''",
        "κ": r"$\kappa$",
        ">": r"$\succ$",
        "<": r"$<$",
    }
)


def _latex(text: str) -> str:
    """Text as LaTeX reads it; a minus is a minus, not a hyphen.

    >>> _latex("-0.4 ± 1.6")
    '$-$0.4 $\\\\pm$ 1.6'
    >>> _latex("seeds 1–3")
    'seeds 1--3'
    """
    return re.sub(r"(?<!\w)-(?=\d)", "−", text).translate(_LATEX)


def _file_name(text: str, used: set[str]) -> str:
    """A name that every file system takes, and that no other item of this report has."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:80].strip("-.")
    name, number = plain, 2
    while name.lower() in used:
        name, number = f"{plain}-{number}", number + 1
    used.add(name.lower())
    return name
