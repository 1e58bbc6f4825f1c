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
import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from ..core.round import first_state, run_round
from ..core.seeding import generator
from ..data.federated import FederatedData, Holdings, Samples
from ..engine.device import pick_device, threads_for
from ..errors import ConfigError, needing
from ..record.files import dotted_keys
from ..registry import suggest
from .build.data import build_data
from .build.engine import build_engine, build_executor, build_plan
from .checks.against_data import validate
from .config.messages import issues_of
from .config.methods import MethodSettings, Tuned
from .config.named import write_out
from .config.schema import Experiment
from .config.tables import ConfigTable, Name
from .config_file import read_config, set_value
from .load import make_experiment
from .running.lanes import HeldOut, held_out_loss
from .running.origin import origin_of

Values = dict[str, Any]  # by dotted key: {"training.learning_rate": 0.1}
Space = dict[str, Any]  # by dotted key: a list of values, or the two ends of a range
# Ten to the power of thirds. The rates of experiments/p1-*.toml are in this grid.
GRID = [0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0]
HELD_BACK = 0.2  # of its training samples, by every client
NUM_SEEDS = 3
FIRST_SEED = 1001
DRAWS = 100  # for every trial, until enough of them are distinct


class TuneSettings(ConfigTable):
    """A search over parameters: `clientwise tune` writes a config with the best values.

    A key of a method has a list of values, or a range `{ low = 0.01, high = 1.0 }`, on a log scale
    if `low` is above 0. See docs/methods.md, "Fair comparisons".
    """

    trials: Annotated[int, Field(gt=0, le=10_000)] = Field(
        20, description="Trials of every method."
    )
    over: dict[str, Any] = Field(
        {}, description="Keys of all methods. Default: training.learning_rate from 0.01 to 1."
    )
    methods: dict[Name, dict[str, Any]] = Field(
        {}, description="By name: keys of one method, besides those of `over`."
    )


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
            for key, value in method.tuned.values.items():
                tried = method.tuned.over[key]
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
            _set_values(method, found.tuned.values)
            method["tuned"] = found.tuned.to_dict()
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
    try:
        settings = TuneSettings.model_validate(table.get("tune", {}))
    except ValidationError as error:
        issues = issues_of(error, TuneSettings)
        found = [(f"tune.{key}".rstrip("."), message) for key, message in issues]
        raise ConfigError(where, found) from None
    names = [method.name for method in experiment.methods]
    for name in settings.methods:
        if name not in names and "methods" not in (replaced or {}):  # else only some are tuned
            message = f"there is no method {name!r}{suggest(name, names)}"
            raise ConfigError(where, [(f"tune.methods.{name}", message)])
    return experiment, settings, table


