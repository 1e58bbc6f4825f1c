"""Tune the parameters of methods: the same number of trials for each, on seeds that report nothing.

A trial runs a method with some values under every seed. All methods get the same data, cohorts and
initial models. Every client holds back a part of its training samples, and trials are compared on
these: test samples are never used. With `stop_early`, a trial stops where a run would. With
`by = "rounds"`, the trial with which half of the clients reach a target first is the best, as P1 finds
its learning rate (P1, 5.3); P1 does not say on which data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from ...attacks import Hostile
from ...core.method import Method
from ...core.round import first_state, run_round
from ...core.seeding import generator
from ...data.federated import FederatedData, Holdings, Samples
from ...engine.device import pick_device, threads_for
from ...engine.executor import Executor
from ...errors import ConfigError
from ...registry import suggest
from ..build.data import build_data
from ..build.engine import build_engine, build_executor, build_plan
from ..checks.against_data import validate
from ..checks.combinations import config_issues
from ..config.messages import Issue, issues_of
from ..config.methods import MethodSettings, Tuned
from ..config.schema import Experiment
from ..config.tables import MOST_SEEDS, ConfigTable, Name, Seed
from ..config_file import read_config, set_value
from ..load import make_experiment
from ..running.held_out import HeldOut, held_out_loss
from .search import KeyPath, Space, Values, dotted, read_space, search, search_by_optuna

# Ten to the power of thirds. The rates of experiments/p1-*.toml are in this grid.
GRID = (0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)
HELD_BACK = 0.2  # of its training samples, by every client
NUM_SEEDS = 3  # where none are given
FIRST_SEED = 1001  # of these


class TuneSettings(ConfigTable):
    """A search over parameters: `clientwise tune` writes a config with the best values.

    A key of a method has a list of values, or a range `{ low = 0.01, high = 1.0 }`, on a log scale
    if `low` is above 0. See docs/methods.md, "Fair comparisons".
    """

    trials: Annotated[int, Field(gt=0, le=10_000)] = Field(
        20,
        description="Trials of every method.",
    )
    seeds: Annotated[list[Seed], Field(max_length=MOST_SEEDS)] = Field(
        [], description="Seeds of every trial; the experiment must not have them. Default: three."
    )
    by: Literal["metric", "rounds"] = Field(
        "metric",
        description="Compare trials by the metric in the last round, or by the rounds until half of "
        "the clients reach evaluation.target.",
    )
    sampler: Literal["random", "optuna"] = Field(
        "random",
        description='How values are drawn; "optuna" needs `clientwise[optuna]`.',
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
    rounds: tuple[int | None, ...]  # until half of the clients reached the target; None: never


@dataclass(frozen=True)
class Tuning:
    """The trials of every method, and the experiment with the best values."""

    experiment: Experiment
    trials: Mapping[str, Sequence[Trial]]
    best: Mapping[str, Trial]
    seeds: Sequence[int]
    is_share: bool  # whether metrics are shown in percent
    failed: Sequence[str]  # values that are invalid together, and why; a line for each trial

    def applied_to(self, experiment: Experiment) -> Tuning:
        """The values in an experiment with the same methods, which may have other rounds than the trials."""
        methods = []
        for own, tried in zip(experiment.methods, self.experiment.methods, strict=True):
            changed = with_values(own, self.best[own.name].values, experiment.rounds)
            methods.append(changed.model_copy(update={"tuned": tried.tuned}))
        return replace(self, experiment=experiment.model_copy(update={"methods": methods}))

    def at_an_end(self) -> Iterator[str]:
        """Where the best value is the least or largest that was allowed: better ones may lie beyond."""
        for method in self.experiment.methods:
            for path, value in self.best[method.name].values.items():
                assert method.tuned is not None
                tried = method.tuned.over[dotted(path)]
                ends = [*tried.values()] if isinstance(tried, Mapping) else _ends(tried)
                if value in ends:
                    yield (
                        f"{method.name}: the best {dotted(path)}, {value}, is at an end of what was "
                        "allowed. Search beyond it."
                    )


def _ends(values: Sequence[Any]) -> list[float]:
    """The least and the largest of several numbers."""
    numbers = [value for value in values if type(value) in (int, float)]
    return [min(numbers), max(numbers)] if len(numbers) > 1 else []


def load_tuning(
    source: Any,
    overrides: Sequence[str] = (),
    replaced: Mapping[str, Any] | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Experiment, TuneSettings]:
    """An experiment and its [tune], in which `options` replace keys; see `load_experiment`."""
    where, table = read_config(source, overrides, replaced, preset)
    if "matrix" in table:
        hint = "is many experiments: tune a copy of this file that has no [matrix] and the data of one federation"
        raise ConfigError(where, [("matrix", f"{hint}, then use its tuned methods here")])
    experiment = make_experiment(where, table)
    given = table.get("tune", {})
    if not isinstance(given, Mapping):
        raise ConfigError(where, [("tune", "must be a table: [tune]")])
    try:
        settings = TuneSettings.model_validate({**given, **(options or {})})
    except ValidationError as error:
        issues = issues_of(error, TuneSettings)
        raise ConfigError(where, [(f"tune.{key}", message) for key, message in issues]) from None
    if replaced and "methods" in replaced:  # [tune] may be about others, too
        names = {method.name for method in experiment.methods}
        chosen = {name: keys for name, keys in settings.methods.items() if name in names}
        settings = settings.model_copy(update={"methods": chosen})
    return experiment, settings


def tune(
    experiment: Experiment,
    settings: TuneSettings,
    on_trial: Callable[[str, int, int], None] = lambda method, number, seed: None,
) -> Tuning:
    """Search the values of every method.

    Args:
        experiment: the methods, and everything else as it will be run.
        settings: what is searched, and how.
        on_trial: called before every run of a trial: its method, its number from 1, its seed.

    Returns:
        All trials, and the experiment with the best values. ConfigError where a key or value does
        not fit, or where a seed is one of the experiment's.
    """
    private = [method.name for method in experiment.methods if method.privacy]
    if private:
        hint = "each trial would spend privacy that ε does not count: tune a method without it"
        raise ConfigError(experiment.source, [("methods", f"{private[0]}: {hint}")])
    if settings.by == "rounds" and settings.sampler == "optuna":
        message = '"optuna" learns from the metric: use by = "metric", or sampler = "random"'
        raise ConfigError(experiment.source, [("tune.sampler", message)])
    seeds = _seeds(experiment, settings)
    spaces = _spaces(experiment, settings)
    target = target_of(experiment) if settings.by == "rounds" else None
    samples = validate(experiment, None)
    bench = _Bench(experiment, samples, target)
    higher = samples.problem.higher_is_better
    trials: dict[str, list[Trial]] = {}
    failed: list[str] = []
    best: dict[str, Trial] = {}
    tuned: list[MethodSettings] = []
    for method in experiment.methods:
        space = spaces[method.name]
        own = trials.setdefault(method.name, [])
        draws = search if settings.sampler == "random" else search_by_optuna
        for values, tell in draws(space, settings.trials):
            if reason := _why_unfit(experiment, method, values):
                shown = ", ".join(f"{dotted(path)} = {value}" for path, value in values.items())
                failed.append(f"{method.name}: {shown}: {reason}")
                tell(math.inf)
                continue
            candidate = with_values(method, values, experiment.rounds).build(experiment.training)
            results = []
            for seed in seeds:
                on_trial(method.name, len(own) + 1, seed)
                results.append(bench.run(candidate, seed))
            metrics, rounds = zip(*results, strict=True)
            own.append(Trial(method.name, values, metrics, rounds))
            tell(_loss(own[-1], higher))
        if not own:
            message = f"no values of {method.name} are valid together. {failed[-1]}"
            raise ConfigError(experiment.source, [("tune", message)])
        best[method.name] = best_trial(own, settings.by, higher)
        found = best[method.name].values
        record = Tuned(
            over={dotted(path): one.plain() for path, one in space.items()},
            values={dotted(path): value for path, value in found.items()},
            trials=len(own),
            seeds=seeds,
            rounds=experiment.rounds,
            by=settings.by,
            sampler=settings.sampler,
        )
        changed = with_values(method, found, experiment.rounds)
        tuned.append(changed.model_copy(update={"tuned": record}))
    with_best = experiment.model_copy(update={"methods": tuned})
    return Tuning(with_best, trials, best, seeds, samples.problem.is_share, failed)


def _seeds(experiment: Experiment, settings: TuneSettings) -> list[int]:
    """The seeds of the trials; those of the experiment are refused."""
    if not settings.seeds:
        free = (seed for seed in range(FIRST_SEED, 2**31) if seed not in experiment.seeds)
        return [next(free) for _ in range(NUM_SEEDS)]
    shared = sorted({*settings.seeds} & {*experiment.seeds})
    if shared:
        listed = ", ".join(map(str, shared))
        message = (
            f"{listed}: the experiment reports these seeds. Tune with others, such as 1001-1003."
        )
        raise ConfigError(experiment.source, [("tune.seeds", message)])
    return list(dict.fromkeys(settings.seeds))


def _spaces(experiment: Experiment, settings: TuneSettings) -> dict[str, Space]:
    """The space of every method. ConfigError for what no method has or takes."""
    issues: list[Issue] = []
    names = [method.name for method in experiment.methods]
    for name in settings.methods:
        if name not in names:
            hint = suggest(name, names)
            issues.append((f"tune.methods.{name}", f"there is no method {name!r}{hint}"))
    spaces: dict[str, Space] = {}
    try:
        shared = read_space(settings.over)
        for name in names:
            spaces[name] = shared | read_space(settings.methods.get(name, {}))
    except ValueError as error:
        issues.append(("tune", str(error)))
    for method in experiment.methods:
        default = read_space({"training": {"learning_rate": list(GRID)}})
        spaces[method.name] = spaces.get(method.name) or default
        issues += _unfit_values(experiment, method, spaces[method.name])
    if issues:
        raise ConfigError(experiment.source, issues)
    return spaces


def _unfit_values(experiment: Experiment, method: MethodSettings, space: Space) -> Iterator[Issue]:
    """Keys that a method does not have, and values that it does not take."""
    for path, choices in space.items():
        for value in choices.samples():
            if reason := _why_unfit(experiment, method, {path: value}):
                yield f"tune: {method.name}: {dotted(path)} = {value}", reason
                break


def _why_unfit(experiment: Experiment, method: MethodSettings, values: Values) -> str:
    """Why a method does not take these values; "" where it does."""
    try:
        candidate = with_values(method, values, experiment.rounds)
    except ValidationError as error:
        return "; ".join(message for _, message in issues_of(error, MethodSettings))
    except ConfigError as error:
        return error.issues[0][1]
    alone = experiment.model_copy(update={"methods": [candidate]})
    return "; ".join(message for _, message in config_issues(alone))


def with_values(
    method: MethodSettings, values: Mapping[KeyPath, Any], rounds: int
) -> MethodSettings:
    """A method with other values of some keys, in an experiment of so many rounds."""
    table = method.to_dict()
    for path, value in values.items():
        set_value(table, path, value, f"tune: {method.name}")
    return MethodSettings.model_validate(table).spanning(rounds)


def target_of(experiment: Experiment) -> float:
    """The metric that half of the clients are to reach."""
    settings = experiment.evaluation
    target = settings.target or max(settings.client_targets, default=None)
    if target is None:
        message = (
            "is missing. Trials are compared by the rounds until half of the clients reach it."
        )
        raise ConfigError(experiment.source, [("evaluation.target", message)])
    return target


def best_trial(trials: Sequence[Trial], by: str, higher_is_better: bool = True) -> Trial:
    """The trial with the best mean metric; of equal ones the first.

    By "rounds", the one that reaches the target with the most seeds; of equal ones the earliest, then
    the one with the best metric. They are often equal where clients hold back a sample or two and are
    at 0 or 100% by chance.
    """

    def key(trial: Trial) -> tuple[float, ...]:
        loss = _loss(trial, higher_is_better)
        if by == "metric":
            return (loss,)
        reached = [number for number in trial.rounds if number is not None]
        return -len(reached), statistics.fmean(reached or [0]), loss

    return min(trials, key=key)


def _loss(trial: Trial, higher_is_better: bool) -> float:
    """The lower, the better; infinite where a metric is not a number."""
    mean = statistics.fmean(trial.metrics)
    if math.isnan(mean):
        return math.inf
    return -mean if higher_is_better else mean


class _Bench:
    """Runs methods on the data of every seed, which are built once."""

    def __init__(self, experiment: Experiment, samples: Samples, target: float | None) -> None:
        self._experiment = experiment
        self._samples = samples
        self._target = target
        self._built: dict[int, tuple[FederatedData, dict[int, Hostile], Executor]] = {}

    def run(self, method: Method, seed: int) -> tuple[float, int | None]:
        """The metric in the last round, and the round in which half of the clients reach the target.

        With a target, the run ends in that round. With `stop_early`, it ends where the loss no longer falls.
        """
        experiment = self._experiment
        data, hostile, executor = self._data(seed)
        method = method.for_clients(data.names, data.num_clients)
        engine = build_engine(experiment, data, hostile, seed, executor, method)
        plan = build_plan(experiment, data.num_clients, seed, method.control)
        plan = replace(
            plan,
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
        higher_is_better = engine.problem.higher_is_better
        state = first_state(engine.initial_model, method, engine)
        metric = 0.0
        held_out = HeldOut(experiment, has_model=False)  # no model is kept
        with threads_for(engine.spec.num_parameters):
            for round_num in range(1, experiment.rounds + 1):
                state, record = run_round(state, method, plan, engine)
                assert record.local is not None
                values = record.local.values[0][scored]
                metric = float((values * held).sum() / held.sum())
                if self._target and _half_reached(values, self._target, higher_is_better):
                    return metric, round_num
                if held_out.is_used:
                    # What is reported on chooses nothing: without samples to weigh by, those held back do.
                    judged = replace(record, report=None)
                    held_out.add(state, held_out_loss(engine, state, judged))
                    if held_out.stops_after(round_num):
                        break
        return metric, None

    def _data(self, seed: int) -> tuple[FederatedData, dict[int, Hostile], Executor]:
        if seed not in self._built:
            data, hostile = build_data(self._experiment, self._samples, seed)
            data = hold_back(data, HELD_BACK, seed)
            device = pick_device(self._experiment.device)
            executor = build_executor(self._experiment, data.samples, device)
            self._built[seed] = data, hostile, executor
        return self._built[seed]


def hold_back(data: FederatedData, fraction: float, seed: int) -> FederatedData:
    """Make a part of every client's training samples its test set; drop the true test set."""
    held: list[Tensor] = []
    kept: list[Tensor] = []
    for client, size in enumerate(data.train.sizes.tolist()):
        random = generator(seed, "validation", 0, client)
        order = torch.randperm(size, generator=random) + int(data.train.offsets[client])
        count = _held_back(size, fraction)
        held.append(order[:count])
        kept.append(order[count:])

    def dealt(holdings: Holdings, parts: list[Tensor]) -> Holdings:
        return Holdings.of([(holdings.indices[mine], holdings.targets[mine]) for mine in parts])

    poisoned = dealt(data.poisoned, kept) if data.poisoned else None
    return replace(
        data,
        train=dealt(data.train, kept),
        test=dealt(data.train, held),
        poisoned=poisoned,
        new_data=(),  # values are found on the data that the run begins with
    )


def _held_back(size: int, fraction: float) -> int:
    """How many of its samples a client holds back: one at least, where one is left to train on."""
    if size < 2:
        return 0
    return min(size - 1, max(1, round(size * fraction)))


def _half_reached(values: Tensor, target: float, higher_is_better: bool) -> bool:
    """Whether at least half of the clients reach the target."""
    ordered = values.sort(descending=higher_is_better).values
    last_of_half = float(ordered[(len(ordered) + 1) // 2 - 1])
    if higher_is_better:
        return last_of_half >= target
    return last_of_half <= target
