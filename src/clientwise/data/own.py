"""The samples of a user's own clients, in the kinds that PyTorch users have, as one dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..core.objective.problem import Classification, Regression, Survival
from ..registry import suggest
from .arrays import first_few, is_frame, problem_of
from .division import Division, divide, hand_out
from .federated import FederatedData, Samples
from .folder import DataError
from .hints import is_date
from .partition import PARTITIONS
from .table import Sheet
from .table import join as join_table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

OF_FRAMES = (Classification.kind, Regression.kind, Survival.kind)
KINDS = "a Dataset, a DataLoader, (inputs, targets) or a frame"


class OwnDivision(NamedTuple):
    """Which samples are whose."""

    division: Division
    num_report: int  # the first of the server's samples, which it reports on

    @property
    def num_weigh(self) -> int:
        """The number of samples that the server weighs by."""
        return len(self.division.server) - self.num_report


@dataclass(frozen=True)
class OwnData:
    """Samples of clients, which come first, and those that were given for other purposes, by their indices."""

    samples: Samples
    num_samples: int  # of the clients
    held_out: Tensor | None = None  # the server weighs by these
    report: Tensor | None = None  # the server reports on these
    tests: tuple[Tensor, ...] = ()  # the clients test on these, one tensor per client

    @property
    def is_split(self) -> bool:
        """Whether some of the samples have a purpose already."""
        return self.held_out is not None or self.report is not None or bool(self.tests)

    def divide(
        self, seed: int, *, test_fraction: float, weigh_fraction: float, report_fraction: float
    ) -> OwnDivision:
        """Which samples are whose. What was not given is drawn from the samples of the clients.

        Args:
            seed: of all draws.
            test_fraction: of a client's samples, its own test set.
            weigh_fraction: of the samples of all clients, those that the server weighs by.
            report_fraction: of the samples of all clients, those that the server reports on.
        """
        if self.held_out is not None:
            weigh_fraction = 0.0
        if self.report is not None or self.tests:
            report_fraction = 0.0
        server_fraction = weigh_fraction + report_fraction
        drawn = divide(
            self._of_clients(),
            PARTITIONS.get("by_id"),
            seed,
            test_fraction=0.0 if self.tests else test_fraction,
            server_fraction=server_fraction,
        )
        self._refuse_vanished(drawn, is_server_given=not server_fraction)
        cut = round(len(drawn.server) * report_fraction / server_fraction) if server_fraction else 0
        report = drawn.server[:cut] if self.report is None else self.report
        weigh = drawn.server[cut:] if self.held_out is None else self.held_out
        test = list(self.tests) or drawn.test
        return OwnDivision(Division(drawn.train, test, torch.cat([report, weigh])), len(report))

    def federate(self, divided: OwnDivision, seed: int) -> FederatedData:
        """The federated data of a division."""
        count = len(divided.division.server)
        report_fraction = divided.num_report / count if count else 0.0
        return hand_out(self.samples, divided.division, seed, report_fraction=report_fraction)

    def _of_clients(self) -> Samples:
        """The samples of the clients, as far as a division asks."""
        own = slice(self.num_samples)
        samples = self.samples
        ids = None if samples.ids is None else samples.ids[own]
        return replace(
            samples, inputs=samples.inputs[own], targets=samples.targets[own], ids=ids, given=None
        )

    def _refuse_vanished(self, drawn: Division, *, is_server_given: bool) -> None:
        """DataError where clients have too few samples left to train and to test on."""
        assert self.samples.ids is not None
        every = set(self.samples.ids[: self.num_samples].tolist())
        there = {int(self.samples.ids[part[0]]) for part in drawn.train}
        names = [self._called(client) for client in sorted(every - there)]
        if names:
            apart = ", of those that are not set apart for the server"
            hint = "pass held_out= and test="
            if is_server_given:
                apart, hint = "", "give them two samples or more"
            raise DataError(
                f"{first_few(names)}: too few samples to train and to test on{apart}; "
                f"leave these clients out, or {hint}"
            )

    def _called(self, client: int) -> str:
        return self.samples.names[client] if self.samples.names else f"client {client}"


def read_own(
    clients: Any,
    *,
    held_out: Any = None,
    test: Any = None,
    target: str | None = None,
    ignore: str | Sequence[str] = (),
    num_classes: int | None = None,
    survival: bool = False,
    event: str | None = None,
    problem: str | None = None,
) -> OwnData:
    """The samples of clients and, where they are given, of the server; see `fit`."""
    given = _by_name(clients)
    names = tuple(given) if isinstance(clients, Mapping) else ()
    blocks = list(given.items())
    if held_out is not None:
        blocks.append(("held_out", held_out))
    tests = _tests(test, names)
    blocks += tests.items()
    try:
        meant = _Meant(num_classes, survival or event is not None, event, problem)
        samples, sizes = _samples(blocks, target, ignore, meant)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(str(error)) from None
    places = list(torch.split(torch.arange(len(samples.targets)), sizes))
    num_samples = sum(sizes[: len(given)])
    others = places[len(given) :]
    own = OwnData(replace(samples, names=names), num_samples)
    if held_out is not None:
        own = replace(own, held_out=others.pop(0))
    if isinstance(test, Mapping):
        return replace(own, tests=tuple(others))
    return replace(own, report=others[0]) if others else own


def _by_name(clients: Any) -> dict[str, Any]:
    """What every client has, by its name in messages."""
    if is_frame(clients):
        raise DataError(
            "clients: is one frame: pass a frame for each client, as "
            "{name: part for name, part in frame.groupby('site')}"
        )
    if isinstance(clients, Dataset | DataLoader | str):
        raise DataError(
            f"clients: is one {type(clients).__name__}: pass a dictionary, {{'north': ..., 'south': ...}}, or a "
            f"list; a client has {KINDS}"
        )
    if isinstance(clients, Mapping):
        named = {str(name): own for name, own in clients.items()}
        if len(named) < len(clients):
            raise DataError("clients: two of them have the same name as text; rename one")
    elif isinstance(clients, list | tuple):
        if all(_is_named(one) for one in clients):
            raise DataError("clients: are pairs (name, samples): pass dict(clients)")
        named = {f"client {number}": own for number, own in enumerate(clients)}
    else:
        raise DataError(
            f"clients: must be a dictionary or a list, got {type(clients).__name__}; a client has {KINDS}"
        )
    if not named:
        raise DataError(f"clients: is empty: pass at least one client, which has {KINDS}")
    return named


def _is_named(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


def _tests(test: Any, names: Sequence[str]) -> dict[str, Any]:
    """The test samples by what messages call them: the server's, or every client's."""
    if test is None:
        return {}
    if not isinstance(test, Mapping):
        return {"test": test}
    found = {str(name): own for name, own in test.items()}
    if not names or {*found} != {*names}:
        raise DataError(
            f"test: has {', '.join(found) or 'nothing'}, and the clients are {', '.join(names) or 'a list'}: pass "
            "a test set for each client by its name, or one for the server, which is no dictionary"
        )
    return {f"test of {name}": found[name] for name in names}


class _Meant(NamedTuple):
    """What the targets are, as far as it was said; see `fit`."""

    num_classes: int | None
    survival: bool
    event: str | None
    problem: str | None


def _samples(
    blocks: Sequence[tuple[str, Any]],
    target: str | None,
    ignore: str | Sequence[str],
    meant: _Meant,
) -> tuple[Samples, list[int]]:
    """The samples of all holders, one after the other, and the number of each."""
    if target is not None and not isinstance(target, str | int):
        raise DataError(
            f"target = {target!r}: must be the name of one column; for several, pass (inputs, targets)"
        )
    target = None if target is None else str(target)
    frames = [name for name, own in blocks if is_frame(own)]
    if target is not None and len(frames) == len(blocks):
        ignored = [ignore] if isinstance(ignore, str) else ignore
        return _of_frames(blocks, target, ignored, meant)
    if ignore:
        raise DataError("ignore: names columns of frames; give frames and target=, too")
    if target is not None:
        others = next(name for name, _ in blocks if name not in frames)
        raise DataError(f"target = {target!r} names a column of frames, and {others} is no frame")
    if meant.event is not None:
        raise DataError(
            f"event = {meant.event!r} names a column of frames; of arrays, pass times as targets, negative where "
            "the event had not happened by then, and survival=True"
        )
    samples = Samples.of_holders(
        blocks,
        num_classes=meant.num_classes,
        survival=meant.survival,
        problem=meant.problem,
    )
    assert samples.ids is not None
    return samples, torch.bincount(samples.ids).tolist()


def _of_frames(
    blocks: Sequence[tuple[str, Any]], target: str, ignore: Sequence[str], meant: _Meant
) -> tuple[Samples, list[int]]:
    """Frames as a table: words become categories, numbers are standardised, gaps are filled."""
    import pandas

    times = meant.survival or meant.problem == Survival.kind
    if meant.problem not in (None, *OF_FRAMES):
        raise DataError(
            f"problem = {meant.problem!r}: of frames must be one of {', '.join(OF_FRAMES)}; for others pass "
            "(inputs, targets)"
        )
    _refuse_unknown(blocks, ignore)
    frames = [_plain_frame(own, name, ignore) for name, own in blocks]
    holders = [name for name, _ in blocks]
    words = [name for name in _columns_of_words(frames, holders) if name != target]
    predicted = [frame[target] for frame in frames if target in frame.columns]
    is_number = all(pandas.api.types.is_float_dtype(column) for column in predicted)
    if meant.problem is not None or times:
        is_number = meant.problem != Classification.kind
    table = join_table(
        [Sheet(Path(name), own, name) for (name, _), own in zip(blocks, frames, strict=True)],
        target=target,
        kind="regression" if is_number else "classification",
        event=meant.event,
        categories=words,
    )
    sizes = numpy.bincount(table.ids, minlength=len(frames)).tolist()
    if not times:
        return table.samples("pooled"), sizes
    _, problem = problem_of(torch.as_tensor(table.targets), None, survival=True)
    return table.samples("pooled", problem), sizes


def _refuse_unknown(blocks: Sequence[tuple[str, Any]], ignore: Sequence[str]) -> None:
    """DataError for a column to ignore that no frame has."""
    known = {str(column) for _, own in blocks for column in own.columns}
    for column in ignore:
        if column not in known:
            hint = suggest(str(column), known)
            raise DataError(f"{blocks[0][0]}: no column {column!r} to ignore{hint}")


def _plain_frame(given: Any, name: str, ignore: Sequence[str]) -> DataFrame:
    """A pandas frame without some columns, with texts as names of columns, and numbered rows."""
    import pandas

    if not isinstance(given, pandas.DataFrame):
        given = pandas.DataFrame({column: given[column].to_list() for column in given.columns})
    frame = given.reset_index(drop=True).infer_objects()  # objects that are all numbers
    frame.columns = [str(column) for column in frame.columns]
    frame = frame.drop(columns=list(ignore), errors="ignore")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{name}: has two columns {twice[0]!r}; rename one of them")
    if not len(frame):
        raise DataError(f"{name}: has no rows: leave this client out")
    for column in frame.columns:
        if _has_dates(frame[column]):
            raise DataError(
                f"{name}: column {column!r} has dates: turn it into numbers, or put it into `ignore`"
            )
        if isinstance(frame[column].dtype, pandas.CategoricalDtype):
            frame[column] = frame[column].astype(object)
    return frame


def _has_dates(column: Series[Any]) -> bool:
    """Whether all cells with a value are dates, parsed or as text."""
    import pandas

    if pandas.api.types.is_datetime64_any_dtype(column):
        return True
    if pandas.api.types.is_numeric_dtype(column):
        return False
    texts = (str(cell).strip() for cell in column.dropna())
    given = (text for text in texts if text)
    return is_date(next(given, "")) and all(map(is_date, given))


def _columns_of_words(frames: Sequence[DataFrame], names: Sequence[str]) -> list[str]:
    """The columns that hold words; DataError for one that holds numbers with another client."""
    import pandas

    words: dict[str, str] = {}  # by column: the first client
    numbers: dict[str, str] = {}
    for name, frame in zip(names, frames, strict=True):
        for column in frame.columns:
            cells = frame[column].dropna()
            if pandas.api.types.is_numeric_dtype(frame[column]):
                if len(cells):
                    numbers.setdefault(column, name)
                continue
            if len(cells) and isinstance(cells.iloc[0], list | tuple | dict | numpy.ndarray):
                kind = type(cells.iloc[0]).__name__
                raise DataError(
                    f"{name}: column {column!r} has a {kind} in a cell: one value is needed"
                )
            if len(cells):
                words.setdefault(column, name)
    for column in words.keys() & numbers.keys():
        raise DataError(
            f"column {column!r} has words with {words[column]} and numbers with {numbers[column]}: correct the "
            "cells, or make all of them text, as frame[column].astype(str) does"
        )
    return list(words)
