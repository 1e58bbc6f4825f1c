"""What a report consists of: tables, charts and texts, and the sections that yield them.

An item is made from a tidy frame: a row for each thing, a column for each of its values. `page.py` shows items on the
page and writes them (CSV, LaTeX, PDF, SVG, PNG), `terminal.py` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas

Kind = Literal["lines", "bars", "cells"]
Text = str  # a paragraph
Format = Callable[..., str]
TIME = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def plain(value: Any) -> str:
    """A value without a format of its own: at most four digits, and a dash for what is absent.

    >>> plain(0.123456), plain(12), plain(3.0), plain(None), plain(float("nan")), plain("west")
    ('0.1235', '12', '3', '–', '–', 'west')
    """
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(value: float | None) -> str:
    """A fraction in percent; an error beyond all use is not spelt out.

    >>> percent(0.1234), percent(3.4e8), percent(None)
    ('12.3%', '> 999%', '–')
    """
    if value is None or value != value:
        return "–"
    return "> 999%" if value > 9.99 else f"{value:.1%}"


def fixed(digits: int) -> Format:
    """A number with that many decimals.

    >>> fixed(2)(0.127)
    '0.13'
    """
    return f"{{:,.{digits}f}}".format


@dataclass(frozen=True)
class Unit:
    """How a metric is written: a share in percent, and its differences in percentage points."""

    percent: bool

    @property
    def points(self) -> str:
        """What follows the size of a difference."""
        return " points" if self.percent else ""

    @property
    def in_points(self) -> str:
        """The unit of differences, for notes; empty where it is that of the metric."""
        return ", in percentage points" if self.percent else ""

    @property
    def axis(self) -> str:
        """The format of an axis."""
        return ".0%" if self.percent else "~g"

    def text(self, value: float | None) -> str:
        """A value.

        >>> Unit(True).text(0.1234), Unit(False).text(12.3456), Unit(False).text(None)
        ('12.3%', '12.35', '–')
        """
        if self.percent:
            return percent(value)
        return "–" if value is None or value != value else digits_of(value, 4)

    def size(self, difference: float, digits: int = 3) -> str:
        """The size of a difference, without a sign where it has none.

        >>> Unit(True).size(0.0123), Unit(False).size(1.234)
        ('1.2', '1.23')
        """
        return f"{100 * difference:.1f}" if self.percent else digits_of(difference, digits)

    def signed(self, difference: float) -> str:
        """A difference with its sign, and without −0.

        >>> Unit(True).signed(0.0126), Unit(True).signed(-0.0001), Unit(False).signed(-1.234)
        ('+1.3', '+0.0', '-1.23')
        """
        if difference != difference:
            return "–"
        if self.percent:
            return f"{round(100 * difference, 1) + 0.0:+.1f}"
        text = digits_of(difference + 0.0, 3)
        return text if text.startswith("-") else f"+{text}"

    def spread(self, mean: float | None, deviation: float | None) -> str:
        """Mean and standard deviation.

        >>> Unit(True).spread(0.55, 0.0707), Unit(False).spread(12.0, None)
        ('55.0% ± 7.1', '12')
        """
        if deviation is None or deviation != deviation:
            return self.text(mean)
        return f"{self.text(mean)} ± {self.size(deviation)}"

    def target(self, value: float) -> str:
        """A target.

        >>> Unit(True).target(0.9), Unit(False).target(12.5)
        ('90%', '12.5')
        """
        return f"{value:.0%}" if self.percent else f"{value:g}"


def digits_of(value: float, digits: int) -> str:
    """A number with that many significant digits; between 1,000 and a million, without decimals.

    >>> digits_of(0.123456, 4), digits_of(123456.7, 4), digits_of(3.4e8, 4)
    ('0.1235', '123457', '3.4e+08')
    """
    return f"{value:.0f}" if 1000 <= abs(value) < 1_000_000 else f"{value:.{digits}g}"


def unit_for(value: float, units: Mapping[str, float]) -> str:
    """The largest unit that fits into a value twice; else the smallest."""
    fitting = [name for name, size in units.items() if 2 * size <= value]
    return fitting[-1] if fitting else next(iter(units))


def in_units(value: float, units: Mapping[str, float]) -> str:
    """A duration or a number of bytes.

    >>> in_units(42.0, TIME), in_units(150.0, TIME), in_units(7_000_000.0, TIME), in_units(12_345_678, BYTES)
    ('42 s', '2.5 min', '81 d', '12.3 MB')
    """
    unit = unit_for(value, units)
    return f"{digits_of(value / units[unit], 3)} {unit}"


in_time = partial(in_units, units=TIME)
in_bytes = partial(in_units, units=BYTES)


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 seed`, `2 seeds`, `2 classes`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def read(text: Format | Sequence[str], values: Iterable[Any]) -> list[str]:
    """The texts of a column; a dash for what is absent."""
    if not callable(text):
        return list(text)
    return ["–" if value is None or value != value else text(value) for value in values]


@dataclass(frozen=True)
class Table:
    """A frame, its title, and what stands beneath it; `table` makes one column by column."""

    id: str
    title: str
    frame: pandas.DataFrame  # the index is not shown
    note: str = ""
    # The texts of a column, or the function that makes one from a value; without it, `plain`
    formats: Mapping[str, Format | Sequence[str]] = field(default_factory=dict)
    within: tuple[str, ...] = ()  # columns that stand in the texts of others: only a CSV has them
    bold: tuple[int, ...] = ()  # positions of rows
    secondary: tuple[
        str, ...
    ] = ()  # columns that a narrow terminal leaves out, the first ones first

    @property
    def columns(self) -> list[str]:
        """The columns that people read."""
        return [name for name in self.frame.columns if name not in self.within]

    def texts(self) -> list[list[str]]:
        """What people read, row by row."""
        columns = [read(self.formats.get(name, plain), self.frame[name]) for name in self.columns]
        return [list(row) for row in zip(*columns, strict=True)]

    @cached_property
    def numeric(self) -> list[str]:
        """The columns that have numbers, which stand to the right."""
        return [name for name in self.frame if self.frame[name].dtype.kind in "iuf"]


@dataclass(frozen=True)
class Column:
    """A column of a table: a value for each row, and how people read it."""

    name: str
    values: Any  # a list, an array or a series
    text: Format | Sequence[str] = plain
    within: Mapping[str, Any] = field(default_factory=dict)  # what its texts say, too, by name
    secondary: bool = False


def table(
    id: str, title: str, columns: Iterable[Column], note: str = "", bold: tuple[int, ...] = ()
) -> Table:
    """A table of these columns; without those that say nothing of any row."""
    import pandas

    found: dict[str, Column] = {}
    texts: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for one in columns:
        shown = read(one.text, one.values)
        if {*shown} - {"–", ""}:
            found[one.name], texts[one.name] = one, shown
            values[one.name] = list(one.values)
            values |= {f"{one.name} {name}": own for name, own in one.within.items()}
    return Table(
        id,
        title,
        pandas.DataFrame(values),
        note,
        formats=texts,
        within=tuple(name for name in values if name not in found),
        bold=bold,
        secondary=tuple(name for name, one in found.items() if one.secondary),
    )


@dataclass(frozen=True)
class Chart:
    """A chart of a tidy frame.

    - "lines": `y` over `x`, one line for each `colour`, with a band from `low` to `high`.
    - "bars": a bar for each `y` (a name), whose length is `x`.
    - "cells": a heat map: a cell at `x` and `y`, whose colour is the value of `colour`.

    Columns that the frame lacks are not drawn.
    """

    id: str
    title: str
    frame: pandas.DataFrame
    kind: Kind = "lines"
    x: str = "round"
    y: str = "value"
    colour: str = "method"
    names: tuple[str, ...] = ()  # of all lines of a report: each has its colour in all charts
    low: str = "low"
    high: str = "high"
    format: str = ".3~g"  # of the values, as d3-format has it
    logarithmic: bool = False
    limits: tuple[float, float] | None = None  # of the colours of cells
    reference: float | None = None  # a line across, such as a target
    alt: str = ""  # what it shows, in words


Item = Table | Chart | Text
Section = Callable[[Any], Iterator[Item]]
