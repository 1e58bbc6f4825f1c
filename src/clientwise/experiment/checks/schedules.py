"""Schedules that do not fit the rounds of a run: rounds that learn nothing, and warm-ups that do not end."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.method import Method
from ...core.training import SCHEDULES, ScheduleDeclaration
from ..config.messages import Issue
from ..config.methods import MethodSettings
from ..config.schema import Experiment
from ..config.settings import Training
from .combinations import TRIED_ROUNDS


def schedule_issues(experiment: Experiment) -> Iterator[Issue]:
    """Rounds with a learning rate of 0.

    They are refused when a run begins, not when its config is read: folders with such rounds can be read.
    """
    rounds = experiment.rounds
    for index, method in enumerate(experiment.build_methods()):
        zeros = [number for number, factor in _factors(method, rounds).items() if factor == 0]
        if not zeros:
            continue
        settings = experiment.methods[index]
        key = "training.schedule"
        if dict(settings.training)["schedule"] is not None:
            key = f"methods[{index}].{key}"
        option = _span(settings, experiment.training)
        if option is None:
            yield key, f"is 0 in round {zeros[0]}: a round with a learning rate of 0 learns nothing"
            continue
        yield (
            key,
            f"ends after round {zeros[0] - 1} of {rounds}: the learning rate is 0 then. Set its {option} = {rounds} "
            "or a last factor above 0; a run that has begun keeps its schedule, so in another folder",
        )


def schedule_doubts(experiment: Experiment) -> Iterator[str]:
    """Warm-ups that are longer than the run."""
    rounds = experiment.rounds
    for method in experiment.build_methods():
        factors = _factors(method, rounds)
        last = factors.get(rounds, 1.0)
        if factors.get(1, 1.0) < last < 1 and last == max(factors.values()):
            yield (
                f"{method.name}: the schedule still rises in the last round, {rounds}: the learning rate is at most "
                f"{last:.2g} times training.learning_rate. Shorten the warm-up"
            )


def _factors(method: Method, rounds: int) -> dict[int, float]:
    """The factor by round, of the first rounds and the last one; none where it is 1 in all."""
    if method.schedule is None:
        return {}
    tried = {*range(1, min(rounds, TRIED_ROUNDS) + 1), rounds}
    return {number: float(method.schedule(number)) for number in sorted(tried)}


def _span(settings: MethodSettings, training: Training) -> str | None:
    """The option that says how many rounds the schedule spans; None where it has none."""
    declared = SCHEDULES.declared(training.schedule_part(settings.training).name)
    return declared.spans if isinstance(declared, ScheduleDeclaration) else None
