"""Tables: CSV and Parquet files and pandas frames become samples, and rows to predict become inputs.

The order of the work: `read_table` reads a file. `join` makes one table [N, columns] of several clients'
rows: numbers, positions of categories, and NaN where a value is missing. Once clients hold the samples,
`prepare` turns the table into inputs [N, F] by the training samples alone. `encode_rows` does the same
with new rows, as the `Encoding` that a model carries describes them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from ..core.objective.problem import Classification, Problem, Regression, Survival
from ..errors import needing, plain, shortened
from ..registry import suggest
from .arrays import MOST_CLASSES, first_few
from .cache import Writer, cached
from .encoding import Encoding, InputColumn
from .federated import DATASETS, FederatedData, Given, Samples
from .folder import DataError, read_file, reason

if TYPE_CHECKING:
    from pandas import DataFrame, Series

log = logging.getLogger("clientwise")
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
LARGEST = 1e30  # number, either sign: squares of larger ones are infinite
MOST_CLIENTS = 10**9
MOST_CATEGORIES = 1_000  # of a column: more are names or numbers, not categories
MOST_PROBLEMS = 10  # in one message
FORMAT = 3  # increase it when `cached_table` writes other arrays than before
ROWS_AT_ONCE = 2**12  # that become inputs: they are copied several times
FAR = 10  # standard deviations
DECIMAL_COMMA = r"^\s*([+-]?\d+),(\d+)\s*$"
Kind = Literal["classification", "regression", "survival"]
Standardise = Literal["pooled", "client", "off"]


# Files ----------------------------------------------------------------------------------------------------------


def read_table(path: Path, texts: Sequence[str]) -> DataFrame:
    """The rows of a CSV, TSV or Parquet file.

    A CSV file whose header is separated by semicolons may have decimal commas.

    Args:
        path: the file; its ending says what it is.
        texts: columns that stay as written, so that 1 stays 1 in a file with empty cells.
    """
    import pandas

    if not path.name.endswith(ENDINGS) or (path.exists() and not path.is_file()):
        raise DataError(f"{path}: a table is a file {', '.join(ENDINGS)}")
    if path.suffix == ".parquet":
        with needing("parquet", f"{path}: Parquet"):
            import pyarrow  # noqa: F401
        with _parsing(path, "a Parquet file that can be read", "write it again"):
            rows = pandas.read_parquet(path)
        return rows.reset_index(drop=True)  # the file may have an index of anything
    separator, names = _header(path)
    _refuse_repeated(filter(None, names), str(path))
    with _parsing(path):
        rows = _read_csv(path, sep=separator, dtype=dict.fromkeys(texts, str))
    for name in rows.columns.difference(texts):
        if separator == ";" and pandas.api.types.infer_dtype(rows[name], skipna=True) == "string":
            rows[name] = rows[name].str.replace(DECIMAL_COMMA, r"\1.\2", regex=True)
    return rows


def separator_of(path: Path) -> str:
    """The separator of a CSV or TSV file; of a CSV file, what its header has more of, outside of quotes."""
    separator, _ = _header(path)
    return separator


def _header(path: Path) -> tuple[str, list[str]]:
    """The separator, and the names of the columns in the first line that is not empty."""
    opened = gzip.open if path.suffix == ".gz" else open
    with _parsing(path), opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        first = next(filter(str.strip, file), "")
        unquoted = re.sub('"[^"]*"', "", first)
        separator = ";" if unquoted.count(";") > unquoted.count(",") else ","
        if ".tsv" in path.name:
            separator = "\t"
        file.seek(0)
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        return separator, next(filter(None, rows), [])


def read_csv(path: Path, most: int, **options: Any) -> DataFrame:
    """The rows of a CSV file of at most `most` bytes; see `parse_csv`."""
    return parse_csv(path, read_file(path, most), **options)


def parse_csv(path: Path, content: bytes, **options: Any) -> DataFrame:
    """The rows of a CSV file with this content; empty cells, NA and ? are missing values.

    Options are those of `pandas.read_csv`.
    """
    with _parsing(path):
        return _read_csv(io.BytesIO(content), **options)


def _read_csv(file: Path | io.BytesIO, **options: Any) -> DataFrame:
    import pandas

    frame: DataFrame = pandas.read_csv(
        file, na_values=["?"], index_col=False, skipinitialspace=True, low_memory=False, **options
    )
    return frame


@contextmanager
def _parsing(
    path: Path, what: str = "a table of rows and columns", advice: str = "correct the file"
) -> Iterator[None]:
    """DataError where the content of the file is something else."""
    import pandas

    try:
        with warnings.catch_warnings():
            # Rows longer than the header
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            yield
    except (DataError, MemoryError):
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except pandas.errors.EmptyDataError:
        raise DataError(
            f"{path}: is empty; write a line of column names and a line for every row"
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            f'{path}: is not UTF-8 text; save it as "CSV UTF-8", or convert it with iconv -f WINDOWS-1252 -t UTF-8'
        ) from None
    except Exception as error:  # the content decides what the libraries raise
        raise DataError(f"{path}: not {what} ({reason(error)}); {advice}") from None


def _refuse_repeated(names: Iterable[object], source: str) -> None:
    """DataError where two columns have one name: one may be a copy of the target."""
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise DataError(
                f"{source}: two columns are called {_shown(str(name))}; one may leak the target. Rename or remove one"
            )
        seen.add(name)


# Cells ----------------------------------------------------------------------------------------------------------


def parse_numbers(cells: Series[Any]) -> numpy.ndarray:
    """The cells as numbers; NaN for those that are none, or too large."""
    import pandas

    try:
        numbers = pandas.to_numeric(cells, errors="coerce")
    except OverflowError:  # an integer of hundreds of digits is too much for pandas
        numbers = pandas.to_numeric(cells.astype(str), errors="coerce")
    found: numpy.ndarray = numbers.to_numpy(numpy.float64, na_value=numpy.nan)
    return numpy.where(numpy.abs(found) > LARGEST, numpy.nan, found)


def _cell_values(cells: Series[Any], column: InputColumn) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Numbers, or positions of categories, NaN where a value is missing; and which cells are wrong."""
    values = _positions(cells, column.categories) if column.categories else parse_numbers(cells)
    wrong: numpy.ndarray = numpy.isnan(values)
    if wrong.any():  # tables may have thousands of columns
        wrong &= cells.notna().to_numpy()
    return values, wrong


