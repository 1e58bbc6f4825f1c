"""Tables: CSV and Parquet files of a user's own, and what the loaders of published tables share."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy
import torch

from ..core.problem import Classification, Problem, Regression, Survival
from ..encoding import Encoding, InputColumn
from ..errors import shortened
from ..registry import suggest
from .arrays import MOST_CLASSES
from .cache import Writer, cached
from .catalogue import DATASETS
from .columns import Standardise, prepare
from .federated import Samples
from .folder import DataError, reason
from .table_files import ENDINGS, read_table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

log = logging.getLogger("clientwise")
LARGEST = 1e30  # number, either sign: squares of larger ones are infinite
MOST_PROBLEMS = 10  # in one message
NOT_NUMBERS = "; correct the cells, or put the column into `categories` or `ignore`"
MOST_CATEGORIES = 1_000  # of a column: more are names or numbers, not categories
FORMAT = 2  # increase it when `cached_table` writes other arrays than before
Kind = Literal["classification", "regression"]


@DATASETS.register("table")
def table(
    data_dir: Path | None,
    *,
    files: str,
    target: str,
    kind: Kind | Literal["survival"] = "classification",
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
        data_dir: the data folder; without one, paths start in the current folder.
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
    paths = _matching(data_dir, files)
    texts = list(categories)
    if client:
        texts.append(client)
    if kind == "classification":
        texts.append(target)
    unused = [*ignore]
    if event is not None:
        unused.append(event)

    def read() -> SampleTable:
        sheets = [
            Sheet(path, read_table(path, texts), path.name.partition(".")[0]) for path in paths
        ]
        if event is not None:
            sheets = [_with_signed_times(sheet, target, event) for sheet in sheets]
        return join(
            sheets,
            target=target,
            kind="classification" if kind == "classification" else "regression",
            client=client,
            categories=categories,
            ignore=unused,
        )

    options = [target, kind, event, client, *categories, None, *ignore]
    made = cached_table("table", paths, read, options)
    return made.samples(standardise, Survival() if event is not None else None)


@dataclass(frozen=True)
class Sheet:
    """The rows of a file, and the client they belong to where no column names one."""

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

    def samples(self, standardise: Standardise, problem: Problem | None = None) -> Samples:
        """The rows as samples; columns become inputs once clients hold them (`columns.prepare`)."""
        if problem is None:
            problem = Classification(len(self.classes)) if self.classes else Regression()
        return Samples(
            torch.as_tensor(self.inputs),
            torch.as_tensor(self.targets),
            problem,
            ids=torch.as_tensor(self.ids),
            names=self.names,
            after_partition=partial(prepare, columns=self.columns, standardise=standardise),
            table=Encoding(self.target, self.columns, self.classes),
        )


def cached_table(
    name: str, paths: Sequence[Path], read: Callable[[], SampleTable], options: Sequence[Any] = ()
) -> SampleTable:
    """A table, from the cache if these files were read before with these options."""

    def build(arrays: Writer) -> None:
        made = read()
        arrays.save("inputs", made.inputs)
        arrays.save("targets", made.targets)
        arrays.save("ids", made.ids)
        words = {
            "columns": [(column.name, column.categories) for column in made.columns],
            "names": made.names,
            "target": made.target,
            "classes": made.classes,
        }
        arrays.save("words", numpy.frombuffer(json.dumps(words).encode(), numpy.uint8))

    found = cached(name, paths, build, [FORMAT, *options])
    arrays = {part: values.numpy() for part, values in found.items()}
    words = json.loads(arrays.pop("words").tobytes())
    columns = tuple(InputColumn(name, tuple(categories)) for name, categories in words["columns"])
    return SampleTable(
        **arrays,
        columns=columns,
        names=tuple(words["names"]),
        target=words["target"],
        classes=tuple(words["classes"]),
    )


def join(
    sheets: Sequence[Sheet],
    *,
    target: str,
    kind: Kind,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> SampleTable:
    """Sheets as one table. They have the same columns, in any order; see `table` for the options."""
    needed = {target: " for the target"} | dict.fromkeys(categories, "")
    if client:
        needed[client] = " for the client"
    used = _common_columns(sheets, needed, ignore)
    sheets = [_with_target(sheet, target) for sheet in sheets]
    names = [name for name in used if name not in (target, client)]
    if not names:
        raise DataError(
            f"{sheets[0].path}: has no column but the target and the client; add one to learn from"
        )
    inputs, columns = _inputs(sheets, names, frozenset(categories))
    targets, classes = _targets(sheets, target, kind)
    ids, clients = _clients(sheets, client)
    return SampleTable(inputs, targets, ids, columns, tuple(clients), target, tuple(classes))


def _common_columns(
    sheets: Sequence[Sheet], needed: Mapping[str, str], ignore: Sequence[str]
) -> list[str]:
    """The columns of all sheets without those to `ignore`, in the order of the first sheet.

    Args:
        sheets: the files.
        needed: columns that must be there, and what a message adds to each.
        ignore: columns that are left out.
    """
    first = sheets[0]
    ignored = frozenset(ignore)
    used = [name for name in first.rows.columns if name not in ignored]
    wanted = {*used, *ignored}
    found: set[str] = set()
    wrong: list[str] = []
    for sheet in sheets:
        known = set(sheet.rows.columns)
        found |= known
        for name in dict.fromkeys([*needed, *used]):
            if name not in known:
                what = f"{shortened(name)!r}{needed.get(name, '')}"
                wrong.append(f"{sheet.path}: no column {what}{suggest(name, known)}")
        for name in sheet.rows.columns:
            if name not in wanted:
                wrong.append(
                    f"{sheet.path}: has a column {shortened(name)!r}, but {first.path} has none; "
                    "put it into `ignore`, or add it there"
                )
    for name in ignore:
        if name not in found:
            wrong.append(
                f"{first.path}: no column {shortened(name)!r} to ignore{suggest(name, found)}"
            )
    _refuse(wrong)
    return used


def _refuse(wrong: Sequence[str], advice: str = "") -> None:
    """DataError with all of these problems, if there are any."""
    if wrong:
        more = [f"and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise DataError("; ".join([*wrong[:MOST_PROBLEMS], *more]) + advice)


def _inputs(
    sheets: Sequence[Sheet], names: Sequence[str], categories: Collection[str]
) -> tuple[numpy.ndarray, tuple[InputColumn, ...]]:
    """The values of these columns [N, columns], NaN where one is missing, and what they are."""
    values = numpy.zeros((sum(len(sheet.rows) for sheet in sheets), len(names)))
    done = _numeric(sheets).difference(categories)
    positions = [index for index, name in enumerate(names) if name in done]
    if positions:  # all at once: tables may have thousands of columns
        plain = [names[index] for index in positions]
        parts = [sheet.rows[plain].to_numpy(numpy.float64) for sheet in sheets]
        values[:, positions] = numpy.concatenate(parts)
    too_large: numpy.ndarray = numpy.any(numpy.abs(values) > LARGEST, axis=0)
    columns = []
    wrong: list[str] = []
    for index, name in enumerate(names):
        words: list[str] = []
        if name in categories:
            codes, words = _codes(sheets, name, MOST_CATEGORIES)
            values[:, index] = numpy.where(codes < 0, numpy.nan, codes)
        elif name not in done or too_large[index]:
            try:
                values[:, index] = _numbers(sheets, name)
            except DataError as error:  # the other columns may be wrong, too
                wrong.append(str(error).removesuffix(NOT_NUMBERS))
        columns.append(InputColumn(name, tuple(words)))
    _refuse(wrong, NOT_NUMBERS)
    return values, tuple(columns)


def _numeric(sheets: Sequence[Sheet]) -> set[str]:
    """Columns that pandas read as numbers in all sheets."""
    found = set(sheets[0].rows.columns)
    for sheet in sheets:
        kinds = zip(sheet.rows.columns, sheet.rows.dtypes, strict=True)
        found &= {
            name for name, kind in kinds if isinstance(kind, numpy.dtype) and kind.kind in "iuf"
        }
    return found


def _matching(data_dir: Path | None, files: str) -> list[Path]:
    """The files of a path or pattern, sorted."""
    folder = Path(data_dir) if data_dir else Path()
    try:
        if Path(files).is_absolute() and Path(files).is_file():
            found = [Path(files)]
        else:
            found = sorted(path for path in folder.glob(files) if path.is_file())
    except (ValueError, NotImplementedError, OSError) as error:
        raise DataError(f"files = {shortened(files)!r}: {reason(error)}") from None
    if not found:
        raise DataError(
            f"{shortened(str(folder / files))}: no such file; paths start from `data_dir`"
        )
    for path in found:
        if not path.name.endswith(ENDINGS):
            raise DataError(
                f"{path}: a table is a file {', '.join(ENDINGS)}; give `files` a pattern such as *.csv"
            )
    return found


def _with_target(sheet: Sheet, target: str) -> Sheet:
    """The rows that have a value in the target column."""
    columns = list(sheet.rows.columns)
    if target not in columns:
        raise DataError(
            f"{sheet.path}: no column {shortened(target)!r} for the target{suggest(target, columns)}"
        )
    if len(set(columns)) < len(columns):
        raise DataError(f"{sheet.path}: two columns have the same name; rename or remove one")
    given = sheet.rows[target].notna()
    if not given.any():
        raise DataError(
            f"{sheet.path}: no row has a value in column {target!r}; fill some in, or leave the file out"
        )
    if not given.all():
        log.warning(
            "%s: %d rows without a value in %s are left out",
            sheet.path,
            int((~given).sum()),
            target,
        )
    return Sheet(sheet.path, sheet.rows[given], sheet.client)


def _with_signed_times(sheet: Sheet, target: str, event: str) -> Sheet:
    """Times that are negative where the event had not happened by then."""
    sheet = _with_target(sheet, target)
    if event not in sheet.rows.columns:
        known = list(sheet.rows.columns)
        raise DataError(
            f"{sheet.path}: no column {shortened(event)!r} for the event{suggest(event, known)}"
        )
    times = _numbers([sheet], target)
    happened = _numbers([sheet], event)
    wrong = ~(numpy.isin(happened, (0, 1)) & (times > 0))
    if wrong.any():
        row = int(sheet.rows.index[int(wrong.argmax())]) + 1
        raise DataError(
            f"{sheet.path}: row {row}: {target!r} must be a time greater than 0 and {event!r} must be 0 or 1; "
            "correct the row, or empty its time"
        )
    signed = numpy.where(happened == 1, times, -times)
    return Sheet(sheet.path, sheet.rows.assign(**{target: signed}), sheet.client)


def _numbers(sheets: Sequence[Sheet], name: str) -> numpy.ndarray:
    """A column of numbers, NaN where one is missing."""
    parts = []
    for sheet in sheets:
        column = sheet.rows[name]
        numbers = parse_numbers(column)
        wrong = (numpy.isnan(numbers) & column.notna().to_numpy()) | (numpy.abs(numbers) > LARGEST)
        if wrong.any():
            first = int(wrong.argmax())
            value = shortened(str(column.iloc[first]), 40)
            where = f"{sheet.path}: column {name!r}, row {int(column.index[first]) + 1}"
            more = int(wrong.sum()) - 1
            others = f", and neither are {more} other cells" if more else ""
            raise DataError(
                f"{where}: {value!r} is not a number below {LARGEST:g}{others}{NOT_NUMBERS}"
            )
        parts.append(numbers)
    return numpy.concatenate(parts)


def parse_numbers(column: Series[Any]) -> numpy.ndarray:
    """The cells as numbers; NaN for those that are none."""
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


def _codes(sheets: Sequence[Sheet], name: str, most: int) -> tuple[numpy.ndarray, list[str]]:
    """A column of categories: the code of every value [N], -1 where it is missing, and the categories.

    The categories are sorted. Where all are numbers, 1 and 1.0 are the same category.
    """
    import pandas

    column = pandas.concat([sheet.rows[name].astype(object) for sheet in sheets], ignore_index=True)
    numbers = parse_numbers(column)
    if (numpy.isnan(numbers) & column.notna().to_numpy()).any():
        # As objects, a text that is repeated is kept once; pandas would map them to copies.
        texts = column.to_numpy(copy=True)
        present = column.notna().to_numpy()
        texts[present] = [str(value).strip() for value in texts[present]]
        codes, known = pandas.factorize(texts, sort=True)
        words = [str(value) for value in known]
    else:
        codes, known = pandas.factorize(numbers, sort=True)
        words = [f"{value:.15g}" for value in known]
    if len(words) > most:
        raise DataError(
            f"{sheets[0].path}: column {name!r} has {len(words):,} different values, {most:,} are allowed; "
            "remove it from `categories`, or put it into `ignore`"
        )
    return codes, words


def _targets(sheets: Sequence[Sheet], name: str, kind: Kind) -> tuple[numpy.ndarray, list[str]]:
    """The targets [N], and the classes: none for regression."""
    if kind == "regression":
        return _numbers(sheets, name).astype(numpy.float32), []
    codes, classes = _codes(sheets, name, MOST_CLASSES)
    if len(classes) < 2:
        only = f"has the value {classes[0]!r} only, so there is nothing to learn"
        raise DataError(f"{sheets[0].path}: column {name!r} {only}; add rows of another class")
    return codes.astype(numpy.int64), classes


def _clients(sheets: Sequence[Sheet], name: str | None) -> tuple[numpy.ndarray, list[str]]:
    """The client of every row [N], and the clients' names."""
    if name is None:
        names = [sheet.client for sheet in sheets]
        if len(set(names)) < len(names):
            names = [str(sheet.path) for sheet in sheets]
        return numpy.repeat(numpy.arange(len(sheets)), [len(sheet.rows) for sheet in sheets]), names
    for sheet in sheets:
        if (missing := sheet.rows[name].isna()).any():
            row = int(sheet.rows.index[int(missing.to_numpy().argmax())]) + 1
            raise DataError(
                f"{sheet.path}: column {name!r}, row {row} is empty: it must name the client; fill it in"
            )
    codes, names = _codes(sheets, name, 10**9)
    return codes.astype(numpy.int64), names
