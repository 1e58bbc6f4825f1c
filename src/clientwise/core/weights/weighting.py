"""From criteria to weights: normalise over the cohort, score, divide by the sum, keep within bounds.

`weigh` does it for criteria that the caller measured (`cw.weigh`).
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy
import torch
from annotated_types import Ge, Lt, doc
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ClientwiseError
from ...registry import Declaration, OpenShare, PositiveFloat, Registry
from .scores import Score, score_by

Normaliser = Callable[..., Tensor]
NORMALISERS: Registry[Normaliser] = Registry(
    "normaliser", "normalisers", "Divisors that make criteria comparable"
)


class Constant(Declaration):
    """Declared by a normaliser whose scales do not depend on the values."""


class KeepsUnits(Constant):
    """Declared by a normaliser that leaves the values in the criterion's own units."""


@NORMALISERS.register("sum")
def sum_scale(raw: Tensor) -> Tensor:
    """Divide by the cohort's sum: Σ_a c_a = 1 (the papers). In a cohort of n a value is about 1/n.

    Args:
        raw: criteria as measured, [n, m].

    Returns:
        What each criterion is divided by, [m].

    Example:
        >>> sum_scale(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        tensor([ 4., 10.])
    """
    return raw.sum(0)


@NORMALISERS.register("max")
def max_scale(raw: Tensor) -> Tensor:
    """Divide by the cohort's maximum: the best client has 1, whatever the size of the cohort.

    Args:
        raw: criteria as measured, [n, m].

    Returns:
        What each criterion is divided by, [m].

    Example:
        >>> max_scale(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        tensor([3., 5.])
    """
    return raw.amax(0)


@NORMALISERS.register("none", KeepsUnits())
def no_scale(raw: Tensor) -> Tensor:
    """Leave the values as they were measured: divide by 1."""
    return raw.new_ones(raw.shape[1])


@NORMALISERS.register("fixed", Constant())
def fixed_scale(raw: Tensor, *, by: Sequence[PositiveFloat]) -> Tensor:
    """Divide by constants, which say nothing about the cohort: for differential privacy.

    Args:
        raw: criteria as measured, [n, m].
        by: one constant for each criterion, in the order in which the criteria are listed.

    Returns:
        What each criterion is divided by, [m].

    Example:
        >>> fixed_scale(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), by=[2.0, 10.0])
        tensor([ 2., 10.])
    """
    if len(by) != raw.shape[1]:
        raise ValueError(f"normalise.by has {len(by)} values for {raw.shape[1]} criteria")
    return torch.tensor(by, dtype=raw.dtype)


def is_constant(normaliser: str) -> bool:
    """Whether the scales of a normaliser, given by its name, do not depend on the values."""
    return isinstance(NORMALISERS.declared(normaliser), Constant)


def check_normaliser(score: Score, normaliser: str) -> None:
    """ValueError if a score does not fit a normaliser, given by its name."""
    if score.needs_units and not isinstance(NORMALISERS.declared(normaliser), KeepsUnits):
        raise ValueError('a threshold is in the criterion\'s own units: use normalise = "none"')


def divide(raw: Tensor, scales: Tensor) -> Tensor:
    """Tensor [n, m] over the cohort's scales [m]; a criterion that is zero for all clients stays zero."""
    return torch.where(scales == 0, 0.0, raw / scales)


class ScoreError(ClientwiseError, ValueError):
    """A user's own score that cannot become a weight."""


def scores_of(
    score: Score, names: Sequence[str], values: Tensor, clients: Sequence[int | str]
) -> Tensor:
    """The scores [n] of clients, as messages call them, by their normalised criteria [n, m].

    Raises:
        ScoreError: a user's own score is negative or not finite. Those of this library are not
            negative; where they overflow, `to_weights` gives no weight.
    """
    scores = score(names, values)
    if score.is_own:
        wrong = ~(scores.isfinite() & (scores >= 0))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            found = f"score {type(score).__name__} returned {float(scores[row]):.6g}"
            raise ScoreError(
                f"{found} for client {clients[row]}: a score must be finite and 0 or more"
            )
    return scores


