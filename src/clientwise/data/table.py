"""Tables: CSV and Parquet files and pandas frames become samples, and rows to predict become inputs.

The order of the work: `read_table` reads a file. `samples_of` makes samples of several clients' rows: numbers,
positions of categories, and NaN where a value is missing. Once clients hold them, `prepare` turns these values
[N, columns] into inputs [N, F], by the training samples alone. `encode_rows` does the same with new rows, as the
`Encoding` that a model carries describes them.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from ..core.objective.problem import Classification, Regression, Survival
from ..errors import needing, plain, shortened
from ..registry import suggest
from .arrays import MOST_CLASSES, first_few
from .encoding import Encoding, InputColumn
from .federated import DATASETS, FederatedData, Samples
from .folder import DataError, reason

if TYPE_CHECKING:
    from pandas import DataFrame, Series

log = logging.getLogger("clientwise")
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
LARGEST = 1e30  # number, either sign: squares of larger ones are infinite
MOST_CATEGORIES = 1_000  # of a column: more are names or numbers, not categories
MOST_PROBLEMS = 10  # in one message
ROWS_AT_ONCE = 2**12  # that become inputs: they are copied several times
FAR = 10  # standard deviations
Kind = Literal["classification", "regression", "survival"]
Standardise = Literal["pooled", "client", "off"]


# Files ------------------------------------------------------------------------------------------------------------


def read_table(path: Path, texts: Sequence[str] = ()) -> DataFrame:
    """The rows of a CSV, TSV or Parquet file.

    A CSV file whose header is separated by semicolons may have decimal commas.

    Args:
        path: the file; its ending says what it is.
        texts: columns that stay as written, so that 1 stays 1 in a file with empty cells.
    """
    if not path.name.endswith(ENDINGS) or path.is_dir():
        raise DataError(f"{path}: a table is a file {', '.join(ENDINGS)}")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    separator = separator_of(path)
    refuse_repeated(_head(path, separator), str(path))
    decimal = "," if separator == ";" else "."
    return parse_csv(path, path, sep=separator, decimal=decimal, dtype=dict.fromkeys(texts, str))


def separator_of(path: Path) -> str:
    """The separator of a CSV or TSV file; of a CSV file, what its header has more of, outside of quotes."""
    if ".tsv" in path.name:
        return "\t"
    return max(",;", key=lambda separator: len(_head(path, separator)))


def _head(path: Path, separator: str) -> list[str]:
    """The names of the columns in the first line that is not empty."""
    head = parse_csv(path, path, sep=separator, header=None, nrows=1, dtype=str)
    names: list[str] = head.iloc[0].dropna().tolist()
    return names


def parse_csv(path: Path, content: Path | bytes, **options: Any) -> DataFrame:
    """The rows of a CSV file; empty cells, NA and ? are missing values. Options are those of `pandas.read_csv`."""
    import pandas

    with _reading(path), warnings.catch_warnings():
        # Rows longer than the header
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        frame: DataFrame = pandas.read_csv(
            io.BytesIO(content) if isinstance(content, bytes) else content,
            na_values=["?"],
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
            **options,
        )
    return frame


def _read_parquet(path: Path) -> DataFrame:
    import pandas

    with needing("parquet", f"{path}: Parquet"):
        import pyarrow  # noqa: F401
    with _reading(path):
        rows = pandas.read_parquet(path)
    return rows.reset_index(drop=True)  # the file may have an index of anything


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """DataError where the content of the file is something else."""
    try:
        yield
    except MemoryError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise DataError(
            f'{path}: is not UTF-8 text; save it as "CSV UTF-8", or convert it with iconv -f WINDOWS-1252 -t UTF-8'
        ) from None
    except Exception as error:  # the content decides what the libraries raise
        said = f"{path}: not a table of rows and columns ({reason(error)}); correct the file"
        raise DataError(said) from None


def refuse_repeated(names: Iterable[object], source: str) -> None:
    """DataError where two columns have one name: one may be a copy of the target."""
    seen: set[object] = set()
    for name in names:
        if name in seen:
            said = f"{source}: two columns are called {_shown(name)}; one may leak the target. Rename or remove one"
            raise DataError(said)
        seen.add(name)


# Cells ------------------------------------------------------------------------------------------------------------


def parse_numbers(cells: Series[Any]) -> numpy.ndarray:
    """The cells as numbers; NaN for those that are none, or too large."""
    import pandas

    try:
        numbers = pandas.to_numeric(cells, errors="coerce")
    except OverflowError:  # an integer of hundreds of digits is too much for pandas
        numbers = pandas.to_numeric(cells.astype(str), errors="coerce")
    found: numpy.ndarray = numbers.to_numpy(numpy.float64, na_value=numpy.nan)
    return numpy.where(numpy.abs(found) > LARGEST, numpy.nan, found)


def _words(cells: Series[Any]) -> Series[Any]:
    """The cells as names of categories."""
    objects = cells.astype(object)
    try:
        names = {value: _word(value) for value in objects.dropna().unique()}
    except TypeError:  # lists and dictionaries, which Parquet may have
        return objects.map(_word, na_action="ignore")
    return objects.map(names)


def _word(value: Any) -> str:
    """The name of a category: 1 and 1.0 are the same."""
    try:
        return f"{float(value):.15g}"
    except (TypeError, ValueError, OverflowError):
        return str(value).strip()


def _positions(cells: Series[Any], categories: Sequence[str]) -> numpy.ndarray:
    """The position of every cell's category [n]; NaN where it is missing or no category."""
    known = {_word(name): float(code) for code, name in enumerate(categories)}
    placed: numpy.ndarray = _words(cells).map(known).to_numpy(float, na_value=numpy.nan)
    return placed


