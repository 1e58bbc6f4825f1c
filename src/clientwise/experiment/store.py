"""A run folder: the resolved config, the versions, one SQLite database, checkpoints in safetensors. No pickle anywhere.

config.toml                 the resolved config: every default written out
versions.json               what ran it
run.sqlite                  what happened, per round and per client (tables below)
checkpoints/lane-N.safetensors   where method × seed number N can go on, or ended
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..core.loss import Loss
from ..core.metrics import macro_f1, per_class_f1
from ..core.types import Evaluation, Problem, RoundRecord, ServerState
from ..errors import ClientwiseError

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS lanes (   -- one method with one seed
    lane INTEGER PRIMARY KEY, method TEXT, seed INTEGER, finished INTEGER DEFAULT 0, UNIQUE (method, seed));

CREATE TABLE IF NOT EXISTS clients ( -- who there is, under a seed
    seed INTEGER, client INTEGER, num_train INTEGER, num_test INTEGER, hostile TEXT,
    PRIMARY KEY (seed, client)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS rounds (
    lane INTEGER, round_num INTEGER,
    metric REAL, macro_f1 REAL, loss REAL,              -- on the server's reporting part; accuracy, or MAPE
    local_mean REAL, local_p10 REAL, local_p90 REAL,    -- over the honest clients' own test sets
    reached TEXT,    -- what 10, 20 ... 90% of the honest clients reach on theirs
    priority TEXT, candidates TEXT, testing_rounds INTEGER,
    class_weights TEXT, loss_shape REAL, per_class_f1 TEXT,
    no_effect TEXT, notes TEXT, seconds REAL, models_moved INTEGER, evaluations INTEGER,
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS participants ( -- everyone whose update arrived, accepted or refused
    lane INTEGER, round_num INTEGER, client INTEGER, refusal TEXT, -- NULL: accepted
    score REAL, weight REAL, training_loss REAL, seconds REAL);
-- None by client: rows would go all over it, and writing a round of a thousand would take twice as long.
CREATE INDEX IF NOT EXISTS participants_by_round ON participants (lane, round_num, client, weight);
CREATE INDEX IF NOT EXISTS refused_participants ON participants (lane) WHERE refusal IS NOT NULL;

CREATE TABLE IF NOT EXISTS criteria (
    lane INTEGER, round_num INTEGER, client INTEGER, criterion TEXT, raw REAL, normalised REAL,
    PRIMARY KEY (lane, round_num, client, criterion)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS local (   -- every client's own test set, in the rounds in which it was evaluated
    lane INTEGER, round_num INTEGER, client INTEGER, metric REAL, loss REAL,
    PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS best (    -- which samples the model of the best round so far classified rightly
    lane INTEGER, round_num INTEGER, metric REAL, num_samples INTEGER, bits BLOB, -- one bit per sample, the first first
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID;
"""


SCHEMA_VERSION = 3  # of the tables above: a run folder of another version cannot be added to


class RunError(ClientwiseError, RuntimeError):
    """A run folder that cannot be used, and why."""


