"""Tables as files: CSV with every number, Markdown, and LaTeX with booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..writing import ENDING, make_folder, write_atomically
from .charts import COLUMN, Format, picture
from .items import Chart, Item, Table

FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a text begins that a spreadsheet computes
LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\n": " "}
)


def write_items(
    items: Iterable[Item],
    folder: Path,
    figures: Sequence[Format] = (),
    methods: Sequence[str] = (),
    width: float = COLUMN,
) -> None:
    """Every table as CSV, Markdown and LaTeX, and every chart in these formats."""
    used: set[str] = set()
    make_folder(folder / "tables")
    for item in items:
        if isinstance(item, Table):
            name = _file_name(item.id, used)
            for ending, text in (
                ("csv", as_csv(item)),
                ("md", as_markdown(item)),
                ("tex", as_latex(item)),
            ):
                write_atomically(folder / "tables" / f"{name}.{ending}", text.encode())
        elif isinstance(item, Chart) and figures:
            make_folder(folder / "figures")
            name = _file_name(item.id, used)
            for format in figures:
                write_atomically(
                    folder / "figures" / f"{name}.{format}", picture(item, format, methods, width)
                )


def as_csv(table: Table) -> str:
    """The values of a table, not their wording; every number has its own column."""
    frame = table.frame.map(_inert)
    text: str = frame.rename(columns=_inert).to_csv(index=False, lineterminator="\n")
    return text


def _inert(value: object) -> object:
    """A value that no spreadsheet takes for a formula: members choose their names.

    >>> _inert("=1+1"), _inert(-1.5), _inert("north")
    ("'=1+1", -1.5, 'north')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


def as_markdown(table: Table) -> str:
    """A table for a README; rows that are marked are bold."""
    rows = [[text.replace("|", "\\|") for text in row] for row in table.texts()]
    for place in table.bold:
        rows[place] = [f"**{text}**" for text in rows[place]]
    rule = ["--:" if table.is_numeric(name) else ":--" for name in table.columns]
    head = [name.replace("|", "\\|") for name in table.columns]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
    return f"**{table.title}**\n\n{lines}\n\n{table.note}\n"


def as_latex(table: Table) -> str:
    """A table for a paper, whose author chooses the columns; rows that are marked are bold."""
    rows = [[text.translate(LATEX) for text in row] for row in table.texts()]
    for place in table.bold:
        rows[place] = [f"\\textbf{{{text}}}" for text in rows[place]]
    head, *lines = (
        " & ".join(row) + " \\\\"
        for row in ([name.translate(LATEX) for name in table.columns], *rows)
    )
    sides = "".join("r" if table.is_numeric(name) else "l" for name in table.columns)
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{table.title.translate(LATEX)}}}",
            f"\\label{{tab:{re.sub('[^A-Za-z0-9-]+', '-', table.id)}}}",
            f"\\begin{{tabular}}{{{sides}}}",
            *["\\toprule", head, "\\midrule", *lines, "\\bottomrule", "\\end{tabular}"],
            *(
                [f"\\par\\smallskip\n\\parbox{{\\linewidth}}{{{table.note.translate(LATEX)}}}"]
                if table.note
                else []
            ),
            "\\end{table}\n",
        ]
    )


def _file_name(text: str, used: set[str]) -> str:
    """A name that is valid on every file system and not used yet, whatever its case."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", text)[:80].strip("-.")
    name, number = plain, 1
    while name.lower() in used:
        number += 1
        name = f"{plain}-{number}"
    used.add(name.lower())
    return name


def older_files(page: Path) -> dict[Path, int]:
    """By folder, how many files beside a page are of an earlier report: the page is written first."""
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
