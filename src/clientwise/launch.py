"""Run an experiment where its config says its clients live: in this process, or at the nodes of Flower's simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .data.federated import FederatedData
from .errors import ConfigError
from .experiment import runner
from .experiment.config import load_experiment
from .experiment.lanes import Progress
from .experiment.runner import EngineFactory
from .experiment.schema import Experiment


def run(
    config: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    data: FederatedData | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    on_round: Callable[[Progress], None] | None = None,
    engines: EngineFactory | None = None,
) -> Path:
    """Run an experiment and return its run folder.

    `config` is a TOML file, a dictionary of the same shape, or an experiment already loaded. `data` are your own
    arrays (`FederatedData.from_clients`) instead of the dataset and partition the config names. `resume` goes on
    with a run folder; what it then computes is what an uninterrupted run would have. It is refused where the data,
    the plugins' code or the versions are not those it began with, unless `accept_changes`: then its record says what
    changed. `engines` is for those who
    reach their clients otherwise: a context whose value gets a lane's engine and seed and returns the engine to use.
    """
    experiment = config if isinstance(config, Experiment) else load_experiment(config)
    if engines is None and experiment.engine == "flower":
        engines = _flower_simulation(experiment, data)
    return runner.run(
        experiment, out, data=data, resume=resume, accept_changes=accept_changes, on_round=on_round, engines=engines
    )


def _flower_simulation(experiment: Experiment, data: FederatedData | None) -> EngineFactory:
    if data is not None:
        raise ConfigError(experiment.source, [("engine", "simulated nodes cannot see arrays of yours; use 'local'")])
    try:
        from .flower.simulation import simulation
    except ModuleNotFoundError as error:
        hint = f"needs Flower ({str(error.name).partition('.')[0]} is missing): pip install 'clientwise[flower]'"
        raise ConfigError(experiment.source, [("engine", hint)]) from None
    return simulation(experiment)