class Store:
    """Writes a run folder. One transaction a round; a reader may look at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checkpoints = folder / "checkpoints"
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(folder / "run.sqlite")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise RunError(f"{folder}: was made by another version of clientwise; finish it with that one")
        self._database.executescript(f"{SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Facts about the whole run, for whoever reads it."""
        with self._database as database:
            rows = [(key, json.dumps(value)) for key, value in facts.items()]
            database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def set_clients(
        self, seed: int, num_train: Sequence[int], num_test: Sequence[int], hostile: Mapping[int, str]
    ) -> None:
        """Who there is under a seed; `hostile` names the attack of those who are."""
        with self._database as database:
            rows = [(seed, k, *sizes, hostile.get(k)) for k, sizes in enumerate(zip(num_train, num_test, strict=True))]
            database.executemany("INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?, ?)", rows)

    def open_lane(self, method: str, seed: int) -> int:
        """The lane of a method and seed."""
        with self._database as database:
            database.execute("INSERT OR IGNORE INTO lanes (method, seed) VALUES (?, ?)", (method, seed))
        row = self._database.execute("SELECT lane FROM lanes WHERE method = ? AND seed = ?", (method, seed))
        return int(row.fetchone()[0])

    def is_lane_finished(self, method: str, seed: int) -> bool:
        """Whether a method has run all its rounds with this seed."""
        row = self._database.execute("SELECT finished FROM lanes WHERE method = ? AND seed = ?", (method, seed))
        return bool((row.fetchone() or (0,))[0])

    def finish_lane(self, lane: int) -> None:
        """Mark a lane as finished."""
        with self._database as database:
            database.execute("UPDATE lanes SET finished = 1 WHERE lane = ?", (lane,))

    def check_fact(self, key: str, value: object) -> None:
        """Write a fact, or make sure that it is still what it was when the run began."""
        row = self._database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        if row is not None and json.loads(row[0]) != value:
            raise RunError(f"{self.folder}: cannot be resumed with other data ({key} differs from when it began)")
        self.set_facts({key: value})

    def forget_after(self, lane: int, round_num: int) -> None:
        """Drop the rounds after a checkpoint: they are run again, and come out the same."""
        (kept,) = self._database.execute(
            "SELECT COUNT(*) FROM rounds WHERE lane = ? AND round_num <= ?", (lane, round_num)
        ).fetchone()
        if kept != round_num:
            raise RunError(f"{self.folder}: its database has {kept} of the {round_num} rounds before the checkpoint")
        with self._database as database:
            for table in ("rounds", "participants", "criteria", "local", "best"):
                database.execute(f"DELETE FROM {table} WHERE lane = ? AND round_num > ?", (lane, round_num))

    def write_round(
        self, lane: int, record: RoundRecord, problem: Problem, hostile: Mapping[int, object], seconds: float
    ) -> None:
        """One round, in one transaction."""
        accepted = zip(
            record.client_ids,
            record.scores.tolist(),
            record.weights.tolist(),
            record.training_loss.tolist(),
            record.seconds.tolist(),
            strict=True,
        )
        people = [(lane, record.round_num, client, None, *values) for client, *values in accepted]
        people += [
            (lane, record.round_num, refusal.client_id, refusal.reason, *[None] * 4) for refusal in record.refusals
        ]
        criteria = [
            (lane, record.round_num, client, name, raw, normalised)
            for client, raws, normaliseds in zip(
                record.client_ids, record.raw.tolist(), record.normalised.tolist(), strict=True
            )
            for name, raw, normalised in zip(record.criteria, raws, normaliseds, strict=True)
        ]
        local = record.local
        own = (
            []
            if local is None
            else [
                (lane, record.round_num, client, value, loss)
                for client, (value, loss, size) in enumerate(
                    zip(local.values[0].tolist(), local.losses[0].tolist(), local.num_samples.tolist(), strict=True)
                )
                if size
            ]
        )
        # Without a reporting set, what the honest clients measured.
        shown = record.report or (_of_honest(record.local, hostile) if record.local else None)
        with self._database as database:
            database.execute(
                f"INSERT INTO rounds VALUES ({', '.join('?' * 20)})",
                _round_row(lane, record, shown, problem, hostile, seconds),
            )
            if shown is not None and shown.right is not None:
                self._write_if_best(lane, record.round_num, float(shown.overall()[0]), shown.right[0])
            database.executemany("INSERT INTO participants VALUES (?, ?, ?, ?, ?, ?, ?, ?)", people)
            database.executemany("INSERT INTO criteria VALUES (?, ?, ?, ?, ?, ?)", criteria)
            database.executemany("INSERT INTO local VALUES (?, ?, ?, ?, ?)", own)

    def _write_if_best(self, lane: int, round_num: int, metric: float, right: Tensor) -> None:
        (before,) = self._database.execute("SELECT MAX(metric) FROM best WHERE lane = ?", (lane,)).fetchone()
        if before is None or metric > before:
            row = (lane, round_num, metric, len(right), numpy.packbits(right.numpy()).tobytes())
            self._database.execute("INSERT INTO best VALUES (?, ?, ?, ?, ?)", row)

    def round_values(self, lane: int, round_num: int, metric: str) -> dict[str, float]:
        """The numbers of a round that are worth a curve, as they were written; `metric` is what theirs is called."""
        row = self._database.execute(
            """SELECT metric, macro_f1, loss, local_mean, local_p10, local_p90, testing_rounds,
                (SELECT COUNT(*) FROM participants AS p
                    WHERE p.lane = r.lane AND p.round_num = r.round_num AND refusal IS NOT NULL) AS refused,
                (SELECT COUNT(*) FROM participants AS p
                    WHERE p.lane = r.lane AND p.round_num = r.round_num AND refusal IS NULL AND weight = 0
                ) AS without_weight,
                seconds FROM rounds AS r WHERE lane = ? AND round_num = ?""",
            (lane, round_num),
        )
        names = [metric, *(column[0] for column in row.description[1:])]
        return {name: value for name, value in zip(names, row.fetchone(), strict=True) if value is not None}

    def save_checkpoint(self, lane: int, state: ServerState, engine_state: Mapping[str, Tensor]) -> None:
        """All that a lane needs to go on. The old checkpoint is there until the new one is whole."""
        # The database must not be behind the checkpoint, not even after a power cut.
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        tensors = {
            "model": state.model,
            **{f"memory.{name}": tensor for name, tensor in state.memory.items()},
            **{f"step.{name}": tensor for name, tensor in state.step_state.items()},
            **{f"engine.{name}": tensor for name, tensor in engine_state.items()},
        }
        facts = {
            "round_num": state.round_num,
            "loss": asdict(state.loss),
            "priority": state.priority,
            "quality": state.quality,
        }
        write_atomically(
            self._checkpoint(lane),
            save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, {"state": json.dumps(facts)}),
        )
        # Nobody goes back behind this checkpoint: of the rounds before it, the best will do.
        with self._database as database:
            database.execute(
                """DELETE FROM best WHERE lane = :lane
                   AND round_num < (SELECT MAX(round_num) FROM best WHERE lane = :lane AND round_num <= :until)""",
                {"lane": lane, "until": state.round_num},
            )

    def load_checkpoint(self, lane: int, device: torch.device) -> tuple[ServerState, dict[str, Tensor]] | None:
        """The last checkpoint of a lane; None where there is none yet."""
        path = self._checkpoint(lane)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                facts = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise RunError(
                f"{path}: not a checkpoint of clientwise ({error}); delete it to start this lane again"
            ) from None
        loss = facts["loss"]
        if loss["class_weights"] is not None:
            loss["class_weights"] = tuple(loss["class_weights"])
        state = ServerState(
            round_num=facts["round_num"],
            model=tensors["model"],
            loss=Loss(**loss),
            memory={name: tensor.cpu() for name, tensor in _under("memory.", tensors).items()},
            priority=None if facts["priority"] is None else tuple(facts["priority"]),
            quality=facts["quality"],
            step_state=_under("step.", tensors),
        )
        return state, _under("engine.", tensors)

    def _checkpoint(self, lane: int) -> Path:
        return self._checkpoints / f"lane-{lane}.safetensors"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old one or the new one and nothing between."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process, so that two do not write into it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: nothing to hold it with
        yield
        return
    with (folder / ".lock").open("a") as file:
        for last_try in (False, False, False, True):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last_try:
                    raise RunError(f"{folder}: another clientwise process is writing to this run") from None
                time.sleep(0.05)  # it may only be somebody looking whether the run is going, see `is_locked`
        yield