class _Reader:
    """Reads columns of a frame whose index is (source, row), and collects what is wrong with their cells."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self.wrong: list[str] = []

    def values(self, column: InputColumn) -> numpy.ndarray:
        """Numbers, or positions of categories [N]; NaN where a value is missing."""
        cells = self.frame[column.name]
        known = column.categories
        values = _positions(cells, known) if known else parse_numbers(cells)
        wrong = numpy.isnan(values)
        if wrong.any():  # tables may have thousands of columns
            wrong &= cells.notna().to_numpy()
        if wrong.any():
            cell = shortened(str(cells.iloc[int(wrong.argmax())]), 40)
            allowed = f"one of its categories ({_listed(known)})"
            self.add(
                wrong,
                column.name,
                f"{cell!r} is not {allowed if known else f'a number below {LARGEST:g}'}",
            )
        return values

    def categories(self, name: str, most: int) -> tuple[str, ...]:
        """The different values of a column, sorted."""
        found = _words(self.frame[name]).dropna().unique().tolist()
        try:
            found.sort(key=float)
        except ValueError:  # not all are numbers
            found.sort()
        if len(found) > most:
            source = self.frame.index[0][0]
            raise DataError(
                f"{source}: column {_shown(name)} has more than {most:,} different values, the most that are allowed; "
                "remove it from `categories`, or put it into `ignore`"
            )
        return tuple(found)

    def add(self, wrong: numpy.ndarray, name: str, said: str) -> None:
        """Note the first of the rows with a wrong cell, and how many others there are."""
        source, row = self.frame.index[int(wrong.argmax())]
        others = int(wrong.sum()) - 1
        more = f", and neither are {others} other cells" if others else ""
        self.wrong.append(f"{source}: column {_shown(name)}, row {row + 1}: {said}{more}")


def refuse(wrong: Sequence[str], advice: str = "") -> None:
    """DataError with all of these problems, if there are any."""
    if wrong:
        more = [f"and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise DataError("; ".join([*wrong[:MOST_PROBLEMS], *more]) + advice)


# Samples of several clients' rows ---------------------------------------------------------------------------------


def samples_of(
    frames: Mapping[str, DataFrame],
    *,
    target: str,
    kind: Kind = "classification",
    event: str | None = None,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    standardise: Standardise = "pooled",
) -> Samples:
    """The rows of frames, which have the same columns in any order, as samples; see `table` for the options.

    A frame is called by its key. Rows without a target are left out. DataError names the columns and the first
    cells that are wrong.
    """
    import pandas

    frames = {source: own.set_axis(own.columns.map(str), axis=1) for source, own in frames.items()}
    needed = {target: " for the target"} | dict.fromkeys(categories, "")
    needed |= {client: " for the client"} if client else {}
    needed |= {event: " for the event"} if event else {}
    used = _common_columns(frames, needed, ignore)
    names = [name for name in used if name not in (target, client, event)]
    if not names:
        first = next(iter(frames))
        raise DataError(
            f"{first}: has no column but the target and the client; add one to learn from"
        )
    given = {source: _with_target(source, rows, target) for source, rows in frames.items()}
    rows = _Reader(pandas.concat(given))
    columns = []
    inputs = numpy.zeros((len(rows.frame), len(names)))
    for index, name in enumerate(names):
        known = rows.categories(name, MOST_CATEGORIES) if name in categories else ()
        columns.append(InputColumn(name, known))
        inputs[:, index] = rows.values(columns[-1])
    classes: tuple[str, ...] = ()
    if kind == Classification.kind:
        classes = rows.categories(target, MOST_CLASSES)
        if len(classes) < 2:
            only = f"has the value {_shown(classes[0])} only, so there is nothing to learn"
            rows.wrong.append(f"{next(iter(frames))}: column {_shown(target)} {only}")
    targets = rows.values(InputColumn(target, classes))
    if event is not None:
        targets = _times(rows, targets, target, event)
    holders = tuple(frames)
    ids = numpy.repeat(numpy.arange(len(given)), [len(own) for own in given.values()])
    if client is not None:
        holders = rows.categories(client, len(ids))
        ids = _positions(rows.frame[client], holders)
        if (empty := numpy.isnan(ids)).any():
            rows.add(empty, client, "is empty, and must name the client")
    refuse(rows.wrong, "; correct the cells, or put the column into `categories` or `ignore`")
    problem = Classification(len(classes)) if classes else Regression()
    return Samples(
        torch.from_numpy(inputs),
        torch.from_numpy(targets.astype(numpy.int64 if classes else numpy.float32)),
        Survival() if kind == Survival.kind else problem,
        ids=torch.from_numpy(ids.astype(numpy.int64)),
        names=holders,
        after_partition=partial(prepare, standardise=standardise),
        table=Encoding(target, tuple(columns), classes),
    )


def _common_columns(
    frames: Mapping[str, DataFrame], needed: Mapping[str, str], ignore: Sequence[str]
) -> list[str]:
    """The columns of all frames without those to `ignore`, in the order of the first frame.

    Args:
        frames: by what messages call them.
        needed: columns that must be there, and what a message adds to each.
        ignore: columns that are left out.
    """
    first = list(next(iter(frames.values())).columns)
    every = dict.fromkeys([*needed, *(name for rows in frames.values() for name in rows.columns)])
    wrong = []
    for name in every:
        without = [source for source, rows in frames.items() if name not in rows]
        if not without or (name in ignore and name not in needed):
            continue
        having = [source for source in frames if source not in without]
        purpose = needed.get(name, "")
        if having:
            purpose += f", unlike {first_few(having)}: add it, or put it into `ignore`"
        hint = suggest(name, map(plain, frames[without[0]].columns))
        wrong.append(f"{first_few(without)}: no column {_shown(name)}{purpose}{hint}")
    for name in ignore:
        if name not in every:
            hint = suggest(name, map(plain, every))
            wrong.append(f"{next(iter(frames))}: no column {_shown(name)} to ignore{hint}")
    refuse(wrong)
    return [name for name in first if name not in ignore]


def _with_target(source: str, rows: DataFrame, target: str) -> DataFrame:
    """The rows that have a value in the target column; they keep their numbers."""
    given = rows[target].notna()
    without = int((~given).sum())
    if without == len(given):
        raise DataError(
            f"{source}: no row has a value in column {_shown(target)}; fill some in, or leave it out"
        )
    if without:
        log.warning("%s: %d rows without a value in %s are left out", source, without, target)
    return rows[given]


def _times(rows: _Reader, times: numpy.ndarray, target: str, event: str) -> numpy.ndarray:
    """Times [N], negative where the event had not happened by then."""
    happened = rows.values(InputColumn(event))
    wrong = ~(numpy.isin(happened, (0, 1)) & (times > 0))
    if wrong.any():
        rows.add(wrong, target, f"must be a time greater than 0, and {event!r} must be 0 or 1")
    return numpy.where(happened == 1, times, -times)


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
    if (kind == Survival.kind) != (event is not None):
        raise DataError('`event` names a column for kind = "survival", and for no other kind')
    paths = _matching(Path(data_dir or ""), str(files))
    texts = [*categories, *filter(None, [client])]
    if kind == Classification.kind:
        texts.append(target)
    samples = samples_of(
        {str(path): read_table(path, texts) for path in paths},
        target=target,
        kind=kind,
        event=event,
        client=client,
        categories=categories,
        ignore=ignore,
        standardise=standardise,
    )
    names = tuple(path.name.partition(".")[0] for path in paths)
    is_clear = client is None and len(set(names)) == len(names)
    return replace(samples, names=names) if is_clear else samples


def _matching(folder: Path, files: str) -> list[Path]:
    """The files of a path or pattern, sorted."""
    try:
        if Path(files).is_absolute() and Path(files).is_file():
            return [Path(files)]
        found = sorted(path for path in folder.glob(files) if path.is_file())
    except IndexError:
        raise DataError(f"files = {shortened(files)!r}: must be a path or pattern") from None
    except (ValueError, NotImplementedError, OSError) as error:
        raise DataError(f"files = {shortened(files)!r}: {reason(error)}") from None
    if not found:
        where = shortened(str(folder / files))
        raise DataError(
            f"{where}: no such file; paths start from the config's folder, or from `data_dir`"
        )
    return found


# From values to inputs --------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Turns rows of a table [N, columns] into inputs [N, F], as a module that a trained model can carry."""

    def __init__(self, columns: Sequence[InputColumn]) -> None:
        super().__init__()
        self.columns = tuple(columns)

    def forward(self, values: Tensor) -> Tensor:
        """Inputs [N, F], float32, of values [N, columns] as `InputColumn` describes them."""
        inputs = []
        for column, own in zip(self.columns, values.double().unbind(1), strict=True):
            missing = own.isnan()
            if column.categories:
                made = [own == code for code in range(len(column.categories))]
            else:
                made = [(torch.where(missing, column.fill, own) - column.mean) / column.deviation]
            if column.marks_missing:
                made.append(missing)
            for position, one in enumerate(made):
                inputs.append(torch.zeros_like(one) if position in column.unseen else one)
        return torch.stack([one.float() for one in inputs], 1)


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
    trained = torch.unique(data.train.indices)
    columns = []
    for column, values in zip(samples.table.columns, raw.T, strict=True):
        gaps = numpy.isnan(values)
        missing = float(gaps[trained.numpy()].mean())
        columns.append(replace(column, marks_missing=bool(gaps.any()), missing=missing))
    columns = _fitted(columns, raw[trained.numpy()], standardise)
    encode = Encoder(columns)
    inputs = torch.cat([encode(block) for block in torch.split(samples.inputs, ROWS_AT_ONCE)])
    for client in range(data.num_clients if standardise == "client" else 0):
        train, test = (held.indices[held.slice(client)] for held in (data.train, data.test))
        rows = torch.cat([train, test])
        inputs[rows] = Encoder(_fitted(columns, raw[train.numpy()], standardise))(
            samples.inputs[rows]
        )
    unseen = ~inputs[trained].any(0)
    inputs[:, unseen] = 0.0
    parts = torch.split(unseen, [column.width for column in columns])
    for place, part in enumerate(parts):
        columns[place] = replace(columns[place], unseen=tuple(part.nonzero().flatten().tolist()))
    by_client = standardise == "client"
    encoding = replace(samples.table, columns=tuple(columns), by_client=by_client)
    return replace(data, samples=replace(samples, inputs=inputs, table=encoding))


