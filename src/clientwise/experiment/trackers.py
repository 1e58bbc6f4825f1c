"""Trackers: follow a run in TensorBoard, MLflow, Weights & Biases or your own tool.

A tracker is a context for one lane: its value is called after every round. None is used unless the config or
`--set trackers=...` names it. See docs/reports.md.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

from ..core.types import RoundRecord
from ..errors import ConfigError, MissingPackageError, needing
from ..record.files import dotted_keys
from ..registry import Part, Registry
from ..writing import write_atomically

logger = logging.getLogger("clientwise")


@dataclass(frozen=True)
class Progress:
    """A round has ended."""

    method: str
    seed: int
    record: RoundRecord
    rounds: int  # of this lane
    done: int  # rounds of all lanes so far
    total: int  # rounds of all lanes; fewer where a lane has ended early
    is_last: bool = False  # whether the lane ends with this round
    is_share: bool = True  # whether the metric is shown in percent
    folder: Path = Path()  # of the run
    values: Mapping[str, float] = field(default_factory=dict)  # that can be plotted


@dataclass(frozen=True)
class LaneInfo:
    """One method with one seed: what a tracker is told about it."""

    config: Mapping[str, Any]  # the resolved config of the whole experiment
    folder: Path  # of the run
    method: str
    seed: int
    rounds_done: int  # 0, or the last round before a resume; later rounds are run and logged again

    @property
    def title(self) -> str:
        """The lane's name for people."""
        return f"{self.method}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """The lane's name as a file name; different lanes have different names.

        >>> LaneInfo({}, Path(), "size/diversity first", 1, 0).file_name
        'size%2Fdiversity first-seed1'
        """
        return f"{quote(self.method, safe=' ')}-seed{self.seed}"


Log = Callable[[RoundRecord, Mapping[str, float]], None]  # a round, and the numbers to plot
Tracker = Callable[..., AbstractContextManager[Log]]  # its first argument is a `LaneInfo`
TRACKERS: Registry[Tracker] = Registry(
    "tracker", "trackers", "Tools that a run is also logged to; none by default"
)
NO_PARAMS = {"methods", "seeds", "trackers", "data_dir"}  # of a config, in other tools
MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def package_of(name: str) -> Any:
    """The package of a tracker; MissingPackageError where it is not installed."""
    # MLflow sends telemetry unless this is set before its import. The file store, which needs neither a
    # server nor a database, has to be allowed.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with needing(name, f"tracker {name!r}"):
        return import_module(MODULES[name])


@TRACKERS.register("tensorboard")
@contextmanager
def tensorboard(lane: LaneInfo, *, log_dir: str | None = None) -> Iterator[Log]:
    """Event files for TensorBoard in RUN/tensorboard, or in `log_dir`/RUN."""
    folder = lane.folder / "tensorboard"
    if log_dir:
        folder = Path(log_dir) / lane.folder.resolve().name
    folder /= lane.file_name
    # Rounds that were logged after the checkpoint are dropped.
    writer = package_of("tensorboard").SummaryWriter(str(folder), purge_step=lane.rounds_done + 1)

    def log(record: RoundRecord, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, record.round_num)
        writer.flush()  # before the checkpoint: a killed run leaves no gap

    try:
        yield log
    finally:
        writer.close()


@TRACKERS.register("mlflow")
@contextmanager
def mlflow(lane: LaneInfo, *, tracking_uri: str | None = None) -> Iterator[Log]:
    """One MLflow run per method and seed, in the file store RUN/mlruns or at `tracking_uri`."""
    package = package_of("mlflow")
    client = package.MlflowClient(tracking_uri or (lane.folder / "mlruns").resolve().as_uri())
    key = f"{lane.file_name} in {tracking_uri or 'mlruns'}"
    run_id = _known_id(lane.folder / "mlflow.json", key, lambda: _new_mlflow_run(client, lane))
    client.update_run(run_id, status="RUNNING")
    # MLflow cannot delete a point. Rounds that are run again give the same numbers, and are not logged again.
    logged = max((point.step for point in client.get_metric_history(run_id, "seconds")), default=0)

    def log(record: RoundRecord, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        step = record.round_num
        if step > logged:
            points = [package.entities.Metric(name, one, now, step) for name, one in values.items()]
            client.log_batch(run_id, metrics=points)

    try:
        yield log
    except BaseException:
        client.set_terminated(run_id, "KILLED")
        raise
    client.set_terminated(run_id, "FINISHED")


def _new_mlflow_run(client: Any, lane: LaneInfo) -> str:
    """A run in the MLflow experiment of this name, with the settings of the lane."""
    name = lane.config["name"]
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    tags = {"method": lane.method, "seed": str(lane.seed)}
    run_id: str = client.create_run(number, tags=tags, run_name=lane.title).info.run_id
    for key, value in _params(lane).items():
        client.log_param(run_id, key, value)
    return run_id


@TRACKERS.register("wandb")
@contextmanager
def wandb(lane: LaneInfo, *, mode: Literal["offline", "online"] = "offline") -> Iterator[Log]:
    """One run of Weights & Biases per method and seed, offline in RUN/wandb or online.

    Args:
        lane: what is followed.
        mode: "offline" writes to RUN/wandb alone, and `wandb sync` uploads it; "online" uploads at
            once.
    """
    package = package_of("wandb")
    run = package.init(
        project=str(lane.config["name"]),
        mode=mode,
        dir=str(lane.folder.resolve()),
        id=_known_id(lane.folder / "wandb.json", lane.file_name, lambda: uuid4().hex),
        resume="allow",
        reinit="create_new",
        name=lane.title,
        group=lane.folder.resolve().name,
        config=_params(lane),
        # Nothing but the numbers and the config: no code, no console, no state of the machine.
        settings=package.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
        ),
    )
    try:
        # W&B ignores a step that it has already.
        yield lambda record, values: run.log(dict(values), step=record.round_num)
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=0)


def _known_id(file: Path, key: str, create: Callable[[], str]) -> str:
    """The id that a file of the run folder has for a lane; a new one is added to the file."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if key not in known:
        known[key] = create()
        write_atomically(file, json.dumps(known, indent=2).encode())
    return str(known[key])


