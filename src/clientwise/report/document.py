"""The building blocks of what the report and the live page show: a page need only render them.

A document has sections, a section has charts and tables. `as_json` turns a document into what `page/app.js` reads:

    document = {"title", "lead": [str], "sections": [section]}, an overview with "id", "subtitle", "state" ... as well
    section  = {"id", "title", "lead", "items": [chart | table]}, with "seed" where it shows only that one of several
    chart    = {"kind": "chart", "id", "title", "alt", "data": traces, "layout": partial layout}   (of plotly.js)
    table    = {"kind": "table", "id", "title", "columns": [{"label", "numeric", "lower"}], "rows": [[cell]], "note"},
               with "best": [[row, column]] where its rows are rivals
    cell     = text | number | None | {"value", "text", "open" or "href"}

`open` names an audit: {"round": {"method", "seed", "round", "run"}} or {"client": {"method", "seed", "client", "run"}}.
A trace whose points open audits has one such object per point as `customdata`, or says it once as `meta`: {"open":
"round" or "client", "method", "seed", "run"}, the number being the point's x, or for a heat map's rows and for bars in
`numbers`. A trace with `meta`: {"range": true} is a line's range over the seeds: pointing at the line shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Plotly = dict[str, Any]  # a trace or a layout, in the words of plotly.js


@dataclass(frozen=True, slots=True)
class AuditLink:
    """Opens the audit of a round or of a client."""

    kind: Literal["round", "client"]
    run: str  # its id
    method: str
    seed: int
    number: int  # of the round or client


@dataclass(frozen=True, slots=True)
class Cell:
    """A value to sort by, and how it reads."""

    value: float | str | None
    text: str
    opens: AuditLink | None = None
    href: str | None = None
    numbers: Mapping[str, float | str | None] = field(default_factory=dict)  # all that its text says, for a CSV


def client_cell(client: int, name: str | None, opens: AuditLink | None = None) -> Cell:
    """A client: its number, and its name where it has one."""
    return Cell(client, f"{client} {name}" if name else f"{client}", opens, numbers={"": client, "name": name})


Content = str | float | None | Cell  # of a cell; plain text and numbers need no `Cell`


def text_of(cell: Content) -> str:
    """A cell as it reads."""
    if isinstance(cell, Cell):
        return cell.text
    return "" if cell is None else str(cell)


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    label: str
    numeric: bool
    lower_is_better: bool = False
    name: str = ""  # in a CSV, where the label says more than what it is


@dataclass(frozen=True)
class Table:
    """A table with a note beneath it."""

    id: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Content]]
    note: str
    rivals: bool = False  # whether the rows compete, so that the best of a column is worth marking

    def best(self) -> set[tuple[int, int]]:
        """Row and column of the best values of rivals; nobody is best where all are alike."""
        found: set[tuple[int, int]] = set()
        for place, column in enumerate(self.columns if self.rivals else ()):
            cells = (row[place] for row in self.rows)
            values = [cell.value if isinstance(cell, Cell) else cell for cell in cells]
            known = {value for value in values if isinstance(value, int | float)}
            if column.numeric and len(known) > 1:
                top = min(known) if column.lower_is_better else max(known)
                found |= {(row, place) for row, value in enumerate(values) if value == top}
        return found


@dataclass(frozen=True)
class Chart:
    """A chart; `alt` says in words what it shows."""

    id: str
    title: str
    alt: str
    data: Sequence[Plotly]  # traces
    layout: Plotly


@dataclass(frozen=True)
class Section:
    """Charts and tables under a heading."""

    id: str
    title: str
    lead: str
    items: Sequence[Chart | Table]
    seed: int | None = None  # the one it shows, where it cannot show all


@dataclass(frozen=True)
class Document:
    """A page, or an audit. Those below `sections` are of overviews."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    id: str | None = None
    subtitle: str | None = None
    is_comparison: bool | None = None
    seeds: Sequence[int] | None = None
    state: str | None = None
    rounds: int | None = None


def table(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Content]],
    note: str,
    numeric: Sequence[bool] | None = None,
    lower: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    *,
    rivals: bool = False,
) -> Table:
    """A table; columns are numbers but for the first, unless `numeric` says otherwise; of `lower`, less is better.

    `names` are what a CSV calls columns that it calls otherwise than their label.
    """
    kinds, called = numeric or [False] + [True] * (len(columns) - 1), names or {}
    heads = [
        Column(label, kind, label in lower, called.get(label, label))
        for label, kind in zip(columns, kinds, strict=True)
    ]
    return Table(name, title, heads, rows, note, rivals)


def as_json(document: Document) -> dict[str, object]:
    """A document as the page reads it."""
    of_overviews = {
        "id": document.id,
        "subtitle": document.subtitle,
        "isComparison": document.is_comparison,
        "seeds": document.seeds,
        "state": document.state,
        "rounds": document.rounds,
    }
    sections = [_section(one) for one in document.sections]
    return {"title": document.title, "lead": list(document.lead), "sections": sections, **without_none(of_overviews)}


def _section(section: Section) -> dict[str, object]:
    items = [_item(item) for item in section.items]
    shown = {"id": section.id, "title": section.title, "lead": section.lead, "items": items}
    return {**shown, **without_none({"seed": section.seed})}


def _item(item: Chart | Table) -> dict[str, object]:
    if isinstance(item, Chart):
        shown: dict[str, object] = {"kind": "chart", "alt": item.alt, "data": list(item.data), "layout": item.layout}
    else:
        rows = [[_cell(cell) if isinstance(cell, Cell) else cell for cell in row] for row in item.rows]
        shown = {"kind": "table", "columns": [_column(one) for one in item.columns], "rows": rows, "note": item.note}
        shown |= {"best": sorted(item.best())} if item.rivals else {}
    return {"id": item.id, "title": item.title, **shown}


def _column(column: Column) -> dict[str, object]:
    head: dict[str, object] = {"label": column.label, "numeric": column.numeric}
    return {**head, "lower": True} if column.lower_is_better else head


def _cell(cell: Cell) -> dict[str, object]:
    shown: dict[str, object] = {"value": cell.value, "text": cell.text}
    if cell.opens is not None:
        to = cell.opens
        shown["open"] = {to.kind: {"method": to.method, "seed": to.seed, to.kind: to.number, "run": to.run}}
    if cell.href is not None:
        shown["href"] = cell.href
    return shown


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    """What is known of these."""
    return {key: value for key, value in values.items() if value is not None}


def percent_of(value: float | None) -> str:
    """A share as it reads; an error beyond all use is not spelt out.

    >>> percent_of(0.1234), percent_of(3.4e8), percent_of(None)
    ('12.3%', '> 999%', '–')
    """
    return "–" if value is None else "> 999%" if value > 9.99 else f"{value:.1%}"


def number(value: float | None, digits: int) -> str:
    """A number as it reads: with so many decimals, or more than three significant digits."""
    return "–" if value is None else f"{value:.{digits}g}" if digits > 3 else f"{value:.{digits}f}"


def in_bytes(size: float) -> str:
    """A size as it reads.

    >>> in_bytes(12_345_678)
    '12.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def in_time(seconds: float) -> str:
    """A span of time as it reads.

    >>> in_time(42.0), in_time(150.0), in_time(7_000_000.0)
    ('42 s', '2.5 min', '81 d')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s"


def counted(number: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
