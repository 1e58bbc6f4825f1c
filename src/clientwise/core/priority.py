"""Online adjustment of the order of priority inside a round (P2 Algorithm 1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..registry import Registry
from .types import Candidate, Evaluation

Order = tuple[str, ...]
Build = Callable[[Order], Candidate]
Evaluate = Callable[[Sequence[Candidate]], Evaluation]  # on the test data of all clients, every candidate in one pass

MAX_CRITERIA = 6  # 720 orders; more would be a search of another kind


@dataclass(frozen=True)
class Search:
    """What the search chose, and how it got there."""

    chosen: Candidate
    evaluation: Evaluation  # of the chosen candidate
    tried: tuple[tuple[Order, float], ...]
    testing_rounds: int  # how often the clients were asked to evaluate


Adjustment = Callable[..., Search]
ADJUSTMENTS: Registry[Adjustment] = Registry(
    "adjustment", "adjustments", "How the order of priority changes inside a round"
)


def all_orders(current: Order, names: Sequence[str]) -> list[Order]:
    """The current order, then every other one in the order of the criteria's list."""
    return [current, *(order for order in itertools.permutations(names) if order != current)]


@ADJUSTMENTS.register("first_improvement")
def first_improvement(
    orders: Sequence[Order], build: Build, evaluate: Evaluate, previous: float | None, higher_is_better: bool
) -> Search:
    """Keep the order unless the model got worse; then the first order that is not worse, or the least bad (P2)."""
    trials: list[tuple[Candidate, Evaluation, float]] = []
    for order in orders:
        candidate = build(order)
        evaluation = evaluate([candidate])
        value = float(evaluation.overall()[0])
        trials.append((candidate, evaluation, value))
        if previous is None or _quality(value, higher_is_better) >= _quality(previous, higher_is_better):
            break
    else:  # none was good enough: the least bad, the earliest of equals
        trials.append(max(trials, key=lambda trial: _quality(trial[2], higher_is_better)))
    chosen, evaluation, _ = trials[-1]
    tried = tuple((order, trial[2]) for order, trial in zip(orders, trials, strict=False))
    return Search(chosen, evaluation, tried, testing_rounds=len(tried))


@ADJUSTMENTS.register("best_order")
def best_order(
    orders: Sequence[Order], build: Build, evaluate: Evaluate, previous: float | None, higher_is_better: bool
) -> Search:
    """Evaluate all orders in one pass and take the best; on a tie, the order of the last round."""
    candidates = [build(order) for order in orders]
    evaluation = evaluate(candidates)
    values = evaluation.overall().tolist()
    best = max(range(len(orders)), key=lambda index: _quality(values[index], higher_is_better))
    tried = tuple(zip(orders, values, strict=True))
    return Search(candidates[best], evaluation.pick(best), tried, testing_rounds=1)


def _quality(value: float, higher_is_better: bool) -> float:
    if math.isnan(value):
        return -math.inf  # a model that answers NaN is worse than any other
    return value if higher_is_better else -value