def is_finished(folder: Path) -> bool:
    """Whether all lanes of a run have ended."""
    try:
        with closing(sqlite3.connect(f"{(folder / 'run.sqlite').resolve().as_uri()}?mode=ro", uri=True)) as database:
            planned = database.execute("SELECT value FROM facts WHERE key = 'lanes'").fetchone()
            (ended,) = database.execute("SELECT COUNT(*) FROM lanes WHERE finished").fetchone()
            return planned is not None and ended == json.loads(planned[0])
    except sqlite3.DatabaseError:
        return False  # not begun, or damaged: whoever goes on with it will be told


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to this run folder right now."""
    try:
        import fcntl

        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who look do not see each other
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # nothing to tell it by, or no such file
        return False
    return False


def _round_row(
    lane: int,
    record: RoundRecord,
    shown: Evaluation | None,
    problem: Problem,
    hostile: Mapping[int, object],
    seconds: float,
) -> tuple[object, ...]:
    """A row of the table `rounds`; `shown` is what the run reports on."""
    # The counts of classes are of all clients, and so only of use where all are honest.
    counted = shown is not None and problem.kind == "classification" and (record.report is not None or not hostile)
    return (
        lane,
        record.round_num,
        float(shown.overall()[0]) if shown else None,
        float(macro_f1(shown.counts[0])) if shown and counted else None,
        float(shown.overall_loss()[0]) if shown else None,
        *(_honest_summary(record.local, hostile, problem) if record.local else [None] * 4),
        json.dumps(record.priority) if record.priority else None,
        json.dumps(record.candidates) if record.candidates else None,
        record.testing_rounds,
        json.dumps(record.loss.class_weights) if record.loss.class_weights else None,
        record.loss.shape if record.loss.kind == "robust" else None,
        json.dumps(per_class_f1(shown.counts[0]).tolist()) if shown and counted else None,
        json.dumps(record.no_effect),
        json.dumps([*record.notes, *_not_evaluated(record.local)]),
        seconds,
        record.models_moved,
        record.evaluations,
    )


def _not_evaluated(local: Evaluation | None) -> list[str]:
    """Who did not evaluate the model on its own test set, and why."""
    missing = sorted(local.missing, key=lambda refusal: refusal.client_id) if local else []
    return [f"client {refusal.client_id} did not evaluate: {refusal.reason}" for refusal in missing]


def _of_honest(local: Evaluation, hostile: Mapping[int, object]) -> Evaluation | None:
    """The evaluation on the honest clients that have test data; None where there are none."""
    honest = torch.tensor([client not in hostile for client in range(len(local.num_samples))])
    counted = honest & (local.num_samples > 0)
    if not bool(counted.any()):
        return None
    chosen = (local.num_samples[counted], local.values[:, counted], local.losses[:, counted])
    right = None if local.right is None else local.right[:, counted.repeat_interleave(local.num_samples)]
    return Evaluation(*chosen, local.counts, right=right)


def _honest_summary(local: Evaluation, hostile: Mapping[int, object], problem: Problem) -> list[float | str | None]:
    """Mean weighted by test size, 10th and 90th percentile, and what 10 ... 90% of the clients reach.

    Of honest clients: a liar's labels measure nothing.
    """
    honest = _of_honest(local, hostile)
    if honest is None:
        return [None] * 4
    values, mean = honest.values, honest.overall()
    low, high = torch.quantile(values[0], torch.tensor([0.1, 0.9], dtype=values.dtype)).tolist()
    best_first = values[0].sort(descending=problem.higher_is_better).values
    reached = [float(best_first[-(-share * len(best_first) // 100) - 1]) for share in range(10, 100, 10)]
    return [float(mean[0]), low, high, json.dumps(reached)]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
