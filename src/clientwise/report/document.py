"""The building blocks of reports: documents of sections, charts and tables.

`output/` renders them: `page_json.py` for the page, `export.py` as files, `terminal.py` for the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from .marks import Mark


class AuditLink(NamedTuple):
    """Opens the audit of a round or of a client."""

    kind: Literal["round", "client"]
    run: str  # its id
    method: str
    seed: int
    number: int  # of the round or client


class Cell(NamedTuple):
    """A value to sort by, and its text. A report has 100,000: a tuple is made in half the time of a dataclass."""

    value: float | str | None
    text: str
    opens: AuditLink | None = None
    numbers: Mapping[str, float | str | None] = MappingProxyType({})  # its columns in a CSV


Content = str | float | None | Cell  # of a cell; plain text and numbers need no `Cell`


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column, for all outputs: its head, and what it says about a row."""

    label: str
    content: Callable[[Row], Content] = field(compare=False, repr=False)
    numeric: bool = True
    lower_is_better: bool = False
    name: str = ""  # in a CSV, where the label says more than what it is
    marks_best: bool = False  # whether its best values are shown in bold
    is_secondary: bool = False  # left out of a terminal that has no room for all columns


@dataclass(frozen=True)
class Table:
    """A table with a note beneath it."""

    id: str
    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Sequence[Content]]
    note: str
    never_best: frozenset[int] = frozenset()  # rows that do not compete for the best value

    def best(self) -> set[tuple[int, int]]:
        """Row and column of the best values where they are marked; none where all are equal."""
        found: set[tuple[int, int]] = set()
        rivals = [row for row in range(len(self.rows)) if row not in self.never_best]
        for index, column in enumerate(self.columns):
            values = {row: value_of(self.rows[row][index]) for row in rivals}
            known = {value for value in values.values() if isinstance(value, int | float)}
            if column.marks_best and len(known) > 1:
                best = min(known) if column.lower_is_better else max(known)
                found |= {(row, index) for row, value in values.items() if value == best}
        return found

    def texts(
        self,
        escape: Callable[[str], str] = str,
        bold: Callable[[str], str] = str,
    ) -> list[list[str]]:
        """What people read, row by row: escaped, and the best values in bold."""
        shown = [[escape(text_of(content)) for content in row] for row in self.rows]
        for row, column in self.best():
            shown[row][column] = bold(shown[row][column])
        return shown


@dataclass(frozen=True)
class Chart:
    """A chart; `alt` says in words what it shows."""

    id: str
    title: str
    alt: str
    mark: Mark


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
    """A page, or an audit. What follows `sections` is for overviews."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    subtitle: str | None = None
    is_comparison: bool | None = None
    seeds: Sequence[int] | None = None
    state: str | None = None
    rounds: int | None = None
    data: str | None = None  # one line about it
    curve: Chart | None = None  # a small one for the head of the page


def tabulate(
    name: str,
    title: str,
    columns: Sequence[Column[Row]],
    items: Sequence[Row],
    note: str,
    never_best: Collection[int] = (),
) -> Table:
    """A table with a row for each item.

    Args:
        name: the table's id.
        title: its heading.
        columns: what is said about each item.
        items: what the rows are about.
        note: what stands beneath it.
        never_best: rows that are not shown in bold and do not prevent others from it.
    """
    rows = [[column.content(item) for column in columns] for item in items]
    return Table(name, title, columns, rows, note, frozenset(never_best))


def table(
    name: str,
    title: str,
    labels: Sequence[str],
    rows: Sequence[Sequence[Content]],
    note: str,
    numeric: Sequence[bool] | None = None,
    lower: Sequence[str] = (),
    marked: Sequence[str] = (),
) -> Table:
    """A table of given rows, by the labels of its columns.

    Args:
        name: the table's id.
        title: its heading.
        labels: of the columns.
        rows: one content per column.
        note: what stands beneath it.
        numeric: which columns are numbers; all but the first by default.
        lower: columns in which less is better.
        marked: columns whose best values are shown in bold.
    """
    if numeric is None:
        numeric = [False] + [True] * (len(labels) - 1)
    columns: list[Column[Sequence[Content]]] = []
    for place, (label, is_number) in enumerate(zip(labels, numeric, strict=True)):
        is_lower = label in lower
        is_marked = label in marked
        columns.append(Column(label, itemgetter(place), is_number, is_lower, marks_best=is_marked))
    return tabulate(name, title, columns, rows, note)


def client_cell(client: int, name: str | None, opens: AuditLink | None = None) -> Cell:
    """A client: its number, and its name where it has one."""
    text = f"{client} {name}" if name else f"{client}"
    return Cell(client, text, opens, numbers={"": client, "name": name})


def percent_cell(value: float | None) -> Cell:
    """A fraction, shown in percent."""
    return Cell(value, percent_of(value))


def number_cell(value: float | None, digits: int) -> Cell:
    """A number, shown as `number` does."""
    return Cell(value, number(value, digits))


def value_of(content: Content) -> float | str | None:
    """What a cell is sorted by."""
    return content.value if isinstance(content, Cell) else content


def text_of(content: Content) -> str:
    """What a cell shows; nothing for None."""
    if isinstance(content, Cell):
        return content.text
    return "" if content is None else str(content)


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    """The items whose value is not None."""
    return {key: value for key, value in values.items() if value is not None}


def percent_of(value: float | None) -> str:
    """A fraction in percent; an error beyond all use is not spelt out.

    >>> percent_of(0.1234), percent_of(3.4e8), percent_of(None)
    ('12.3%', '> 999%', '–')
    """
    if value is None:
        return "–"
    return "> 999%" if value > 9.99 else f"{value:.1%}"


def number(value: float | None, digits: int) -> str:
    """A number with that many decimals; with more than three, that many significant digits.

    >>> number(0.12345, 3), number(0.12345, 4), number(None, 1)
    ('0.123', '0.1235', '–')
    """
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if digits > 3 else f"{value:.{digits}f}"


def value_text(value: float, percent: bool) -> str:
    """A value of a curve.

    >>> value_text(0.5, True), value_text(0.5, False), value_text(3.4e8, False)
    ('50.0%', '0.500', '3.4e+08')
    """
    if percent:
        return percent_of(value)
    return f"{value:.3f}" if abs(value) < 1e5 else f"{value:.2g}"


def in_bytes(size: float) -> str:
    """A number of bytes.

    >>> in_bytes(12_345_678)
    '12.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def in_time(seconds: float) -> str:
    """A duration.

    >>> in_time(42.0), in_time(150.0), in_time(7_000_000.0)
    ('42 s', '2.5 min', '81 d')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 10 * size:
            return f"{seconds / size:.0f} {unit}"
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 seed`, `2 seeds`, `2 classes`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