def to_weights(scores: Tensor) -> Tensor:
    """w_a = f(c_a) / Σ f (P1 Eq. 5); all zero if the sum of the scores is zero or not finite.

    >>> to_weights(torch.tensor([3.0, 1.0]))
    tensor([0.7500, 0.2500])
    """
    total = scores.sum()
    return scores / total if 0 < total < math.inf else torch.zeros_like(scores)


def without_effect(names: Sequence[str], raw: Tensor) -> tuple[str, ...]:
    """Criteria that are constant across the clients of the cohort (P1 4.2's rule of thumb).

    >>> without_effect(("size", "balance"), torch.tensor([[5.0, 0.7], [3.0, 0.7]]))
    ('balance',)
    """
    if len(raw) < 2:
        return ()
    equal = raw.amin(0).isclose(raw.amax(0), rtol=1e-9, atol=0.0)
    return tuple(name for name, constant in zip(names, equal.tolist(), strict=True) if constant)


def zero_for_all(names: Sequence[str], raw: Tensor) -> tuple[str, ...]:
    """Criteria that are zero for all clients: in a product, or first in the order, all weights are then zero.

    >>> zero_for_all(("size", "balance"), torch.tensor([[5.0, 0.0], [3.0, 0.0]]))
    ('balance',)
    """
    return tuple(name for name, some in zip(names, raw.any(0).tolist(), strict=True) if not some)


NO_WEIGHT = 1e-100  # a smaller weight counts as zero
ALMOST_NONE = 1e-200  # stands for a weight of zero: it counts only where no other weight is left
ROUNDING = 1e-9


class InfeasibleError(ValueError):
    """No weights meet the bounds. The text has the arithmetic."""


