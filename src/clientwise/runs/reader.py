"""Reading a run: typed rows from its database, which may still be growing."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy
from pydantic import BaseModel, FailFast, Field, Json, PositiveInt, TypeAdapter, ValidationError
from torch import Tensor

from ..core.clock import ABSENT
from ..errors import NotBegunError, RunError
from ..registry import suggest
from .checkpoint import load_model
from .database import reading, time_limit
from .files import checkpoint_path, kept_path, kept_rounds
from .frames import FRAMES, FrameName
from .lock import is_locked
from .rows import (
    DECILES,
    SHARES,
    ArrivedRow,
    BestRound,
    Change,
    ClientMetric,
    ClientRoundRow,
    ClientRow,
    CostRow,
    CriterionRow,
    LaneProgress,
    LaneRow,
    LoweredRow,
    MethodSummary,
    ModelFacts,
    Names,
    ParticipantRow,
    PerClass,
    PriorityRow,
    Reached,
    RefusalRow,
    RoundRow,
    WeightGrid,
)
from .schema import DATABASE, SCHEMA_VERSION

Row = TypeVar("Row", bound=tuple[Any, ...])
T = TypeVar("T")
MOST_SECONDS = 10.0  # of processor time, for one query
MOST_ROWS = 2_000_000  # that one query finds
MANY_CLIENTS = 20  # from here on a tenth of them is more than a client or two
CURVES = {"metric", "macro_f1", "loss", "local_mean", "local_p10", "local_p90"}
CURVES |= {"attack_success", "testing_rounds", "seconds"}
_MODEL = TypeAdapter(ModelFacts)
After = int | Literal["best"] | None  # which round's model: that of the last one where it is None


class _Totals(NamedTuple):
    """What the rounds of a seed add up to."""

    seed: int
    rounds: int
    testing_rounds: int
    seconds: float


class _Facts(BaseModel, strict=True):
    """Facts about the whole run."""

    name: str
    metric: str
    higher_is_better: bool = Field(True, alias="higher is better")
    shows: list[str] | None = None  # older folders do not say
    target: float | None
    client_targets: list[float] | None = Field(None, alias="client targets")
    rounds: PositiveInt
    lanes: PositiveInt
    model_bytes: int = 0
    reported_on: str = Field("held-out samples", alias="reported on")
    changes: list[Change] = []
    begun: str = ""
    initial_model: str = Field("", alias="initial model")
    computed: str = ""


def thinned(rows: list[T], max_points: int | None) -> list[T]:
    """At most about `max_points` of the rows, evenly spaced, and always the last.

    >>> thinned([1, 2, 3, 4, 5, 6, 7, 8], 3)
    [1, 4, 7, 8]
    """
    if max_points is None or len(rows) <= max_points:
        return rows
    step = -(-len(rows) // max_points)
    return rows[::step] + ([] if (len(rows) - 1) % step == 0 else rows[-1:])


def is_finished(folder: Path) -> bool:
    """Whether all lanes of a run have ended."""
    try:
        with time_limit(MOST_SECONDS), reading(folder) as database:
            planned = database.execute("SELECT value FROM facts WHERE key = 'lanes'").fetchone()
            (ended,) = database.execute("SELECT COUNT(*) FROM lanes WHERE finished").fetchone()
            return bool(planned == (str(ended),))
    except RunError:
        return False  # not begun, or damaged: whoever goes on with it will be told


class Run:
    """A run folder, read-only. It may still be growing.

    `run.summary()` is one line per method, `run.curve("metric", "AdaFed", seed=1)` a list over rounds,
    `run.participants("AdaFed", seed=1, round_num=10)` who got which weight. For what no method answers there is
    `run.query(sql)`, which asks the database; its tables are described in `clientwise/runs/schema.py`.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self.folder = Path(folder)
        self.id = name or self.folder.resolve().name  # what pages and comparisons call it
        self._must_be_there()
        facts = self._read_facts()
        self.name = facts.name
        self.metric = facts.metric
        self.higher_is_better = facts.higher_is_better  # whether a larger value of the metric is the better one
        self._shown = facts.shows
        self.target = facts.target
        self.client_targets = facts.client_targets or ([facts.target] if facts.target else [])
        self.rounds = facts.rounds  # planned, per lane
        self.num_lanes = facts.lanes  # planned
        self.model_bytes = facts.model_bytes
        self.reported_on = facts.reported_on
        self.changes = facts.changes  # accepted when it was resumed: data, code or versions
        self.begun, self.computed = facts.begun, facts.computed  # when, and how
        self.initial_model = facts.initial_model  # where the first one came from, if it was no random one
        self.data = dict(  # by seed: tells its data from others
            self._rows(
                tuple[int, Json[str]],
                "SELECT CAST(SUBSTR(key, 14) AS INTEGER), value FROM facts WHERE key LIKE 'data of seed %'",
            )
        )
        self.lanes = self._rows(LaneRow, "SELECT lane, method, seed FROM lanes ORDER BY lane")
        if len(self.lanes) > self.num_lanes:
            raise RunError(f"{self.folder}: its database is damaged ({len(self.lanes)} lanes of {self.num_lanes})")
        self.has_clock = self._has_clock()  # whether clients take time
        self.finished = self._number("SELECT COUNT(*) FROM lanes WHERE finished") == self.num_lanes

    @property
    def methods(self) -> list[str]:
        """The methods in the order they ran."""
        return list(dict.fromkeys(lane.method for lane in self.lanes))

    @property
    def has_hostile(self) -> bool:
        """Whether any client of the run is hostile."""
        return bool(self._rows(tuple[int], "SELECT 1 FROM clients WHERE hostile IS NOT NULL LIMIT 1"))

    def shows(self, column: Literal["macro_f1", "per_class_f1"]) -> bool:
        """Whether runs of this kind of problem have such values: macro F1 is for classes alone."""
        if self._shown is not None:
            return column in self._shown
        return bool(self._rows(tuple[int], f"SELECT 1 FROM rounds WHERE {column} IS NOT NULL LIMIT 1"))

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Rows of a query of your own against the run's database, as they are there: all of them, unchecked."""
        return self._fetch(sql, values, -1)

    def lane(self, method: str, seed: int) -> int:
        """The number of a method and seed in the database."""
        for lane, name, number in self.lanes:
            if (name, number) == (method, seed):
                return lane
        if method not in self.methods:
            raise RunError(f"{self.id}: no method {method!r}{suggest(method, self.methods)}")
        raise RunError(f"{self.id}: no seed {seed} of {method}")

    def seeds(self, method: str) -> list[int]:
        """The seeds of a method."""
        return [lane.seed for lane in self.lanes if lane.method == method]

    def columns(self, what: FrameName) -> dict[str, list[Any]]:
        """All rows of a kind, unchecked, column by column."""
        if what not in FRAMES:
            raise RunError(f"{self.id}: no frame {what!r}{suggest(what, FRAMES)}")
        names, sql = FRAMES[what]
        rows = self.query(sql) if what != "clock" or self.has_clock else []
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    # What was trained -------------------------------------------------------------------------------------------

    def kept_rounds(self, method: str, seed: int) -> list[int]:
        """The rounds after which the model was kept (`keep_every`), beside the last one's."""
        return kept_rounds(self.folder, self.lane(method, seed))

    def trained(self, method: str, seed: int, after: After = None) -> tuple[int, dict[str, Tensor]]:
        """The round after which a model was kept, and its tensors by name; without `after` of the last one."""
        lane, about = self.lane(method, seed), self.model_facts(seed)
        path = checkpoint_path(self.folder, lane) if after is None else self._kept(method, seed, after)
        if not path.exists():
            raise RunError(f"{self.id}: {method}, seed {seed}, has kept no model yet")
        if path.is_symlink() or path.parent.is_symlink():
            raise RunError(f"{path}: leads out of the run folder, through a link")
        round_num, vector = load_model(path)
        if vector.numel() != sum(math.prod(shape) for _, shape in about.tensors):
            raise RunError(f"{path}: not a checkpoint of this run (its model has another size)")
        return round_num, about.named(vector)

    def _kept(self, method: str, seed: int, after: int | Literal["best"]) -> Path:
        """The file with the model after a round; of the best one, by what the run reports, among those kept."""
        kept = self.kept_rounds(method, seed)
        if after == self.rounds and after not in kept and self.finished:
            return checkpoint_path(self.folder, self.lane(method, seed))  # it is kept in any case
        if after == "best":
            pick = max if self.higher_is_better else min
            measured = [
                (round_num, value) for round_num, value in self.curve("metric", method, seed) if round_num in kept
            ]
            after = pick(measured, key=lambda pair: pair[1])[0] if measured else "best"
        if after not in kept:
            known = f"kept are those after {', '.join(map(str, kept))}" if kept else "`keep_every` keeps more than one"
            raise RunError(f"{self.id}: {method}, seed {seed}, has no model of round {after}: {known}")
        return kept_path(self.folder, self.lane(method, seed), int(after))

    def model_facts(self, seed: int) -> ModelFacts:
        """What the network of a seed is made of."""
        rows = self._rows(tuple[str], "SELECT value FROM facts WHERE key = ?", f"model of seed {seed}")
        if not rows:
            raise RunError(f"{self.id}: was made by a version of clientwise that did not describe its model")
        try:
            return _MODEL.validate_json(rows[0][0])
        except ValidationError as error:
            raise self._damaged(error) from None

    # How far it is -----------------------------------------------------------------------------------------------

    def rounds_done(self) -> int:
        """Rounds of all lanes together."""
        return self._number("SELECT COUNT(*) FROM rounds")

    def progress(self) -> list[LaneProgress]:
        """How far every lane is."""
        return self._rows(
            LaneProgress,
            """SELECT method, seed, finished, COUNT(round_num) FROM lanes LEFT JOIN rounds USING (lane)
               GROUP BY lane ORDER BY lane""",
        )

    def round_nums(self, method: str, seed: int) -> list[int]:
        """The rounds a lane has run."""
        rows = self._rows(tuple[int], "SELECT round_num FROM rounds WHERE lane = ? ORDER BY 1", self.lane(method, seed))
        return [number for (number,) in rows]

    def last_round(self, method: str, seed: int) -> int | None:
        """The last round of a lane; None before its first."""
        ((last,),) = self._rows(
            tuple[int | None], "SELECT MAX(round_num) FROM rounds WHERE lane = ?", self.lane(method, seed)
        )
        return last

    def lanes_with_round(self, round_num: int) -> list[LaneRow]:
        """The lanes that have run a round."""
        found = set(self._rows(tuple[int], "SELECT lane FROM rounds WHERE round_num = ?", round_num))
        return [lane for lane in self.lanes if (lane.lane,) in found]

    # Over the rounds ---------------------------------------------------------------------------------------------

    def curve(self, column: str, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, float]]:
        """(round, value) of a column of the table `rounds`, where it has one; at most about `max_points` of them."""
        if column not in CURVES:
            raise ValueError(f"{column!r} is not a curve")
        return self._column(tuple[int, float], column, method, seed, max_points)

    def reached(self, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, tuple[float, ...]]]:
        """(round, what 10, 20 ... 90%, and 75%, of the honest clients reach on their own test data)."""
        return self._column(tuple[int, Json[Reached]], "reached", method, seed, max_points)

    def classes(
        self, column: Literal["per_class_f1", "class_weights"], method: str, seed: int, max_points: int | None = None
    ) -> list[tuple[int, tuple[float, ...]]]:
        """(round, a value for every class)."""
        rows = self._column(tuple[int, Json[PerClass]], column, method, seed, max_points)
        if len({len(values) for _, values in rows}) > 1:
            raise RunError(f"{self.folder}: its database is damaged ({column} of different lengths)")
        return rows

    def priorities(self, method: str, seed: int) -> list[PriorityRow]:
        """The order of priority of every round that has one."""
        return self._rows(
            PriorityRow,
            """SELECT round_num, priority, testing_rounds FROM rounds
               WHERE lane = ? AND priority IS NOT NULL ORDER BY round_num""",
            self.lane(method, seed),
        )

    def hostile_weights(self, method: str, seed: int, max_points: int | None = None) -> list[tuple[int, float]]:
        """(round, weight all hostile clients had together)."""
        rows = self._rows(
            tuple[int, float],
            """SELECT round_num, (SELECT TOTAL(weight) FROM participants
                 WHERE lane = rounds.lane AND round_num = rounds.round_num
                 AND client IN (SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL))
               FROM rounds WHERE lane = ? ORDER BY round_num""",
            seed,
            self.lane(method, seed),
        )
        return thinned(rows, max_points)

    def weight_grid(self, method: str, seed: int, max_cells: int) -> WeightGrid | None:
        """Weight of every client over the rounds, at most `max_cells` in either direction; None without any."""
        lane = self.lane(method, seed)
        ((last, clients),) = self._rows(
            tuple[int | None, int | None],
            """SELECT (SELECT MAX(round_num) FROM rounds WHERE lane = ?),
                      (SELECT MAX(client) + 1 FROM clients WHERE seed = ?)""",
            lane,
            seed,
        )
        if not last or not clients:
            return None
        rounds_per_cell, clients_per_cell = -(-last // max_cells), -(-clients // max_cells)
        cells = self._rows(
            tuple[int, int, float, float],
            """SELECT (round_num - 1) / ?, client / ?, AVG(weight), TOTAL(weight)
               FROM rounds CROSS JOIN participants INDEXED BY participants_by_round USING (lane, round_num)
               WHERE lane = ? AND (round_num - 1) % ? = 0 AND weight IS NOT NULL GROUP BY 1, 2""",
            rounds_per_cell,
            clients_per_cell,
            lane,
            rounds_per_cell,
        )
        width, height = -(-last // rounds_per_cell), -(-clients // clients_per_cell)
        means: list[list[float | None]] = [[None] * width for _ in range(height)]
        totals = [0.0] * height
        for column, row, mean, total in cells:
            if 0 <= row < height and column < width:  # a round may have been added since its end was asked for
                means[row][column] = mean
                totals[row] += total
        return WeightGrid(rounds_per_cell, clients_per_cell, means, totals)

    def rounds_to(self, target: float | None, method: str, seed: int) -> int | None:
        """The first round whose reported metric reaches a target; None where it was not reached, or there is none."""
        if target is None:
            return None
        for round_num, value in self.curve("metric", method, seed):
            if value >= target if self.higher_is_better else value <= target:
                return round_num
        return None

    def times(self, method: str, seed: int) -> dict[int, float]:
        """When every round ended, in seconds on the clients' clock; nothing where they have none."""
        sql = "SELECT round_num, ended FROM clock WHERE lane = ? ORDER BY round_num"
        return dict(self._rows(tuple[int, float], sql, self.lane(method, seed))) if self.has_clock else {}

    def bytes_moved(self, method: str, seed: int) -> dict[int, float]:
        """How many bytes of models had crossed the wire when every round ended, either way."""
        rows = self._rows(
            tuple[int, int],
            "SELECT round_num, SUM(models_moved) OVER (ORDER BY round_num) FROM rounds WHERE lane = ?",
            self.lane(method, seed),
        )
        return {round_num: float(models * self.model_bytes) for round_num, models in rows}

    def rounds_until_clients_reach(
        self, method: str, seed: int, target: float, shares: Sequence[int] = DECILES
    ) -> list[int | None]:
        """The first round in which 10, 20 ... 90% of the honest clients reach a target (P1's tables)."""
        first: dict[int, int | None] = dict.fromkeys(shares)
        for round_num, values in self.reached(method, seed):
            for share, value in zip(SHARES, values, strict=False):
                good = value >= target if self.higher_is_better else value <= target
                if good and share in first and first[share] is None:
                    first[share] = round_num
        return [first[share] for share in shares]

    def best_round(self, method: str, seed: int) -> BestRound | None:
        """The round with the best reported accuracy, that accuracy, and which samples were right in it."""
        rows = self._rows(
            tuple[int, float, int, bytes],
            "SELECT round_num, metric, num_samples, bits FROM best WHERE lane = ? ORDER BY round_num DESC LIMIT 1",
            self.lane(method, seed),
        )
        if not rows:
            return None
        round_num, metric, count, bits = rows[0]
        if len(bits) != -(-count // 8):
            raise RunError(f"{self.folder}: its database is damaged ({len(bits)} bytes for {count} samples)")
        right = numpy.unpackbits(numpy.frombuffer(bits, numpy.uint8), count=count).astype(bool)
        return BestRound(round_num, metric, right)

    # One round, one client ---------------------------------------------------------------------------------------

    def round(self, method: str, seed: int, round_num: int) -> RoundRow:
        """How the weights of a round came about."""
        rows = self._rows(
            RoundRow,
            """SELECT priority, candidates, testing_rounds, no_effect, notes FROM rounds
               WHERE lane = ? AND round_num = ?""",
            self.lane(method, seed),
            round_num,
        )
        if not rows:
            raise RunError(f"{self.id}: {method}, seed {seed}, has no round {round_num} (yet)")
        return rows[0]

    def participants(self, method: str, seed: int, round_num: int) -> list[ParticipantRow]:
        """Everyone whose update arrived in a round, heaviest first."""
        return self._rows(
            ParticipantRow,
            """SELECT client, hostile, score, prior, z, posterior, weight, influence, refusal, name
               FROM participants JOIN lanes USING (lane)
               LEFT JOIN clients USING (seed, client) WHERE lane = ? AND round_num = ? ORDER BY weight DESC, client""",
            self.lane(method, seed),
            round_num,
        )

    def lowered_by_evidence(
        self, method: str, seed: int, round_num: int, clients: Sequence[int], threshold: float
    ) -> list[LoweredRow]:
        """What evidence did to clients up to a round: it lowers a weight, and speaks against a client above this z."""
        return self._rows(
            LoweredRow,
            """WITH known AS MATERIALIZED (
                   SELECT client, round_num, z, posterior < prior * (1 - 1e-9) AS lowered -- by more than rounding
                   FROM participants NOT INDEXED
                   WHERE lane = ? AND round_num <= ? AND client IN (SELECT value FROM json_each(?))
                       AND posterior IS NOT NULL),
               turns AS MATERIALIZED (
                   SELECT client, MAX(CASE WHEN lowered THEN 0 ELSE round_num END) AS not_lowered,
                       MAX(CASE WHEN z > ? THEN round_num END) AS harmful
                   FROM known GROUP BY client)
               SELECT client, MIN(CASE WHEN round_num > not_lowered THEN round_num END), harmful,
                   MAX(CASE WHEN round_num = harmful THEN z END)
               FROM known JOIN turns USING (client) GROUP BY client""",
            self.lane(method, seed),
            round_num,
            json.dumps(list(clients)),
            threshold,
        )

    def at_round(self, round_num: int) -> list[tuple[str, int, float | None, float | None]]:
        """Method, seed, metric and success of backdoors of all lanes that have come to a round."""
        return self._rows(
            tuple[str, int, float | None, float | None],
            "SELECT method, seed, metric, attack_success FROM rounds JOIN lanes USING (lane) WHERE round_num = ?",
            round_num,
        )

    def criteria(self, method: str, seed: int, round_num: int) -> list[CriterionRow]:
        """What was measured in a round."""
        return self._rows(
            CriterionRow,
            "SELECT client, criterion, raw, normalised FROM criteria WHERE lane = ? AND round_num = ?",
            self.lane(method, seed),
            round_num,
        )

    def clients(self, seed: int, limit: int = -1) -> list[ClientRow]:
        """Who there is under a seed; the first of them, with a limit."""
        return self._rows(
            ClientRow,
            """SELECT client, name, num_train, num_test, hostile FROM clients
               WHERE seed = ? ORDER BY client LIMIT ?""",
            seed,
            limit,
        )

    def client(self, seed: int, client: int) -> ClientRow:
        """A client under a seed."""
        rows = self._rows(
            ClientRow,
            "SELECT client, name, num_train, num_test, hostile FROM clients WHERE seed = ? AND client = ?",
            seed,
            client,
        )
        if not rows:
            raise RunError(f"{self.id}: no client {client} under seed {seed}")
        return rows[0]

    def hostile_clients(self, seed: int) -> set[int]:
        """The hostile clients under a seed."""
        rows = self._rows(tuple[int], "SELECT client FROM clients WHERE seed = ? AND hostile IS NOT NULL", seed)
        return {client for (client,) in rows}

    def client_rounds(self, method: str, seed: int, client: int) -> list[ClientRoundRow]:
        """Every round in which a client took part."""
        return self._rows(
            ClientRoundRow,
            """SELECT round_num, score, prior, z, posterior, weight, influence, training_loss, refusal
               FROM rounds CROSS JOIN participants INDEXED BY participants_by_round USING (lane, round_num)
               WHERE lane = ? AND client = ? ORDER BY round_num""",
            self.lane(method, seed),
            client,
        )

    def client_curve(self, method: str, seed: int, client: int) -> list[tuple[int, float | None]]:
        """(round, metric) of a client on its own test data."""
        return self._rows(
            tuple[int, float | None],
            "SELECT round_num, metric FROM local WHERE lane = ? AND client = ? ORDER BY round_num",
            self.lane(method, seed),
            client,
        )

    def honest_metrics(self, method: str, seed: int, limit: int) -> list[float]:
        """The metric of honest clients on their own test data, in the last round in which they were asked."""
        lane = self.lane(method, seed)
        rows = self._rows(
            tuple[float | None],
            """SELECT local.metric FROM local JOIN clients ON clients.client = local.client AND clients.seed = ?
               WHERE lane = ? AND hostile IS NULL
                 AND round_num = (SELECT MAX(round_num) FROM rounds WHERE lane = ? AND reached IS NOT NULL)
               LIMIT ?""",
            seed,
            lane,
            lane,
            limit,
        )
        return [value for (value,) in rows if value is not None]

    def client_metrics(self, method: str) -> list[ClientMetric]:
        """How every honest client did in every seed, in the last round in which they were asked."""
        return self._rows(
            ClientMetric,
            """SELECT seed, client, name, local.metric
               FROM local JOIN lanes USING (lane) JOIN clients USING (seed, client)
               WHERE method = ? AND hostile IS NULL AND local.metric IS NOT NULL
                 AND round_num = (SELECT MAX(round_num) FROM rounds WHERE lane = lanes.lane AND reached IS NOT NULL)
               ORDER BY seed, client""",
            method,
        )

    # One method --------------------------------------------------------------------------------------------------

    def no_effect(self, method: str) -> list[Names]:
        """The criteria that were equal for all clients, in every round."""
        rows = self._rows(
            tuple[Json[Names]], "SELECT no_effect FROM rounds JOIN lanes USING (lane) WHERE method = ?", method
        )
        return [names for (names,) in rows]

    def notes(self, method: str) -> list[Names]:
        """The notes of every round that has any."""
        rows = self._rows(
            tuple[Json[Names]],
            "SELECT notes FROM rounds JOIN lanes USING (lane) WHERE method = ? AND notes != '[]'",
            method,
        )
        return [notes for (notes,) in rows]

    def refusals(self, method: str, limit: int) -> list[RefusalRow]:
        """Whose updates were refused and why, the most frequent first."""
        return self._rows(
            RefusalRow,
            """SELECT refusal, client, name, seed, COUNT(*), MIN(round_num) FROM participants JOIN lanes USING (lane)
               LEFT JOIN clients USING (seed, client)
               WHERE method = ? AND refusal IS NOT NULL GROUP BY refusal, client, seed ORDER BY 5 DESC LIMIT ?""",
            method,
            limit,
        )

    def arrived(self, method: str) -> ArrivedRow:
        """How many updates arrived in time over all seeds, and how many of them were refused."""
        refused = self._rows(
            tuple[str, int, int],
            """SELECT refusal, COUNT(*), SUM(hostile IS NULL) FROM participants JOIN lanes USING (lane)
               LEFT JOIN clients USING (seed, client)
               WHERE method = ? AND refusal IS NOT NULL GROUP BY refusal ORDER BY 3 DESC, 2 DESC""",
            method,
        )
        ((arrived,),) = self._rows(
            tuple[int], "SELECT COUNT(*) FROM participants JOIN lanes USING (lane) WHERE method = ?", method
        )
        absent = sum(count for reason, count, _ in refused if reason in ABSENT)
        refused = [row for row in refused if row[0] not in ABSENT]
        honest = sum(row[2] for row in refused)
        return ArrivedRow(arrived - absent, sum(row[1] for row in refused), honest, refused[0][0] if honest else None)

    def refusal_counts(self, method: str) -> list[tuple[str, int]]:
        """(reason, how many updates were refused for it)."""
        return self._rows(
            tuple[str, int],
            """SELECT refusal, COUNT(*) FROM participants JOIN lanes USING (lane)
               WHERE method = ? AND refusal IS NOT NULL GROUP BY refusal""",
            method,
        )

    def cost(self, method: str) -> CostRow:
        """What a method took, summed over its rounds and seeds."""
        lanes = [self.lane(method, seed) for seed in self.seeds(method)]
        (row,) = self._rows(
            CostRow,
            f"""SELECT TOTAL(seconds), TOTAL(models_moved), TOTAL(evaluations), TOTAL(testing_rounds), COUNT(*)
                FROM rounds WHERE lane IN ({", ".join("?" * len(lanes))})""",
            *lanes,
        )
        return row

    def summary(self) -> list[MethodSummary]:
        """One line per method."""
        return [self._summarise(method) for method in self.methods]

    def _summarise(self, method: str) -> MethodSummary:
        seeds = self.seeds(method)
        totals = {
            row.seed: row
            for row in self._rows(
                _Totals,
                """SELECT seed, COUNT(round_num), COALESCE(SUM(testing_rounds), 0), TOTAL(rounds.seconds)
                   FROM lanes LEFT JOIN rounds USING (lane) WHERE method = ? GROUP BY seed""",
                method,
            )
        }
        refused = dict(
            self._rows(
                tuple[int, int],
                """SELECT seed, (SELECT COUNT(*) FROM participants
                                 WHERE participants.lane = lanes.lane AND refusal IS NOT NULL)
                   FROM lanes WHERE method = ?""",
                method,
            )
        )
        farthest = max((totals[seed].rounds for seed in seeds), default=0)

        def last(column: str) -> list[float | None]:
            """Of the seeds that came as far as the farthest: round 3 of one and round 30 of another do not compare."""
            curves = [self.curve(column, method, seed, 1) if totals[seed].rounds == farthest else [] for seed in seeds]
            return [curve[-1][1] if curve else None for curve in curves]

        rounds_to_target = [self.rounds_to(self.target, method, seed) for seed in seeds]

        def used_by_then(so_far: Callable[[str, int], dict[int, float]]) -> list[float | None]:
            reached = zip(seeds, rounds_to_target, strict=True)
            return [so_far(method, seed).get(number or 0) if self.has_clock else None for seed, number in reached]

        clients: dict[int, list[float]] = {seed: [] for seed in seeds}
        for row in self.client_metrics(method):
            clients[row.seed].append(row.metric)
        worst_first = [
            sorted(clients[seed], reverse=not self.higher_is_better) if totals[seed].rounds == farthest else []
            for seed in seeds
        ]
        return MethodSummary(
            method=method,
            seeds=seeds,
            rounds=[totals[seed].rounds for seed in seeds],
            metric=last("metric"),
            macro_f1=last("macro_f1"),
            worst_client=[values[0] if values else None for values in worst_first],
            worst_decile=[
                values[-(-len(values) // 10) - 1] if len(values) >= MANY_CLIENTS else None for values in worst_first
            ],
            best_decile=[values[-len(values) // 10] if len(values) >= MANY_CLIENTS else None for values in worst_first],
            rounds_to_target=rounds_to_target,
            time_to_target=used_by_then(self.times),
            bytes_to_target=used_by_then(self.bytes_moved),
            hostile_weight=[self._mean_hostile_weight(method, seed) for seed in seeds],
            attack_success=last("attack_success"),
            testing_rounds=[totals[seed].testing_rounds for seed in seeds],
            refused=[refused[seed] for seed in seeds],
            seconds=[totals[seed].seconds for seed in seeds],
        )

    def _mean_hostile_weight(self, method: str, seed: int) -> float | None:
        if not self.has_hostile:
            return None
        weights = [weight for _, weight in self.hostile_weights(method, seed)]
        return statistics.fmean(weights) if weights else None

    # Reading -----------------------------------------------------------------------------------------------------

    def _must_be_there(self) -> None:
        """Refuse what is no run folder, or one of another version."""
        try:
            is_folder, has_database = self.folder.is_dir(), (self.folder / DATABASE).exists()
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read ({error.strerror})") from None
        if not is_folder:
            raise RunError(f"{self.folder}: no such folder")
        if not has_database:
            if is_locked(self.folder):
                raise NotBegunError(f"{self.folder}: the run is just beginning")
            raise RunError(f"{self.folder}: not a run of clientwise (it has no {DATABASE})")
        version = self._number("PRAGMA user_version")
        if version not in (0, SCHEMA_VERSION):  # 0: its tables are not made yet, or it is none of ours
            raise RunError(f"{self.folder}: was made by another version of clientwise; look at it with that one")

    def _has_clock(self) -> bool:
        is_there = self._rows(tuple[int], "SELECT 1 FROM sqlite_master WHERE name = 'clock'")
        return bool(is_there and self._rows(tuple[int], "SELECT 1 FROM clock LIMIT 1"))

    def _read_facts(self) -> _Facts:
        try:
            rows = self._rows(tuple[str, str], "SELECT key, value FROM facts")
        except RunError:
            if is_locked(self.folder):  # its tables are being made at this moment
                raise NotBegunError(f"{self.folder}: the run is just beginning") from None
            raise
        if not {"name", "metric", "target", "rounds", "lanes"} <= {key for key, _ in rows}:
            raise NotBegunError(f"{self.folder}: the run has not begun; start it again with --resume")
        try:
            return _Facts.model_validate(dict(self._checked(tuple[str, Json[Any]], rows)))
        except ValidationError as error:
            raise self._damaged(error) from None

    def _column(self, kind: type[Row], column: str, method: str, seed: int, max_points: int | None) -> list[Row]:
        """A column of `rounds` where it is known, thinned."""
        rows = self._limited(
            f"SELECT round_num, {column} FROM rounds WHERE lane = ? AND {column} IS NOT NULL ORDER BY round_num",
            self.lane(method, seed),
        )
        return self._checked(kind, thinned(rows, max_points))

    def _rows(self, kind: type[Row], sql: str, *values: object) -> list[Row]:
        return self._checked(kind, self._limited(sql, *values))

    def _limited(self, sql: str, *values: object) -> list[Any]:
        """Rows of a query of ours; a database that makes it long or large is none of ours."""
        with time_limit(MOST_SECONDS):
            rows = self._fetch(sql, values, MOST_ROWS + 1)
        if len(rows) > MOST_ROWS:
            raise RunError(f"{self.folder}: its database is damaged (more than {MOST_ROWS:,} rows where few belong)")
        return rows

    def _fetch(self, sql: str, values: Sequence[object], most: int) -> list[Any]:
        try:
            with reading(self.folder) as database:
                found = database.execute(sql, values)
                return found.fetchall() if most < 0 else found.fetchmany(most)
        except OverflowError:
            raise RunError(f"{self.id}: has nothing of that number") from None

    def _number(self, sql: str) -> int:
        ((number,),) = self._rows(tuple[int], sql)
        return number

    def _checked(self, kind: type[Row], rows: list[Any]) -> list[Row]:
        """Rows of a kind; SQLite keeps any type in any column, so that a damaged file is only seen here."""
        try:
            checked: list[Row] = _checker(kind).validate_python(rows, strict=True)
        except ValidationError as error:
            raise self._damaged(error) from None
        return checked

    def _damaged(self, error: ValidationError) -> RunError:
        first = error.errors(include_url=False)[0]
        found = f"{first['msg']}, not {first['input']!r}"
        return RunError(f"{self.folder}: its database is damaged ({found[:200]})")


@cache
def _checker(kind: Hashable) -> TypeAdapter[Any]:
    """Checks a list of rows of a kind, up to the first that is wrong; made once, for it takes a while."""
    return TypeAdapter(Annotated[list[kind], FailFast()])  # type: ignore[valid-type, arg-type]
