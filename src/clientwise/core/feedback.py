"""The two feedback loops: the order of priority inside a round (P2), and the loss of the next round (P3).

An adjustment searches an order whose model is no worse than the last round's (P2 Algorithm 1). A loss adapter is a
function of this round's loss and the evaluation of the new model on the server's set (P3).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..registry import Declaration, PositiveFloat, Registry
from .objective.loss import CrossEntropy, FocalLoss, Loss, RobustLoss, SquaredError, robust_loss
from .objective.metrics import mae, mse, per_class_f1
from .types import Candidate, Evaluation

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


@dataclass(frozen=True)
class Adapted:
    """The loss of the next round, and notes for the record."""

    loss: Loss
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdapterDeclaration(Declaration):
    """What a loss adapter declares beside its needs."""

    takes: tuple[str, ...] = ()  # the losses that it can adapt; empty: any
    sets_class_weights: bool = False


LossAdapter = Callable[..., Adapted]
LOSS_ADAPTERS: Registry[LossAdapter] = Registry(
    "loss adapter", "adapt_loss", "Changes of the next round's loss"
)


@LOSS_ADAPTERS.register(
    "class_weights",
    AdapterDeclaration(
        frozenset({"classes", "server_set"}),
        takes=(CrossEntropy.kind, FocalLoss.kind),
        sets_class_weights=True,
    ),
)
def class_weights(loss: Loss, evaluation: Evaluation, *, epsilon: PositiveFloat = 0.1) -> Adapted:
    """κ_c = 1/(F1_c + ε) from the aggregated model's F1 on the server's set (P3 III.A; classification).

    If the set has no sample of a class, its κ is 1 and the record says so.

    Args:
        loss: of this round: cross-entropy or focal. Its class weights are replaced.
        evaluation: of the new model; its counts are a confusion matrix [1, C, C].
        epsilon: ε; κ is at most 1/ε.

    Returns:
        The loss with the class weights κ [C].
    """
    counts = evaluation.counts[0]
    lacking = counts.sum(-1) == 0
    kappa = torch.where(lacking, 1.0, 1.0 / (per_class_f1(counts) + epsilon))
    adapted = loss.weighted(tuple(kappa.tolist()))
    missing = ", ".join(map(str, lacking.nonzero().flatten().tolist()))
    if not missing:
        return Adapted(adapted)
    return Adapted(
        adapted, (f"the server's set has no sample of class {missing}: its class weight is 1",)
    )


@LOSS_ADAPTERS.register(
    "robust_shape",
    AdapterDeclaration(
        frozenset({"numbers", "server_set"}), takes=(RobustLoss.kind, SquaredError.kind)
    ),
)
def robust_shape(loss: Loss, evaluation: Evaluation, *, scale: PositiveFloat = 1.0) -> Adapted:
    """Shape α of the general robust loss from the tails of the model's errors on the server's set (P3 III.B).

    The papers leave the rule open; this is the method of moments. α is the shape whose density,
    proportional to exp(−ρ(x, α)), has the same ratio of mean absolute error to root mean squared error
    as the residuals. Gaussian residuals give α = 2, the squared error. Heavier tails give a smaller α, so
    that outliers have less effect.

    Args:
        loss: the robust loss of this round.
        evaluation: of the new model; its counts are error sums [1, 7].
        scale: c, beyond which errors count as outliers.

    Returns:
        The robust loss with the new shape, between 0.2 and 2.
    """
    counts = evaluation.counts[0]
    root_mean_square = float(mse(counts)) ** 0.5
    ratio = float(mae(counts)) / root_mean_square if root_mean_square > 0 else 1.0
    shapes, ratios = _moment_ratios()
    nearest = min(range(len(shapes)), key=lambda index: abs(ratios[index] - ratio))
    return Adapted(RobustLoss(shape=shapes[nearest], scale=scale))


@functools.cache
def _moment_ratios() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """E|x| / √E[x²] under the density exp(−ρ(x, α)) for a grid of shapes α, by numerical integration."""
    # 0.2 to 2.0: all moments exist above 0
    shapes = tuple(round(0.2 + 0.1 * step, 1) for step in range(19))
    # One half of a symmetric density; tails can be long
    x = torch.logspace(-4, 12, 40_001, dtype=torch.float64)
    ratios = []
    for shape in shapes:
        density = torch.exp(-robust_loss(x, shape) / 2)
        moments = [float(torch.trapezoid(density * x**power, x)) for power in (0, 1, 2)]
        total, first, second = moments
        ratios.append(first / total / math.sqrt(second / total))
    return shapes, tuple(ratios)
