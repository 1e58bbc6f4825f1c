"""Tables: CSV and Parquet files and pandas frames become samples, and rows to predict become inputs.

The order of the work: `read_table` reads a file. `samples_of` makes samples of several clients' rows: numbers,
positions of categories, and NaN where a value is missing. Once clients hold them, `prepare` turns these values
[N, columns] into inputs [N, F], by the training samples alone. `encode_rows` does the same with new rows, as the
`Encoding` that a model carries describes them.
"""

from __future__ import annotations

import glob
import io
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy
import torch
from torch import Tensor, nn

from ..core.objective.problem import Classification, Survival, named_problem
from ..errors import needing, shortened
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


# Files ------------------------------------------------------------------------------------------------------------


def read_table(path: Path, texts: Sequence[str] = ()) -> DataFrame:
    """The rows of a CSV, TSV or Parquet file.

    A CSV file whose header is separated by semicolons may have decimal commas.

    Args:
        path: the file; its ending says what it is.
        texts: columns that stay as written, so that 1 stays 1 in a file with empty cells.
    """
    import pandas

    if not path.name.endswith(ENDINGS):
        raise DataError(f"{path}: a table is a file {', '.join(ENDINGS)}")
    if path.suffix == ".parquet":
        with needing("parquet", f"{path}: Parquet"):
            import pyarrow  # noqa: F401
        with _reading(path):
            return pandas.read_parquet(path)
    separator = separator_of(path)
    _refuse_repeated(_head(path, separator), str(path))
    decimal = "," if separator == ";" else "."
    return parse_csv(path, sep=separator, decimal=decimal, dtype=dict.fromkeys(texts, str))


def separator_of(path: Path) -> str:
    """The separator of a CSV or TSV file; of a CSV file, what its header has more of, outside of quotes."""
    if ".tsv" in path.name:
        return "\t"
    return max(",;", key=lambda separator: len(_head(path, separator)))


def _head(path: Path, separator: str) -> list[str]:
    """The names of the columns in the first line that is not empty."""
    head = parse_csv(path, sep=separator, header=None, nrows=1, dtype=str)
    names: list[str] = head.iloc[0].dropna().tolist()
    return names


def parse_csv(path: Path, content: bytes | None = None, **options: Any) -> DataFrame:
    """The rows of a CSV file, or of its content; empty cells, NA and ? are missing values.

    Options are those of `pandas.read_csv`.
    """
    import pandas

    with _reading(path), warnings.catch_warnings():
        # Rows longer than the header
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        frame: DataFrame = pandas.read_csv(
            path if content is None else io.BytesIO(content),
            **({"index_col": False} | options),
            na_values=["?"],
            skipinitialspace=True,
            low_memory=False,
        )
    return frame


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


def _refuse_repeated(names: Iterable[object], source: str) -> None:
    """DataError where two columns have one name: one may be a copy of the target."""
    seen: set[object] = set()
    for name in names:
        if name in seen:
            said = f"{source}: two columns are called {_shown(name)}; one may leak the target. Rename or remove one"
            raise DataError(said)
        seen.add(name)


def pandas_frame(given: Any) -> DataFrame:
    """A frame of pandas or polars, or a dictionary of columns, as a frame of pandas with texts as names of columns."""
    import pandas

    if not isinstance(given, pandas.DataFrame):
        names = given if isinstance(given, dict) else given.columns
        given = pandas.DataFrame({name: list(given[name]) for name in names})
    frame: DataFrame = given.set_axis(given.columns.map(str), axis=1)
    return frame


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
    return cells.astype(object).map(_word, na_action="ignore")


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

    def __init__(self, frames: Mapping[str, DataFrame]) -> None:
        import pandas

        self.frame = pandas.concat(frames)
        self.wrong: list[str] = []

    def values(self, column: InputColumn) -> numpy.ndarray:
        """Numbers, or positions of categories [N]; NaN where a value is missing."""
        cells = self.frame[column.name]
        if known := column.categories:
            values = _positions(cells, known)
            allowed = f"one of its categories ({first_few(known, 5)})"
        else:
            values = parse_numbers(cells)
            allowed = f"a number below {LARGEST:g}"
        wrong = numpy.isnan(values) & cells.notna().to_numpy()
        if wrong.any():
            cell = shortened(str(cells.iloc[int(wrong.argmax())]), 40)
            self.add(wrong, column.name, f"{cell!r} is not {allowed}")
        return values

    def categories(self, name: str, most: int) -> tuple[str, ...]:
        """The different values of a column, sorted."""
        found = _words(self.frame[name]).dropna().unique().tolist()
        try:
            found.sort(key=float)
        except ValueError:  # not all are numbers
            found.sort()
        if len(found) > most:
            self.wrong.append(
                f"{self.frame.index[0][0]}: column {_shown(name)} has more than {most:,} different values"
            )
        return tuple(found)

    def add(self, wrong: numpy.ndarray, name: str, said: str) -> None:
        """Note the first of the rows with a wrong cell, and how many others there are."""
        source, row = self.frame.index[int(wrong.argmax())]
        others = int(wrong.sum()) - 1
        more = f", and neither are {others} other cells" if others else ""
        self.wrong.append(f"{source}: column {_shown(name)}, row {row + 1}: {said}{more}")

    def refuse(self, advice: str) -> None:
        """DataError with all that is wrong, if anything is."""
        _refuse(self.wrong, advice)


