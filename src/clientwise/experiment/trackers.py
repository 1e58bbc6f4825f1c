"""Trackers: follow a run in TensorBoard, MLflow, Weights & Biases or your own tool.

None is used unless the config or --tracker names it.
"""

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
from typing import Any, Literal, Protocol
from urllib.parse import quote
from uuid import uuid4

from ..core.types import RoundRecord
from ..errors import ClientwiseError
from ..record.toml_text import dotted_keys
from ..registry import Registry
from ..writing import write_atomically


@dataclass(frozen=True)
class LaneInfo:
    """One method with one seed: what a tracker is told about it."""

    config: Mapping[str, Any]  # the resolved config of the whole experiment
    folder: Path  # of the run
    method: str
    seed: int
    rounds_done: int  # 0, or the last round before a resume; later rounds are run and logged again

    @property
    def file_name(self) -> str:
        """The lane's name as a file name; different lanes have different names.

        >>> LaneInfo({}, Path(), "size/diversity first", 1, 0).file_name
        'size%2Fdiversity first-seed1'
        """
        name = "".join(_in_file_name(letter) for letter in self.method)
        return f"{name}-seed{self.seed}"


def _in_file_name(letter: str) -> str:
    if letter.isalnum() or letter in " -_.":
        return letter
    return quote(letter, safe="")


class Tracker(Protocol):
    """Follows a run. Lanes may run in parallel: every call names its lane. See docs/trackers.md."""

    def begin(self, lane: LaneInfo) -> None:
        """A lane begins or is resumed."""
        ...

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """A round has ended: its record, and the numbers to plot, as in run.sqlite."""
        ...

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """The lane is finished, or interrupted and may be resumed later."""
        ...


TRACKERS: Registry[Callable[..., Tracker]] = Registry(
    "tracker", "trackers", "Tools that a run is also logged to; none by default"
)
METHODS = {  # of a tracker, with their arguments
    "begin": ("lane",),
    "log_round": ("lane", "record", "values"),
    "end": ("lane", "finished"),
}


def check_tracker(tracker: Tracker) -> None:
    """Refuse, before a run begins, a tracker that lacks a method or takes other arguments."""
    for name, arguments in METHODS.items():
        try:
            inspect.signature(getattr(tracker, name)).bind(*arguments)
        except (AttributeError, TypeError):
            call = f"{name}({', '.join(arguments)})"
            raise ClientwiseError(
                f"a tracker needs the method {call}; see docs/trackers.md"
            ) from None


