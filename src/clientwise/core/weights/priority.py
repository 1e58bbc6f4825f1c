"""Online adjustment of the order of priority inside a round (P2 Algorithm 1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...registry import Registry
from ..types import Candidate, Evaluation

Order = tuple[str, ...]
Build = Callable[[Order], Candidate]
Evaluate = Callable[[Sequence[Candidate]], Evaluation]  # on all clients' test data, in one pass

MAX_CRITERIA = 6  # 720 orders; more need another kind of search


@dataclass(frozen=True)
class Search:
    """Result of a search for an order of priority."""

    chosen: Candidate
    evaluation: Evaluation  # of the chosen candidate
    tried: tuple[tuple[Order, float], ...]  # orders and the metric of each, as they were tried
    testing_rounds: int  # how often the clients were asked to evaluate


Adjustment = Callable[..., Search]
ADJUSTMENTS: Registry[Adjustment] = Registry(
    "adjustment", "adjustments", "Changes of the order of priority within a round"
)


def all_orders(current: Order, names: Sequence[str]) -> list[Order]:
    """The current order, then all others in lexicographic order of the criteria's list.

    >>> all_orders(("b", "a"), ("a", "b"))
    [('b', 'a'), ('a', 'b')]
    """
    others = [order for order in itertools.permutations(names) if order != current]
    return [current, *others]


@ADJUSTMENTS.register("first_improvement")
def first_improvement(
    orders: Sequence[Order],
    build: Build,
    evaluate: Evaluate,
    previous: float | None,
    higher_is_better: bool,
) -> Search:
    """Keep the order unless the model got worse; then the first order that is not worse, or the least bad (P2).

    P2 Algorithm 1: candidates are evaluated one after the other, each by all clients.

    Args:
        orders: orders of priority, the current one first.
        build: makes the candidate of an order.
        evaluate: evaluates candidates on the test data of all clients.
        previous: the metric of the round before; None in the first round.
        higher_is_better: whether a larger metric is better.

    Returns:
        The chosen candidate, its evaluation, and the orders tried.
    """
    trials: list[tuple[Candidate, Evaluation, float]] = []
    for order in orders:
        candidate = build(order)
        evaluation = evaluate([candidate])
        value = float(evaluation.overall()[0])
        trials.append((candidate, evaluation, value))
        if previous is None or _quality(value, higher_is_better) >= _quality(
            previous, higher_is_better
        ):
            break
    else:  # none was good enough: the least bad, the earliest of equals
        trials.append(max(trials, key=lambda trial: _quality(trial[2], higher_is_better)))
    chosen, evaluation, _ = trials[-1]
    tried = tuple((order, trial[2]) for order, trial in zip(orders, trials, strict=False))
    return Search(chosen, evaluation, tried, testing_rounds=len(tried))


@ADJUSTMENTS.register("best_order")
def best_order(
    orders: Sequence[Order],
    build: Build,
    evaluate: Evaluate,
    previous: float | None,
    higher_is_better: bool,
) -> Search:
    """Evaluate all orders in one pass and take the best; on a tie, the order of the last round.

    Arguments and return value are those of `first_improvement`. It costs one testing round with as many
    models as there are orders.
    """
    candidates = [build(order) for order in orders]
    evaluation = evaluate(candidates)
    values = evaluation.overall().tolist()
    best = max(range(len(orders)), key=lambda index: _quality(values[index], higher_is_better))
    tried = tuple(zip(orders, values, strict=True))
    return Search(candidates[best], evaluation.pick(best), tried, testing_rounds=1)


def _quality(value: float, higher_is_better: bool) -> float:
    if math.isnan(value):
        return -math.inf  # a model that predicts NaN is worse than any other
    return value if higher_is_better else -value
