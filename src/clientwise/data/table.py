"""Tables: CSV and Parquet files of a user's own, and what the loaders of published tables share."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy
import torch

from ..core.problem import Classification, Regression
from ..errors import shortened
from ..limits import gigabytes, memory
from ..registry import suggest
from .cache import Writer, cached
from .columns import Column, Standardise, prepare
from .federated import MOST_CLASSES, Samples
from .folder import DATASETS, DataError, read_file, reason

if TYPE_CHECKING:
    from pandas import DataFrame, Series

log = logging.getLogger("clientwise")
LARGEST = 1e30  # number, either sign: squares of larger ones are infinite
MOST_COLUMNS = 100_000  # each is looked at by itself
MOST_CATEGORIES = 1_000  # of a column: more are names or numbers, not categories
KINDS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
Kind = Literal["classification", "regression"]


@DATASETS.register("table")
def table(
    data_dir: Path | None,
    *,
    files: str,
    target: str,
    kind: Kind = "classification",
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    standardise: Standardise = "pooled",
) -> Samples:
    """Your own table, CSV or Parquet: a file per client, or a column that names the `client`.

    `files` is a path or pattern in the data folder (or where you are), as in "hospitals/*.csv". Every column but
    the target, the client and those in `ignore` is an input: one-hot if in `categories`, else a number. Empty cells, NA
    and ? are missing. Numbers are standardised by the clients' training samples (docs/data.md).
    """
    paths = _matching(data_dir, files)

    texts = [*categories, *([client] if client else []), *([target] if kind == "classification" else [])]

    def read() -> Table:
        sheets = [Sheet(path, _read(path, texts), path.name.partition(".")[0]) for path in paths]
        return join(sheets, target=target, kind=kind, client=client, categories=categories, ignore=ignore)

    options = [target, kind, client, *categories, None, *ignore]
    return cached_table("table", paths, read, options).samples(standardise)


@dataclass(frozen=True)
class Sheet:
    """The rows of a file, and whose they are where no column says so."""

    path: Path
    rows: DataFrame
    client: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of all clients: inputs as they were read, holes and all, and what is to be learned."""

    inputs: numpy.ndarray  # [N, columns]
    targets: numpy.ndarray  # [N]
    ids: numpy.ndarray  # [N] whose row it is: names[id]
    columns: tuple[Column, ...]
    names: tuple[str, ...]
    num_classes: int = 0  # 0 for regression

    def samples(self, standardise: Standardise) -> Samples:
        """What is spread over clients; numbers and categories become inputs once it is known who holds what."""
        problem = Classification(self.num_classes) if self.num_classes else Regression()
        return Samples(
            torch.as_tensor(self.inputs),
            torch.as_tensor(self.targets),
            problem,
            ids=torch.as_tensor(self.ids),
            names=self.names,
            after_partition=partial(prepare, columns=self.columns, standardise=standardise),
        )


def cached_table(name: str, paths: Sequence[Path], read: Callable[[], Table], options: Sequence[Any] = ()) -> Table:
    """A table, from the cache where these files were read before with these options."""

    def build(arrays: Writer) -> None:
        made = read()
        for part in ("inputs", "targets", "ids"):
            arrays.save(part, getattr(made, part))
        words = {"columns": [asdict(column) for column in made.columns], "names": made.names}
        text = json.dumps(words | {"num_classes": made.num_classes}).encode()
        arrays.save("words", numpy.frombuffer(text, numpy.uint8))

    arrays = {part: values.numpy() for part, values in cached(name, paths, build, options).items()}
    words = json.loads(arrays.pop("words").tobytes())
    columns = tuple(Column(column["name"], tuple(column["categories"])) for column in words["columns"])
    return Table(**arrays, columns=columns, names=tuple(words["names"]), num_classes=words["num_classes"])


def read_csv(path: Path, most: int, **options: Any) -> DataFrame:
    """The rows of a CSV file of `most` bytes at most; see `parse_csv`."""
    return parse_csv(path, read_file(path, most), **options)


def parse_csv(path: Path, content: bytes, **options: Any) -> DataFrame:
    """The rows of a CSV file with this content; empty cells, NA and ? are missing. Options are those of pandas."""
    import pandas

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows that are longer than the head
            return pandas.read_csv(
                io.BytesIO(content),
                na_values=["?"],
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                **options,
            )
    except Exception as error:
        raise DataError(f"{path}: not a table of commas and lines ({reason(error)}); put it right") from None


