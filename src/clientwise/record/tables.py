"""What is recorded of a round: values, and frames with a row for each client. Each is named once, in a line below.

To record another value or column, add a line. Readers find it under its name: a value in `run.frame("rounds")`, a
column in its frame. None means that a round has no such value or column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:  # reading a run needs no PyTorch
    from torch import Tensor

    from ..core.objective.problem import Problem
    from ..core.types import Evaluation, RoundRecord

Get = Callable[["Round"], Any]


@dataclass(frozen=True)
class Round:
    """A round that is to be recorded."""

    record: RoundRecord
    problem: Problem
    hostile: Collection[int]  # clients
    names: Mapping[int, str]  # of clients that have one
    seconds: float = 0.0  # that it took
    machine: int | None = None  # that computed it
    held_out_loss: float | None = None

    @cached_property
    def shown(self) -> Evaluation | None:
        """The evaluation that the run reports: the server's; without one, that of the honest clients."""
        if self.record.report is not None or self.record.local is None:
            return self.record.report
        return _of_honest(self.record.local, self.hostile)

    @cached_property
    def class_counts(self) -> Tensor | None:
        """Of the reported evaluation. The clients' are over all of them, so they are wrong with hostile ones."""
        if self.shown is None or (self.record.report is None and self.hostile):
            return None
        return self.shown.counts[0] if self.problem.num_classes > 0 else None

    @cached_property
    def honest(self) -> Evaluation | None:
        """The evaluation on the honest clients' own test sets; hostile ones have labels that measure nothing."""
        return None if self.record.local is None else _of_honest(self.record.local, self.hostile)

    @property
    def influence(self) -> Tensor:
        """The share of each client in the aggregate [n]."""
        found = self.record.influence
        return self.record.weights if found is None else found

    @cached_property
    def own_results(self) -> list[Any]:
        """Client, metric and loss of clients that have test data."""
        return _own_results(self.record.local)


def _same(*names: str) -> dict[str, Get]:
    """What `RoundRecord` has under the same name."""
    return {name: attrgetter(f"record.{name}") for name in names}


def _rows(of: str, **attributes: str) -> dict[str, Get]:
    """A column for each attribute of the rows that `RoundRecord` has."""

    def column(attribute: str) -> Get:
        return lambda r: [getattr(one, attribute) for one in getattr(r.record, of)]

    return {name: column(attribute) for name, attribute in attributes.items()}


VALUES_OF_CLIENTS: dict[str, Get] = {  # in rounds that evaluate the clients
    "local_mean": lambda r: r.honest and float(r.honest.overall()[0]),
    "local_p10": lambda r: r.honest and float(r.honest.values[0].quantile(0.1)),
    "local_p90": lambda r: r.honest and float(r.honest.values[0].quantile(0.9)),
}
VALUES: dict[str, Get] = {
    "metric": lambda r: r.shown and float(r.shown.overall()[0]),
    "loss": lambda r: r.shown and float(r.shown.overall_loss()[0]),
    "macro_f1": lambda r: _f1(r.class_counts, "macro_f1"),
    "per_class_f1": lambda r: _f1(r.class_counts, "per_class_f1"),
    **VALUES_OF_CLIENTS,
    **_same("attack_success", "priority", "testing_rounds", "no_effect"),
    **_same("models_moved", "ended", "residual"),
    "held_out_loss": attrgetter("held_out_loss"),
    "held_out_change": attrgetter("record.evidence.held_out_change"),
    "candidates": lambda r: r.record.candidates or None,
    "suspects": attrgetter("record.evidence.scanned.suspects"),
    "loss_state": lambda r: _changed_loss(r.record, r.problem),
    "notes": lambda r: [*r.record.notes, *_not_evaluated(r.record.local, r.names)],
    "epsilon": lambda r: r.record.released and r.record.released.epsilon,
    "clip": lambda r: r.record.released and r.record.released.clip,
    "deviation": lambda r: r.record.released and r.record.released.deviation,
    "kept": lambda r: r.record.kept and [r.record.kept.cause, r.record.kept.detail],
    "participants": lambda r: len(r.record.client_ids) + len(r.record.refusals),
    "refused": lambda r: len(r.record.refusals),
    "without_weight": lambda r: int((r.record.weights == 0).sum()),
    "hostile_influence": lambda r: _sum_over(r.hostile, r.record.client_ids, r.influence),
    "seconds": attrgetter("seconds"),
    "machine": attrgetter("machine"),
}
FRAMES: dict[str, dict[str, Get]] = {
    "weights": {  # a row for each accepted update
        "client": lambda r: numpy.array(r.record.client_ids, numpy.int64),
        "score": attrgetter("record.scores"),
        "prior": attrgetter("record.prior"),
        "z": attrgetter("record.evidence.z"),
        "harm": attrgetter("record.evidence.harm"),
        "harm_error": attrgetter("record.evidence.harm_error"),
        "posterior": lambda r: r.record.posterior and r.record.posterior.weights,
        "weight": attrgetter("record.weights"),
        "influence": attrgetter("influence"),
        "history_z": attrgetter("record.evidence.look_back.z"),
        "pattern_z": attrgetter("record.evidence.scanned.z"),
        "copies": attrgetter("record.evidence.look_back.copies"),
        **_same("training_loss", "seconds"),
    },
    "local": {
        "client": lambda r: r.own_results[0],
        "metric": lambda r: r.own_results[1],
        "loss": lambda r: r.own_results[2],
    },
    "steps": _rows("steps", step="name", loss="loss", used="used"),
    "refusals": _rows("refusals", client="client_id", reason="reason", kind="kind"),
}
CRITERIA = "criteria"  # a frame with two columns for each criterion, whose names begin so:
RAW = "raw "
NORMALISED = "normalised "