def _refuse(wrong: Sequence[str], advice: str) -> None:
    if wrong:
        more = [f"and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise DataError(f"{'; '.join([*wrong[:MOST_PROBLEMS], *more])}; {advice}")


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
    standardise: bool = True,
) -> Samples:
    """The rows of frames, which have the same columns in any order, as samples; see `table` for the options.

    A frame is called by its key. Rows without a target are left out. DataError names the columns and the first
    cells that are wrong.
    """
    frames = {source: pandas_frame(own) for source, own in frames.items()}
    special = [name for name in (target, client, event) if name is not None]
    used = _common_columns(frames, [*special, *categories], ignore)
    names = [name for name in used if name not in special]
    if not names:
        first = next(iter(frames))
        raise DataError(
            f"{first}: has no column but the target and the client; add one to learn from"
        )
    rows = _Reader({source: _with_target(source, own, target) for source, own in frames.items()})
    columns = [
        InputColumn(name, rows.categories(name, MOST_CATEGORIES) if name in categories else ())
        for name in names
    ]
    inputs = numpy.stack([rows.values(column) for column in columns], 1)
    classes = rows.categories(target, MOST_CLASSES) if kind == Classification.kind else ()
    if len(classes) == 1:
        only = f"has the value {_shown(classes[0])} only, so there is nothing to learn"
        rows.wrong.append(f"{next(iter(frames))}: column {_shown(target)} {only}")
    targets = rows.values(InputColumn(target, classes))
    if event is not None:  # times, negative where the event had not happened by then
        happened = rows.values(InputColumn(event))
        wrong = ~(numpy.isin(happened, (0, 1)) & (targets > 0))
        if wrong.any():
            rows.add(wrong, target, f"must be a time greater than 0, and {event!r} must be 0 or 1")
        targets = numpy.where(happened == 1, targets, -targets)
    holders = tuple(frames)
    ids = numpy.array(rows.frame.index.codes[0])
    if client is not None:
        holders = rows.categories(client, len(ids))
        ids = rows.values(InputColumn(client, holders))
        if (empty := numpy.isnan(ids)).any():
            rows.add(empty, client, "is empty, and must name the client")
    rows.refuse("correct the cells, or put the column into `categories` or `ignore`")
    return Samples(
        torch.from_numpy(inputs),
        torch.from_numpy(targets.astype(numpy.int64 if classes else numpy.float32)),
        named_problem(kind, len(classes)),
        ids=torch.from_numpy(ids.astype(numpy.int64)),
        names=holders,
        after_partition=partial(prepare, standardise=standardise),
        table=Encoding(target, tuple(columns), classes),
    )


def _common_columns(
    frames: Mapping[str, DataFrame], needed: Sequence[str], ignore: Sequence[str]
) -> list[str]:
    """The columns of all frames without those to `ignore`, in the order of the first frame."""
    every = dict.fromkeys(name for rows in frames.values() for name in rows.columns)
    wrong = []
    for name in dict.fromkeys([*needed, *every]):
        without = [source for source, rows in frames.items() if name not in rows]
        if without and (name in needed or name not in ignore):
            known = [] if name in every else every
            hint = suggest(name, known) if known else ", which others have"
            wrong.append(f"{first_few(without)}: no column {_shown(name)}{hint}")
    for name in ignore:
        if name not in every:
            first = next(iter(frames))
            wrong.append(f"{first}: no column {_shown(name)} to ignore{suggest(name, every)}")
    _refuse(wrong, "correct the name, add the column, or put it into `ignore`")
    for source, rows in frames.items():
        _refuse_repeated(rows.columns, source)
    return [name for name in next(iter(frames.values())).columns if name not in ignore]