class Trackers:
    """The trackers of a run. One that raises is switched off with a warning; the run continues."""

    def __init__(self, trackers: Sequence[tuple[str, Tracker]]) -> None:
        self._trackers = list(trackers)

    def __bool__(self) -> bool:
        return bool(self._trackers)

    def begin(self, lane: LaneInfo) -> None:
        """Tell all trackers that a lane begins."""
        self._tell(lambda tracker: tracker.begin(lane))

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """Tell all trackers that a round has ended."""
        self._tell(lambda tracker: tracker.log_round(lane, record, values))

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Tell all trackers that a lane has ended."""
        self._tell(lambda tracker: tracker.end(lane, finished))

    def _tell(self, news: Callable[[Tracker], None]) -> None:
        for entry in tuple(self._trackers):
            name, tracker = entry
            try:
                news(tracker)
            except Exception as error:  # a tracker's fault must not end hours of training
                self._trackers.remove(entry)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                # Without a logging setup, Python prints this to stderr as it is.
                logging.getLogger(__name__).warning(
                    "warning: tracker %s is switched off for the rest of this run: %s", name, reason
                )


@contextmanager
def _needs(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        install = f"pip install clientwise[{extra}]"
        raise ClientwiseError(f"tracker {extra!r} needs a package: {install} ({error})") from None


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Event files for TensorBoard in RUN/tensorboard, or in `log_dir`/RUN."""

    def __init__(self, log_dir: str | None = None) -> None:
        with _needs("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._log_dir = log_dir
        self._open = SummaryWriter
        self._writers: dict[str, Any] = {}  # by the file name of the lane

    def begin(self, lane: LaneInfo) -> None:
        """Open the lane's event file; rounds that were logged after its checkpoint are dropped."""
        parent = lane.folder / "tensorboard"
        if self._log_dir:
            parent = Path(self._log_dir) / lane.folder.resolve().name
        folder = parent / lane.file_name
        known = [int(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.*")]
        while int(time.time()) <= max(known, default=0):  # file names must differ by a second
            time.sleep(0.05)
        self._writers[lane.file_name] = self._open(str(folder), purge_step=lane.rounds_done + 1)

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """Add a point to every curve."""
        writer = self._writers[lane.file_name]
        for name, value in values.items():
            writer.add_scalar(name, value, record.round_num)
        writer.flush()  # before the checkpoint: a killed run leaves no gap

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Close the event file."""
        self._writers.pop(lane.file_name).close()


@TRACKERS.register("mlflow")
class MLflow:
    """One MLflow run per method and seed, in the file store RUN/mlruns or at `tracking_uri`."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        # MLflow sends telemetry unless this is set before its import. The file store, which needs
        # neither a server nor a database, has to be allowed.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with _needs("mlflow"):
            import mlflow
            from mlflow.tracking import MlflowClient
        self._tracking_uri = tracking_uri
        self._entities = mlflow.entities
        self._connect = MlflowClient
        self._runs: dict[str, tuple[str, dict[str, int]]] = {}  # by lane: id, last steps logged

    def begin(self, lane: LaneInfo) -> None:
        """Start the lane's run, or resume the one that mlflow.json in the run folder names."""
        self._client = self._connect(
            self._tracking_uri or (lane.folder / "mlruns").resolve().as_uri()
        )
        key = f"{lane.file_name} in {self._tracking_uri or 'mlruns'}"
        run_id = _known_id(lane.folder / "mlflow.json", key, lambda: self._create_run(lane))
        self._client.update_run(run_id, status="RUNNING")
        self._runs[lane.file_name] = run_id, self._last_steps(run_id)

    def _last_steps(self, run_id: str) -> dict[str, int]:
        """The last step that is logged, by metric.

        MLflow cannot delete a point. Rounds that are run again give the same numbers, so that they
        need not be logged again.
        """
        last = {}
        for name in self._client.get_run(run_id).data.metrics:
            history = self._client.get_metric_history(run_id, name)
            last[name] = max(point.step for point in history)
        return last

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """Add a point to every curve that does not have it yet."""
        run_id, last_steps = self._runs[lane.file_name]
        now = int(time.time() * 1000)
        points = []
        for name, value in values.items():
            if record.round_num > last_steps.get(name, 0):
                points.append(self._entities.Metric(name, value, now, record.round_num))
        self._client.log_batch(run_id, metrics=points)

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Set the status of the lane's run."""
        run_id, _ = self._runs.pop(lane.file_name)
        self._client.set_terminated(run_id, "FINISHED" if finished else "KILLED")

    def _experiment_id(self, name: str) -> str:
        """The id of the MLflow experiment of this name, which is created where there is none."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name))
        return str(experiment.experiment_id)

    def _create_run(self, lane: LaneInfo) -> str:
        experiment_id = self._experiment_id(lane.config["name"])
        tags = {"method": lane.method, "seed": str(lane.seed)}
        title = f"{lane.method}, seed {lane.seed}"
        run = self._client.create_run(experiment_id, tags=tags, run_name=title)
        run_id: str = run.info.run_id
        params = [self._entities.Param(key, value) for key, value in _params(lane).items()]
        for start in range(0, len(params), 100):  # MLflow takes no more in a batch
            self._client.log_batch(run_id, params=params[start : start + 100])
        return run_id


@TRACKERS.register("wandb")
class WeightsAndBiases:
    """One run of Weights & Biases per method and seed, offline in RUN/wandb or online.

    Args:
        project: the project of W&B; by default the name of the experiment.
        entity: the user or team of W&B; by default yours.
        mode: "offline" writes to RUN/wandb alone, and `wandb sync` uploads it; "online" uploads at
            once.
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read by its import
        with _needs("wandb"):
            import wandb
        self._wandb = wandb
        self._project = project
        self._entity = entity
        self._mode = mode
        self._runs: dict[str, Any] = {}  # by the file name of the lane

    def begin(self, lane: LaneInfo) -> None:
        """Start the lane's run, or resume the one that wandb.json in the run folder names."""
        project = self._project or str(lane.config["name"])
        key = f"{lane.file_name} in {self._entity or ''}/{project}"
        # Nothing but the numbers and the config: no code, no console, no state of the machine.
        settings = self._wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
        )
        self._runs[lane.file_name] = self._wandb.init(
            project=project,
            entity=self._entity,
            mode=self._mode,
            dir=str(lane.folder.resolve()),
            id=_known_id(lane.folder / "wandb.json", key, lambda: uuid4().hex),
            resume="allow",
            reinit="create_new",
            name=f"{lane.method}, seed {lane.seed}",
            group=lane.folder.resolve().name,
            config=_params(lane),
            settings=settings,
        )

    def log_round(self, lane: LaneInfo, record: RoundRecord, values: Mapping[str, float]) -> None:
        """Add a point to every curve; W&B ignores a step that it has already."""
        self._runs[lane.file_name].log(dict(values), step=record.round_num)

    def end(self, lane: LaneInfo, finished: bool) -> None:
        """Set the status of the lane's run."""
        self._runs.pop(lane.file_name).finish(exit_code=0 if finished else 1)


def _known_id(file: Path, key: str, create: Callable[[], str]) -> str:
    """The id that a file of the run folder has for a lane; a new one is added to the file."""
    known = {}
    if file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
    if key not in known:
        known[key] = create()
        write_atomically(file, json.dumps(known, indent=2).encode())
    return str(known[key])


def _params(lane: LaneInfo) -> dict[str, str]:
    """The settings of a lane: `training.epochs`; its own method as `method.score.name`."""
    left_out = {"methods", "seeds", "trackers", "data_dir"}
    table = {key: value for key, value in lane.config.items() if key not in left_out}
    (method,) = (method for method in lane.config["methods"] if method["name"] == lane.method)
    plain = dotted_keys({**table, "method": method, "seed": lane.seed}, in_lists=True)
    return {key: str(value) for key, value in plain.items()}
