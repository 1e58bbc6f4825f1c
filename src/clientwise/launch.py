"""Run an experiment in this process, or on the nodes of Flower's simulation, as its config says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from torch import nn

from .data.federated import FederatedData, Samples
from .errors import ClientwiseError, ConfigError, MissingPackageError, needing, shortened
from .experiment.config.schema import Experiment
from .models.modules import OwnModel

if TYPE_CHECKING:
    from .experiment.running.lanes import Progress
    from .experiment.running.runner import EngineFactory

log = logging.getLogger("clientwise")
HOW = {  # to register a function in a plugin, by the kind of part
    "loss": "cw.parts.LOSSES.register",
    "optimizer": "cw.parts.OPTIMIZERS.register",
    "schedule": "cw.parts.SCHEDULES.register",
    "transform": "cw.parts.TRANSFORMS.register",
}


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    data: FederatedData | Samples | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    progress: bool | None = None,
    on_round: Callable[[Progress], None] | None = None,
    engines: EngineFactory | None = None,
) -> Path:
    """Run an experiment, and return the run folder. `fitting.run` describes the arguments."""
    from .experiment.running import runner  # imported here: `check` does not need it
    from .report.progress import show_progress, somebody_watches

    if out is not None and not isinstance(out, str | PathLike):
        message = f"out = {shortened(repr(out), 40)}: must be the path of a folder"
        raise ClientwiseError(message)
    experiment.register_given()
    if model is not None:
        experiment = experiment.with_model(OwnModel(model))
        _refuse_other_processes(experiment, "your model", "cw.parts.MODELS.register")
    for function in experiment.functions:
        kind, name = function.split(" ", 1)
        how = HOW.get(kind, "cw.criterion")
        _refuse_other_processes(experiment, f"your {kind} {name}", how)
    if data is not None and experiment.data is not None:
        log.warning(
            "warning: data = %s of the config is not used, since data=... was passed; remove one of them",
            experiment.data.name,
        )
    if isinstance(data, Samples):
        experiment = experiment.with_samples(data)
        _refuse_other_processes(experiment, "your samples", "cw.parts.DATASETS.register")
        data = None
    if data is not None and not isinstance(data, FederatedData):
        raise ClientwiseError(
            f"data: must be FederatedData or Samples, got {type(data).__name__}. "
            "Of your own clients, pass cw.Samples.from_clients(clients); a dataset by name is part of the config."
        )
    if engines is None and experiment.engine == "flower":
        engines = _flower_simulation(experiment, data)
    console = Console(stderr=True, highlight=False)
    shows = somebody_watches(console) if progress is None else progress
    with show_progress(console) if shows else nullcontext() as show:

        def tell(step: Progress) -> None:
            for one in (show, on_round):
                if one is not None:
                    one(step)

        return runner.run(
            experiment,
            out,
            data=data,
            resume=resume,
            accept_changes=accept_changes,
            on_round=tell,
            engines=engines,
        )


def deployed_data(experiment: Experiment, server: Path | None) -> FederatedData | None:
    """The data to check a deployment with; None where the config describes no deployment.

    These are the samples of the `server`; the participants keep theirs.
    """
    if server is None and (experiment.data is not None or not experiment.flower.clients):
        return None
    with _flower_is_needed(experiment):
        from .hosts.flower.data import server_side
    return server_side(experiment, str(server or ""))


def _refuse_other_processes(experiment: Experiment, what: str, how: str) -> None:
    """Refuse an experiment that runs in other processes, where objects of this one do not exist."""
    key = ""
    if experiment.engine != "local":
        key = "engine"
    elif experiment.workers == "ray":
        key = "workers"
    if key:
        message = f"other processes cannot use {what}; register it in a plugin (`{how}`)"
        raise ConfigError(experiment.source, [(key, message)])


def _flower_simulation(experiment: Experiment, data: FederatedData | None) -> EngineFactory:
    if data is not None:
        message = "simulated nodes cannot use your arrays; use 'local'"
        raise ConfigError(experiment.source, [("engine", message)])
    with _flower_is_needed(experiment):
        from .hosts.flower.simulation import simulation
    return simulation(experiment)


@contextmanager
def _flower_is_needed(experiment: Experiment) -> Iterator[None]:
    """A missing package is an error that says how to install Flower."""
    try:
        with needing("flower", "Flower"):
            yield
    except MissingPackageError as error:
        raise ConfigError(experiment.source, [("engine", str(error))]) from None
