"""Schedules: the learning rate of a round, as a factor on `training.learning_rate`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from ..registry import Declaration, OpenShare, PositiveInt, Registry, Share

Schedule = Callable[..., float]
Count = Annotated[int, Ge(0), Le(10**9)]
SCHEDULES: Registry[Schedule] = Registry(
    "schedule", "schedules", "Learning rates by round, as factors"
)


@dataclass(frozen=True)
class ScheduleDeclaration(Declaration):
    """What the config must know about a schedule."""

    is_constant: bool = False  # the factor is 1 in every round
    # The option that is the number of rounds of the run where it is not given
    spans: str | None = None


@SCHEDULES.register("constant", ScheduleDeclaration(is_constant=True))
def constant(round_num: int) -> float:
    """The same learning rate in every round."""
    return 1.0


@SCHEDULES.register("cosine", ScheduleDeclaration(spans="rounds"))
def cosine(
    round_num: int, *, rounds: PositiveInt | None = None, end: Share = 0.0, warmup: Count = 0
) -> float:
    """Half a cosine from 1 down to `end` (Loshchilov and Hutter, 2017).

    Args:
        round_num: from 1.
        rounds: after which the factor is `end`. Default: the rounds of the run.
        end: the last factor.
        warmup: rounds of a linear increase first, as of `warmup`.
    """
    assert rounds is not None, "a config fills it in"
    if round_num <= warmup:
        return warm_up(round_num, rounds=warmup + 1)
    done = min(1.0, (round_num - 1 - warmup) / max(1, rounds - warmup))
    return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2


@SCHEDULES.register("step")
def step(round_num: int, *, every: PositiveInt, factor: OpenShare = 0.1) -> float:
    """Times `factor` after every so many rounds.

    Args:
        round_num: from 1.
        every: rounds between two changes.
        factor: of one change.
    """
    return float(factor ** ((round_num - 1) // every))


@SCHEDULES.register("warmup")
def warm_up(round_num: int, *, rounds: PositiveInt) -> float:
    """A linear increase to 1 in the first rounds.

    Args:
        round_num: from 1.
        rounds: the first round with the full rate.
    """
    return min(1.0, round_num / rounds)