def tune(
    experiment: Experiment,
    settings: TuneSettings,
    on_trial: Callable[[str, int, int], None] = lambda method, number, seed: None,
    recorded: Path | None = None,
) -> Tuning:
    """Search the values of every method.

    Args:
        experiment: the methods, and everything else as it will be run.
        settings: what is searched, and how.
        on_trial: called before every run of a trial: its method, its number from 1, its seed.
        recorded: a file that keeps the result of every run, from which an interrupted search goes on.

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
    searched = []
    for method in experiment.methods:  # all of them before the first trial
        space = _space(experiment, settings, method.name)
        searched.append((space, _candidates(experiment, method, space, settings.trials, failed)))
    samples = validate(experiment, None)
    sign = -1.0 if samples.problem.higher_is_better else 1.0
    bench = _Bench(experiment, samples, recorded)
    trials: dict[str, list[Trial]] = {}
    tuned: list[MethodSettings] = []
    for method, (space, candidates) in zip(experiment.methods, searched, strict=True):
        name = method.name
        tried = []
        for number, (values, candidate) in enumerate(candidates, 1):
            metrics = []
            for seed in seeds:
                on_trial(name, number, seed)
                metrics.append(bench.metric(candidate, seed))
            tried.append(Trial(name, values, tuple(metrics)))
        trials[name] = sorted(tried, key=lambda trial: loss(trial, sign))
        found = Tuned(
            over=space,
            values=trials[name][0].values,
            trials=len(tried),
            seeds=seeds,
            rounds=experiment.rounds,
        )
        (chosen,) = with_values(experiment, method, found.values).methods
        tuned.append(chosen.model_copy(update={"tuned": found}))
    with_best = experiment.model_copy(update={"methods": tuned})
    return Tuning(with_best, trials, seeds, samples.problem.is_share, failed)


def loss(trial: Trial, sign: float) -> float:
    """What is least for the best trial: the mean metric, or minus it; infinite where there is none."""
    mean = sign * statistics.fmean(trial.metrics)
    return math.inf if math.isnan(mean) else mean


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
) -> list[tuple[Values, Experiment]]:
    """The values to try, and the experiment with them. What the method does not take is added to `failed`."""
    found = []
    for values in draws(space, trials):
        try:
            found.append((values, with_values(experiment, method, values)))
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


# Trials -----------------------------------------------------------------------------------------------


class _Bench:
    """Runs methods on the data of every seed, which are built once."""

    def __init__(self, experiment: Experiment, samples: Samples, recorded: Path | None) -> None:
        self._experiment = experiment
        self._samples = samples
        self._built: dict[int, tuple[Any, ...]] = {}
        self._recorded = recorded
        self._known: dict[str, float] = {}
        if recorded is not None and recorded.exists():
            for line in recorded.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a line that was cut off
                    self._known |= json.loads(line)

    def metric(self, experiment: Experiment, seed: int) -> float:
        """The metric that `_run` measures; from the record, where it has this run."""
        if seed not in self._built:
            data, hostile = build_data(self._experiment, self._samples, seed)
            data = hold_back(data, HELD_BACK, seed)
            device = pick_device(self._experiment.device)
            executor = build_executor(self._experiment, data.samples, device)
            origin = origin_of(self._experiment, {seed: data})
            self._built[seed] = data, hostile, executor, origin
        about = json.dumps([self._built[seed][-1], experiment.to_dict() | {"seeds": [seed]}])
        key = blake2b(about.encode(), digest_size=16).hexdigest()
        if key not in self._known:
            self._known[key] = self._run(experiment, seed)
            if self._recorded is not None:
                with self._recorded.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({key: self._known[key]}) + "\n")
        return self._known[key]

    def _run(self, experiment: Experiment, seed: int) -> float:
        """The metric in the last round, or in the one after which the loss no longer falls."""
        data, hostile, executor, _ = self._built[seed]
        (method,) = experiment.build_methods()
        method = method.for_clients(data.names)
        engine = build_engine(experiment, data, hostile, seed, executor, method)
        plan = replace(
            build_plan(experiment, data.num_clients, seed, method.control),
            evaluate_clients_every=1,
            evaluate_clients_sample=None,
            counterfactuals=False,
            shapley=False,
        )
        is_honest = torch.tensor([client not in hostile for client in range(data.num_clients)])
        scored = is_honest & (data.test.sizes > 0)
        if not bool(scored.any()):
            message = "no honest client has two samples; it trains on one and holds back the other"
            raise ConfigError(experiment.source, [("hostile", message)])
        held = data.test.sizes[scored]
        state = first_state(engine.initial_model, method, engine)
        metric = math.nan
        held_out = HeldOut()
        with threads_for(engine.spec.num_parameters):
            for _ in range(experiment.rounds):
                state, record = run_round(state, method, plan, engine)
                assert record.local is not None
                values = record.local.values[0][scored]
                metric = float((values * held).sum() / held.sum())
                if experiment.stop_early is not None:
                    # What is reported on chooses nothing: without samples to weigh by, those held back do.
                    judged = replace(record, report=None)
                    held_out = held_out.after(held_out_loss(engine, state, judged))
                    if held_out.stops(experiment.stop_early):
                        break
        return metric


def hold_back(data: FederatedData, fraction: float, seed: int) -> FederatedData:
    """Make a part of every client's training samples its test set; drop the true test set."""
    held: list[Tensor] = []
    kept: list[Tensor] = []
    for client, size in enumerate(data.train.sizes.tolist()):
        random = generator(seed, "validation", 0, client)
        order = torch.randperm(size, generator=random) + int(data.train.offsets[client])
        count = min(size - 1, max(1, round(size * fraction)))  # one at least is left to train on
        held.append(order[:count])
        kept.append(order[count:])

    def dealt(holdings: Holdings, parts: list[Tensor]) -> Holdings:
        return Holdings.of([(holdings.indices[mine], holdings.targets[mine]) for mine in parts])

    return replace(
        data,
        train=dealt(data.train, kept),
        test=dealt(data.train, held),
        poisoned=dealt(data.poisoned, kept) if data.poisoned else None,
        new_data=(),  # values are found on the data that the run begins with
    )
