"""Tables of several clients as one: files with the same columns become inputs, targets and clients."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy
import torch

from ...core.objective.problem import Classification, Problem, Regression
from ...errors import plain, shortened
from ...registry import suggest
from ..arrays import MOST_CLASSES, first_few
from ..cache import Writer, cached
from ..federated import Given, Samples
from ..folder import DataError, ProgressLog
from .cells import CODE, LARGEST, Numbers, Words, refuse
from .columns import Standardise, blocks, prepare
from .encoding import Encoding, InputColumn

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger("clientwise")
MOST_CLIENTS = 10**9
MOST_CATEGORIES = 1_000  # of a column: more are names or numbers, not categories
FORMAT = 2  # increase it when `cached_table` writes other arrays than before
Kind = Literal["classification", "regression"]


@dataclass(frozen=True)
class Sheet:
    """A file's rows in chunks, and the client they belong to where no column names one."""

    path: Path
    columns: Sequence[str]
    chunks: Iterable[DataFrame]
    client: str = ""

    @staticmethod
    def of(path: Path, rows: DataFrame, client: str = "") -> Sheet:
        """Rows that are in memory."""
        return Sheet(path, list(rows.columns), [rows], client)


@dataclass(frozen=True)
class SampleTable:
    """Rows of all clients as they were read, with missing values."""

    inputs: numpy.ndarray  # [N, columns], memory-mapped
    targets: numpy.ndarray  # [N]
    ids: numpy.ndarray  # [N] the client of each row: names[id]
    columns: tuple[InputColumn, ...]
    names: tuple[str, ...]
    target: str
    classes: tuple[str, ...] = ()  # none for regression
    # [N] what the targets were computed from; None: they are as given
    given: numpy.ndarray | None = None

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
            given=self._given(),
        )

    def _given(self) -> Given | None:
        if self.given is None:
            return None  # until the columns become inputs
        return Given((torch.as_tensor(self.inputs), torch.as_tensor(self.given)))


def cached_table(
    name: str,
    paths: Sequence[Path],
    read: Callable[[Writer], SampleTable],
    options: Sequence[Any] = (),
) -> SampleTable:
    """A table, from the cache if these files were read before with these options.

    `read` writes the inputs (see `join`).
    """

    def build(arrays: Writer) -> None:
        made = read(arrays)
        arrays.save("targets", made.targets)
        arrays.save("ids", made.ids)
        if made.given is not None:
            arrays.save("given", made.given)
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
    arrays: Writer,
    sheets: Sequence[Sheet],
    *,
    target: str,
    kind: Kind,
    event: str | None = None,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> SampleTable:
    """Sheets as one table, whose inputs are written as the array "inputs".

    The sheets have the same columns, in any order. One chunk is in memory at a time. See `table` for
    the options.
    """
    first = sheets[0].path
    needed = {target: " for the target"} | dict.fromkeys(categories, "")
    if client is not None:
        needed[client] = " for the client"
    if event is not None:
        needed[event] = " for the event"
    used = _common_columns(sheets, needed, ignore)
    names = [name for name in used if name not in (target, client, event)]
    if not names:
        raise DataError(
            f"{first}: has no column but the target and the client; add one to learn from"
        )
    numbers = Numbers()
    words = {name: Words(first, name, MOST_CATEGORIES) for name in names if name in categories}
    targets = _Targets(target, kind, event, Words(first, target, MOST_CLASSES), numbers)
    owners = _Owners(client, sheets)
    progress = ProgressLog("reading the table")
    count = 0
    with arrays.rows("inputs", len(names), numpy.float64) as file:
        for position, sheet in enumerate(sheets):
            for rows in _with_target(sheet, target):
                file.append(_inputs(sheet.path, rows, names, numbers, words))
                targets.add(sheet.path, rows)
                owners.add(position, rows)
                count += len(rows)
                progress.tell(f"{count:,} rows")
        numbers.refuse()
        inputs = file.finish()
    values, classes = targets.finish(first)
    ids, clients = owners.finish()
    columns = _sort_codes(inputs, names, words)
    return SampleTable(inputs, values, ids, tuple(columns), tuple(clients), target, tuple(classes))


