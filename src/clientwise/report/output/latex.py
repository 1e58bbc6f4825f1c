"""Tables for a paper, in LaTeX that needs no package but booktabs.

A table that fits into one column of a two-column paper is a `table`, any other a `table*`, which is
as wide as the page. Headings are broken into lines, long texts into paragraphs. What is still too
wide is set as several panels that name the same rows; what is too long, as several tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..document import Column, Table, text_of

COLUMN_POINTS = 229.0  # of article in two columns; those of IEEE, ACM and ICML are wider
PAGE_POINTS = 345.0  # of article in one column; those of other classes are wider
GAP_POINTS = 3.0  # on either side of a column (\tabcolsep)
PARAGRAPH_POINTS = 110.0  # a wider text becomes a paragraph
MOST_LINES = 52  # of a table on one page, without its caption
RULE_LINES = 3  # the rules of a panel and the space around it, in lines
BOLD = 1.17  # bold letters are so much wider

# Widths of letters in points, in Computer Modern of 8 points, rounded up.
_WIDTHS = {
    2.5: "ijlI.,:;'|![]",
    3.5: "frstcez()-/ ",
    6.7: "+±−<>=×≥≤→ABCDEFGHJKLNOPQRSTUVXYZ",
    8.8: "mwMW%@&…",
}
_POINTS = {letter: points for points, letters in _WIDTHS.items() for letter in letters}
_OTHER_POINTS = 4.8

Rows = Sequence[Sequence[str]]


def as_latex(table: Table) -> str:
    """A table with a short caption; its note stands beneath, and the best values are bold."""
    panels = _panels(_columns(table), _keys(table))
    fits_column = max(map(_width, panels)) <= COLUMN_POINTS
    kind = "table" if fits_column else "table*"
    note = _latex(table.note)
    width = COLUMN_POINTS if fits_column else PAGE_POINTS
    beneath = len(_wrapped(note, width)) if note else 0
    parts = _parts(_cells(table), panels, MOST_LINES - beneath)
    floats = []
    for number, rows in enumerate(parts):
        is_last = number == len(parts) - 1
        title = _latex(table.title) + (" (continued)" if number else "")
        lines = [f"\\begin{{{kind}}}", "\\centering", f"\\caption{{{title}}}"]
        if number == 0:
            lines.append(f"\\label{{tab:{_label(table.id)}}}")
        lines += ["\\fontsize{8}{9.6}\\selectfont", f"\\setlength{{\\tabcolsep}}{{{GAP_POINTS}pt}}"]
        lines.append("\n\\par\\medskip\n".join(_tabular(panel, rows) for panel in panels))
        if note and is_last:
            lines.append(f"\\par\\smallskip\n\\parbox{{\\linewidth}}{{{note}}}")
        floats.append("\n".join([*lines, f"\\end{{{kind}}}"]))
    return "% \\usepackage{booktabs}\n" + "\n".join(floats) + "\n"


@dataclass(frozen=True)
class _PanelColumn:
    index: int  # in the table
    side: str  # "l" or "r"
    heading: Sequence[str]  # line by line
    points: float
    is_paragraph: bool

    @property
    def kind(self) -> str:
        if self.is_paragraph:
            return f"p{{{self.points:.0f}pt}}"
        return self.side


def _columns(table: Table) -> list[_PanelColumn]:
    best = table.best()
    found = []
    for index, column in enumerate(table.columns):
        widths = []
        for row, cells in enumerate(table.rows):
            factor = BOLD if (row, index) in best else 1.0
            widths.append(factor * _points(text_of(cells[index])))
        found.append(_column(index, column, max(widths, default=0.0)))
    return found


def _column(index: int, column: Column, widest: float) -> _PanelColumn:
    side = "r" if column.numeric else "l"
    longest_word = max(map(_points, column.label.split()), default=0.0)
    is_paragraph = widest > PARAGRAPH_POINTS
    if is_paragraph:
        widest = PARAGRAPH_POINTS
    heading = _wrapped(column.label, max(widest, longest_word))
    points = max(widest, *map(_points, heading), 0.0)
    return _PanelColumn(index, side, heading, points, is_paragraph)


def _wrapped(text: str, points: float) -> list[str]:
    """A text in lines that are at most so wide, or one word."""
    lines: list[str] = []
    for word in text.split():
        if lines and _points(f"{lines[-1]} {word}") <= points:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _keys(table: Table) -> int:
    """How many of the first columns name a row: one, or two where the first repeats itself."""
    names = [text_of(row[0]) for row in table.rows]
    return 1 if len({*names}) == len(names) else min(2, len(table.columns))


def _panels(columns: Sequence[_PanelColumn], keys: int) -> list[list[_PanelColumn]]:
    """The columns in groups that fit on a page, each with those that name the row."""
    panels = [[*columns[:keys]]]
    for column in columns[keys:]:
        if _width([*panels[-1], column]) > PAGE_POINTS and len(panels[-1]) > keys:
            panels.append([*columns[:keys]])
        panels[-1].append(column)
    return [_widened(panel) for panel in panels]


def _widened(panel: Sequence[_PanelColumn]) -> list[_PanelColumn]:
    """Paragraphs share the space that the other columns leave."""
    paragraphs = sum(column.is_paragraph for column in panel)
    if not paragraphs:
        return [*panel]
    spare = (PAGE_POINTS - _width(panel)) / paragraphs
    return [
        replace(column, points=column.points + spare) if column.is_paragraph else column
        for column in panel
    ]


def _width(panel: Sequence[_PanelColumn]) -> float:
    return sum(column.points + 2 * GAP_POINTS for column in panel)


def _parts(rows: Rows, panels: Sequence[Sequence[_PanelColumn]], lines_left: int) -> list[Rows]:
    """The rows in groups, each a table that fits on a page."""
    for panel in panels:
        lines_left -= max(len(column.heading) for column in panel) + RULE_LINES
    most = max(1, lines_left // len(panels))
    parts: list[list[Sequence[str]]] = [[]]
    lines = 0
    for row in rows:
        height = max(_height(row, panel) for panel in panels)
        if lines + height > most and parts[-1]:
            parts.append([])
            lines = 0
        parts[-1].append(row)
        lines += height
    return [*parts]


def _height(row: Sequence[str], panel: Sequence[_PanelColumn]) -> int:
    """The lines of a row."""
    return max(
        len(_wrapped(row[column.index], column.points)) if column.is_paragraph else 1
        for column in panel
    )


def _tabular(panel: Sequence[_PanelColumn], rows: Rows) -> str:
    kinds = "".join(column.kind for column in panel)
    head = " & ".join(_heading(column) for column in panel)
    body = [" & ".join(_in_column(row[column.index], column) for column in panel) for row in rows]
    lines = [f"\\begin{{tabular}}{{{kinds}}}", "  \\toprule", f"  {head} \\\\", "  \\midrule"]
    lines += [f"  {line} \\tabularnewline" for line in body]
    return "\n".join([*lines, "  \\bottomrule", "\\end{tabular}"])


def _in_column(cell: str, column: _PanelColumn) -> str:
    if not column.is_paragraph or not cell:
        return cell
    if max(map(_points, cell.split())) > column.points:  # a path, say
        cell = re.sub(r"(\\_|[/.,=:-])(?=[^\s])", r"\1\\allowbreak{}", cell)
    return f"\\raggedright {cell}"


def _heading(column: _PanelColumn) -> str:
    lines = [_latex(line) for line in column.heading]
    if len(lines) == 1:
        return lines[0]
    stacked = " \\\\ ".join(lines)
    return f"\\shortstack[{column.side}]{{{stacked}}}"


def _cells(table: Table) -> list[list[str]]:
    best = table.best()
    rows = []
    for row, contents in enumerate(table.rows):
        cells = [_latex(text_of(content)) for content in contents]
        for index in range(len(cells)):
            if (row, index) in best:
                cells[index] = f"\\textbf{{{cells[index]}}}"
        rows.append(cells)
    return rows


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")


def _points(text: str) -> float:
    """The estimated width of a text."""
    return sum(_POINTS.get(letter, _OTHER_POINTS) for letter in text)


_GREEK = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "δ": "delta",
    "ε": "epsilon",
    "κ": "kappa",
    "λ": "lambda",
    "μ": "mu",
    "σ": "sigma",
    "Δ": "Delta",
    "Θ": "Theta",
    "Σ": "Sigma",
}
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
        "≻": r"$\succ$",
        "<": r"$<$",
        ">": r"$>$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "→": r"$\to$",
        "√": r"$\surd$",
        "²": "$^2$",
        "³": "$^3$",
        "…": r"\dots{}",
        "†": r"\dag{}",
        "‡": r"\ddag{}",
        **{letter: f"$\\{name}$" for letter, name in _GREEK.items()},
    }
)


def _latex(text: str) -> str:
    """Text for LaTeX; the sign of a number is a minus, > between criteria an order of priority.

    >>> _latex("-0.4 ± 1.6")
    '$-$0.4 $\\\\pm$ 1.6'
    >>> _latex("seeds 1–3, z > 0, MW > LD")
    'seeds 1--3, z $>$ 0, MW $\\\\succ$ LD'
    >>> _latex("[95% interval]")
    '{[}95\\\\% interval]'
    """
    text = re.sub(r"(?<!\w)-(?=\d)", "−", text)
    text = re.sub(r"(?<=\w )>(?= [^\W\d])", "≻", text)
    # After a line break, LaTeX takes a bracket or an asterisk for an argument of the break.
    return re.sub(r"^[\[*]", r"{\g<0>}", text.translate(_LATEX))