def join(
    sheets: Sequence[Sheet],
    *,
    target: str,
    kind: Kind,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Table:
    """Sheets as one table. They have the same columns, in any order."""
    sheets = [_with_target(sheet, target) for sheet in sheets]
    first, used = sheets[0], [name for name in sheets[0].rows.columns if name not in ignore]
    wanted = {*used, *ignore}
    for sheet in sheets:
        known = set(sheet.rows.columns)
        for name in [*([client] if client else []), *categories, *used]:
            if name not in known:
                raise DataError(f"{sheet.path}: no column {shortened(name)!r}{suggest(name, known)}")
        if more := [name for name in sheet.rows.columns if name not in wanted]:
            name = shortened(more[0])
            raise DataError(f"{sheet.path}: has a column {name!r} and {first.path} has none; put it into `ignore`")
    everywhere = {name for sheet in sheets for name in sheet.rows.columns}
    for name in ignore:
        if name not in everywhere:
            raise DataError(f"{first.path}: no column {shortened(name)!r} to ignore{suggest(name, everywhere)}")
    inputs = [name for name in used if name not in (target, client)]
    if not inputs:
        raise DataError(f"{first.path}: no column is left to learn from; it needs others than the target's")
    made: list[tuple[Column, numpy.ndarray]] = []
    for name in inputs:
        if name in categories:
            places, words = _places(sheets, name, MOST_CATEGORIES)
            made.append((Column(name, tuple(words)), numpy.where(places < 0, numpy.nan, places)))
        else:
            made.append((Column(name), _numbers(sheets, name)))
    targets, classes = _targets(sheets, target, kind)
    ids, names = _clients(sheets, client)
    columns = tuple(column for column, _ in made)
    return Table(numpy.stack([values for _, values in made], 1), targets, ids, columns, tuple(names), classes)


def _matching(data_dir: Path | None, files: str) -> list[Path]:
    """The files of a path or pattern, sorted."""
    folder = Path(data_dir) if data_dir else Path()
    try:
        found = [Path(files)] if Path(files).is_file() and Path(files).is_absolute() else sorted(folder.glob(files))
    except (ValueError, NotImplementedError, OSError) as error:
        raise DataError(f"files = {shortened(files)!r}: {reason(error)}") from None
    found = [path for path in found if path.is_file()]
    if not found:
        raise DataError(f"{shortened(str(folder / files))}: no such file; paths start from `data_dir`")
    if odd := [path for path in found if not path.name.endswith(KINDS)]:
        raise DataError(f"{odd[0]}: a table is a file {', '.join(KINDS)}; give `files` a pattern such as *.csv")
    return found


def _read(path: Path, texts: Sequence[str]) -> DataFrame:
    """The rows of a file; some columns as the text they are, so that 1 stays 1 in a file with holes."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    separator = "\t" if ".tsv" in path.name else ","
    content = read_file(path, memory() // 8)
    _refuse_wide(path, content.partition(b"\n")[0].count(separator.encode()) + 1)
    heads = parse_csv(path, content, sep=separator, header=None, nrows=1, dtype=str).iloc[0].dropna()
    if twice := sorted(heads[heads.duplicated()].unique()):
        raise DataError(f"{path}: two columns are called {twice[0]!r}; one could be the answer in another's clothes")
    return parse_csv(path, content, sep=separator, dtype=dict.fromkeys(texts, str))


def _refuse_wide(path: Path, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise DataError(f"{path}: has {columns:,} columns, {MOST_COLUMNS:,} at most go; leave some out of the file")


def _read_parquet(path: Path) -> DataFrame:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path}: Parquet needs another package: pip install 'clientwise[parquet]'") from None
    try:
        with ParquetFile(path) as file:
            _refuse_wide(path, file.metadata.num_columns)
            size = 8 * file.metadata.num_rows * file.metadata.num_columns
            if size > memory() // 8:
                raise ValueError(f"{gigabytes(size)} unpacked")
            frame: DataFrame = file.read().to_pandas()
            return frame.reset_index(drop=True)  # which may be of anything
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a Parquet file that can be read ({reason(error)}); write it again") from None


def _with_target(sheet: Sheet, target: str) -> Sheet:
    """The rows that say what is to be learned."""
    columns = list(sheet.rows.columns)
    if target not in columns:
        raise DataError(f"{sheet.path}: no column {shortened(target)!r} for the target{suggest(target, columns)}")
    if len(set(columns)) < len(columns):
        raise DataError(f"{sheet.path}: two columns have the same name; rename one")
    given = sheet.rows[target].notna()
    if not given.any():
        raise DataError(f"{sheet.path}: no row has a value in column {target!r}; put some there, or leave the file out")
    if not given.all():
        log.warning("%s: %d rows without a value in %s are left out", sheet.path, int((~given).sum()), target)
    return Sheet(sheet.path, sheet.rows[given], sheet.client)


def _numbers(sheets: Sequence[Sheet], name: str) -> numpy.ndarray:
    """A column of numbers, NaN where one is missing."""
    parts = []
    for sheet in sheets:
        column = sheet.rows[name]
        numbers = _parsed(column)
        wrong = (numpy.isnan(numbers) & column.notna().to_numpy()) | (numpy.abs(numbers) > LARGEST)
        if wrong.any():
            place = int(wrong.argmax())
            value = shortened(str(column.iloc[place]), 40)
            where = f"{sheet.path}: column {name!r}, row {int(column.index[place]) + 1}"
            raise DataError(
                f"{where}: {value!r} is no number (below {LARGEST:g}), nor are {int(wrong.sum()) - 1} others; "
                "put the column into `categories` or `ignore`, or the cell right"
            )
        parts.append(numbers)
    return numpy.concatenate(parts)


def _parsed(column: Series[Any]) -> numpy.ndarray:
    """Numbers; NaN for what is none."""
    import pandas

    try:
        numbers = pandas.to_numeric(column, errors="coerce")
    except OverflowError:  # an integer of hundreds of digits is too much for pandas
        numbers = column.map(_number, na_action="ignore")
    parsed: numpy.ndarray = numbers.to_numpy(numpy.float64, na_value=numpy.nan)
    return parsed


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return numpy.nan


def _places(sheets: Sequence[Sheet], name: str, most: int) -> tuple[numpy.ndarray, list[str]]:
    """A column of categories: the place of every value among all there are, -1 where it is missing; and what they are.

    Where all are numbers they are compared as such: 1 and 1.0 are the same.
    """
    import pandas

    column = pandas.concat([sheet.rows[name].astype(object) for sheet in sheets], ignore_index=True)
    numbers = _parsed(column)
    if (numpy.isnan(numbers) & column.notna().to_numpy()).any():
        column = column.map(lambda value: str(value).strip(), na_action="ignore")
        places, known = pandas.factorize(column, sort=True)
        words = [str(value) for value in known]
    else:
        places, known = pandas.factorize(numbers, sort=True)
        words = [f"{value:g}" for value in known]
    if len(words) > most:
        raise DataError(
            f"{sheets[0].path}: column {name!r} has {len(words):,} different values, {most:,} at most are categories; "
            "leave it out of `categories`, or put it into `ignore`"
        )
    return places, words


def _targets(sheets: Sequence[Sheet], name: str, kind: Kind) -> tuple[numpy.ndarray, int]:
    """What is to be learned, and how many classes there are: 0 for numbers."""
    if kind == "regression":
        return _numbers(sheets, name).astype(numpy.float32), 0
    places, classes = _places(sheets, name, MOST_CLASSES)
    if len(classes) < 2:
        raise DataError(f"{sheets[0].path}: column {name!r} has one value only, {classes[0]!r}: nothing to learn")
    return places.astype(numpy.int64), len(classes)


def _clients(sheets: Sequence[Sheet], name: str | None) -> tuple[numpy.ndarray, list[str]]:
    """Whose every row is, and what they are called."""
    if name is None:
        names = [sheet.client for sheet in sheets]
        if len(set(names)) < len(names):
            names = [str(sheet.path) for sheet in sheets]
        return numpy.repeat(numpy.arange(len(sheets)), [len(sheet.rows) for sheet in sheets]), names
    for sheet in sheets:
        if (missing := sheet.rows[name].isna()).any():
            row = int(sheet.rows.index[int(missing.to_numpy().argmax())]) + 1
            raise DataError(f"{sheet.path}: column {name!r}, row {row} does not say whose the row is; fill it in")
    places, names = _places(sheets, name, 10**9)
    return places.astype(numpy.int64), names
