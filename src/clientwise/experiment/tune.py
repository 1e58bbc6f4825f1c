"""Learning-rate search: the rate with which half of the clients reach a target first (P1, 5.3).

One method is run with every rate of a grid. P1 does not say on which data rates are compared. Here
every client holds back a part of its training samples for that; test samples are never used.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..attacks import Hostile
from ..core.method import Method
from ..core.round import first_state, run_round
from ..core.seeding import generator
from ..data.federated import FederatedData, Holdings
from ..engine.device import pick_device, threads_for
from ..engine.executor import Executor
from ..errors import ConfigError
from ..registry import suggest
from .build import build_data, build_engine, build_executor, build_plan
from .schema import Experiment
from .validation import validate

# Ten to the power of thirds: the rates of P1, 0.1 and 0.215, are in this grid.
GRID = (0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)


@dataclass(frozen=True)
class Trial:
    """A learning rate under one seed."""

    learning_rate: float
    seed: int
    rounds: int | None  # until half of the clients reached the target; None: never
    metric: float  # in the last round, over all samples that honest clients held back


def tune(
    experiment: Experiment,
    rates: Sequence[float] = GRID,
    *,
    method: str | None = None,
    validation_fraction: float = 0.2,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> tuple[list[Trial], float]:
    """Try every rate with every seed.

    Args:
        experiment: an experiment with a target (`evaluation.target`).
        rates: the learning rates.
        method: the name of the method to run; by default the first.
        validation_fraction: the part of its training samples that every client holds back.
        on_trial: called after every trial.

    Returns:
        All trials, and the best rate (see `best_rate`).
    """
    target = target_of(experiment)
    tried = _method_called(experiment, method or experiment.methods[0].name)
    if tried.privacy:
        hint = "each trial would spend privacy that ε does not count: tune a method without it"
        raise ConfigError(experiment.source, [("methods", f"{tried.name}: {hint}")])
    samples = validate(experiment, None)
    trials = []
    for seed in experiment.seeds:
        data, hostile = build_data(experiment, samples, seed)
        data = hold_back(data, validation_fraction, seed)
        executor = build_executor(experiment, data.samples, pick_device(experiment.device))
        for rate in rates:
            training = replace(tried.training, learning_rate=rate)
            at_rate = replace(tried, training=training)
            trial = _try(experiment, at_rate, seed, data, hostile, executor, target)
            trials.append(trial)
            on_trial(trial)
    return trials, best_rate(trials, samples.problem.higher_is_better)


def target_of(experiment: Experiment) -> float:
    """The metric that half of the clients are to reach."""
    settings = experiment.evaluation
    target = settings.target or max(settings.client_targets, default=None)
    if target is None:
        message = "is missing. Rates are compared by the rounds until half of the clients reach it."
        raise ConfigError(experiment.source, [("evaluation.target", message)])
    return target


def best_rate(trials: Sequence[Trial], higher_is_better: bool = True) -> float:
    """The rate that reaches the target with the most seeds.

    Of equal rates it is the earliest, then the one with the best metric. Rates are often equal
    where clients hold back a sample or two and are at 0 or 100% by chance.

    >>> best_rate([Trial(0.1, 1, 9, 0.8), Trial(0.2, 1, 7, 0.8), Trial(0.4, 1, None, 0.9)])
    0.2
    """

    def key(rate: float) -> tuple[float, float, float]:
        mine = [trial for trial in trials if trial.learning_rate == rate]
        reached = [trial.rounds for trial in mine if trial.rounds is not None]
        loss = statistics.fmean(trial.metric for trial in mine)
        if higher_is_better:
            loss = -loss
        return -len(reached), statistics.fmean(reached or [0]), loss

    rates = dict.fromkeys(trial.learning_rate for trial in trials)
    return min(rates, key=key)


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

    def dealt(shares: Holdings, places: list[Tensor]) -> Holdings:
        return Holdings.of([(shares.indices[mine], shares.targets[mine]) for mine in places])

    poisoned = dealt(data.poisoned, kept) if data.poisoned else None
    return replace(
        data,
        train=dealt(data.train, kept),
        test=dealt(data.train, held),
        poisoned=poisoned,
        new_data=(),  # a rate is found on the data that the run begins with
    )


def _held_back(size: int, fraction: float) -> int:
    """How many of its samples a client holds back: one at least, where one is left to train on."""
    if size < 2:
        return 0
    return min(size - 1, max(1, round(size * fraction)))


def _method_called(experiment: Experiment, name: str) -> Method:
    methods = {one.name: one for one in experiment.build_methods()}
    if name not in methods:
        message = f"there is no method {name!r}{suggest(name, methods)}"
        raise ConfigError(experiment.source, [("methods", message)])
    return methods[name]


def _try(
    experiment: Experiment,
    method: Method,
    seed: int,
    data: FederatedData,
    hostile: dict[int, Hostile],
    executor: Executor,
    target: float,
) -> Trial:
    """Run a method until half of the honest clients reach the target."""
    rate = method.training.learning_rate
    engine = build_engine(experiment, data, hostile, seed, executor, method)
    plan = build_plan(experiment, data.num_clients, seed, method.control)
    plan = replace(plan, evaluate_clients_every=1)
    is_honest = torch.tensor([client not in hostile for client in range(data.num_clients)])
    scored = is_honest & (data.test.sizes > 0)
    if not bool(scored.any()):
        message = "no honest client has two samples; it trains on one and holds back the other"
        raise ConfigError(experiment.source, [("hostile", message)])
    held = data.test.sizes[scored]
    higher_is_better = engine.problem.higher_is_better
    state = first_state(engine.initial_model, method, engine)
    metric = 0.0
    with threads_for(engine.spec.num_parameters):
        for round_num in range(1, experiment.rounds + 1):
            state, record = run_round(state, method, plan, engine)
            assert record.local is not None
            values = record.local.values[0][scored]
            metric = float((values * held).sum() / held.sum())
            if _half_reached(values, target, higher_is_better):
                return Trial(rate, seed, round_num, metric)
    return Trial(rate, seed, None, metric)


def _half_reached(values: Tensor, target: float, higher_is_better: bool) -> bool:
    """Whether at least half of the clients reach the target."""
    ordered = values.sort(descending=higher_is_better).values
    last_of_half = float(ordered[(len(ordered) + 1) // 2 - 1])
    if higher_is_better:
        return last_of_half >= target
    return last_of_half <= target
