"""Cells of tables: numbers, and words as codes; what is wrong in them is said with file, column and row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from ...errors import shortened
from ..folder import DataError

if TYPE_CHECKING:
    from pandas import Series

LARGEST = 1e30  # number, either sign: squares of larger ones are infinite
MOST_PROBLEMS = 10  # in one message
NOT_NUMBERS = "; correct the cells, or put the column into `categories` or `ignore`"
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([T ].*)?")
CODE = numpy.int32  # of a client or a category, one for every row


class Numbers:
    """Reads columns of numbers, and keeps what is wrong in them: other columns may be wrong, too."""

    def __init__(self) -> None:
        self._wrong: dict[str, _WrongCells] = {}

    def read(self, path: Path, column: Series[Any]) -> numpy.ndarray:
        """The numbers, NaN where one is missing."""
        numbers = parse_numbers(column)
        wrong = (numpy.isnan(numbers) & column.notna().to_numpy()) | (numpy.abs(numbers) > LARGEST)
        if wrong.any():
            self._keep(path, column, wrong)
        return numbers

    def refuse(self) -> None:
        """DataError if anything was wrong."""
        refuse([str(cells) for cells in self._wrong.values()], NOT_NUMBERS)

    def _keep(self, path: Path, column: Series[Any], wrong: numpy.ndarray) -> None:
        name = str(column.name)
        count = int(wrong.sum())
        known = self._wrong.get(name)
        if known is None:
            first = int(wrong.argmax())
            where = f"column {name!r}, row {int(column.index[first]) + 1}"
            value = shortened(str(column.iloc[first]), 40)
            self._wrong[name] = _WrongCells(path, where, value, count)
        elif known.path == path:
            self._wrong[name] = replace(known, count=known.count + count)


class Words:
    """The different values of a column, numbered in the order in which they are found."""

    def __init__(self, path: Path, name: str, most: int) -> None:
        self._path = path
        self._name = name
        self._most = most
        self._codes: dict[object, int] = {}

    def codes(self, column: Series[Any]) -> numpy.ndarray:
        """The code of every value [n], -1 where it is missing."""
        import pandas

        column = column.astype(object)
        try:
            positions, found = pandas.factorize(column)
        except TypeError:  # lists and dictionaries, which Parquet may have
            positions, found = pandas.factorize(column.map(str, na_action="ignore"))
        codes = [self._codes.setdefault(value, len(self._codes)) for value in found]
        if len(self._codes) > self._most:
            self.sorted()
        numbered: numpy.ndarray = numpy.array([*codes, -1], CODE)[positions]
        return numbered

    def sorted(self) -> tuple[numpy.ndarray, list[str]]:
        """The categories, sorted, and the position in them of every code.

        Where all are numbers, 1 and 1.0 are the same category.
        """
        import pandas

        column = pandas.Series(list(self._codes), dtype=object, name=self._name)
        numbers = parse_numbers(column)
        if numpy.isnan(numbers).any():
            texts = column.map(lambda value: str(value).strip())
            codes, known = pandas.factorize(texts, sort=True)
            words = [str(value) for value in known]
        else:
            codes, known = pandas.factorize(numbers, sort=True)
            words = [f"{value:.15g}" for value in known]
        if len(words) > self._most:
            raise DataError(
                f"{self._path}: column {self._name!r} has more than {self._most:,} different values, the most that "
                "are allowed; remove it from `categories`, or put it into `ignore`"
            )
        return codes.astype(numpy.int64), words


def parse_numbers(column: Series[Any]) -> numpy.ndarray:
    """The cells as numbers; NaN for those that are none."""
    import pandas

    try:
        numbers = pandas.to_numeric(column, errors="coerce")
    except OverflowError:  # an integer of hundreds of digits is too much for pandas
        numbers = column.map(_number, na_action="ignore")
    parsed: numpy.ndarray = numbers.to_numpy(numpy.float64, na_value=numpy.nan)
    return parsed


def is_date(text: str) -> bool:
    """Whether this is a date, with or without a time.

    >>> is_date("2024-06-30"), is_date("30.06.2024 12:00"), is_date("2024")
    (True, True, False)
    """
    return DATE.fullmatch(text) is not None


def refuse(wrong: Sequence[str], advice: str = "") -> None:
    """DataError with all of these problems, if there are any."""
    if wrong:
        more = [f"and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise DataError("; ".join([*wrong[:MOST_PROBLEMS], *more]) + advice)


@dataclass(frozen=True)
class _WrongCells:
    """Cells of a column that are not numbers, all in one file."""

    path: Path
    where: str
    first: str
    count: int

    def __str__(self) -> str:
        others = f", and neither are {self.count - 1} other cells" if self.count > 1 else ""
        return (
            f"{self.path}: {self.where}: {self.first!r} is not a number below {LARGEST:g}{others}"
        )


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return numpy.nan