def _wrong_cell(cells: Series[Any], column: InputColumn, wrong: numpy.ndarray, row: int) -> str:
    """The first wrong cell of a column, which is in this row, and how many others there are."""
    value = shortened(str(cells.iloc[int(wrong.argmax())]), 40)
    expected = f"a number below {LARGEST:g}"
    if column.categories:
        expected = f"one of its categories ({_listed(column.categories)})"
    count = int(wrong.sum()) - 1
    others = f", and neither are {count} other cells" if count else ""
    return f"column {_shown(column.name)}, row {row + 1}: {value!r} is not {expected}{others}"


def _categories(cells: Series[Any]) -> tuple[str, ...]:
    """The different values, sorted. Where all are numbers, 1 and 1.0 are the same; else they are texts."""
    found = _hashable(cells).dropna().unique().tolist()
    keys = sorted(set(_keys(found, _are_numbers(found))))
    return tuple(key if isinstance(key, str) else f"{key:.15g}" for key in keys)


def _positions(cells: Series[Any], categories: Sequence[str]) -> numpy.ndarray:
    """The position of every cell's category [n]; NaN where it is missing or no category."""
    import pandas

    are_numbers = _are_numbers(categories)
    known = {key: float(index) for index, key in enumerate(_keys(categories, are_numbers))}
    codes, found = pandas.factorize(_hashable(cells))
    positions = [known.get(key, numpy.nan) for key in _keys(found, are_numbers)]
    placed: numpy.ndarray = numpy.array([*positions, numpy.nan])[codes]
    return placed