def _common_columns(
    sheets: Sequence[Sheet], needed: Mapping[str, str], ignore: Sequence[str]
) -> list[str]:
    """The columns of all sheets without those to `ignore`, in the order of the first sheet.

    Args:
        sheets: the files.
        needed: columns that must be there, and what a message adds to each.
        ignore: columns that are left out.
    """
    ignored = frozenset(ignore)
    used = [name for name in sheets[0].columns if name not in ignored]
    known = [set(sheet.columns) for sheet in sheets]
    found = set().union(*known)
    wanted = [name for sheet in sheets for name in sheet.columns if name not in ignored]
    wrong: list[str] = []
    for name in dict.fromkeys([*needed, *wanted]):
        lacking = [index for index, columns in enumerate(known) if name not in columns]
        if lacking:
            wrong.append(_about_missing(name, needed.get(name, ""), sheets, lacking))
    for name in ignore:
        if name not in found:
            hint = suggest(name, map(_shown, found))
            wrong.append(f"{sheets[0].path}: no column {_shown(name)!r} to ignore{hint}")
    refuse(wrong)
    return used


def _about_missing(name: str, purpose: str, sheets: Sequence[Sheet], lacking: Sequence[int]) -> str:
    """A column that some sheets lack, in one line: the few are named, with or without it.

    Args:
        name: of the column.
        purpose: what it is for, such as " for the target"; empty: an input.
        sheets: the files.
        lacking: the positions of those without it.
    """
    absent = set(lacking)
    without = [str(sheets[index].path) for index in lacking]
    having = [str(one.path) for index, one in enumerate(sheets) if index not in absent]
    is_first_without = lacking[0] == 0
    if having and not purpose and len(having) < len(without) + is_first_without:
        return (
            f"{first_few(having)}: column {_shown(name)!r} is missing from {first_few(without)}; "
            "put it into `ignore`, or add it there"
        )
    hint = suggest(name, map(_shown, sheets[lacking[0]].columns))
    if len(having) > 1:
        purpose += f", which {len(having)} others have"
    return f"{first_few(without)}: no column {_shown(name)!r}{purpose}{hint}"


def _shown(name: str) -> str:
    """The name of a column in a message: a damaged file may have any."""
    return shortened(plain(name), 60)


def _inputs(
    path: Path,
    rows: DataFrame,
    names: Sequence[str],
    numbers: Numbers,
    words: Mapping[str, Words],
) -> numpy.ndarray:
    """The values of these columns [n, columns]: numbers, NaN where one is missing, or codes of words."""
    values = numpy.zeros((len(rows), len(names)))
    plain = _numeric(rows).difference(words)
    positions = [index for index, name in enumerate(names) if name in plain]
    if positions:  # all at once: tables may have thousands of columns
        values[:, positions] = rows[[names[index] for index in positions]].to_numpy(numpy.float64)
    too_large: numpy.ndarray = numpy.any(numpy.abs(values) > LARGEST, axis=0)
    for index, name in enumerate(names):
        if name in words:
            values[:, index] = words[name].codes(rows[name])
        elif name not in plain or too_large[index]:
            values[:, index] = numbers.read(path, rows[name])
    return values


def _numeric(rows: DataFrame) -> set[str]:
    """Columns that pandas read as numbers."""
    kinds = zip(rows.columns, rows.dtypes, strict=True)
    return {name for name, kind in kinds if isinstance(kind, numpy.dtype) and kind.kind in "iuf"}


def _sort_codes(
    inputs: numpy.ndarray, names: Sequence[str], words: Mapping[str, Words]
) -> list[InputColumn]:
    """Replace codes by positions in sorted categories, and -1 by NaN, in place; what all columns are."""
    columns = []
    positions = {}
    for index, name in enumerate(names):
        known: list[str] = []
        if name in words:
            codes, known = words[name].sorted()
            positions[index] = numpy.append(codes, numpy.nan)
        columns.append(InputColumn(name, tuple(known)))
    if positions:
        for block in blocks(inputs, "categories"):
            for index, of_code in positions.items():
                inputs[block, index] = of_code[inputs[block, index].astype(numpy.int64)]
    return columns


