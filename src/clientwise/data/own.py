"""The samples of a user's own clients, in the kinds that PyTorch users have, as one dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.objective.problem import Survival
from .arrays import KINDS, first_few, is_frame, problem_of
from .division import Division, divide
from .federated import Samples
from .folder import DataError
from .partition import PARTITIONS
from .table import Kind, pandas_frame, samples_of

if TYPE_CHECKING:
    from pandas import DataFrame

OF_FRAMES: tuple[Kind, ...] = ("classification", "regression", "survival")  # problems


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
    ) -> Division:
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
        samples = self.samples
        assert samples.ids is not None
        ids = samples.ids[: self.num_samples]
        own = slice(self.num_samples)
        drawn = divide(
            replace(samples, inputs=samples.inputs[own], targets=samples.targets[own], ids=ids),
            PARTITIONS.get("by_id"),
            seed,
            test_fraction=0.0 if self.tests else test_fraction,
            server_fraction=server_fraction,
            report_fraction=report_fraction / server_fraction if server_fraction else 0.0,
        )
        if vanished := {*ids.tolist()} - {int(ids[part[0]]) for part in drawn.train}:
            every = samples.names or [f"client {one}" for one in range(int(ids.max()) + 1)]
            names = [every[one] for one in sorted(vanished)]
            raise DataError(
                f"{first_few(names)}: too few samples to train and to test "
                "on; leave these clients out, or give them two samples or more beside those that are set apart for "
                "the server (held_out= and test= set none apart)"
            )
        return Division(
            drawn.train,
            list(self.tests) or drawn.test,
            drawn.weigh if self.held_out is None else self.held_out,
            drawn.report if self.report is None else self.report,
        )


def read_own(
    clients: Any,
    *,
    held_out: Any = None,
    test: Any = None,
    target: str | None = None,
    ignore: str | Sequence[str] = (),
    num_classes: int | None = None,
    event: str | None = None,
    problem: str | None = None,
) -> OwnData:
    """The samples of clients and, where they are given, of the server; see `fit`."""
    given = _by_name(clients)
    names = tuple(given) if isinstance(clients, Mapping) else ()
    tests = _tests(test, names)
    others = tests if held_out is None else {"held_out": held_out, **tests}
    if taken := [name for name in given if name in others]:
        raise DataError(
            f"clients: {taken[0]!r} also names samples of the server: rename the client"
        )
    holders = given | others
    ignored = [ignore] if isinstance(ignore, str) else ignore
    if target is not None:
        samples = _of_frames(holders, str(target), ignored, event, problem)
    elif ignored or event is not None:
        raise DataError(
            "ignore= and event= name columns of frames; of arrays, pass times as targets, negative where the event "
            "had not happened by then, and problem='survival'"
        )
    else:
        samples = Samples.from_clients(holders, num_classes=num_classes, problem=problem)
    assert samples.ids is not None
    sizes = torch.bincount(samples.ids, minlength=len(holders)).tolist()
    places = dict(zip(holders, torch.split(torch.arange(sum(sizes)), sizes), strict=True))
    return OwnData(
        replace(samples, names=names),
        sum(sizes[: len(given)]),
        held_out=places.get("held_out") if held_out is not None else None,
        report=places["test"] if "test" in tests else None,
        tests=tuple(places[name] for name in tests if name != "test"),
    )


def _by_name(clients: Any) -> dict[str, Any]:
    """What every client has, by its name in messages."""
    if not isinstance(clients, Mapping | list | tuple) or not clients:
        raise DataError(
            f"clients: is {type(clients).__name__}: pass a dictionary, {{'north': ..., 'south': ...}}, or a list; a "
            f"client has {KINDS}"
        )
    if isinstance(clients, Mapping):
        named = {str(name): own for name, own in clients.items()}
        if len(named) < len(clients):
            raise DataError("clients: two of them have the same name as text; rename one")
        return named
    return {f"client {number}": own for number, own in enumerate(clients)}


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


def _of_frames(
    holders: Mapping[str, Any],
    target: str,
    ignore: Sequence[str],
    event: str | None,
    problem: str | None,
) -> Samples:
    """Frames as a table: words become categories, numbers are standardised, gaps are filled."""
    for name, own in holders.items():
        if not is_frame(own):
            raise DataError(f"target = {target!r} names a column of frames, and {name} is no frame")
    if problem not in (None, *OF_FRAMES):
        raise DataError(
            f"problem = {problem!r}: of frames must be one of {', '.join(OF_FRAMES)}; for others pass (inputs, targets)"
        )
    frames = {name: _plain_frame(own, name, ignore) for name, own in holders.items()}
    predicted = [frame[target] for frame in frames.values() if target in frame.columns]
    kind: Kind = "classification"
    if event is not None:
        kind = "survival"
    elif problem is not None:
        kind = next(one for one in OF_FRAMES if one == problem)
    elif all(one.dtype.kind == "f" for one in predicted):
        kind = "regression"
    words = _columns_of_words(frames, [target, *ignore])
    samples = samples_of(
        frames, target=target, kind=kind, event=event, categories=words, ignore=ignore
    )
    if kind == Survival.kind:
        problem_of(samples.targets, problem=kind)
    return samples


def _plain_frame(given: Any, name: str, ignore: Sequence[str]) -> DataFrame:
    """A pandas frame without columns of dates."""
    frame = pandas_frame(given).infer_objects()  # objects that are all numbers
    for column in frame.select_dtypes(["datetime", "datetimetz"]).columns.difference(ignore):
        said = "has dates: turn it into numbers, or put it into `ignore`"
        raise DataError(f"{name}: column {column!r} {said}")
    return frame


def _columns_of_words(frames: Mapping[str, DataFrame], without: Sequence[str]) -> list[str]:
    """The columns that hold words; DataError for one that holds numbers with another client."""
    import pandas

    words: dict[str, str] = {}  # by column: the first client
    numbers: dict[str, str] = {}
    for name, frame in frames.items():
        known = frame.drop(columns=list(without), errors="ignore")
        for column, cells in known.dropna(axis=1, how="all").items():
            found = numbers if pandas.api.types.is_numeric_dtype(cells) else words
            found.setdefault(str(column), name)
    for column in words.keys() & numbers.keys():
        raise DataError(
            f"column {column!r} has words with {words[column]} and numbers with {numbers[column]}: correct the "
            "cells, or make all of them text, as frame[column].astype(str) does"
        )
    return list(words)