@dataclass(frozen=True)
class Bounds:
    """The weights nearest to the given ones (least Kullback-Leibler divergence) within a cap and a floor.

    w_a ← clamp(t·w_a, floor, cap), with the t that makes them sum to 1: weights in between keep their
    proportions. A floor also lifts weights of 0; where clients with a weight cannot have all of it, the
    others share the rest equally.

    Args:
        cap: largest weight of an accepted client.
        floor: smallest weight of an accepted client.

    Example:
        >>> import torch
        >>> Bounds(cap=0.4).apply(torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))[0]
        tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """

    # The config's [methods.bounds] table is made from these fields.
    cap: Annotated[OpenShare, doc("Largest weight of a client.")] = 1.0
    floor: Annotated[
        Annotated[float, Ge(0), Lt(1)],
        doc("Smallest weight of an accepted client, as a share of the total. 0: no floor."),
    ] = 0.0

    def check(self, clients: int) -> None:
        """InfeasibleError, with the arithmetic, where no weights of so many clients meet the bounds."""
        if self.floor > self.cap:
            raise InfeasibleError(f"the floor {self.floor:g} is above the cap {self.cap:g}")
        floors = clients * self.floor
        if floors > 1 + ROUNDING:
            given = f"{clients} × {self.floor:g} = {floors:g}"
            raise InfeasibleError(f"the floors sum to {given}, more than 1")
        caps = clients * self.cap
        if caps < 1 - ROUNDING:
            given = f"{clients} × {self.cap:g} = {caps:g}"
            raise InfeasibleError(f"the caps sum to {given}, less than 1")

    def apply(self, weights: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """The bounded weights [n] of weights [n] that sum to 1, and notes; InfeasibleError as `check`."""
        self.check(len(weights))
        nothing = weights < NO_WEIGHT
        positive = weights.masked_fill(nothing, ALMOST_NONE)
        bounded = (self._factor(positive) * positive).clamp(self.floor, self.cap)
        bounded[nothing & (bounded < NO_WEIGHT)] = 0.0
        if not bool((nothing & (bounded > self.floor + ROUNDING)).any()):
            return bounded, ()
        count = int((~nothing).sum())
        some = "1 client" if count == 1 else f"{count} clients"
        return bounded, (
            f"bounds: weight of {some} alone cannot meet them: the others get the rest",
        )

    def _factor(self, weights: Tensor) -> float:
        """The t for which the clamped weights sum to 1: exact, on a line between two of its points."""

        def total(factor: float) -> float:
            return float((factor * weights).clamp(self.floor, self.cap).sum())

        # Where a client reaches a bound, the sum changes its slope
        points: list[float] = sorted(
            {*(self.floor / weights).tolist(), *(self.cap / weights).tolist()}
        )
        index = bisect_left(points, 1.0, key=total)
        if index in (0, len(points)):  # the sum is 1 at an end, but for rounding
            return points[min(index, len(points) - 1)]
        start, end = points[index - 1], points[index]
        return start + (end - start) * (1 - total(start)) / (total(end) - total(start))


def weigh(
    criteria: Mapping[str, Any],
    *,
    score: Score | Callable[..., Tensor],
    normalise: str | None = None,
) -> NDArray[numpy.float64]:
    """The weights of n clients from criteria that you measured.

    Args:
        criteria: a list, NumPy array or tensor [n] per criterion, finite and zero or more.
        score: how a client's criteria become one number: `cw.prioritized(...)`, `cw.mean()` ..., or a
            function with a parameter for each criterion, a tensor [n] of normalised values.
        normalise: "sum", "max" or "none". The default is the score's own: "none" for a product,
            "sum" for most others.

    Returns:
        The weights [n], which sum to 1.

    Raises:
        ValueError: the criteria differ in length, have a value that is negative or not finite, or do not
            fit the score; or all scores are zero, or one is negative or not finite.

    Example:
        >>> import clientwise as cw
        >>> criteria = {"size": [600, 600, 60], "accuracy": [0.9, 0.3, 0.9]}
        >>> score = cw.prioritized("accuracy", "size")
        >>> cw.weigh(criteria, score=score, normalise="max").round(3).tolist()
        [0.531, 0.177, 0.292]
    """
    if not criteria:
        raise ValueError("no criteria given")
    if inspect.isroutine(score):
        score = score_by(score)()
    if not isinstance(score, Score):
        raise TypeError(
            f"score must be one of cw.prioritized(...), cw.mean() ..., or a function, got {score!r}"
        )
    names = tuple(criteria)
    columns = {name: _column(name, values) for name, values in criteria.items()}
    for name, column in columns.items():
        if column.ndim != 1 or len(column) != len(columns[names[0]]):
            raise ValueError(
                f"{name!r} has shape {tuple(column.shape)}: every criterion needs one value per client"
            )
        if not bool((column.isfinite() & (column >= 0)).all()):
            raise ValueError(
                f"{name!r} has a value that is negative or not finite: {column.tolist()}"
            )
    score.check(names)
    normaliser = normalise or score.default_normaliser
    check_normaliser(score, normaliser)
    if any(option.required for option in NORMALISERS.options(normaliser)):
        raise ValueError(f"normalise = {normaliser!r} has options: divide by constants yourself")
    raw = torch.stack(list(columns.values()), dim=1)
    if len(raw) == 0:
        return numpy.zeros(0)
    scales = NORMALISERS.get(normaliser)(raw)
    scores = scores_of(score, names, divide(raw, scales), range(len(raw)))
    if not bool(scales.isfinite().all() & scores.sum().isfinite()):
        raise ValueError(
            "these values are too large to weigh: their scores overflow. Use larger units."
        )
    if not bool(scores.any()):
        zero = ", ".join(map(repr, zero_for_all(names, raw)))
        which = f". Criteria that are zero for all clients: {zero}" if zero else ""
        raise ValueError(f"the score is zero for all clients, so there are no weights{which}")
    return to_weights(scores).numpy()


def _column(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu().double()
    try:
        return torch.as_tensor(numpy.asarray(values, dtype=numpy.float64))
    except (TypeError, ValueError):
        raise ValueError(
            f"{name!r} must be a list, an array or a tensor with one number per client, got "
            f"{values!s:.80}"
        ) from None