def _params(lane: LaneInfo) -> dict[str, str]:
    """The settings of a lane: `training.epochs`; its own method as `method.score.name`."""
    table = {key: one for key, one in lane.config.items() if key not in NO_PARAMS}
    (method,) = (method for method in lane.config["methods"] if method["name"] == lane.method)
    plain = dotted_keys({**table, "method": method, "seed": lane.seed}, in_lists=True)
    return {key: str(value) for key, value in plain.items()}


# The hook of a run --------------------------------------------------------------------------------------


class Trackers:
    """A hook that is called after every round and tells all trackers of a run.

    A tracker that raises is switched off with a warning; the run continues.
    """

    def __init__(self, trackers: Sequence[Part], config: Mapping[str, Any], source: str) -> None:
        """Take the trackers of a config; ConfigError for a missing package, before the run begins.

        Args:
            trackers: as the config lists them.
            config: the resolved config.
            source: the name of the config in messages.
        """
        self._active = list(dict.fromkeys(trackers))
        self._config = config
        self._opened: dict[tuple[Part, str, int], tuple[AbstractContextManager[Log], Log]] = {}
        for index, part in enumerate(self._active):
            try:
                if part.name in MODULES:
                    package_of(part.name)
            except MissingPackageError as error:
                raise ConfigError(source, [(f"trackers[{index}]", str(error))]) from None

    def __call__(self, step: Progress) -> None:
        """A round has ended; the trackers of its lane begin with its first one and end with its last one."""
        for part in list(self._active):
            key = (part, step.method, step.seed)
            with self._switched_off_by_errors(part):
                if key not in self._opened:
                    done = step.record.round_num - 1
                    lane = LaneInfo(self._config, step.folder, step.method, step.seed, done)
                    context = TRACKERS.get(part.name)(lane, **part.options)
                    self._opened[key] = context, context.__enter__()
                context, tell = self._opened[key]
                tell(step.record, step.values)
                if step.is_last:
                    del self._opened[key]
                    context.__exit__(None, None, None)

    def close(self) -> None:
        """End the trackers of lanes that were interrupted."""
        for (part, *_), (context, _) in self._opened.items():
            if part in self._active:
                with self._switched_off_by_errors(part):
                    context.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    @contextmanager
    def _switched_off_by_errors(self, part: Part) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a tracker's fault must not end hours of training
            self._active.remove(part)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            # Without a logging setup, Python prints this to stderr as it is.
            logger.warning(
                "warning: tracker %s is switched off for the rest of this run: %s",
                part.name,
                reason,
            )
