"""Tune the parameters of methods: the same number of trials for each, on seeds that are not reported.

    [tune]
    trials = 20                                           # of every method
    [tune.over]                                           # keys of all methods
    training.learning_rate = { low = 0.01, high = 1.0 }   # log-uniformly where low > 0
    [tune.methods.FedYogi]                                # keys of one method, besides these
    server_step.learning_rate = [0.001, 0.01, 0.1]        # one of these

All combinations are tried where `trials` allows it; else a quasi-random sequence (Optuna) draws as many.
Draws do not depend on results. A trial runs a method under three seeds that the experiment does not have.
Every client holds back a part of its training samples, and trials are compared on these: test samples are
never used. With `stop_early`, a trial stops where a run would.
"""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from ..errors import ConfigError, needing
from ..record.files import CONFIG, dotted_keys
from ..record.run import RunFolder
from ..registry import suggest
from .config.methods import MethodSettings
from .config.schema import Experiment
from .config.tables import ConfigTable, Name, read_table
from .config_file import read_config, set_value, write_out
from .load import make_experiment
from .running.lanes import Progress
from .running.runner import run

Values = dict[str, Any]  # by dotted key: {"training.learning_rate": 0.1}
Space = dict[str, Any]  # by dotted key: a list of values, or the two ends of a range
# Ten to the power of thirds. The rates of lab/papers/p1-*.toml are in this grid.
GRID = [0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0]
HELD_BACK = 0.2  # of its training samples, by every client
NUM_SEEDS = 3
FIRST_SEED = 1001
DRAWS = 100  # for every trial, until enough of them are distinct


class TuneSettings(ConfigTable):
    """A search over parameters: `clientwise tune` writes a config with the best values.

    A key of a method has a list of values, or a range `{ low = 0.01, high = 1.0 }`, on a log scale
    if `low` is above 0. See docs/compare.md.
    """

    trials: Annotated[int, Field(gt=0, le=10_000)] = 20
    """Trials of every method."""

    over: dict[str, Any] = {}
    """Keys of all methods. Default: training.learning_rate from 0.01 to 1."""

    methods: dict[Name, dict[str, Any]] = {}
    """By name: keys of one method, besides those of `over`."""


@dataclass(frozen=True)
class Trial:
    """Values of a method, and what came of them under each seed."""

    method: str
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

    def at_an_end(self) -> Iterator[str]:
        """Where the best value is the least or largest that was allowed: better ones may lie beyond."""
        for method in self.experiment.methods:
            assert method.tuned is not None
            for key, value in method.tuned["values"].items():
                tried = method.tuned["over"][key]
                ends = tried.values() if isinstance(tried, Mapping) else tried
                numbers = [one for one in ends if type(one) in (int, float)]
                if len(numbers) > 1 and value in (min(numbers), max(numbers)):
                    said = f"the best {key}, {value}, is at an end of what was allowed"
                    yield f"{method.name}: {said}. Search beyond it."

    def as_toml(self, table: Mapping[str, Any]) -> str:
        """The given config with the values that were found; see `load_tuning`."""
        names = [method.name for method in self.experiment.methods]
        written = {key: value for key, value in table.items() if key != "tune"}
        written["methods"] = write_out(written.get("methods", names))
        for method, found in zip(written["methods"], self.experiment.methods, strict=True):
            assert found.tuned is not None
            _set_values(method, found.tuned["values"])
            method["tuned"] = found.tuned
        return tomli_w.dumps(written)


