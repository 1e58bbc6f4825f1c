"""`cw.fit` and `cw.run`: federated learning in one call, and its results."""

from __future__ import annotations

import atexit
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from .data.arrays import is_frame
from .data.division import Division, hand_out
from .data.federated import FederatedData, Samples
from .data.own import OwnData, read_own
from .errors import ClientwiseError, ConfigError, MissingPackageError, needing, shortened
from .experiment.checks.describe import optimizers_in_words
from .experiment.config.parts import part_with
from .experiment.config.schema import Experiment
from .experiment.config.settings import Cohorts, EvaluationSettings, ServerSet, Training
from .experiment.config.tables import ConfigTable
from .experiment.config_file import merge, read_config
from .experiment.load import make_experiment
from .experiment.running import runner
from .experiment.trackers import Progress
from .models.modules import OwnModel, OwnNetwork
from .record.files import plain_name
from .registry import suggest
from .report.items import counted
from .report.progress import show_progress, somebody_watches
from .results import Run

log = logging.getLogger("clientwise")
OnRound = Callable[[Run, Progress], object]
# Tables whose keys are no keywords, since some of them have the same name
TABLES: dict[str, type[ConfigTable]] = {
    "federation": Cohorts,
    "server_set": ServerSet,
    "evaluation": EvaluationSettings,
}
ALIASES = {"lr": "learning_rate"}  # words too short to be found by their likeness


class StopRun(Exception):  # noqa: N818
    """Raised by `on_round`, it stops the run after this round. What has run is there, and can be resumed."""


