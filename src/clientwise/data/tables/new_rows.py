"""Rows to predict, from a file or a frame, as the table that a model's encoding describes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from ...errors import shortened
from ...registry import suggest
from ..folder import DataError
from .cells import LARGEST, parse_numbers
from .encoding import Encoding, InputColumn
from .files import ENDINGS, read_table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

log = logging.getLogger("clientwise")
MOST_NAMED = 5  # wrong columns, or categories, in a message
FAR = 10  # standard deviations
MOST_NEEDED = 30  # columns of the model in a message


@dataclass(frozen=True)
class NewRows:
    """Rows as an `Encoder` takes them."""

    values: numpy.ndarray  # [N, columns]
    unused: list[str]  # names of columns


def read_rows(path: Path, encoding: Encoding) -> DataFrame:
    """The rows of a CSV, TSV or Parquet file, with texts where the encoding has categories."""
    if not path.name.endswith(ENDINGS) or (path.exists() and not path.is_file()):
        raise DataError(f"{path}: rows are read from a file {', '.join(ENDINGS)}")
    texts = [column.name for column in encoding.columns if column.categories]
    if encoding.classes:
        texts.append(encoding.target)
    return read_table(path, texts)


def read_samples(path: Path, encoding: Encoding) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The values [N, columns] of the rows of a file, and their targets [N].

    Rows without a target are left out.
    """
    rows = read_rows(path, encoding)
    target = InputColumn(encoding.target, encoding.classes)
    if target.name not in rows.columns:
        raise DataError(
            f"{path}: no column {shortened(target.name)!r} for the target{suggest(target.name, rows.columns)}"
        )
    cells = rows[target.name]
    targets, wrong = _values(cells, target)
    problems = list(_cell_problems(target, cells, wrong))
    if problems:
        raise DataError(f"{path}: {problems[0]}")
    encoded = encode_rows(rows.drop(columns=target.name), encoding, str(path))
    if encoded.unused:
        log.warning("%s: columns that are not used: %s", path, _listed(encoded.unused))
    given = ~numpy.isnan(targets)
    if not given.all():
        log.warning("%s: %d rows without %s are left out", path, int((~given).sum()), target.name)
    kind = numpy.int64 if encoding.classes else numpy.float32
    return encoded.values[given], targets[given].astype(kind)


def encode_rows(rows: DataFrame, encoding: Encoding, source: str) -> NewRows:
    """The values of all columns, in the order of the encoding. Columns may have any order.

    Args:
        rows: at least the columns of the encoding.
        encoding: the columns.
        source: the file of the rows, for messages.
    """
    known = [str(name) for name in rows.columns]
    rows = rows.set_axis(known, axis="columns").reset_index(drop=True)
    problems = list(_header_problems(known, encoding))
    if not problems and not len(rows):
        problems = ["has no rows below the column names; add at least one"]
    values = numpy.zeros((len(rows), len(encoding.columns)))
    if not problems:
        for index, column in enumerate(encoding.columns):
            cells = rows[column.name]
            values[:, index], wrong = _values(cells, column)
            problems += _cell_problems(column, cells, wrong)
    if problems:
        raise DataError("\n".join(f"{source}: {problem}" for problem in problems))
    needed = {column.name for column in encoding.columns}
    return NewRows(values, [name for name in known if name not in needed])


def remarks(rows: NewRows, encoding: Encoding) -> Iterator[str]:
    """What a user should know about predictions for these rows."""
    if rows.unused:
        count = _counted(len(rows.unused), "column")
        yield f"Not used: {count} that the model does not know ({_listed(rows.unused)})."
    missing = numpy.isnan(rows.values).sum(0).tolist()
    for column, count in zip(encoding.columns, missing, strict=True):
        if count and column.missing == 0:
            yield (
                f"Column {shortened(column.name)!r} is empty in {_counted(count, 'row')}, and was in no "
                "row that the model learned from: predictions for such rows are less reliable."
            )
    yield from _far_away(rows, encoding)
    if encoding.by_client:
        yield (
            "The clients' numbers were scaled by their own statistics, these rows by those of all clients "
            '(standardise = "client").'
        )


def _far_away(rows: NewRows, encoding: Encoding) -> Iterator[str]:
    """One line for all columns with numbers far from those that the model learned from."""
    found = []
    for index, column in enumerate(encoding.columns):
        is_scaled = (column.mean, column.deviation) != (0.0, 1.0)  # otherwise nothing is known
        if column.categories or not is_scaled:
            continue
        far = numpy.abs(rows.values[:, index] - column.mean) > FAR * column.deviation
        if far.any():
            found.append(f"{shortened(column.name, 40)} ({_counted(int(far.sum()), 'row')})")
    if found:
        yield (
            f"More than {FAR} standard deviations from the mean of the training samples: {_listed(found)}. "
            "Predictions for such rows are not reliable; are they in the same units?"
        )


def _header_problems(known: Sequence[str], encoding: Encoding) -> Iterator[str]:
    needed = [column.name for column in encoding.columns]
    twice = {name for name in needed if known.count(name) > 1}
    for name in sorted(twice):
        yield f"two columns are called {shortened(name)!r}; rename or remove one"
    missing = [name for name in needed if name not in known]
    unused = set(known) - set(needed)
    for name in missing[:MOST_NAMED]:
        close = get_close_matches(name, unused, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        yield f"no column {shortened(name)!r}{hint}"
    if missing:
        more = len(missing) - MOST_NAMED
        also = f"{more} other columns are missing; " if more > 0 else ""
        yield f"{also}the model needs {_listed(needed, MOST_NEEDED)}. Leave cells empty that you do not know"


def _values(cells: Series[Any], column: InputColumn) -> tuple[numpy.ndarray, numpy.ndarray]:
    return _codes(cells, column) if column.categories else _numbers(cells)


def _numbers(cells: Series[Any]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The numbers, NaN where one is missing, and which cells are wrong."""
    numbers = parse_numbers(cells)
    wrong = numpy.isnan(numbers) & cells.notna().to_numpy()
    return numbers, wrong | (numpy.abs(numbers) > LARGEST)


def _codes(cells: Series[Any], column: InputColumn) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The positions of the categories, NaN where one is missing, and which cells are wrong."""
    texts = cells.astype(object).map(lambda value: str(value).strip(), na_action="ignore")
    positions = {category: float(position) for position, category in enumerate(column.categories)}
    numbers = {_number(category): position for category, position in positions.items()}
    if None not in numbers:  # 1 and 1.0 are the same category
        found = texts.map(lambda text: numbers.get(_number(text)), na_action="ignore")
    else:
        found = texts.map(positions.get, na_action="ignore")
    codes = found.astype(float).to_numpy(numpy.float64)
    return codes, numpy.isnan(codes) & cells.notna().to_numpy()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cell_problems(column: InputColumn, cells: Series[Any], wrong: numpy.ndarray) -> Iterator[str]:
    """The first wrong cell of a column, and how many others there are."""
    if not wrong.any():
        return
    first = int(wrong.argmax())
    value = shortened(str(cells.iloc[first]), 40)
    what = "is not a number"
    if column.categories:
        what = f"is not one of its categories ({_listed(column.categories)})"
    more = int(wrong.sum()) - 1
    others = f", and neither are {more} other cells" if more else ""
    where = f"column {shortened(column.name)!r}, row {first + 1}"
    yield f"{where}: {value!r} {what}{others}; correct it, or leave it empty if it is not known"


def _listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    shown = ", ".join(shortened(name, 40) for name in names[:most])
    if len(names) > most:
        shown += f" and {len(names) - most} others"
    return shown


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
