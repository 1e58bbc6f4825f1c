"""Tune the parameters of methods: the same number of trials for each, on seeds that are not reported.

    [tune]
    trials = 20                                           # of every method
    [tune.over]                                           # keys of all methods
    training.learning_rate = [0.01, 0.0316, 0.1, 0.316]
    [tune.methods.FedYogi]                                # keys of one method, besides these
    server_step.learning_rate = [0.001, 0.01, 0.1]

All combinations are tried where `trials` allows it, else a random sample of them. It does not depend on results.
A trial runs a method under three seeds that the experiment does not have. Every client holds back a part of its
training samples, and trials are compared on these: test samples are never used.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ..errors import ConfigError
from ..record.files import CONFIG, dotted_keys
from ..record.run import RunFolder
from ..registry import suggest
from .config.methods import MethodSettings
from .config.schema import Experiment
from .config.tables import ConfigTable, Name, read_table
from .config_file import read_config, set_value
from .load import make_experiment
from .running.runner import run
from .trackers import Progress

Values = dict[str, Any]  # by dotted key: {"training.learning_rate": 0.1}
Space = Mapping[str, list[Any]]  # the values to try, by dotted key
# Ten to the power of thirds. The rates of lab/papers/p1-*.toml are in this grid.
RATES = {"training.learning_rate": [0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0]}
HELD_BACK = 0.2  # of its training samples, by every client
NUM_SEEDS = 3
FIRST_SEED = 1001


class TuneSettings(ConfigTable):
    """What `clientwise tune` searches: lists of values by key (docs/compare.md)."""

    trials: Annotated[int, Field(gt=0, le=10_000)] = 20
    """Trials of every method."""

    over: dict[str, Any] = {}
    """Keys of all methods. Default: seven values of training.learning_rate from 0.01 to 1."""

    methods: dict[Name, dict[str, Any]] = {}
    """By name: keys of one method, besides those of `over`."""


@dataclass(frozen=True)
class Trial:
    """Values of a method, and what came of them under each seed."""

    values: Values
    metrics: tuple[float, ...]  # in the last round, over all samples that honest clients held back


@dataclass(frozen=True)
class Tuning:
    """The trials of every method, the best first, and the experiment with the best values."""

    experiment: Experiment
    trials: Mapping[str, Sequence[Trial]]
    seeds: Sequence[int]
    is_share: bool  # whether metrics are shown in percent
    failed: Sequence[str]  # values that are invalid together, and why; a line for each


def load_tuning(
    source: Any,
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> tuple[Experiment, TuneSettings]:
    """An experiment and its [tune]; see `load_experiment`."""
    where, table = read_config(source, overrides, replaced, preset)
    if "matrix" in table:
        hint = "is many experiments: tune a copy of this file that has no [matrix] and the data of one federation"
        raise ConfigError(where, [("matrix", f"{hint}, then use its tuned methods here")])
    experiment = make_experiment(where, table)
    settings = read_table(TuneSettings, table.get("tune", {}), "tune", where)
    names = [method.name for method in experiment.methods]
    for name in settings.methods:
        if name not in names and "methods" not in (replaced or {}):  # else only some are tuned
            message = f"there is no method {name!r}{suggest(name, names)}"
            raise ConfigError(where, [(f"tune.methods.{name}", message)])
    return experiment, settings


def tune(
    experiment: Experiment,
    settings: TuneSettings,
    folder: Path,
    on_round: Callable[[Progress], None] | None = None,
) -> Tuning:
    """Search the values of every method: a run whose methods are the trials of all methods.

    Args:
        experiment: the methods, and everything else as it will be run.
        settings: what is searched, and how.
        folder: the folder of that run. An interrupted search goes on there.
        on_round: called after every round.

    Returns:
        All trials, and the experiment with the best values. ConfigError where a key or value does not fit.
    """
    private = [method.name for method in experiment.methods if method.privacy]
    if private:
        hint = "each trial would spend privacy that ε does not count: tune a method without it"
        raise ConfigError(experiment.source, [("methods", f"{private[0]}: {hint}")])
    free = (seed for seed in itertools.count(FIRST_SEED) if seed not in experiment.seeds)
    seeds = list(itertools.islice(free, NUM_SEEDS))
    failed: list[str] = []
    spaces = [_space(experiment, settings, method.name) for method in experiment.methods]
    tried = [
        _candidates(experiment, method, draws(space, settings.trials), failed)
        for method, space in zip(experiment.methods, spaces, strict=True)
    ]
    run(
        _all_trials(experiment, [one for own in tried for one, _ in own], seeds),
        folder,
        resume=(folder / CONFIG).exists(),
        on_round=on_round,
        on_warning=lambda text: None,  # `check` has said it
    )
    done = RunFolder(folder)
    metrics = _last_metrics(done, experiment)
    sign = -1.0 if done.facts.higher_is_better else 1.0
    trials: dict[str, list[Trial]] = {}
    tuned: list[MethodSettings] = []
    for method, space, own in zip(experiment.methods, spaces, tried, strict=True):
        found = [Trial(values, tuple(metrics.loc[one.name, seeds])) for one, values in own]
        found.sort(key=lambda trial: loss(trial, sign))
        trials[method.name] = found
        values = found[0].values
        about = {"over": space, "values": values, "trials": len(found)}
        about |= {"seeds": seeds, "rounds": experiment.rounds}
        tuned.append(_with_values(experiment, method, values, tuned=about))
    with_best = experiment.model_copy(update={"methods": tuned})
    return Tuning(with_best, trials, seeds, done.facts.is_share, failed)


def loss(trial: Trial, sign: float) -> float:
    """What is least for the best trial: the mean metric, or minus it; infinite where there is none."""
    mean = sign * statistics.fmean(trial.metrics)
    return math.inf if math.isnan(mean) else mean


def _all_trials(
    experiment: Experiment, candidates: Sequence[MethodSettings], seeds: Sequence[int]
) -> Experiment:
    """The experiment whose methods are the trials. Clients evaluate on what they hold back."""
    evaluation = {"held_back": HELD_BACK, "clients_every": 1}
    changes = {
        "methods": list(candidates),
        "seeds": list(seeds),
        "evaluation": experiment.evaluation.model_copy(update=evaluation),
        "engine": "local",
        "trackers": [],
        "keep": "last",
    }
    return experiment.model_copy(update=changes)


def _last_metrics(done: RunFolder, experiment: Experiment) -> Any:
    """A frame of the metric after the last round, over all samples that honest clients held back [trials, seeds]."""
    rounds = done.frame("rounds")
    if "local_mean" not in rounds:
        message = "no honest client has two samples; it trains on one and holds back the other"
        raise ConfigError(experiment.source, [("hostile", message)])
    last = rounds.sort_values("round").drop_duplicates(["method", "seed"], keep="last")
    return last.pivot(index="method", columns="seed", values="local_mean")


# What is searched ------------------------------------------------------------------------------------


def draws(space: Space, trials: int) -> list[Values]:
    """All combinations of the values where there are no more than `trials`, else a random sample of so many.

    >>> draws({"training.epochs": [1, 2], "training.proximal": [0.5]}, trials=2)
    [{'training.epochs': 1, 'training.proximal': 0.5}, {'training.epochs': 2, 'training.proximal': 0.5}]
    """
    count = math.prod(len(choices) for choices in space.values())
    numbers: Sequence[int] = range(count)
    if count > trials:
        numbers = random.Random(0).sample(numbers, trials)
    return [_combination(space, number) for number in numbers]


def _combination(space: Space, number: int) -> Values:
    """One of all combinations, by its number."""
    values = {}
    for key, choices in space.items():
        number, place = divmod(number, len(choices))
        values[key] = choices[place]
    return values


def _space(experiment: Experiment, settings: TuneSettings, name: str) -> Space:
    """The values of a method that are tried. ConfigError for a key without a list."""
    space = {**dotted_keys(settings.over), **dotted_keys(settings.methods.get(name, {}))}
    for key, choices in space.items():
        if not isinstance(choices, list) or not choices:
            issue = f"{key} = {choices!r}: give a list of values"
            raise ConfigError(experiment.source, [("tune", issue)])
    return space or RATES


def _candidates(
    experiment: Experiment, method: MethodSettings, drawn: Sequence[Values], failed: list[str]
) -> list[tuple[MethodSettings, Values]]:
    """The method with each of the values. What the method does not take is added to `failed`."""
    found = []
    for number, values in enumerate(drawn, 1):
        try:
            name = f"{method.name}, trial {number}"
            found.append((_with_values(experiment, method, values, name=name), values))
        except ConfigError as error:
            shown = ", ".join(f"{key} = {value}" for key, value in values.items())
            reasons = "; ".join(message for _, message in error.issues)
            failed.append(f"{method.name}: {shown}: {reasons}")
    if not found:
        message = f"no values of {method.name} are valid. {failed[-1]}"
        raise ConfigError(experiment.source, [("tune", message)])
    return found


def _with_values(
    experiment: Experiment, method: MethodSettings, values: Values, **others: Any
) -> MethodSettings:
    """A method with other values of some keys; ConfigError where the experiment cannot have it."""
    table = method.to_dict()
    for key, value in values.items():
        set_value(table, key.split("."), value, f"tune: {method.name}")
    changed = make_experiment(experiment.source, {**experiment.to_dict(), "methods": [table]})
    return changed.methods[0].model_copy(update=others)