def _fitted(
    columns: Sequence[InputColumn], rows: numpy.ndarray, standardise: Standardise
) -> list[InputColumn]:
    """The columns with mean and deviation of the numbers in rows [n, columns]; without any they stay as they are.

    The deviation of a constant is so large that it becomes 0. NumPy adds row to row, in this order on every CPU.
    """
    given = ~numpy.isnan(rows)
    counts = numpy.maximum(given.sum(0), 1)
    means = numpy.where(given, rows, 0.0).sum(0) / counts
    deviations = numpy.sqrt((numpy.where(given, rows - means, 0.0) ** 2).sum(0) / counts)
    deviations[deviations <= 1e-12 * abs(means)] = LARGEST
    found = []
    for column, has_numbers, mean, deviation in zip(
        columns, given.any(0), means.tolist(), deviations.tolist(), strict=True
    ):
        if has_numbers and not column.categories:
            column = replace(column, fill=mean)
            if standardise != "off":
                column = replace(column, mean=mean, deviation=deviation)
        found.append(column)
    return found


# Rows to predict --------------------------------------------------------------------------------------------------


class NewRows(NamedTuple):
    """Rows as an `Encoder` takes them."""

    values: numpy.ndarray  # [N, columns]
    unused: list[str]  # names of columns


def read_rows(path: Path, encoding: Encoding) -> DataFrame:
    """The rows of a file, with texts where the encoding has categories."""
    texts = [column.name for column in encoding.columns if column.categories]
    return read_table(path, [*texts, encoding.target] if encoding.classes else texts)


