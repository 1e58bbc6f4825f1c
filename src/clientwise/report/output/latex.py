"""Tables for a paper, in LaTeX with booktabs; LaTeX breaks the lines of wide ones (tabularx).

A table that fits into one column of a two-column paper is a `table`, any other a `table*`, which is
as wide as the page. What is still too wide is set as several panels that name the same rows; what
is too long, as several tables. Both are decided by counting letters.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..document import Table, text_of

COLUMN_POINTS = 229.0  # of article in two columns; those of IEEE, ACM and ICML are wider
PAGE_POINTS = 345.0  # of article in one column; those of other classes are wider
GAP_POINTS = 3.0  # on either side of a column (\tabcolsep)
LETTER_POINTS = 4.4  # a letter of 8 points in the mean
PARAGRAPH = 22  # letters: a longer text is broken into lines
MOST_LINES = 52  # of a table on one page, without its caption
RULE_LINES = 3  # the rules of a panel and the space around it, in lines

Rows = Sequence[Sequence[str]]


def as_latex(table: Table) -> str:
    """A table with a short caption; its note stands beneath, and the best values are bold."""
    columns = _columns(table)
    panels = _panels(columns, _keys(table))
    is_broken = _points([max(one.longest, len(one.label)) for one in columns]) > COLUMN_POINTS
    fits_column = max(_points(_letters(panel)) for panel in panels) <= COLUMN_POINTS
    kind = "table" if fits_column else "table*"
    note = _latex(table.note)
    width = COLUMN_POINTS if fits_column else PAGE_POINTS
    beneath = len(textwrap.wrap(note, int(width / LETTER_POINTS)))
    parts = _parts(table.texts(_latex, "\\textbf{{{}}}".format), panels, MOST_LINES - beneath)
    floats = []
    for number, rows in enumerate(parts):
        is_last = number == len(parts) - 1
        title = _latex(table.title) + (" (continued)" if number else "")
        lines = [f"\\begin{{{kind}}}", "\\centering", f"\\caption{{{title}}}"]
        if number == 0:
            lines.append(f"\\label{{tab:{_label(table.id)}}}")
        lines += ["\\fontsize{8}{9.6}\\selectfont", f"\\setlength{{\\tabcolsep}}{{{GAP_POINTS}pt}}"]
        tabular = _broken if is_broken else _unbroken
        lines.append("\n\\par\\medskip\n".join(tabular(panel, rows) for panel in panels))
        if note and is_last:
            lines.append(f"\\par\\smallskip\n\\parbox{{\\linewidth}}{{{note}}}")
        floats.append("\n".join([*lines, f"\\end{{{kind}}}"]))
    packages = "booktabs,tabularx" if is_broken else "booktabs"
    return f"% \\usepackage{{{packages}}}\n" + "\n".join(floats) + "\n"


@dataclass(frozen=True)
class _Column:
    place: int  # in the table
    is_number: bool
    label: str
    longest: int  # letters of its longest cell
    letters: int  # of its width, where LaTeX breaks texts into lines


def _columns(table: Table) -> list[_Column]:
    found = []
    for place, column in enumerate(table.columns):
        longest = max((_size(text_of(row[place])) for row in table.rows), default=0)
        word = max(map(_size, column.label.split()), default=1)
        letters = max(word, min(longest, PARAGRAPH))
        found.append(_Column(place, column.numeric, column.label, longest, letters))
    return found


def _size(text: str) -> int:
    """The width of a text in letters: some are half as wide again as the mean.

    >>> _size("Recommended"), _size("client")
    (13, 6)
    """
    wide = sum(letter in "mwMW%@" for letter in text)
    capitals = sum(letter.isupper() for letter in text)
    return math.ceil(len(text) + 0.6 * wide + 0.4 * capitals)


def _keys(table: Table) -> int:
    """How many of the first columns name a row: one, or two where the first repeats itself."""
    names = [text_of(row[0]) for row in table.rows]
    return 1 if len({*names}) == len(names) else min(2, len(table.columns))


def _panels(columns: Sequence[_Column], keys: int) -> list[list[_Column]]:
    """The columns in groups that fit on a page, each with those that name the row."""
    panels = [[*columns[:keys]]]
    for column in columns[keys:]:
        is_full = _points(_letters([*panels[-1], column])) > PAGE_POINTS
        if is_full and len(panels[-1]) > keys:
            panels.append([*columns[:keys]])
        panels[-1].append(column)
    return [_widened(panel) for panel in panels]


def _widened(panel: Sequence[_Column]) -> list[_Column]:
    """Paragraphs share the space that the other columns leave."""
    paragraphs = [column for column in panel if column.longest > PARAGRAPH]
    if not paragraphs:
        return [*panel]
    spare = (PAGE_POINTS - _points(_letters(panel))) / LETTER_POINTS
    more = max(0, int(spare / len(paragraphs)))
    return [
        replace(column, letters=column.letters + more) if column in paragraphs else column
        for column in panel
    ]


def _letters(panel: Sequence[_Column]) -> list[int]:
    return [column.letters for column in panel]


def _points(letters: Sequence[int]) -> float:
    return sum(LETTER_POINTS * count + 2 * GAP_POINTS for count in letters)


def _parts(rows: Rows, panels: Sequence[Sequence[_Column]], lines_left: int) -> list[Rows]:
    """The rows in groups, each a table that fits on a page."""
    for panel in panels:
        lines_left -= _height([column.label for column in panel], panel) + RULE_LINES
    most = max(1, lines_left // len(panels))
    parts: list[list[Sequence[str]]] = [[]]
    lines = 0
    for row in rows:
        height = max(_height([row[one.place] for one in panel], panel) for panel in panels)
        if lines + height > most and parts[-1]:
            parts.append([])
            lines = 0
        parts[-1].append(row)
        lines += height
    return [*parts]


def _height(texts: Sequence[str], panel: Sequence[_Column]) -> int:
    """The lines of a row."""
    pairs = zip(texts, panel, strict=True)
    return max(len(textwrap.wrap(text, column.letters)) for text, column in pairs)


def _unbroken(panel: Sequence[_Column], rows: Rows) -> str:
    """Columns as wide as LaTeX finds their texts."""
    kinds = "".join("r" if column.is_number else "l" for column in panel)
    body = _body(panel, rows)
    return f"\\begin{{tabular}}{{{kinds}}}\n{body}\n\\end{{tabular}}"


def _broken(panel: Sequence[_Column], rows: Rows) -> str:
    """Columns that share the width of the line by their letters."""
    letters = sum(column.letters + 1 for column in panel)
    kinds = []
    for column in panel:
        part = len(panel) * (column.letters + 1) / letters
        side = "raggedleft" if column.is_number else "raggedright"
        kinds.append(f">{{\\hsize={part:.3f}\\hsize\\{side}}}X")
    start = f"\\begin{{tabularx}}{{\\linewidth}}{{{''.join(kinds)}}}"
    return f"{start}\n{_body(panel, rows)}\n\\end{{tabularx}}"


def _body(panel: Sequence[_Column], rows: Rows) -> str:
    lines = [[_latex(column.label) for column in panel]]
    lines += [[_breakable(row[column.place]) for column in panel] for row in rows]
    head, *body = [f"  {' & '.join(cells)} \\tabularnewline" for cells in lines]
    return "\n".join(["  \\toprule", head, "  \\midrule", *body, "  \\bottomrule"])


def _breakable(cell: str) -> str:
    """A cell in which LaTeX may break long words: a path, say."""
    if max(map(len, cell.split()), default=0) <= PARAGRAPH:
        return cell
    return re.sub(r"(\\_|[/.,=:-])(?=[^\s])", r"\1\\allowbreak{}", cell)


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")


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
