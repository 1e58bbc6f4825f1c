"""Learning-rate search as P1 did it (5.3): the rate with which half of the devices reach the target first.

The baseline, the first method, or another, is run with every rate of a grid. What P1 does not say: on which data. Here
every client holds back a part of its training samples and the rates are scored on those; no test sample has a say in
the choice.
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

# Ten to the power of thirds: P1's rates, 0.1 and 0.215, are of this grid.
GRID = (0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)


@dataclass(frozen=True)
class Trial:
    """A learning rate under one seed."""

    learning_rate: float
    seed: int
    rounds: int | None  # until half of the devices reached the target; None: never
    metric: float  # over all samples the honest clients held back, in the last round that was run


def tune(
    experiment: Experiment,
    rates: Sequence[float] = GRID,
    *,
    method: str | None = None,
    validation_fraction: float = 0.2,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> tuple[list[Trial], float]:
    """Try every rate with every seed; return the trials and the rate to take for a method, by default the baseline."""
    target = target_of(experiment)
    built = {one.name: one for one in experiment.build_methods()}
    if method is not None and method not in built:
        raise ConfigError(experiment.source, [("methods", f"there is no method {method!r}{suggest(method, built)}")])
    tried = built[method or experiment.methods[0].name]
    samples = validate(experiment, None)
    trials = []
    for seed in experiment.seeds:
        data, hostile = build_data(experiment, samples, seed)
        data = hold_back(data, validation_fraction, seed)
        executor = build_executor(experiment, data.samples, pick_device(experiment.device))
        for rate in rates:
            at_rate = replace(tried, training=replace(tried.training, learning_rate=rate))
            trials.append(_try(experiment, at_rate, seed, data, hostile, executor, target))
            on_trial(trials[-1])
    return trials, best_rate(trials, samples.problem.higher_is_better)


def target_of(experiment: Experiment) -> float:
    """What half of the clients are to reach."""
    target = experiment.evaluation.target or max(experiment.evaluation.client_targets, default=None)
    if target is None:
        raise ConfigError(experiment.source, [("evaluation.target", "is missing: a rate is scored by reaching it")])
    return target


def best_rate(trials: Sequence[Trial], higher_is_better: bool = True) -> float:
    """The rate that reaches the target under most seeds, of those the earliest; of equals the better one then.

    Clients that hold back a sample or two are at 0 or 100% by chance, and then many rates are equal.

    >>> best_rate([Trial(0.1, 1, 9, 0.8), Trial(0.2, 1, 7, 0.8), Trial(0.4, 1, None, 0.9)])
    0.2
    """

    def key(rate: float) -> tuple[float, float, float]:
        mine = [trial for trial in trials if trial.learning_rate == rate]
        reached = [trial.rounds for trial in mine if trial.rounds is not None]
        metric = statistics.fmean(trial.metric for trial in mine)
        return (-len(reached), statistics.fmean(reached or [0]), -metric if higher_is_better else metric)

    return min(dict.fromkeys(trial.learning_rate for trial in trials), key=key)


def hold_back(data: FederatedData, fraction: float, seed: int) -> FederatedData:
    """Every client's training samples, a part of which are now its test set; the true test set is out of reach."""
    held: list[Tensor] = []
    kept: list[Tensor] = []
    for client, size in enumerate(data.train.sizes.tolist()):
        order = torch.randperm(size, generator=generator(seed, "validation", 0, client)) + int(
            data.train.offsets[client]
        )
        count = min(size - 1, max(1, round(size * fraction))) if size > 1 else 0
        held.append(order[:count])
        kept.append(order[count:])

    def dealt(shares: Holdings, places: list[Tensor]) -> Holdings:
        return Holdings.of([(shares.indices[mine], shares.targets[mine]) for mine in places])

    poisoned = dealt(data.poisoned, kept) if data.poisoned else None
    return replace(data, train=dealt(data.train, kept), test=dealt(data.train, held), poisoned=poisoned)


def _try(
    experiment: Experiment,
    method: Method,
    seed: int,
    data: FederatedData,
    hostile: dict[int, Hostile],
    executor: Executor,
    target: float,
) -> Trial:
    """Run a method until half of the honest devices reach the target."""
    rate = method.training.learning_rate
    engine = build_engine(experiment, data, hostile, seed, executor, method)
    plan = replace(build_plan(experiment, data.num_clients, seed, method.control), evaluate_clients_every=1)
    state, better = first_state(engine.initial_model, method, engine), engine.problem.higher_is_better
    honest = torch.tensor([client not in hostile for client in range(data.num_clients)]) & (data.test.sizes > 0)
    if not bool(honest.any()):
        raise ConfigError(experiment.source, [("hostile", "no honest client has two samples: a rate is scored by one")])
    metric = 0.0
    with threads_for(engine.spec.num_parameters):
        for round_num in range(1, experiment.rounds + 1):
            state, record = run_round(state, method, plan, engine)
            assert record.local is not None
            values, held = record.local.values[0][honest], data.test.sizes[honest]
            metric = float((values * held).sum() / held.sum())
            ordered = values.sort(descending=better).values
            median = float(ordered[(len(ordered) + 1) // 2 - 1])
            if median >= target if better else median <= target:
                return Trial(rate, seed, round_num, metric)
    return Trial(rate, seed, None, metric)
