"""Run an experiment where its config says its clients live: in this process, or at the nodes of Flower's simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from .data.federated import FederatedData, Samples
from .errors import ConfigError
from .experiment import runner
from .experiment.config import load_experiment
from .experiment.lanes import Progress
from .experiment.runner import EngineFactory
from .experiment.schema import Experiment
from .models.own import OwnModel
from .progress import show_progress, somebody_watches


def run(
    config: Experiment | str | Path | Mapping[str, Any],
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
    """Run an experiment and return its run folder.

    `config` is a TOML file, a dictionary of the same shape, or an experiment already loaded. `data` are your own
    samples (`Samples.from_clients`), or arrays you have split yourself (`FederatedData.from_clients`), instead of the
    dataset and partition the config names, `model` your own
    network instead of its `model`: a module, with whose numbers every seed begins, or a function or class that makes
    one (of nothing, or of the shape of a sample and the number of outputs), called anew for every seed. `resume` goes
    on with a run folder, or adds rounds, seeds and methods to it; what it then computes is what an uninterrupted run
    would have. It is refused where the data, the plugins' code or the versions are not those it began with, unless
    `accept_changes`: then its record says what changed. `progress` shows a bar: by default in a terminal or notebook,
    unless `on_round` is called after every round instead. `engines` is for those who reach their clients otherwise: a
    context whose value gets a lane's engine and seed and returns the engine to use.
    """
    experiment = config if isinstance(config, Experiment) else load_experiment(config)
    if model is not None:
        experiment = _in_this_process(experiment.with_model(OwnModel(model)), "a model", "cw.MODELS.register")
    if isinstance(data, Samples):
        experiment = _in_this_process(experiment.with_samples(data), "samples", "cw.DATASETS.register")
        data = None
    if engines is None and experiment.engine == "flower":
        engines = _flower_simulation(experiment, data)
    if data is None and experiment.reads_files:
        data = members_data(experiment)
    console = Console(stderr=True, highlight=False)
    watched = on_round is None and (somebody_watches(console) if progress is None else progress)
    with show_progress(console) if watched else nullcontext(on_round) as on_round:
        return runner.run(
            experiment, out, data=data, resume=resume, accept_changes=accept_changes, on_round=on_round, engines=engines
        )


def _in_this_process(experiment: Experiment, what: str, how: str) -> Experiment:
    if experiment.engine != "local" or experiment.workers == "ray":
        hint = f"other processes cannot see {what} of yours: register it in a plugin (`{how}`)"
        raise ConfigError(experiment.source, [("workers" if experiment.engine == "local" else "engine", hint)])
    return experiment


def members_data(experiment: Experiment) -> FederatedData:
    """What the members' files hold (`flower.files`)."""
    with _flower_is_needed(experiment):
        from .flower.data import from_files
    return from_files(experiment)


def deployed_data(experiment: Experiment, server: Path | None) -> FederatedData | None:
    """What to check a deployment with: its `server`'s samples, or everybody's where they are here; None: it is none."""
    if server is None and (experiment.data is not None or not experiment.flower.clients):
        return None
    if server is None and experiment.reads_files and Path(str(experiment.flower.files)).is_dir():
        return members_data(experiment)
    with _flower_is_needed(experiment):
        from .flower.data import server_side
    return server_side(experiment, str(server or ""))


def write_sample(config: Path, folder: Path) -> None:
    """Handwritten digits for every member of a new app, and for its server, until they have data of their own."""
    experiment = load_experiment(config)
    with _flower_is_needed(experiment):
        from .flower import write_parts
    partition = {"name": "dirichlet", "clients": len(experiment.flower.clients), "concentration": 0.5}
    write_parts(experiment.to_dict() | {"data": "digits", "partition": partition}, folder)


def _flower_simulation(experiment: Experiment, data: FederatedData | None) -> EngineFactory:
    if data is not None:
        raise ConfigError(experiment.source, [("engine", "simulated nodes cannot see arrays of yours; use 'local'")])
    with _flower_is_needed(experiment):
        from .flower.simulation import simulation
    return simulation(experiment)


@contextmanager
def _flower_is_needed(experiment: Experiment) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        hint = f"needs Flower ({str(error.name).partition('.')[0]} is missing): pip install 'clientwise[flower]'"
        raise ConfigError(experiment.source, [("engine", hint)]) from None