def _hashable(cells: Series[Any]) -> Series[Any]:
    """The cells as objects; lists and dictionaries, which Parquet may have, as text."""
    objects = cells.astype(object)
    first = objects.dropna().head(1)
    if len(first) and not isinstance(first.iloc[0], Hashable):
        return objects.map(str, na_action="ignore")
    return objects


def _are_numbers(values: Sequence[object]) -> bool:
    import pandas

    return not numpy.isnan(parse_numbers(pandas.Series(list(values), dtype=object))).any()


def _keys(values: Iterable[object], are_numbers: bool) -> list[Any]:
    """What tells categories apart: their number, by as many digits as their name has, or their text."""
    import pandas

    if are_numbers:
        numbers = parse_numbers(pandas.Series(list(values), dtype=object))
        return [float(f"{number:.15g}") for number in numbers]
    return [str(value).strip() for value in values]


# One table of several clients' rows -----------------------------------------------------------------------------


class Sheet(NamedTuple):
    """The rows of a file or frame, and the client they belong to where no column names one."""

    path: Path
    rows: DataFrame
    client: str = ""


@dataclass(frozen=True)
class SampleTable:
    """Rows of all clients as they were read, with missing values."""

    inputs: numpy.ndarray  # [N, columns]
    targets: numpy.ndarray  # [N]
    ids: numpy.ndarray  # [N] the client of each row: names[id]
    columns: tuple[InputColumn, ...]
    names: tuple[str, ...]
    target: str
    classes: tuple[str, ...] = ()  # none for regression
    # [N] what the targets were computed from; None: they are as given
    given: numpy.ndarray | None = None

    def samples(self, standardise: Standardise, problem: Problem | None = None) -> Samples:
        """The rows as samples; columns become inputs once clients hold them (`prepare`)."""
        if problem is None:
            problem = Classification(len(self.classes)) if self.classes else Regression()
        inputs = torch.as_tensor(self.inputs)
        given = None  # until the columns become inputs
        if self.given is not None:
            given = Given((inputs, torch.as_tensor(self.given)))
        return Samples(
            inputs,
            torch.as_tensor(self.targets),
            problem,
            ids=torch.as_tensor(self.ids),
            names=self.names,
            after_partition=partial(prepare, standardise=standardise),
            table=Encoding(self.target, self.columns, self.classes),
            given=given,
        )


class _JoinedRows:
    """The rows of all sheets that have a target, and what is wrong with their cells."""

    def __init__(self, sheets: Sequence[Sheet], target: str) -> None:
        import pandas

        self.paths = [sheet.path for sheet in sheets]
        given = [_with_target(sheet, target) for sheet in sheets]
        self.frame = pandas.concat(given, ignore_index=True)
        self.sheets = numpy.repeat(numpy.arange(len(given)), [len(rows) for rows in given])
        self._numbers = numpy.concatenate([rows.index for rows in given])
        self.wrong: list[str] = []

    def values(self, column: InputColumn) -> numpy.ndarray:
        """The values of a column [N]; the first wrong cell is kept in `wrong`."""
        cells = self.frame[column.name]
        values, are_wrong = _cell_values(cells, column)
        if are_wrong.any():
            path, row = self.place(are_wrong)
            self.wrong.append(f"{path}: {_wrong_cell(cells, column, are_wrong, row)}")
        return values

    def categories(self, name: str, most: int = MOST_CATEGORIES) -> tuple[str, ...]:
        """The different values of a column, sorted."""
        found = _categories(self.frame[name])
        if len(found) > most:
            raise DataError(
                f"{self.paths[0]}: column {_shown(name)} has more than {most:,} different values, the most that are "
                "allowed; remove it from `categories`, or put it into `ignore`"
            )
        return found

    def place(self, wrong: numpy.ndarray) -> tuple[Path, int]:
        """The file and the row, from 0, of the first wrong one."""
        first = int(wrong.argmax())
        return self.paths[self.sheets[first]], int(self._numbers[first])


