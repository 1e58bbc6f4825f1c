"""Trackers: follow a run in TensorBoard, MLflow or your own. None is on unless the config or --tracker names it."""

from __future__ import annotations

import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from .core.types import RoundRecord
from .errors import ClientwiseError
from .registry import Registry


@dataclass(frozen=True)
class LaneInfo:
    """One method with one seed, as a tracker needs to know it."""

    config: Mapping[str, Any]  # the resolved config of the whole experiment
    folder: Path  # of the run
    method: str
    seed: int
    rounds_done: int  # 0, or where a resumed lane goes on; rounds after it are run, and logged, again

    @property
    def file_name(self) -> str:
        """The lane's name as one part of a path; different lanes never share one.

        >>> LaneInfo({}, Path(), "size/diversity first", 1, 0).file_name
        'size%2Fdiversity first-seed1'
        """
        letters = (letter if letter.isalnum() or letter in " -_." else quote(letter, safe="") for letter in self.method)
        return f"{''.join(letters)}-seed{self.seed}"


class Tracker(Protocol):
    """Follows a run, whose lanes may run side by side: every call says which it is about. docs/trackers.md has more."""

    def begin(self, lane: LaneInfo) -> None:
        """A lane begins, or goes on."""
        ...

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """A round has ended: all about it, and the numbers worth a curve, as in run.sqlite."""
        ...

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """The lane is finished, or interrupted and may go on another day."""
        ...


CALLS = {"begin": ("lane",), "log_round": ("lane", "record", "values"), "end": ("lane", "finished")}  # of a tracker


TRACKERS: Registry[Callable[..., Tracker]] = Registry(
    "tracker", "trackers", "Where a run can be followed, beside its own folder; none by default"
)


def check_tracker(tracker: Tracker) -> None:
    """Refuse a tracker that lacks a method or takes other arguments: that is known before a run begins."""
    for name, arguments in CALLS.items():
        try:
            inspect.signature(getattr(tracker, name)).bind(*arguments)
        except (AttributeError, TypeError):
            call = f"{name}({', '.join(arguments)})"
            raise ClientwiseError(f"a tracker needs the method {call}, see docs/trackers.md") from None