class _Targets:
    """The targets, chunk by chunk: classes, numbers, or times with the event's sign."""

    def __init__(
        self, name: str, kind: Kind, event: str | None, labels: Words, numbers: Numbers
    ) -> None:
        self._name = name
        self._kind = kind
        self._event = event
        self._labels = labels
        self._numbers = numbers
        self._found: list[numpy.ndarray] = []

    def add(self, path: Path, rows: DataFrame) -> None:
        """The targets of these rows."""
        if self._kind == "classification":
            values = self._labels.codes(rows[self._name])
        elif self._event is not None:
            values = _signed_times(path, rows, self._name, self._event)
        else:
            values = self._numbers.read(path, rows[self._name])
        if self._kind == "regression":
            values = values.astype(numpy.float32)
        self._found.append(values)

    def finish(self, path: Path) -> tuple[numpy.ndarray, list[str]]:
        """All targets [N], and the classes: none for regression."""
        values = numpy.concatenate(self._found)
        self._found.clear()  # a table may have many rows
        if self._kind == "regression":
            return values, []
        codes, classes = self._labels.sorted()
        if len(classes) < 2:
            only = f"has the value {classes[0]!r} only, so there is nothing to learn"
            raise DataError(f"{path}: column {self._name!r} {only}; add rows of another class")
        return codes[values], classes


class _Owners:
    """The client of every row, chunk by chunk: by a column, or by the sheet."""

    def __init__(self, column: str | None, sheets: Sequence[Sheet]) -> None:
        self._column = column
        self._sheets = sheets
        self._names = Words(sheets[0].path, column or "", MOST_CLIENTS)
        self._found: list[numpy.ndarray] = []

    def add(self, sheet: int, rows: DataFrame) -> None:
        """The clients of these rows."""
        if self._column is None:
            self._found.append(numpy.full(len(rows), sheet, CODE))
            return
        names = rows[self._column]
        missing = names.isna()
        if missing.any():
            row = int(names.index[int(missing.to_numpy().argmax())]) + 1
            raise DataError(
                f"{self._sheets[sheet].path}: column {self._column!r}, row {row} is empty: it must name the client; "
                "fill it in"
            )
        self._found.append(self._names.codes(names))

    def finish(self) -> tuple[numpy.ndarray, list[str]]:
        """The client of every row [N], and the clients' names."""
        ids = numpy.concatenate(self._found)
        if self._column is not None:
            codes, names = self._names.sorted()
            return codes[ids], names
        names = [sheet.client for sheet in self._sheets]
        if len(set(names)) < len(names):
            names = [str(sheet.path) for sheet in self._sheets]
        return ids.astype(numpy.int64), names


def _with_target(sheet: Sheet, target: str) -> Iterator[DataFrame]:
    """The rows that have a value in the target column, in chunks."""
    without = 0
    is_empty = True
    for rows in sheet.chunks:
        given = rows[target].notna()
        without += int((~given).sum())
        if given.any():
            is_empty = False
            yield rows if given.all() else rows[given]
    if is_empty:
        raise DataError(
            f"{sheet.path}: no row has a value in column {target!r}; fill some in, or leave the file out"
        )
    if without:
        log.warning("%s: %d rows without a value in %s are left out", sheet.path, without, target)


def _signed_times(path: Path, rows: DataFrame, target: str, event: str) -> numpy.ndarray:
    """Times that are negative where the event had not happened by then."""
    numbers = Numbers()
    times = numbers.read(path, rows[target])
    happened = numbers.read(path, rows[event])
    numbers.refuse()
    wrong = ~(numpy.isin(happened, (0, 1)) & (times > 0))
    if wrong.any():
        row = int(rows.index[int(wrong.argmax())]) + 1
        raise DataError(
            f"{path}: row {row}: {target!r} must be a time greater than 0 and {event!r} must be 0 or 1; "
            "correct the row, or empty its time"
        )
    signed: numpy.ndarray = numpy.where(happened == 1, times, -times)
    return signed