def join(
    sheets: Sequence[Sheet],
    *,
    target: str,
    kind: Kind,
    event: str | None = None,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> SampleTable:
    """The rows of sheets, which have the same columns in any order, as one table; see `table` for the options.

    Rows without a target are left out. DataError names the columns and the first cells that are wrong.
    """
    needed = {target: " for the target"} | dict.fromkeys(categories, "")
    if client is not None:
        needed[client] = " for the client"
    if event is not None:
        needed[event] = " for the event"
    used = _common_columns(sheets, needed, ignore)
    names = [name for name in used if name not in (target, client, event)]
    if not names:
        raise DataError(
            f"{sheets[0].path}: has no column but the target and the client; add one to learn from"
        )
    rows = _JoinedRows(sheets, target)
    columns = []
    inputs = numpy.zeros((len(rows.frame), len(names)))
    for index, name in enumerate(names):
        column = InputColumn(name, rows.categories(name) if name in categories else ())
        inputs[:, index] = rows.values(column)
        columns.append(column)
    targets, classes = _targets(rows, target, kind, event)
    if rows.wrong:
        advice = "; correct the cells, or put the column into `categories` or `ignore`"
        refuse(rows.wrong, advice)
    ids, owners = _owners(rows, sheets, client)
    return SampleTable(inputs, targets, ids, tuple(columns), owners, target, classes)


def refuse(wrong: Sequence[str], advice: str = "") -> None:
    """DataError with all of these problems, if there are any."""
    if wrong:
        more = [f"and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise DataError("; ".join([*wrong[:MOST_PROBLEMS], *more]) + advice)


def _common_columns(
    sheets: Sequence[Sheet], needed: Mapping[str, str], ignore: Sequence[str]
) -> list[str]:
    """The columns of all sheets without those to `ignore`, in the order of the first sheet.

    Args:
        sheets: the files.
        needed: columns that must be there, and what a message adds to each.
        ignore: columns that are left out.
    """
    known = [dict.fromkeys(str(name) for name in sheet.rows.columns) for sheet in sheets]
    every = dict.fromkeys([*needed, *(name for own in known for name in own)])
    wrong: list[str] = []
    for name in every:
        lacking = [name not in own for own in known]
        if any(lacking) and (name in needed or name not in ignore):
            wrong.append(_about_missing(name, needed.get(name, ""), sheets, lacking))
    for name in ignore:
        if name not in every:
            hint = suggest(name, map(plain, every))
            wrong.append(f"{sheets[0].path}: no column {_shown(name)} to ignore{hint}")
    refuse(wrong)
    return [name for name in known[0] if name not in ignore]


def _about_missing(
    name: str, purpose: str, sheets: Sequence[Sheet], lacking: Sequence[bool]
) -> str:
    """A column that some sheets lack, in one line: the few are named, with or without it."""
    without = [str(sheet.path) for sheet, lacks in zip(sheets, lacking, strict=True) if lacks]
    having = [str(sheet.path) for sheet, lacks in zip(sheets, lacking, strict=True) if not lacks]
    if having and not purpose and len(having) < len(without) + lacking[0]:
        return (
            f"{first_few(having)}: column {_shown(name)} is missing from {first_few(without)}; "
            "put it into `ignore`, or add it there"
        )
    hint = suggest(name, [plain(str(one)) for one in sheets[lacking.index(True)].rows.columns])
    if len(having) > 1:
        purpose += f", which {len(having)} others have"
    return f"{first_few(without)}: no column {_shown(name)}{purpose}{hint}"


def _with_target(sheet: Sheet, target: str) -> DataFrame:
    """The rows that have a value in the target column; they keep their numbers."""
    given = sheet.rows[target].notna()
    without = int((~given).sum())
    if without == len(given):
        raise DataError(
            f"{sheet.path}: no row has a value in column {_shown(target)}; fill some in, or leave the file out"
        )
    if without:
        log.warning("%s: %d rows without a value in %s are left out", sheet.path, without, target)
    return sheet.rows[given]


def _targets(
    rows: _JoinedRows, name: str, kind: Kind, event: str | None
) -> tuple[numpy.ndarray, tuple[str, ...]]:
    """Classes, numbers, or times with the event's sign [N]; and the classes' names."""
    if kind == "classification":
        classes = rows.categories(name, MOST_CLASSES)
        if len(classes) < 2:
            only = f"has the value {_shown(classes[0])} only, so there is nothing to learn"
            raise DataError(
                f"{rows.paths[0]}: column {_shown(name)} {only}; add rows of another class"
            )
        return rows.values(InputColumn(name, classes)).astype(numpy.int64), classes
    numbers = rows.values(InputColumn(name))
    if event is None:
        return numbers.astype(numpy.float32), ()
    happened = rows.values(InputColumn(event))
    wrong = ~(numpy.isin(happened, (0, 1)) & (numbers > 0))
    if wrong.any() and not rows.wrong:
        path, row = rows.place(wrong)
        raise DataError(
            f"{path}: row {row + 1}: {name!r} must be a time greater than 0 and {event!r} must be 0 or 1; "
            "correct the row, or empty its time"
        )
    return numpy.where(happened == 1, numbers, -numbers).astype(numpy.float32), ()


def _owners(
    rows: _JoinedRows, sheets: Sequence[Sheet], client: str | None
) -> tuple[numpy.ndarray, tuple[str, ...]]:
    """The client of every row [N] by its place in the clients' names: of a column, or of the sheets."""
    if client is None:
        names = tuple(sheet.client for sheet in sheets)
        is_clear = len(set(names)) == len(names)
        return rows.sheets, names if is_clear else tuple(str(sheet.path) for sheet in sheets)
    cells = rows.frame[client]
    if cells.isna().any():
        path, row = rows.place(cells.isna().to_numpy())
        raise DataError(
            f"{path}: column {_shown(client)}, row {row + 1} is empty: it must name the client; fill it in"
        )
    names = rows.categories(client, MOST_CLIENTS)
    return _positions(cells, names).astype(numpy.int64), names


def cached_table(
    name: str, paths: Sequence[Path], read: Callable[[], SampleTable], options: Sequence[Any] = ()
) -> SampleTable:
    """A table, from the cache if these files were read before with these options."""

    def build(arrays: Writer) -> None:
        made = read()
        kept = {part: getattr(made, part) for part in ("inputs", "targets", "ids", "given")}
        for part, values in kept.items():
            if values is not None:
                arrays.save(part, values)
        words = {part: getattr(made, part) for part in ("names", "target", "classes")}
        words["columns"] = [(column.name, column.categories) for column in made.columns]
        arrays.save("words", numpy.frombuffer(json.dumps(words).encode(), numpy.uint8))

    arrays = {
        part: values.numpy()
        for part, values in cached(name, paths, build, [FORMAT, *options]).items()
    }
    words = json.loads(arrays.pop("words").tobytes())
    return SampleTable(
        **arrays,
        columns=tuple(InputColumn(column, tuple(known)) for column, known in words["columns"]),
        names=tuple(words["names"]),
        target=words["target"],
        classes=tuple(words["classes"]),
    )


@DATASETS.register("table")
def table(
    data_dir: Path | None,
    *,
    files: Path,
    target: str,
    kind: Kind = "classification",
    event: str | None = None,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    standardise: Standardise = "pooled",
) -> Samples:
    """Your own table, CSV or Parquet: one file per client, or a column that names the client.

    Every column is an input but the target, the client and those in `ignore`. Empty cells, NA
    and ? are missing values. See docs/data.md for what becomes of numbers and categories.

    Args:
        data_dir: the data folder. In a config, paths start from its own folder where `data_dir` names no other.
        files: a path or pattern in the data folder, as in "hospitals/*.csv".
        target: the column to predict; rows without a value in it are left out.
        kind: "classification", "regression" for a target of numbers, or "survival" for times.
        event: of survival, the column that is 1 where the event happened at that time and 0 where
            it had not happened by then.
        client: the column that names the client of a row; without one, every file is a client.
        categories: columns that become one-hot inputs; all others must hold numbers.
        ignore: columns that are left out.
        standardise: by the training samples of all clients ("pooled"), of each ("client"), or not.

    Returns:
        Samples whose inputs [N, columns] become [N, F] once clients hold them.
    """
    if (kind == "survival") != (event is not None):
        raise DataError('`event` names a column for kind = "survival", and for no other kind')
    paths = _matching(data_dir, str(files))
    texts = [*categories, *filter(None, [client])]
    if kind == "classification":
        texts.append(target)

    def read() -> SampleTable:
        sheets = [
            Sheet(path, read_table(path, texts), path.name.partition(".")[0]) for path in paths
        ]
        return join(
            sheets,
            target=target,
            kind=kind,
            event=event,
            client=client,
            categories=categories,
            ignore=ignore,
        )

    options = [target, kind, event, client, *categories, None, *ignore]
    made = cached_table("table", paths, read, options)
    return made.samples(standardise, Survival() if kind == "survival" else None)


def _matching(data_dir: Path | None, files: str) -> list[Path]:
    """The files of a path or pattern, sorted."""
    folder = Path(data_dir) if data_dir else Path()
    try:
        if Path(files).is_absolute() and Path(files).is_file():
            return [Path(files)]
        found = sorted(path for path in folder.glob(files) if path.is_file())
    except (ValueError, NotImplementedError, OSError, IndexError) as error:  # the last for "."
        raise DataError(f"files = {shortened(files)!r}: {reason(error)}") from None
    if not found:
        raise DataError(
            f"{shortened(str(folder / files))}: no such file; paths start from `data_dir`"
        )
    return found


# From a table to inputs -----------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Turns rows of a table [N, columns] into inputs [N, F], as a module that a trained model can carry."""

    source: Tensor  # [F] the column of every input
    category: Tensor  # [F] the category that it stands for; -1 for numbers, -2 for missing values
    fill: Tensor
    mean: Tensor
    deviation: Tensor
    seen: Tensor  # [F]

    def __init__(self, columns: Sequence[InputColumn]) -> None:
        super().__init__()
        source: list[int] = []
        category: list[int] = []
        seen: list[bool] = []
        for index, column in enumerate(columns):
            codes = [*range(len(column.categories))] or [-1]
            if column.marks_missing:
                codes.append(-2)
            source += [index] * len(codes)
            category += codes
            seen += [position not in column.unseen for position in range(len(codes))]
        self.register_buffer("source", torch.tensor(source))
        self.register_buffer("category", torch.tensor(category, dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(seen))
        for name in ("fill", "mean", "deviation"):
            values = [getattr(column, name) for column in columns]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64)[self.source])

    def forward(self, values: Tensor) -> Tensor:
        """Inputs [N, F], float32, of values [N, columns] as `InputColumn` describes them."""
        values = values.double()[:, self.source]
        missing = values.isnan()
        numbers = (torch.where(missing, self.fill, values) - self.mean) / self.deviation
        is_category = (values == self.category).double()
        inputs = torch.where(self.category == -1, numbers, is_category)
        inputs = torch.where(self.category == -2, missing.double(), inputs)
        return torch.where(self.seen, inputs, 0.0).float()


def prepare(data: FederatedData, standardise: Standardise) -> FederatedData:
    """The table [N, columns] as inputs [N, F], by the clients' training samples alone.

    - Numbers get mean 0 and standard deviation 1; a missing number becomes the mean.
    - Categories are one-hot.
    - A column with missing values gets a second one that says where they are.
    - A category that no training sample has is zero everywhere, and so is such a second column.

    `samples.table` then has what new rows are encoded by; of `standardise = "client"`, the mean and
    deviation of all clients.

    Args:
        data: samples whose inputs are the table, and which client trains on which.
        standardise: "pooled" takes mean and deviation over all clients; "client" takes those of
            each client (of all clients for the server); "off" leaves numbers as they are.
    """
    samples = data.samples
    assert samples.table is not None
    raw = samples.inputs.numpy()
    trained = torch.unique(data.train.indices).numpy()
    pooled = _Scale.of(raw[trained])
    values = raw
    numbers = [index for index, one in enumerate(samples.table.columns) if not one.categories]
    if standardise != "off":
        values = raw.copy()
        values[:, numbers] = ((raw - pooled.mean) / pooled.deviation)[:, numbers]
    if standardise == "client":
        for client in range(data.num_clients):
            rows = data.train.indices[data.train.slice(client)].numpy()
            own = _Scale.of(raw[rows], pooled)
            rows = numpy.concatenate([data.test.indices[data.test.slice(client)].numpy(), rows])
            scaled = (raw[rows] - own.mean) / own.deviation
            values[rows[:, None], numbers] = scaled[:, numbers]
    missing = numpy.isnan(raw)
    columns = []
    for index, column in enumerate(samples.table.columns):
        is_filled = standardise == "off" and not column.categories
        column = replace(
            column,
            fill=float(pooled.mean[index]) if is_filled else 0.0,
            marks_missing=bool(missing[:, index].any()),
            missing=float(missing[trained, index].mean()),
        )
        columns.append(column)
    encode = Encoder(columns)
    blocks = torch.split(torch.from_numpy(values), ROWS_AT_ONCE)
    inputs = torch.cat([encode(block) for block in blocks])
    seen = inputs[trained].any(0)
    inputs[:, ~seen] = 0.0
    fitted = []
    widths = [column.width for column in columns]
    for index, (column, own_seen) in enumerate(
        zip(columns, torch.split(seen, widths), strict=True)
    ):
        column = replace(column, unseen=tuple((~own_seen).nonzero().flatten().tolist()))
        if standardise != "off" and not column.categories:
            column = pooled.applied_to(column, index)
        fitted.append(column)
    encoding = replace(samples.table, columns=tuple(fitted), by_client=standardise == "client")
    return replace(data, samples=replace(samples, inputs=inputs, table=encoding))


class _Scale(NamedTuple):
    """Mean and deviation [columns] of numbers; the deviation of a constant is infinite, so that it becomes 0."""

    mean: numpy.ndarray
    deviation: numpy.ndarray

    @staticmethod
    def of(values: numpy.ndarray, other: _Scale | None = None) -> _Scale:
        """Those of values [N, columns] without the missing ones; where there are none, `other` ones.

        NumPy adds row to row, in this order on every CPU.
        """
        given = ~numpy.isnan(values)
        count = numpy.maximum(given.sum(0), 1)
        mean = numpy.where(given, values, 0.0).sum(0) / count
        distances = numpy.where(given, values - mean, 0.0)
        deviation = numpy.sqrt((distances**2).sum(0) / count)
        deviation[deviation <= 1e-12 * abs(mean)] = numpy.inf
        if other is None:
            return _Scale(mean, deviation)
        is_given = given.any(0)
        return _Scale(
            numpy.where(is_given, mean, other.mean),
            numpy.where(is_given, deviation, other.deviation),
        )

    def applied_to(self, column: InputColumn, index: int) -> InputColumn:
        """A column of numbers with these statistics."""
        mean = float(self.mean[index])
        deviation = float(self.deviation[index])
        return replace(
            column, fill=mean, mean=mean, deviation=deviation if math.isfinite(deviation) else 1.0
        )


# Rows to predict ------------------------------------------------------------------------------------------------


class NewRows(NamedTuple):
    """Rows as an `Encoder` takes them."""

    values: numpy.ndarray  # [N, columns]
    unused: list[str]  # names of columns


def read_rows(path: Path, encoding: Encoding) -> DataFrame:
    """The rows of a file, with texts where the encoding has categories."""
    texts = [column.name for column in encoding.columns if column.categories]
    return read_table(path, [*texts, encoding.target] if encoding.classes else texts)


def read_samples(path: Path, encoding: Encoding) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The values [N, columns] of the rows of a file, and their targets [N].

    Rows without a target are left out.
    """
    rows = read_rows(path, encoding)
    target = InputColumn(encoding.target, encoding.classes)
    if target.name not in rows:
        hint = suggest(target.name, rows.columns)
        raise DataError(f"{path}: no column {_shown(target.name)} for the target{hint}")
    found = encode_rows(rows, replace(encoding, columns=(*encoding.columns, target)), str(path))
    if found.unused:
        log.warning("%s: columns that are not used: %s", path, _listed(found.unused))
    values, targets = found.values[:, :-1], found.values[:, -1]
    given = ~numpy.isnan(targets)
    if not given.all():
        log.warning("%s: %d rows without %s are left out", path, int((~given).sum()), target.name)
    kind = numpy.int64 if encoding.classes else numpy.float32
    return values[given], targets[given].astype(kind)


def encode_rows(rows: DataFrame, encoding: Encoding, source: str) -> NewRows:
    """The values of all columns, in the order of the encoding. Columns may have any order.

    Args:
        rows: at least the columns of the encoding.
        encoding: the columns.
        source: the file of the rows, for messages.
    """
    rows = rows.set_axis([str(name) for name in rows.columns], axis="columns")
    names = [column.name for column in encoding.columns]
    _refuse_repeated([name for name in rows.columns if name in names], source)
    unused = [name for name in rows.columns if name not in names]
    missing = [name for name in names if name not in rows.columns]
    problems = [f"no column {_shown(name)}{suggest(name, unused)}" for name in missing]
    if missing:
        problems.append(
            f"the model needs {_listed(names, 30)}. Leave cells empty that you do not know"
        )
    elif not len(rows):
        problems = ["has no rows below the column names; add at least one"]
    values = numpy.zeros((len(rows), len(names)))
    for index, column in enumerate(encoding.columns if not problems else ()):
        cells = rows[column.name]
        values[:, index], wrong = _cell_values(cells, column)
        if wrong.any():
            problem = _wrong_cell(cells, column, wrong, int(wrong.argmax()))
            problems.append(f"{problem}; correct it, or leave it empty if it is not known")
    if problems:
        raise DataError("\n".join(f"{source}: {problem}" for problem in problems[:MOST_PROBLEMS]))
    return NewRows(values, unused)


def remarks(rows: NewRows, encoding: Encoding) -> Iterator[str]:
    """What a user should know about predictions for these rows."""
    if rows.unused:
        count = _counted(len(rows.unused), "column")
        yield f"Not used: {count} that the model does not know ({_listed(rows.unused)})."
    far = []
    for column, values in zip(encoding.columns, rows.values.T, strict=True):
        empty = int(numpy.isnan(values).sum())
        if empty and column.missing == 0:
            yield (
                f"Column {_shown(column.name)} is empty in {_counted(empty, 'row')}, and was in no row that the "
                "model learned from: predictions for such rows are less reliable."
            )
        is_scaled = (column.mean, column.deviation) != (0.0, 1.0)  # otherwise nothing is known
        distant = int((numpy.abs(values - column.mean) > FAR * column.deviation).sum())
        if distant and is_scaled and not column.categories:
            far.append(f"{shortened(column.name, 40)} ({_counted(distant, 'row')})")
    if far:
        yield (
            f"More than {FAR} standard deviations from the mean of the training samples: {_listed(far)}. "
            "Predictions for such rows are not reliable; are they in the same units?"
        )
    if encoding.by_client:
        yield (
            "The clients' numbers were scaled by their own statistics, these rows by those of all clients "
            '(standardise = "client").'
        )


def _shown(name: str) -> str:
    """The name of a column in a message: a damaged file may have any."""
    return repr(shortened(plain(name), 60))


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(shortened(name, 40) for name in names[:most]) + more


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