def values_of(done: Round) -> dict[str, Any]:
    """The values of a round, without those that it has not."""
    values = {name: value(done) for name, value in VALUES.items()}
    return {name: value for name, value in values.items() if value is not None}


def frames_of(done: Round) -> dict[str, dict[str, Any]]:
    """The columns of the frames of a round, without frames that have no rows."""
    frames = {CRITERIA: _criteria(done.record)}
    for name, columns in FRAMES.items():
        values = {column: value(done) for column, value in columns.items()}
        frames[name] = {column: value for column, value in values.items() if value is not None}
    return {name: columns for name, columns in frames.items() if len(next(iter(columns.values())))}


def _criteria(record: RoundRecord) -> dict[str, Any]:
    if not record.criteria:
        return {"client": []}
    columns: dict[str, Any] = {"client": numpy.array(record.client_ids, numpy.int64)}
    for index, name in enumerate(record.criteria):
        columns[f"{RAW}{name}"] = record.raw[:, index]
        columns[f"{NORMALISED}{name}"] = record.normalised[:, index]
    return columns


def _of_honest(local: Evaluation, hostile: Collection[int]) -> Evaluation | None:
    """The evaluation on the honest clients that have test data; None where there are none."""
    counted = local.num_samples > 0
    counted[list(hostile)] = False
    if not bool(counted.any()):
        return None
    return replace(
        local,
        num_samples=local.num_samples[counted],
        values=local.values[:, counted],
        losses=local.losses[:, counted],
        right=None,
    )


def _own_results(local: Evaluation | None) -> list[Any]:
    if local is None:
        return [numpy.empty(0)] * 3
    clients = local.num_samples.nonzero().flatten()
    return [
        one.cpu().numpy() for one in (clients, local.values[0, clients], local.losses[0, clients])
    ]


def _f1(counts: Tensor | None, name: str) -> Any:
    from ..core.objective import metrics

    return None if counts is None else getattr(metrics, name)(counts).tolist()


def _changed_loss(record: RoundRecord, problem: Problem) -> dict[str, Any] | None:
    """The loss of the next round, where it is another than the problem's own."""
    loss = record.loss.record()
    return {"kind": loss.kind, **loss.options} if loss != problem.loss.record() else None


def _sum_over(hostile: Collection[int], clients: tuple[int, ...], weights: Tensor) -> float | None:
    """The influence of all hostile clients together; None without any, or where weights are not known."""
    if not hostile or bool(weights.isnan().any()):
        return None
    return float(weights[[row for row, client in enumerate(clients) if client in hostile]].sum())


def _not_evaluated(local: Evaluation | None, names: Mapping[int, str]) -> list[str]:
    """A note for every client that did not evaluate the model on its own test set."""
    missing = sorted(local.missing if local else (), key=lambda one: one.client_id)
    called = [names.get(one.client_id) or f"client {one.client_id}" for one in missing]
    return [
        f"{name} did not evaluate: {one.reason}" for name, one in zip(called, missing, strict=True)
    ]
