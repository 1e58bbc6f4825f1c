"""Trackers: follow a run in TensorBoard, MLflow or Weights & Biases.

A tracker is opened for one method with one seed (a lane): a function that makes two, one called after every round and
one at the end. None is used unless the config or `--set trackers=...` names it. See docs/reports.md.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    @property
    def lane(self) -> str:
        """The method and seed, for people."""
        return f"{self.method}, seed {self.seed}"

    @property
    def lane_file(self) -> str:
        """The method and seed as a file name."""
        return lane_file(self.method, self.seed)


def lane_file(method: str, seed: int) -> str:
    """A method and seed as a file name; different lanes have different names.

    >>> lane_file("size/diversity first", 1)
    'size%2Fdiversity first-seed1'
    """
    return f"{quote(method, safe=' ')}-seed{seed}"


Log = Callable[[Progress], object]  # called after every round
End = Callable[[bool], object]  # called with whether the lane has ended, or was interrupted
Config = Mapping[str, Any]  # the resolved config of the whole experiment
Tracker = Callable[..., tuple[Log, End]]  # of the config, and the first round that it is told
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
def tensorboard(config: Config, first: Progress) -> tuple[Log, End]:
    """Event files for TensorBoard in RUN/tensorboard."""
    folder = first.folder / "tensorboard" / first.lane_file
    # Rounds that were logged after the checkpoint are dropped.
    start = first.record.round_num
    writer = package_of("tensorboard").SummaryWriter(str(folder), purge_step=start)

    def log(step: Progress) -> None:
        for name, value in step.values.items():
            writer.add_scalar(name, value, step.record.round_num)
        writer.flush()  # before the checkpoint: a killed run leaves no gap

    return log, lambda finished: writer.close()


@TRACKERS.register("mlflow")
def mlflow(config: Config, first: Progress, *, tracking_uri: str | None = None) -> tuple[Log, End]:
    """One MLflow run per method and seed, in the file store RUN/mlruns or at `tracking_uri`."""
    package = package_of("mlflow")
    client = package.MlflowClient(tracking_uri or (first.folder / "mlruns").resolve().as_uri())
    key = f"{first.lane_file} in {tracking_uri or 'mlruns'}"
    run_id = _known_id(
        first.folder / "mlflow.json", key, lambda: _new_mlflow_run(client, config, first)
    )
    client.update_run(run_id, status="RUNNING")
    # MLflow cannot delete a point. Rounds that are run again give the same numbers, and are not logged again.
    logged = max((point.step for point in client.get_metric_history(run_id, "seconds")), default=0)

    def log(step: Progress) -> None:
        now = int(time.time() * 1000)
        number = step.record.round_num
        if number > logged:
            points = [
                package.entities.Metric(name, value, now, number)
                for name, value in step.values.items()
            ]
            client.log_batch(run_id, metrics=points)

    def end(finished: bool) -> None:
        client.set_terminated(run_id, "FINISHED" if finished else "KILLED")

    return log, end


def _new_mlflow_run(client: Any, config: Config, first: Progress) -> str:
    """A run in the MLflow experiment of this name, with the settings of the lane."""
    name = config["name"]
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    tags = {"method": first.method, "seed": str(first.seed)}
    run_id: str = client.create_run(number, tags=tags, run_name=first.lane).info.run_id
    for key, value in _params(config, first).items():
        client.log_param(run_id, key, value)
    return run_id


@TRACKERS.register("wandb")
def wandb(
    config: Config, first: Progress, *, mode: Literal["offline", "online"] = "offline"
) -> tuple[Log, End]:
    """One run of Weights & Biases per method and seed, offline in RUN/wandb or online.

    Args:
        config: the resolved config.
        first: the first round that is logged.
        mode: "offline" writes to RUN/wandb alone, and `wandb sync` uploads it; "online" uploads at
            once.
    """
    package = package_of("wandb")
    run = package.init(
        project=str(config["name"]),
        mode=mode,
        dir=str(first.folder.resolve()),
        id=_known_id(first.folder / "wandb.json", first.lane_file, lambda: uuid4().hex),
        resume="allow",
        reinit="create_new",
        name=first.lane,
        group=first.folder.resolve().name,
        config=_params(config, first),
        # Nothing but the numbers and the config: no code, no console, no state of the machine.
        settings=package.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
        ),
    )

    def log(step: Progress) -> None:
        run.log(dict(step.values), step=step.record.round_num)  # a step that it has is ignored

    return log, lambda finished: run.finish(exit_code=int(not finished))


def _known_id(file: Path, key: str, create: Callable[[], str]) -> str:
    """The id that a file of the run folder has for a lane; a new one is added to the file."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if key not in known:
        known[key] = create()
        write_atomically(file, json.dumps(known, indent=2).encode())
    return str(known[key])


def _params(config: Config, first: Progress) -> dict[str, str]:
    """The settings of a lane: `training.epochs`; its own method as `method.score.name`."""
    table = {key: one for key, one in config.items() if key not in NO_PARAMS}
    (method,) = (method for method in config["methods"] if method["name"] == first.method)
    plain = dotted_keys({**table, "method": method, "seed": first.seed}, in_lists=True)
    return {key: str(value) for key, value in plain.items()}


class Trackers:
    """A hook that is called after every round and tells all trackers of a run.

    A tracker that raises is switched off with a warning; the run continues.
    """

    def __init__(self, trackers: Sequence[Part], config: Config, source: str) -> None:
        """Take the trackers of a config; ConfigError for a missing package, before the run begins.

        Args:
            trackers: as the config lists them.
            config: the resolved config.
            source: the name of the config in messages.
        """
        self._active = list(dict.fromkeys(trackers))
        self._config = config
        self._opened: dict[tuple[Part, str, int], tuple[Log, End]] = {}
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
                    tracker = TRACKERS.get(part.name)
                    self._opened[key] = tracker(self._config, step, **part.options)
                log, end = self._opened[key]
                log(step)
                if step.is_last:
                    del self._opened[key]
                    end(True)

    def close(self) -> None:
        """End the trackers of lanes that were interrupted."""
        for (part, *_), (_, end) in self._opened.items():
            if part in self._active:
                with self._switched_off_by_errors(part):
                    end(False)

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
