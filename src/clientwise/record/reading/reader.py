"""Opening a run folder: facts about the whole run, its lanes, and checked rows of its database."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import FailFast, Json, TypeAdapter, ValidationError

from ...errors import NotBegunError, RunError, shortened
from ...registry import suggest
from ..database import reading
from ..facts import BEST_OF_LANE, NEEDED, RunFacts
from ..lock import is_locked
from ..schema import DATABASE
from .frames import FRAMES, FrameName
from .rows import BestRow, LaneProgress, LaneRow

_BEST = TypeAdapter(BestRow)

Row = TypeVar("Row", bound=tuple[Any, ...])
T = TypeVar("T")


def thinned(rows: list[T], max_points: int | None) -> list[T]:
    """At most about `max_points` of the rows, evenly spaced, and always the last.

    >>> thinned([1, 2, 3, 4, 5, 6, 7, 8], 3)
    [1, 4, 7, 8]
    """
    if max_points is None or len(rows) <= max_points:
        return rows
    step = math.ceil(len(rows) / max_points)
    kept = rows[::step]
    has_last = (len(rows) - 1) % step == 0
    if not has_last:
        kept.append(rows[-1])
    return kept


def is_finished(folder: Path) -> bool:
    """Whether all lanes of a run have ended."""
    try:
        with reading(folder) as database:
            found = database.execute("SELECT value FROM facts WHERE key = 'lanes'")
            planned = found.fetchone()
            (ended,) = database.execute("SELECT COUNT(*) FROM lanes WHERE finished").fetchone()
            return bool(planned == (str(ended),))
    except RunError:
        return False  # not begun, or damaged: resuming it says so


def refuse_damaged(folder: Path, lanes: Collection[tuple[str, int]]) -> None:
    """RunError where a finished run cannot be read, or lacks a lane or its rounds.

    Args:
        folder: the run folder.
        lanes: method and seed of every lane that it has to have.
    """
    run = RunReader(folder)
    with reading(folder) as database:
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise run._damage(shortened(found, 200))
    rounds = {(one.method, one.seed): one.rounds for one in run.progress()}
    for method, seed in lanes:
        known = rounds.get((method, seed), 0)
        best = run.best_of_lanes.get(run.lane(method, seed)) if known else None
        if known != run.rounds and not (best and best.stopped and best.last == known):
            raise run._damage(f"{known} of {run.rounds} rounds of {method}, seed {seed}")


class RunReader:
    """A run folder that is open for reading: what holds for the whole run."""

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        """Open a run folder; `name` is what pages and comparisons call it."""
        self.folder = Path(folder)
        self.id = name or self.folder.resolve().name
        self._refuse_other_folders()
        facts = self._read_facts()
        self.name = facts.name
        self.metric = facts.metric
        self.higher_is_better = facts.higher_is_better  # whether a larger metric is a better one
        self.is_share = facts.is_share  # whether the metric is shown in percent
        self._shown = facts.shows
        self.target = facts.target
        self.client_targets = facts.client_targets or ([facts.target] if facts.target else [])
        self.rounds = facts.rounds  # planned, per lane
        self.num_lanes = facts.lanes  # planned
        self.model_bytes = facts.model_bytes
        self.reported_on = facts.reported_on
        self.report_samples = facts.report_samples  # their number; of the first seed
        self.report_rarest = facts.report_rarest  # of the rarest class
        self.constant_metric = facts.constant_metric  # of predicting the same for all samples
        self.weigh_samples = facts.weigh_samples  # held-out ones that weights may depend on
        self.num_classes = facts.num_classes  # None where it is not known, or has none
        self.changes = facts.changes  # of data, code or versions, accepted when it was resumed
        # Those that computed it; the column `machine` of `rounds` counts them from 1
        self.machines = facts.machines
        self.begun = facts.begun  # date and time
        self.computed = facts.computed  # how clients were trained
        self.warnings = facts.warnings  # what was probably not meant, found when it began
        self.steps = facts.steps  # of a round, by method; runs of `cw.Aggregator` have none
        self.initial_model = facts.initial_model  # the file it came from; "" is a random model
        self.same_start = facts.same_start  # whether all seeds begin with a given network
        # Parts that were given in Python as functions, by kind and name: the module of each
        self.functions = facts.functions
        self.data = self._read_data()  # a fingerprint of the data by seed
        self.lanes = self._rows(LaneRow, "SELECT lane, method, seed FROM lanes ORDER BY lane")
        if len(self.lanes) > self.num_lanes:
            raise self._damage(f"{len(self.lanes)} lanes of {self.num_lanes}")
        self.has_clock = self._exists("SELECT 1 FROM clock LIMIT 1")  # whether clients take time
        ended = self._number("SELECT COUNT(*) FROM lanes WHERE finished")
        self.finished = ended == self.num_lanes

    @property
    def best_of_lanes(self) -> dict[int, BestRow]:
        """The best round by the held-out loss, by lane, where the run stops or keeps models by it."""
        rows = self._rows(
            tuple[str, str],
            "SELECT key, value FROM facts WHERE key LIKE ?",
            f"{BEST_OF_LANE}%",
        )
        try:
            return {
                int(key.removeprefix(BEST_OF_LANE)): _BEST.validate_json(value)
                for key, value in rows
            }
        except ValueError as error:
            raise self._damage(str(error).splitlines()[0]) from None

    @property
    def methods(self) -> list[str]:
        """The methods in the order they ran."""
        return list(dict.fromkeys(lane.method for lane in self.lanes))

    @property
    def has_hostile(self) -> bool:
        """Whether any client of the run is hostile."""
        return self._exists("SELECT 1 FROM clients WHERE hostile IS NOT NULL LIMIT 1")

    def shows(self, column: Literal["macro_f1", "per_class_f1"]) -> bool:
        """Whether this kind of problem has such values: macro F1 is for classification alone."""
        return column in self._shown

    def seeds(self, method: str) -> list[int]:
        """The seeds of a method."""
        return [lane.seed for lane in self.lanes if lane.method == method]

    def lane(self, method: str, seed: int) -> int:
        """The number of a method and seed in the database."""
        for lane in self.lanes:
            if (lane.method, lane.seed) == (method, seed):
                return lane.lane
        if method not in self.methods:
            raise RunError(f"{self.id}: no method {method!r}{suggest(method, self.methods)}")
        known = ", ".join(map(str, self.seeds(method)))
        raise RunError(f"{self.id}: no seed {seed} of {method}; known: {known}")

    def progress(self) -> list[LaneProgress]:
        """How far every lane is."""
        return self._rows(
            LaneProgress,
            """SELECT method, seed, finished, COUNT(round_num)
               FROM lanes LEFT JOIN rounds USING (lane) GROUP BY lane ORDER BY lane""",
        )

    def query(self, sql: str, *values: Any) -> list[Any]:
        """The rows of your own query against the run's database, all of them and unchecked."""
        return self._fetch(sql, *values)

    def columns(self, what: FrameName) -> dict[str, list[Any]]:
        """All rows of a kind, column by column and unchecked."""
        if what not in FRAMES:
            raise RunError(f"{self.id}: no frame {what!r}{suggest(what, FRAMES)}")
        names, sql = FRAMES[what]
        rows = self.query(sql)
        if not rows:
            return {name: [] for name in names}
        columns = zip(*rows, strict=True)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    # For the readers of single subjects ---------------------------------------------------------

    def _rows(self, kind: type[Row], sql: str, *values: object) -> list[Row]:
        """The rows of a query of ours, each value checked."""
        return self._checked(kind, self._fetch(sql, *values))

    def _lane_rows(
        self, kind: type[Row], sql: str, method: str, seed: int, *values: object
    ) -> list[Row]:
        """The rows of a query whose first value is the lane."""
        return self._rows(kind, sql, self.lane(method, seed), *values)

    def _number(self, sql: str) -> int:
        ((number,),) = self._rows(tuple[int], sql)
        return number

    def _exists(self, sql: str) -> bool:
        return bool(self._rows(tuple[int], sql))

    def _fetch(self, sql: str, *values: object) -> list[Any]:
        """The rows of a query, unchecked."""
        try:
            with reading(self.folder) as database:
                return database.execute(sql, values).fetchall()
        except OverflowError:
            raise RunError(f"{self.id}: has nothing of that number") from None

    def _checked(self, kind: type[Row], rows: list[Any]) -> list[Row]:
        """Rows of a kind. SQLite keeps any type in any column, so damage is only seen here."""
        try:
            checked: list[Row] = _checker(kind).validate_python(rows, strict=True)
        except ValidationError as error:
            raise self._invalid(error) from None
        return checked

    def _invalid(self, error: ValidationError) -> RunError:
        first = error.errors(include_url=False)[0]
        found = f"{first['msg']}, not {first['input']!r}"
        return self._damage(found[:200])

    def _damage(self, reason: str) -> RunError:
        return RunError(f"{self.folder}: its database is damaged ({reason})")

    # Opening ------------------------------------------------------------------------------------

    def _refuse_other_folders(self) -> None:
        """RunError for what is not a run folder, or one of another format."""
        try:
            is_folder = self.folder.is_dir()
            has_database = (self.folder / DATABASE).exists()
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read ({error.strerror})") from None
        if not is_folder:
            raise RunError(f"{self.folder}: no such folder; `clientwise runs` lists the runs")
        if not has_database:
            if is_locked(self.folder):
                raise NotBegunError(f"{self.folder}: the run is just beginning")
            inside = sorted(path.parent for path in self.folder.glob(f"*/{DATABASE}"))
            if inside:
                several = f"holds {len(inside)} runs: name one of them, such as {inside[0]}"
                raise RunError(f"{self.folder}: {several}")
            raise RunError(f"{self.folder}: not a run of clientwise (it has no {DATABASE})")
        with reading(self.folder):
            pass  # opening it looks at its format

    def _read_facts(self) -> RunFacts:
        try:
            # A model of a wide table has megabytes, which `model_facts` reads. The origin has a
            # fingerprint of every client, which a resumed run reads.
            sql = """SELECT key, value FROM facts
                     WHERE key NOT LIKE 'model of seed %' AND key != 'origin'"""
            rows = self._rows(tuple[str, str], sql)
        except RunError:
            if is_locked(self.folder):  # its tables are being made at this moment
                raise NotBegunError(f"{self.folder}: the run is just beginning") from None
            raise
        if not {key for key, _ in rows} >= NEEDED:
            raise NotBegunError(f"{self.folder}: nothing is recorded yet; resume the run")
        facts = dict(self._checked(tuple[str, Json[Any]], rows))
        try:
            return RunFacts.model_validate(facts)
        except ValidationError as error:
            raise self._invalid(error) from None

    def _read_data(self) -> dict[int, str]:
        rows = self._rows(
            tuple[int, Json[str]],
            """SELECT CAST(SUBSTR(key, LENGTH('data of seed ') + 1) AS INTEGER), value
               FROM facts WHERE key LIKE 'data of seed %'""",
        )
        return dict(rows)


@cache
def _checker(kind: Hashable) -> TypeAdapter[Any]:
    """Checks a list of rows up to the first that is wrong; kept, since it takes a while to make."""
    return TypeAdapter(Annotated[list[kind], FailFast()])  # type: ignore[valid-type, arg-type]