def fit(
    model: OwnNetwork | str | Mapping[str, Any],
    clients: Mapping[Any, Any] | list[Any],
    *,
    rounds: int = 20,
    held_out: Any = None,
    test: Any = None,
    target: str | None = None,
    ignore: str | Sequence[str] = (),
    num_classes: int | None = None,
    event: str | None = None,
    problem: str | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Run:
    """Train your network on the data of your clients, and weigh the clients.

    Args:
        model: an `nn.Module`; a function or class that makes one; or the name of a network, as in TOML.
        clients: by name, or in a list. A client has a `Dataset`, a `DataLoader` (its dataset is read), arrays or
            tensors (inputs, targets), or a pandas frame. Integer targets [N] are classes, [N, H, W] masks (the
            network returns [N, C, H, W]). Floats are numbers to predict. Targets [N, L] of 0 and 1 are labels.
        rounds: of federated learning.
        held_out: the server's own samples, by which it weighs the clients. By default
            `server_set.fraction` (a fifth) of all samples is set apart: one half to weigh by, one half to report on.
        test: the samples to report on: clients then train on all of theirs, and have no test sets of their own;
            `evaluation={"test_fraction": 0.2}` keeps a fifth. Or, by name, a test set for every client.
        target: of frames, the column to predict.
        ignore: of frames, columns that are left out.
        num_classes: of integer targets; by default the largest label plus one.
        event: of frames, the column that is 1 where the event happened at the time `target`, else 0 (survival).
        problem: what the targets are, where they do not show it: "classification", "regression", "survival" (times
            until an event, negative if it had not happened by then), "multilabel" or "segmentation".
        out: the run folder; by default a temporary one, which is removed at exit.
        progress: whether to show the progress, and what was set apart; by default in a terminal or notebook.
        options: any other key of the config (docs/config.md), and any argument of `cw.run`: `method` or `methods`,
            `seeds`, `hostile`, `device`, `evaluation={"metric": "auc"}` ...; and the keys of [training]:
            `epochs`, `batch_size`, `learning_rate` ... Several methods and seeds give a paired comparison.
            `attributes` may have dictionaries by client, such as `{"weight": {"north": 2.0, "south": 1.0}}`.

    Returns:
        The results.

    Example:
        >>> import clientwise as cw
        >>> from sklearn.datasets import load_digits
        >>> from torch import nn
        >>> x, y = load_digits(return_X_y=True)
        >>> parts = [(x[i : i + 200] / 16, y[i : i + 200]) for i in range(0, 1200, 200)]
        >>> sites = dict(zip(["north", "east", "south", "west"], parts))
        >>> inputs, labels = sites["west"]
        >>> sites["west"] = (inputs, 9 - labels)  # its labels are wrong
        >>> inputs, labels = test = parts[5]
        >>> run = cw.fit(nn.Linear(64, 10), sites, held_out=parts[4], test=test, rounds=5)
        >>> run.weights[5].round(2).to_dict()
        {'north': 0.33, 'east': 0.33, 'south': 0.33, 'west': 0.0}
        >>> print(run.why("west").splitlines()[0])
        west has 0.0% of round 5's model; an equal share is 25.0%.
        >>> bool((run.predict(inputs) == labels).mean() > 0.8)
        True
    """
    if isinstance(clients, nn.Module):
        raise ClientwiseError("the network comes first: cw.fit(network, clients)")
    if is_frame(clients):
        raise ClientwiseError(
            "clients: is one frame. Where its column 'site' names the clients, and 'y' is what to predict: "
            "cw.fit(network, dict(list(frame.groupby('site'))), target='y', ignore='site')"
        )
    for key in {"data", "partition"} & options.keys():
        hint = "of cw.run: the clients of cw.fit have their samples"
        raise ConfigError("", [(key, hint)])
    config = {"rounds": rounds, **options}
    if isinstance(config.get("attributes"), Mapping):
        config["attributes"] = {
            fact: _in_order(fact, values, clients) for fact, values in config["attributes"].items()
        }
    passed = {key: config.pop(key) for key in _ARGUMENTS if key in config}
    if isinstance(model, str | Mapping):
        config["model"] = model
    experiment = _experiment({}, config)
    own = read_own(
        clients,
        held_out=held_out,
        test=test,
        target=target,
        ignore=ignore,
        num_classes=num_classes,
        event=event,
        problem=problem,
    )
    experiment = _without_tests_of_clients(experiment, own)
    lines = [_described(own)]
    data, said = _data(own, experiment)
    lines.append(said)
    lines.append(f"Optimizer: {optimizers_in_words(experiment)}.")
    if out is None:
        if options.get("resume"):
            raise ClientwiseError("resume=True: out= must name the run folder to resume")
        out = _temporary(experiment.name)
        lines.append(f"Run folder: {out}, which is removed at exit; out='runs/mine' keeps it.")
    console = Console(stderr=True, highlight=False)
    if somebody_watches(console) if progress is None else progress:
        console.print("\n".join(lines), markup=False, soft_wrap=True)
    network = None if isinstance(model, str | Mapping) else model
    try:
        folder = _launched(experiment, out, data=data, model=network, progress=progress, **passed)
    except runner.Stopped:
        hint = "with out='runs/mine', call it again with resume=True to go on"
        raise KeyboardInterrupt(f"stopped; {hint}") from None
    return Run(folder, module=network)


def run(
    config: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    data: FederatedData | Samples | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    progress: bool | None = None,
    on_round: OnRound | None = None,
    engines: runner.EngineFactory | None = None,
    **options: Any,
) -> Run:
    """Run an experiment: every method with every seed.

    Args:
        config: a TOML file, a dictionary of the same shape, or a loaded experiment. In a dictionary, a criterion
            may be a function instead of a name, and a score an object (`cw.prioritized("accuracy", "size")`).
        out: the run folder; by default runs/NAME-DATE-TIME.
        data: your own samples (`Samples.from_clients`), or samples that you have split yourself
            (`FederatedData.from_clients`), instead of the dataset and partition of the config.
        model: your own network instead of the config's. With a module, every seed starts from its
            numbers. A function or class makes a network for every seed; it takes no arguments, or
            the shape of a sample and the number of outputs.
        resume: continue the run in `out`, or add rounds, seeds and methods to it; where there is none yet, it
            begins. The results are those of a run that was not interrupted.
        accept_changes: resume although the data, the code of plugins or versions have changed; the
            run records what changed. Without it, such a run is refused.
        progress: whether to show progress; by default in a terminal or notebook.
        on_round: called as `on_round(run, round)` after every round of every method and seed. `run` has the results
            so far; `round` has the `method`, the `seed`, the `record` of the round and how far the run is (`done` of
            `total`). If it raises `cw.StopRun`, the run stops, and can be resumed. A plugin of the config may have a
            function of this name, too.
        engines: for clients that are reached in another way: a context whose value takes the engine
            of a lane and its seed, and returns the engine to use.
        options: keys of the config, which change it: `rounds=5`, `method="FedAvg"`, `learning_rate=0.05`; see `fit`.

    Returns:
        The results.

    Example:
        >>> import tempfile
        >>> import clientwise as cw
        >>> config = {"data": "digits", "model": "linear", "rounds": 1}
        >>> config |= {"partition": {"name": "iid", "clients": 5}, "methods": ["FedAvg"]}
        >>> run = cw.run(config, tempfile.mkdtemp(), progress=False)
        >>> run.methods
        ['FedAvg']
    """
    if isinstance(config, nn.Module):
        raise ClientwiseError("the config comes first: cw.run(config, model=network, data=...)")
    folder = _launched(
        _experiment(config, options),
        out,
        data=data,
        model=model,
        resume=resume,
        accept_changes=accept_changes,
        progress=progress,
        on_round=on_round,
        engines=engines,
    )
    return Run(folder, module=model)


def _launched(
    experiment: Experiment,
    out: str | Path | None,
    *,
    data: FederatedData | Samples | None = None,
    model: OwnNetwork | None = None,
    progress: bool | None = None,
    on_round: OnRound | None = None,
    engines: runner.EngineFactory | None = None,
    **options: Any,
) -> Path:
    """Run an experiment; the folder, also of a run that `on_round` has stopped."""
    if out is not None and not isinstance(out, str | PathLike):
        message = f"out = {shortened(repr(out), 40)}: must be the path of a folder"
        raise ClientwiseError(message)
    experiment, own_data = _prepared(experiment, data, model)
    if engines is None and experiment.engine == "flower":
        engines = _flower_simulation(experiment, own_data)
    plugins = [sys.modules[name] for name in experiment.plugins]
    hooks: list[OnRound] = [one.on_round for one in plugins if hasattr(one, "on_round")]
    if on_round is not None:
        hooks.append(on_round)
    is_stopped = False
    console = Console(stderr=True, highlight=False)
    shows = somebody_watches(console) if progress is None else progress
    try:
        with show_progress(console) if shows else nullcontext() as show:

            def tell(step: Progress) -> None:
                nonlocal is_stopped
                if show is not None:
                    show(step)
                found = Run._later(step.folder, model)
                try:
                    for hook in hooks:
                        hook(found, step)
                except StopRun:
                    is_stopped = True
                    raise KeyboardInterrupt from None

            return runner.run(
                experiment, out, data=own_data, on_round=tell, engines=engines, **options
            )
    except runner.Stopped as stopped:
        if not is_stopped:
            raise
        return stopped.folder


def _prepared(
    experiment: Experiment, data: FederatedData | Samples | None, model: OwnNetwork | None
) -> tuple[Experiment, FederatedData | None]:
    """The experiment with the parts, the network and the samples that were passed, and samples that were split."""
    if not isinstance(data, FederatedData | Samples | None):
        raise ClientwiseError(
            f"data: must be FederatedData or Samples, got {type(data).__name__}. "
            "Of your own clients, pass cw.Samples.from_clients(clients); a dataset by name is part of the config."
        )
    experiment.register_given()
    passed = {
        f"your {name}": f"cw.parts.{registry.plural.upper()}.register"
        for name, (registry, _) in experiment.given.items()
    }
    if model is not None:
        experiment = experiment.with_model(OwnModel(model))
        passed["your model"] = "cw.parts.MODELS.register"
    if data is not None and experiment.data is not None:
        log.warning(
            "warning: data = %s of the config is not used, since data=... was passed; remove one of them",
            experiment.data.name,
        )
    if isinstance(data, Samples):
        experiment = experiment.with_samples(data)
        passed["your samples"] = "cw.parts.DATASETS.register"
    key = "engine" if experiment.engine != "local" else "workers"
    if passed and (experiment.engine != "local" or experiment.workers == "ray"):
        what, how = next(iter(passed.items()))
        message = f"other processes cannot use {what}; register it in a plugin (`{how}`)"
        raise ConfigError(experiment.source, [(key, message)])
    return experiment, data if isinstance(data, FederatedData) else None


_ARGUMENTS = ("resume", "accept_changes", "on_round", "engines")  # of `run`, not of the config


def _in_order(fact: str, values: Any, clients: object) -> Any:
    """A fact about clients as a list in the clients' order, where it is given by client."""
    if not isinstance(values, Mapping):
        return values
    if not isinstance(clients, Mapping):
        raise ClientwiseError(f"attributes.{fact}: clients have no names: give a list")
    if values.keys() != clients.keys():
        given, names = ", ".join(map(str, values)), ", ".join(map(str, clients))
        raise ClientwiseError(f"attributes.{fact}: has values of {given}; the clients are {names}")
    return [values[name] for name in clients]


def _experiment(
    config: Experiment | str | Path | Mapping[str, Any], options: Mapping[str, Any]
) -> Experiment:
    """The experiment of a config that options change."""
    if isinstance(config, Experiment):
        if options:
            key = next(iter(options))
            raise ClientwiseError(f"{key}: changes a file or dictionary, not a loaded experiment")
        return config
    changes = dict(_as_config(options))
    tables = {key: value for key, value in changes.items() if isinstance(value, Mapping)}
    others = {key: value for key, value in changes.items() if key not in tables}
    where, table = read_config(config, replaced=others)
    return make_experiment(where, merge(table, tables))


def _as_config(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keywords as keys of the config."""
    _refuse_unknown(options)
    training = {key: _plain(one) for key, one in options.items() if key in Training.model_fields}
    table = options.get("training", {})
    if training and isinstance(table, Mapping):
        table = {**table, **training}
    if table != {}:
        yield "training", table
    for key, given in options.items():
        value = _plain(given)
        if key == "method":
            yield "methods", [value]
        elif key in ("hostile", "methods") and isinstance(value, Mapping):
            yield key, [value]
        elif key != "training" and key not in training:
            yield key, value


def _plain(value: Any) -> Any:
    """Numbers of NumPy, ranges and devices as a config has them; anything else as it is."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    return str(value) if isinstance(value, torch.device) else value


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """ConfigError for keywords that are no keys of a config."""
    known = [*Experiment.model_fields, *Training.model_fields, "method", "presets"]
    issues = []
    for key in options.keys() - set(known):
        message = f"unknown keyword{suggest(ALIASES.get(key, key), known)}"
        for name, table in TABLES.items():
            if key in table.model_fields:
                message = f"is a key of {name}: pass {name}={{{key!r}: ...}}"
        if part := part_with(key):
            kind, name = part
            message = f"is an option of the {kind}: pass {kind}={{'name': {name!r}, {key!r}: ...}}"
        elif key in signature(fit).parameters:
            message = f"is an argument of cw.fit(network, clients, {key}=...)"
        issues.append((key, message))
    if {"method", "methods"} <= options.keys():
        issues.append(("method", "give either method or methods"))
    if issues:
        raise ConfigError("", sorted(issues))


def _described(own: OwnData) -> str:
    """How many clients and samples there are, and what is to be predicted."""
    samples = own.samples
    assert samples.ids is not None
    clients = int(samples.ids[own.num_samples - 1]) + 1
    size = f"{counted(clients, 'client')}, {counted(own.num_samples, 'sample')}"
    return f"Data: {size}; {samples.problem.described}."


def _without_tests_of_clients(experiment: Experiment, own: OwnData) -> Experiment:
    """Clients train on all of their samples where the samples to report on are given.

    Not where the config asks for test sets of the clients, or something is measured on them alone: weights, a search
    or the choice of a round.
    """
    evaluation = experiment.evaluation
    given = evaluation.model_fields_set
    are_needed = [
        "test_fraction" in given,
        "clients_every" in given and evaluation.clients_every > 0,
        experiment.server_set.source == "clients",
        any(method.adjust for method in experiment.methods),
        experiment.keep == "best" and own.held_out is None and not experiment.server_holds_samples,
    ]
    if own.report is None or any(are_needed):
        return experiment
    changed = evaluation.model_copy(update={"test_fraction": 0.0, "clients_every": 0})
    return experiment.model_copy(update={"evaluation": changed})


def _data(own: OwnData, experiment: Experiment) -> tuple[FederatedData | Samples, str]:
    """The data as the run takes them, and what is set apart."""
    server = experiment.server_set
    report = server.fraction * (server.report_fraction if server.source == "held_out" else 1.0)
    fractions = {
        "test_fraction": experiment.evaluation.test_fraction,
        "weigh_fraction": server.fraction - report,
        "report_fraction": report,
    }
    seeds = experiment.seeds[:1] if own.is_split else experiment.seeds
    divided, *_ = [own.divide(seed, **fractions) for seed in seeds]  # refuses clients that vanish
    data = hand_out(own.samples, divided, seeds[0]) if own.is_split else own.samples
    return data, _set_apart(own, divided, experiment)


def _set_apart(own: OwnData, divided: Division, experiment: Experiment) -> str:
    """What is set apart of the clients' samples, and what was given."""
    by = "drawn anew for every seed"
    if own.is_split:
        by = f"drawn by seed {experiment.seeds[0]}, the same for all seeds"
    apart = []
    if own.held_out is None and len(divided.weigh):
        trusted = "of the clients; held_out= takes samples that you trust"
        apart.append(f"{counted(len(divided.weigh), 'sample')} to weigh by ({trusted})")
    if own.report is None and len(divided.report):
        apart.append(f"{counted(len(divided.report), 'sample')} to report on")
    if not own.tests and experiment.evaluation.test_fraction:
        share = f"{experiment.evaluation.test_fraction:.0%}"
        apart.append(f"{share} of each client's other samples as its test set")
    said = f"Set apart, {by}: {', '.join(apart)}." if apart else "Set apart: nothing."
    if not own.tests and not experiment.clients_test:
        said += " Clients train on all their other samples and have no test sets of their own."
    return said


def _temporary(name: str) -> Path:
    """A folder that is removed when the process ends."""
    parent = Path(tempfile.mkdtemp(prefix="clientwise-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return parent / plain_name(name)


def _flower_simulation(experiment: Experiment, data: FederatedData | None) -> runner.EngineFactory:
    if data is not None:
        message = "simulated nodes cannot use your arrays; use 'local'"
        raise ConfigError(experiment.source, [("engine", message)])
    try:
        with needing("flower", "Flower"):
            from .hosts.flower.server_app import simulation
    except MissingPackageError as error:
        raise ConfigError(experiment.source, [("engine", str(error))]) from None
    return simulation(experiment)