def load_tuning(
    source: Any,
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> tuple[Experiment, TuneSettings, dict[str, Any]]:
    """An experiment, its [tune], and the table that both were read from; see `load_experiment`."""
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
    return experiment, settings, table


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
    spaces = {
        method.name: _space(experiment, settings, method.name) for method in experiment.methods
    }
    tried: dict[str, list[tuple[Values, MethodSettings]]] = {}
    for method in experiment.methods:
        space = spaces[method.name]
        tried[method.name] = _candidates(experiment, method, space, settings.trials, failed)
    run(
        _all_trials(experiment, tried, seeds),
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
    for method in experiment.methods:
        name = method.name
        found = [
            Trial(name, values, tuple(metrics.loc[candidate.name, seeds]))
            for values, candidate in tried[name]
        ]
        trials[name] = sorted(found, key=lambda trial: loss(trial, sign))
        values = trials[name][0].values
        about = {"over": spaces[name], "values": values, "trials": len(found)}
        about |= {"seeds": seeds, "rounds": experiment.rounds}
        (chosen,) = with_values(experiment, method, values).methods
        tuned.append(chosen.model_copy(update={"tuned": about}))
    with_best = experiment.model_copy(update={"methods": tuned})
    return Tuning(with_best, trials, seeds, done.facts.is_share, failed)


def loss(trial: Trial, sign: float) -> float:
    """What is least for the best trial: the mean metric, or minus it; infinite where there is none."""
    mean = sign * statistics.fmean(trial.metrics)
    return math.inf if math.isnan(mean) else mean


def _all_trials(
    experiment: Experiment,
    tried: Mapping[str, Sequence[tuple[Values, MethodSettings]]],
    seeds: Sequence[int],
) -> Experiment:
    """The experiment whose methods are the trials. Clients evaluate on what they hold back."""
    evaluation = {"held_back": HELD_BACK, "clients_every": 1}
    changes = {
        "methods": [candidate for own in tried.values() for _, candidate in own],
        "seeds": list(seeds),
        "evaluation": experiment.evaluation.model_copy(update=evaluation),
        "engine": "local",
        "trackers": [],
        "keep": "last",
        "keep_every": 0,
    }
    server = experiment.server_set
    if server.source == "held_out" and server.report_fraction == 1 and not server.shared_set:
        changes["stop_early"] = None  # the samples that are reported on choose nothing
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


def read_space(table: Mapping[str, Any]) -> Space:
    """The space that nested tables describe. ValueError, which names the key, where it is none.

    >>> read_space({"training": {"learning_rate": [0.1, 1.0]}})
    {'training.learning_rate': [0.1, 1.0]}
    """
    space: Space = {}
    for key, value in dotted_keys(table).items():
        name, _, end = key.rpartition(".")
        if end in ("low", "high"):
            space.setdefault(name, {})[end] = value
        else:
            space[key] = value
    for key, choices in space.items():
        is_range = isinstance(choices, dict)
        numbers = [one for one in choices.values() if type(one) in (int, float)] if is_range else []
        is_ordered = len(numbers) == 2 and -math.inf < choices["low"] < choices["high"] < math.inf
        if not is_ordered and (is_range or not isinstance(choices, list) or not choices):
            hint = "give a list of values, or { low = ..., high = ... } with low less than high"
            raise ValueError(f"{key} = {choices!r}: {hint}")
    return space


def draws(space: Space, trials: int) -> list[Values]:
    """All combinations where there are no more than `trials`, else as many that cover the space evenly."""
    if all(isinstance(choices, list) for choices in space.values()):
        combinations = list(itertools.islice(itertools.product(*space.values()), trials + 1))
        if len(combinations) <= trials:
            return [dict(zip(space, values, strict=True)) for values in combinations]
    with needing("optuna", "clientwise tune"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(scramble=True, seed=0)
    study = optuna.create_study(sampler=sampler)
    found: dict[str, Values] = {}
    for _ in range(DRAWS * trials):
        trial = study.ask()
        values = {key: _suggested(trial, key, choices) for key, choices in space.items()}
        study.tell(trial, 0.0)
        found.setdefault(repr(values), values)
        if len(found) == trials:
            break
    return list(found.values())


def _suggested(trial: Any, key: str, choices: Any) -> Any:
    """The value that Optuna suggests: of a list by its place, of a range with three digits."""
    if isinstance(choices, list):
        return choices[trial.suggest_int(key, 0, len(choices) - 1)]
    low, high = choices["low"], choices["high"]
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=low > 0)
    drawn = trial.suggest_float(key, low, high, log=low > 0)
    return min(high, max(low, float(f"{drawn:.3g}")))


def _space(experiment: Experiment, settings: TuneSettings, name: str) -> Space:
    """The space of a method. ConfigError for what is none."""
    try:
        shared = read_space(settings.over)
        own = read_space(settings.methods.get(name, {}))
    except ValueError as error:
        raise ConfigError(experiment.source, [("tune", str(error))]) from None
    return (shared | own) or {"training.learning_rate": GRID}


def _candidates(
    experiment: Experiment,
    method: MethodSettings,
    space: Space,
    trials: int,
    failed: list[str],
) -> list[tuple[Values, MethodSettings]]:
    """The values to try, and the method with them. What the method does not take is added to `failed`."""
    found = []
    for number, values in enumerate(draws(space, trials), 1):
        try:
            (candidate,) = with_values(experiment, method, values).methods
            name = f"{method.name}, trial {number}"
            found.append((values, candidate.model_copy(update={"name": name})))
        except ConfigError as error:
            shown = ", ".join(f"{key} = {value}" for key, value in values.items())
            reasons = "; ".join(message for _, message in error.issues)
            failed.append(f"{method.name}: {shown}: {reasons}")
    if not found:
        message = f"no values of {method.name} are valid. {failed[-1]}"
        raise ConfigError(experiment.source, [("tune", message)])
    return found


def with_values(experiment: Experiment, method: MethodSettings, values: Values) -> Experiment:
    """An experiment with one of its methods, which has other values of some keys."""
    table = method.to_dict()
    _set_values(table, values)
    return make_experiment(experiment.source, {**experiment.to_dict(), "methods": [table]})


def _set_values(table: dict[str, Any], values: Values) -> None:
    for key, value in values.items():
        set_value(table, key.split("."), value, f"tune: {table['name']}")