class Trackers:
    """The trackers of a run. One that raises is switched off with one line on stderr, and the run goes on."""

    def __init__(self, trackers: Sequence[tuple[str, Tracker]]) -> None:
        self._trackers = list(trackers)

    def __bool__(self) -> bool:
        return bool(self._trackers)

    def begin(self, lane: LaneInfo) -> None:
        """Tell all of them that a lane begins."""
        self._tell(lambda tracker: tracker.begin(lane))

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """Tell all of them that a round has ended."""
        self._tell(lambda tracker: tracker.log_round(lane, record, values))

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Tell all of them that a lane has ended."""
        self._tell(lambda tracker: tracker.end(lane, finished))

    def _tell(self, news: Callable[[Tracker], None]) -> None:
        for entry in tuple(self._trackers):
            name, tracker = entry
            try:
                news(tracker)
            except Exception as error:  # whatever a tracker or its server does, hours of training must not be lost
                self._trackers.remove(entry)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                # Where no logging is set up, Python prints this to stderr as it is.
                logging.getLogger(__name__).warning(
                    "warning: tracker %s is switched off for the rest of this run: %s", name, reason
                )


@contextmanager
def _needs(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ClientwiseError(f"tracker {extra!r} needs a package: pip install clientwise[{extra}] ({error})") from None


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Event files for TensorBoard in RUN/tensorboard, or in a folder named like the run in `log_dir`."""

    def __init__(self, log_dir: str | None = None) -> None:
        with _needs("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._log_dir, self._open = log_dir, SummaryWriter
        self._writers: dict[str, Any] = {}  # of the lanes, by file name

    def begin(self, lane: LaneInfo) -> None:
        """Open the lane's event file; what an interrupted run logged after its checkpoint no longer counts."""
        parent = Path(self._log_dir) / lane.folder.resolve().name if self._log_dir else lane.folder / "tensorboard"
        folder = parent / lane.file_name
        known = [int(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.*")]
        while int(time.time()) <= max(known, default=0):  # files are read in the order of the second in their names
            time.sleep(0.05)
        self._writers[lane.file_name] = self._open(str(folder), purge_step=lane.rounds_done + 1)

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """One point on every curve."""
        writer = self._writers[lane.file_name]
        for name, value in values.items():
            writer.add_scalar(name, value, record.round_num)
        writer.flush()  # before the checkpoint: a killed run leaves no hole

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Close the event file."""
        self._writers.pop(lane.file_name).close()


@TRACKERS.register("mlflow")
class MLflow:
    """One MLflow run per method and seed, in the file store RUN/mlruns, or where `tracking_uri` says."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        # MLflow reports its use to its makers unless told otherwise before it is imported; and it asks for consent to
        # the file store, the one that needs neither a server nor a database.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with _needs("mlflow"):
            import mlflow
            from mlflow.tracking import MlflowClient
        self._tracking_uri, self._entities, self._connect = tracking_uri, mlflow.entities, MlflowClient
        self._runs: dict[str, tuple[str, dict[str, int]]] = {}  # of the lanes, by file name: id, last steps logged

    def begin(self, lane: LaneInfo) -> None:
        """Start the lane's run, or find it again; mlflow.json in the run folder knows which it is."""
        self._client = self._connect(self._tracking_uri or (lane.folder / "mlruns").resolve().as_uri())
        known_file = lane.folder / "mlflow.json"
        known = json.loads(known_file.read_text(encoding="utf-8")) if known_file.exists() else {}
        key = f"{lane.file_name} in {self._tracking_uri or 'mlruns'}"
        if key in known:
            run_id = known[key]
            self._client.update_run(run_id, status="RUNNING")
        else:
            run_id = self._create_run(lane)
            temporary = known_file.with_suffix(".part")
            temporary.write_text(json.dumps({**known, key: run_id}, indent=2), encoding="utf-8")
            os.replace(temporary, known_file)
        # MLflow cannot take a point back, and rounds that are run again come out the same: they are not logged again.
        logged = {
            name: max(point.step for point in self._client.get_metric_history(run_id, name))
            for name in self._client.get_run(run_id).data.metrics
        }
        self._runs[lane.file_name] = run_id, logged

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """One point on every curve that does not have it yet."""
        run_id, logged = self._runs[lane.file_name]
        now = int(time.time() * 1000)
        points = [
            self._entities.Metric(name, value, now, record.round_num)
            for name, value in values.items()
            if record.round_num > logged.get(name, 0)
        ]
        self._client.log_batch(run_id, metrics=points)

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Say how it ended."""
        run_id, _ = self._runs.pop(lane.file_name)
        self._client.set_terminated(run_id, "FINISHED" if finished else "KILLED")

    def _create_run(self, lane: LaneInfo) -> str:
        name = lane.config["name"]
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = {"method": lane.method, "seed": str(lane.seed)}
        run = self._client.create_run(experiment_id, tags=tags, run_name=f"{lane.method}, seed {lane.seed}")
        run_id: str = run.info.run_id
        params = [self._entities.Param(key, value) for key, value in _params(lane).items()]
        for start in range(0, len(params), 100):  # MLflow takes no more at once
            self._client.log_batch(run_id, params=params[start : start + 100])
        return run_id


def _params(lane: LaneInfo) -> dict[str, str]:
    """What the lane was run with: `training.epochs`; of all methods its own, as `method.score.name`."""
    left_out = {"methods", "seeds", "trackers", "data_dir"}
    table = {key: value for key, value in lane.config.items() if key not in left_out}
    (method,) = (method for method in lane.config["methods"] if method["name"] == lane.method)
    return _flat({**table, "method": method, "seed": lane.seed})


def _flat(value: Any, key: str = "") -> dict[str, str]:
    """A tree of tables and lists of tables as one table.

    >>> _flat({"training": {"epochs": 1}, "criteria": [{"name": "trust"}], "hidden": [32, 16]})
    {'training.epochs': '1', 'criteria.0.name': 'trust', 'hidden': '[32, 16]'}
    """
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        inner = (_flat(item, f"{key}.{name}" if key else str(name)) for name, item in value.items())
        return {name: text for table in inner for name, text in table.items()}
    return {key: str(value)}
