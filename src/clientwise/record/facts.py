"""Facts about a whole run: their keys, those of a run that begins, and how single ones are read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, PositiveInt

from ..errors import RunError
from .database import DAMAGE, reading, refuse_links, refuse_other_format
from .reading.rows import Change, MachineRow, StepsRow
from .schema import DATABASE

if TYPE_CHECKING:
    from ..core.objective.problem import Problem

BY_HOST = "by the host's clients"  # the fact "computed" of a run that `cw.Aggregator` recorded
BEST_OF_LANE = "best of lane "  # before the lane's number: a fact that is a `BestRow`
FLOAT_BYTES = 4


def _written(key: str, default: Any) -> Any:
    """A fact whose key in the database is no name of Python."""
    return Field(default, validation_alias=key, serialization_alias=key)


class RunFacts(BaseModel, strict=True, populate_by_name=True):
    """Facts about the whole run, each by its key in the database."""

    name: str
    metric: str
    higher_is_better: bool = _written("higher is better", True)
    is_share: bool = _written("is a share", True)
    shows: list[str] = []
    target: float | None
    client_targets: list[float] | None = _written("client targets", None)
    rounds: PositiveInt
    lanes: PositiveInt
    model_bytes: int = 0
    reported_on: str = _written("reported on", "held-out samples")
    report_samples: int | None = _written("reported samples", None)
    report_rarest: int | None = _written("reported samples of the rarest class", None)
    constant_metric: float | None = _written("metric of a constant prediction", None)
    weigh_samples: int | None = _written("samples to weigh by", None)
    num_classes: int | None = _written("classes", None)
    changes: list[Change] = []
    begun: str = ""
    initial_model: str = _written("initial model", "")
    same_start: bool = _written("all seeds begin with a given network", False)
    computed: str = ""
    warnings: list[str] = []
    steps: list[StepsRow] = []
    machines: list[MachineRow] = []
    functions: dict[str, str] = {}


# Without these, a run has not begun.
NEEDED = {name for name, field in RunFacts.model_fields.items() if field.is_required()}


def facts_of_run(
    name: str,
    problem: Problem,
    *,
    rounds: int,
    lanes: int,
    num_values: int,
    reported_on: str,
    computed: str,
    report_samples: int | None = None,
    report_rarest: int | None = None,
    constant_metric: float | None = None,
    weigh_samples: int | None = None,
    target: float | None = None,
    client_targets: Sequence[float] = (),
) -> dict[str, Any]:
    """What is known of a run when it begins, by key.

    Args:
        name: of the experiment.
        problem: what the model predicts.
        rounds: planned, per lane.
        lanes: planned.
        num_values: size of a model.
        reported_on: the samples that the metric is about, in words.
        computed: how clients are trained, in words.
        report_samples: how many these samples are, where that is known.
        report_rarest: of the class that has fewest of them.
        constant_metric: what a model gets on these samples that predicts the same for all.
        weigh_samples: how many held-out samples weights may depend on, where that is known.
        target: value of the metric for rounds-to-target.
        client_targets: values of the metric for the clients' own.
    """
    facts = RunFacts(
        name=name,
        metric=problem.metric,
        higher_is_better=problem.higher_is_better,
        is_share=problem.is_share,
        shows=list(problem.shows),
        target=target,
        client_targets=list(client_targets),
        rounds=rounds,
        lanes=lanes,
        model_bytes=FLOAT_BYTES * num_values,
        reported_on=reported_on,
        report_samples=report_samples,
        report_rarest=report_rarest,
        constant_metric=constant_metric,
        weigh_samples=weigh_samples,
        num_classes=problem.num_classes,
        computed=computed,
    )
    return facts.model_dump(by_alias=True, exclude_unset=True)


def current_minute() -> str:
    """Date and time, as the facts have it."""
    return f"{datetime.now():%Y-%m-%d %H:%M}"


def recorded_fact(folder: Path, key: str) -> str | None:
    """A fact about the whole run, as JSON; None where there is none."""
    if not (folder / DATABASE).exists():
        return None
    try:
        with _unchanged(folder) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
                return None
            row = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    except DAMAGE as error:
        message = f"{folder}: its database cannot be read ({error})"
        raise RunError(f"{message}; choose another output folder") from None
    return None if row is None else str(row[0])


@contextmanager
def _unchanged(folder: Path) -> Iterator[sqlite3.Connection]:
    """The database; where it has no log, SQLite is told to make no files beside it."""
    refuse_links(folder)
    path = folder / DATABASE
    log = path.with_name(f"{DATABASE}-wal")
    if log.exists() and log.stat().st_size > 0:
        with reading(folder) as database:
            yield database
        return
    uri = f"{path.resolve().as_uri()}?immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        refuse_other_format(folder, database)
        yield database