def _with_target(source: str, rows: DataFrame, target: str) -> DataFrame:
    """The rows that have a value in the target column, with their numbers as index."""
    rows = rows.reset_index(
        drop=True
    )  # a file of Parquet, or a frame, may have an index of anything
    given = rows[target].notna()
    without = int((~given).sum())
    if without == len(given):
        raise DataError(
            f"{source}: no row has a value in column {_shown(target)}; fill some in, or leave it out"
        )
    if without:
        log.warning("%s: %d rows without a value in %s are left out", source, without, target)
    return rows[given]


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
    standardise: bool = True,
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
        standardise: whether numbers get mean 0 and deviation 1, by the training samples of all clients.

    Returns:
        Samples whose inputs [N, columns] become [N, F] once clients hold them.
    """
    if (kind == Survival.kind) != (event is not None):
        raise DataError('`event` names a column for kind = "survival", and for no other kind')
    folder = Path(data_dir or "")
    found = (folder / one for one in glob.glob(str(files), root_dir=folder, recursive=True))
    paths = sorted(path for path in found if path.is_file())
    if not paths:
        where = shortened(str(folder / files))
        raise DataError(
            f"{where}: no such file; paths start from the config's folder, or from `data_dir`"
        )
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


def prepare(data: FederatedData, standardise: bool) -> FederatedData:
    """The table [N, columns] as inputs [N, F], by the clients' training samples alone.

    - Numbers get mean 0 and standard deviation 1; a missing number becomes the mean.
    - Categories are one-hot.
    - A column with missing values gets a second one that says where they are.
    - A category that no training sample has is zero everywhere, and so is such a second column.

    `samples.table` then has what new rows are encoded by.

    Args:
        data: samples whose inputs are the table, and which client trains on which.
        standardise: otherwise numbers stay as they are, except missing ones.
    """
    samples = data.samples
    assert samples.table is not None
    raw = samples.inputs.numpy()
    trained = torch.unique(data.train.indices)
    columns = _fitted(samples.table.columns, raw[trained.numpy()], standardise)
    has_gaps = numpy.isnan(raw).any(0).tolist()
    columns = [
        replace(column, marks_missing=gaps) for column, gaps in zip(columns, has_gaps, strict=True)
    ]
    encode = Encoder(columns)
    inputs = torch.cat([encode(block) for block in torch.split(samples.inputs, ROWS_AT_ONCE)])
    unseen = ~inputs[trained].any(0)
    inputs[:, unseen] = 0.0
    parts = torch.split(unseen, [column.width for column in columns])
    columns = [
        replace(column, unseen=tuple(part.nonzero().flatten().tolist()))
        for column, part in zip(columns, parts, strict=True)
    ]
    encoding = replace(samples.table, columns=tuple(columns))
    return replace(data, samples=replace(samples, inputs=inputs, table=encoding))


def _fitted(
    columns: Sequence[InputColumn], rows: numpy.ndarray, standardise: bool
) -> list[InputColumn]:
    """The columns with statistics of training rows [n, columns]; a column of numbers without any stays as it is.

    The deviation of a constant is so large that it becomes 0. NumPy adds row to row, in this order on every CPU.
    """
    given = ~numpy.isnan(rows)
    counts = numpy.maximum(given.sum(0), 1)
    means = numpy.where(given, rows, 0.0).sum(0) / counts
    deviations = numpy.sqrt((numpy.where(given, rows - means, 0.0) ** 2).sum(0) / counts)
    deviations[deviations <= 1e-12 * abs(means)] = LARGEST
    found = []
    facts = zip(given.mean(0).tolist(), means.tolist(), deviations.tolist(), strict=True)
    for column, (share, mean, deviation) in zip(columns, facts, strict=True):
        column = replace(column, missing=1 - share)
        if share and not column.categories:
            column = replace(column, fill=mean)
            if standardise:
                column = replace(column, mean=mean, deviation=deviation)
        found.append(column)
    return found


# Rows to predict --------------------------------------------------------------------------------------------------


def read_rows(path: Path, encoding: Encoding) -> DataFrame:
    """The rows of a file, with texts where the encoding has categories."""
    texts = [column.name for column in encoding.columns if column.categories]
    return read_table(path, [*texts, encoding.target] if encoding.classes else texts)


def encode_rows(rows: DataFrame, encoding: Encoding, source: str) -> numpy.ndarray:
    """The values of all columns [N, columns], in the order of the encoding. Columns may have any order.

    A warning says what makes predictions unreliable.

    Args:
        rows: at least the columns of the encoding.
        encoding: the columns.
        source: the file of the rows, for messages.
    """
    rows = pandas_frame(rows).reset_index(drop=True)
    names = [column.name for column in encoding.columns]
    _refuse_repeated([name for name in rows.columns if name in names], source)
    unused = [name for name in rows.columns if name not in names]
    missing = [name for name in names if name not in rows.columns]
    wrong = [f"{source}: no column {_shown(name)}{suggest(name, unused)}" for name in missing]
    _refuse(
        wrong, f"the model needs {first_few(names, 30)}. Leave cells empty that you do not know"
    )
    if not len(rows):
        raise DataError(f"{source}: has no rows below the column names; add at least one")
    reader = _Reader({source: rows})
    values = numpy.stack([reader.values(column) for column in encoding.columns], 1)
    reader.refuse("correct it, or leave it empty if it is not known")
    if unused:
        log.warning("Not used: columns that the model does not know: %s.", first_few(unused, 5))
    for column, own in zip(encoding.columns, values.T, strict=True):
        said = f"Column {_shown(column.name)}"
        if column.missing == 0 and numpy.isnan(own).any():
            log.warning("%s is empty in some rows, and never was in training.", said)
        is_scaled = (column.mean, column.deviation) != (0.0, 1.0)  # otherwise nothing is known
        if is_scaled and (abs(own - column.mean) > FAR * column.deviation).any():
            log.warning(
                "%s is more than %d standard deviations from the mean of the training samples in some rows: are they "
                "in the same units?",
                said,
                FAR,
            )
    return values


def _shown(name: object) -> str:
    """The name of a column in a message: a damaged file may have any."""
    return repr(shortened(str(name), 60))