def encode_rows(rows: DataFrame, encoding: Encoding, source: str) -> NewRows:
    """The values of all columns, in the order of the encoding. Columns may have any order.

    Args:
        rows: at least the columns of the encoding.
        encoding: the columns.
        source: the file of the rows, for messages.
    """
    import pandas

    rows = rows.set_axis([str(name) for name in rows.columns], axis="columns")
    names = [column.name for column in encoding.columns]
    refuse_repeated([name for name in rows.columns if name in names], source)
    unused = [name for name in rows.columns if name not in names]
    missing = [name for name in names if name not in rows.columns]
    problems = [f"{source}: no column {_shown(name)}{suggest(name, unused)}" for name in missing]
    if problems:
        hint = "Leave cells empty that you do not know"
        problems.append(f"{source}: the model needs {_listed(names, 30)}. {hint}")
    elif not len(rows):
        problems = [f"{source}: has no rows below the column names; add at least one"]
    if problems:
        raise DataError("\n".join(problems[:MOST_PROBLEMS]))
    reader = _Reader(pandas.concat({source: rows.reset_index(drop=True)}))
    values = numpy.stack([reader.values(column) for column in encoding.columns], 1)
    if reader.wrong:
        advice = "; correct it, or leave it empty if it is not known"
        raise DataError("\n".join(f"{said}{advice}" for said in reader.wrong[:MOST_PROBLEMS]))
    return NewRows(values, unused)


def remarks(rows: NewRows, encoding: Encoding) -> Iterator[str]:
    """What a user should know about predictions for these rows."""
    if rows.unused:
        yield f"Not used: columns that the model does not know: {_listed(rows.unused)}."
    for column, values in zip(encoding.columns, rows.values.T, strict=True):
        found = []
        if column.missing == 0 and numpy.isnan(values).any():
            found.append("is empty in some rows, and was in no row that the model learned from")
        is_scaled = (column.mean, column.deviation) != (0.0, 1.0)  # otherwise nothing is known
        if is_scaled and (abs(values - column.mean) > FAR * column.deviation).any():
            found.append(
                f"is more than {FAR} standard deviations from the mean of the training samples in some rows: are they "
                "in the same units?"
            )
        for said in found:
            yield f"Column {_shown(column.name)} {said}; predictions for such rows are not reliable."
    if encoding.by_client:
        yield (
            "The clients' numbers were scaled by their own statistics, these rows by those of all clients "
            '(standardise = "client").'
        )


def _shown(name: object) -> str:
    """The name of a column in a message: a damaged file may have any."""
    return repr(shortened(plain(str(name)), 60))


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(shortened(name, 40) for name in names[:most]) + more
