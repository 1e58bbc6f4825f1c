"""Score functions f: a client's m criteria become one number (P1 4.3).

A score is called with the criteria's names and a matrix [n, m] of their values, and returns n scores.

A score that is a sum of products of powers, Σ_t a_t Π_j c_j^e_tj, declares its `terms`. Then the sums
Σ_k Π_j r_jk^e_tj · model_k over the *raw* criteria r are enough to aggregate, because the cohort's scales
factor out. Models can be folded in as they arrive (`core/aggregation/sums.py`).
"""

from __future__ import annotations

import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...registry import Registry, suggest

Quantifier = Literal["any", "at_least_half", "most", "as_many_as_possible", "all"]
QUANTIFIERS = {  # Q rises from 0 to 1 between these shares of the criteria
    "any": (0.0, 1e-9),
    "at_least_half": (0.0, 0.5),
    "most": (0.3, 0.8),
    "as_many_as_possible": (0.5, 1.0),
    "all": (1 - 1e-9, 1.0),
}


@dataclass(frozen=True)
class Term:
    """One product of powers: coefficient · Π_j c_j^exponents[j]."""

    coefficient: float
    exponents: tuple[float, ...]  # [m]


class Score(ABC):
    """A score function. Its constructor takes the options; criteria are referred to by their labels."""

    default_normaliser = "sum"
    compares_clients = False  # whether a client's score depends on the other clients' criteria

    def check(self, names: Sequence[str]) -> None:  # noqa: B027  (most scores suit any criteria)
        """ValueError if the score does not fit criteria with these labels."""

    @property
    def is_own(self) -> bool:
        """Whether it is the user's: then what it returns is checked in every round."""
        return type(self).__module__ != Score.__module__

    @property
    def needs_units(self) -> bool:
        """Whether it has options in a criterion's own units, so that values must not be normalised."""
        return False

    @abstractmethod
    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """Scores [n] of normalised values [n, m], whose columns are `names`."""

    def order(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """The criteria from the most to the least important; None for a score without an order."""
        return None

    def with_order(self, order: Sequence[str] | None) -> Score:
        """The same score with another order of priority; itself if it has none."""
        return self

    def terms(self, names: Sequence[str]) -> tuple[Term, ...] | None:
        """The score as a sum of products of powers; None if it is not one."""
        return None

    def terms_of_all_orders(self, names: Sequence[str]) -> tuple[Term, ...] | None:
        """The terms of the score in all orders of priority; None if it is not such a sum."""
        return self.terms(names)

    def prepare(self, names: Sequence[str], raw: Tensor) -> Tensor:
        """The raw values [n, m] as the terms take them."""
        return raw


SCORES: Registry[Any] = Registry(
    "score", "scores", "Combination of a client's criteria into one number"
)


@SCORES.register("prioritized")
@dataclass(frozen=True)
class Prioritized(Score):
    """f(c) = Σ_i Π_{j≤i} c_(j), from the most to the least important (P1 Eq. 6, P2 Eq. 4); default: as listed.

    Args:
        priority: labels of all criteria, the most important first; None: the order in which they are listed.

    >>> alice, bob = [0.9, 0.2, 0.4], [0.1, 0.8, 0.5]  # P1 Example 4.2: dataset size, clothes diversity, sharpness
    >>> Prioritized()(["DS", "CD", "IS"], torch.tensor([alice, bob]))
    tensor([1.1520, 0.2200])
    """

    priority: Sequence[str] | None = None

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless the priority names every criterion once."""
        _require_same("priority", self.priority or names, names)

    def order(self, names: Sequence[str]) -> tuple[str, ...]:
        """The criteria from the most to the least important."""
        return tuple(self.priority or names)

    def with_order(self, order: Sequence[str] | None) -> Prioritized:
        """The same score with another order."""
        return replace(self, priority=tuple(order)) if order else self

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        columns = [list(names).index(name) for name in self.order(names)]
        return values[:, columns].cumprod(1).sum(1)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per prefix of the order."""
        order = self.order(names)
        prefixes = [set(order[:length]) for length in range(1, len(order) + 1)]
        return tuple(
            Term(1.0, tuple(float(name in prefix) for name in names)) for prefix in prefixes
        )

    def terms_of_all_orders(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per non-empty subset of the criteria: every prefix of every order is one."""
        exponents = itertools.product((0.0, 1.0), repeat=len(names))
        return tuple(Term(1.0, chosen) for chosen in exponents if any(chosen))


def prioritized(*priority: str) -> Prioritized:
    """The prioritized score with its order of priority: `prioritized("accuracy", "size")`.

    >>> prioritized("accuracy", "size")(["size", "accuracy"], torch.tensor([[0.5, 0.8]]))
    tensor([1.2000])
    """
    return Prioritized(priority or None)


class Linear(Score):
    """Σ_j a_j·c_j."""

    @abstractmethod
    def coefficients(self, names: Sequence[str]) -> list[float]:
        """a_j of every criterion."""

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        return values @ torch.tensor(self.coefficients(names), dtype=values.dtype)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per criterion."""
        unit = torch.eye(len(names)).tolist()
        return tuple(
            Term(value, tuple(row))
            for value, row in zip(self.coefficients(names), unit, strict=True)
        )


@SCORES.register("mean")
@dataclass(frozen=True)
class Mean(Linear):
    """The plain mean of the criteria (P1 Example 4.1).

    >>> Mean()(["a", "b"], torch.tensor([[0.2, 0.6]]))
    tensor([0.4000])
    """

    def coefficients(self, names: Sequence[str]) -> list[float]:
        """1/m."""
        return [1.0 / len(names)] * len(names)


@SCORES.register("weighted_mean")
@dataclass(frozen=True)
class WeightedMean(Linear):
    """Σ_j a_j·c_j with a weight a_j, zero or more, for every criterion.

    Args:
        weights: a_j by the criterion's label; they need not sum to 1.

    >>> WeightedMean({"a": 3.0, "b": 1.0})(["a", "b"], torch.tensor([[0.2, 0.6]]))
    tensor([1.2000])
    """

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        weights = self.weights.values()
        if not all(weight >= 0 for weight in weights) or not 0 < sum(weights) < math.inf:
            raise ValueError("weights must be zero or more, and not all zero")

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless there is one weight per criterion."""
        _require_same("weights", self.weights, names)

    def coefficients(self, names: Sequence[str]) -> list[float]:
        """The weights."""
        return [self.weights[name] for name in names]


@SCORES.register("owa")
@dataclass(frozen=True)
class Owa(Score):
    """Yager's ordered weighted average: weights on the *sorted* values, largest first, or from a `quantifier`.

    A quantifier Q gives w_i = Q(i/m) − Q((i−1)/m). "any" is the maximum, "all" the minimum. Source: Yager, 1988.

    Args:
        weights: one per position, zero or more, sum to 1; the first is for the largest value.
        quantifier: instead of weights.

    >>> Owa(quantifier="most").position_weights(3).float()  # Q rises from 0 at 30% to 1 at 80%
    tensor([0.0667, 0.6667, 0.2667])
    """

    weights: Sequence[float] | None = None
    quantifier: Quantifier | None = None

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.quantifier is None):
            raise ValueError("give either weights or a quantifier")
        if self.quantifier is not None and self.quantifier not in QUANTIFIERS:
            hint = suggest(self.quantifier, QUANTIFIERS)
            raise ValueError(f"unknown quantifier {self.quantifier!r}{hint}")
        if self.weights is None:
            return
        if any(weight < 0 for weight in self.weights) or not abs(sum(self.weights) - 1) < 1e-6:
            raise ValueError(f"weights must be zero or more and sum to 1, got {list(self.weights)}")

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless there is one weight per criterion."""
        if self.weights is not None and len(self.weights) != len(names):
            raise ValueError(f"weights has {len(self.weights)} values for {len(names)} criteria")

    def position_weights(self, num_criteria: int) -> Tensor:
        """Weights [m] of the largest value, of the second largest, and so on."""
        if self.weights is not None:
            return torch.tensor(self.weights, dtype=torch.float64)
        low, high = QUANTIFIERS[str(self.quantifier)]
        proportion = torch.linspace(0, 1, num_criteria + 1, dtype=torch.float64)
        return ((proportion - low) / (high - low)).clip(0, 1).diff()

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        largest_first = values.sort(dim=1, descending=True).values
        return largest_first @ self.position_weights(len(names)).to(values)


@SCORES.register("choquet")
@dataclass(frozen=True)
class Choquet(Score):
    """Choquet integral: criteria that support or repeat each other, by a capacity v(S) for every subset S.

    Args:
        capacity: v(S) of every subset, with keys such as "a", "b", "a+b"; 1 for all criteria together.

    >>> pair = Choquet({"a": 0.3, "b": 0.3, "a+b": 1.0})  # together they are worth more than apart
    >>> pair(["a", "b"], torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.3000, 0.5000])
    """

    capacity: Mapping[str, float]

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless the capacity is complete, v(all) = 1, and never smaller for a larger set."""
        if len(names) > 8:
            raise ValueError(
                f"choquet takes up to 8 criteria, got {len(names)}: a capacity has 2^m values"
            )
        values = self._values(names)
        if abs(values[-1] - 1) > 1e-6:
            raise ValueError(f"the capacity of all criteria together must be 1, got {values[-1]:g}")
        for subset, value in enumerate(values):
            for member in range(len(names)):
                larger = subset | 1 << member
                if values[larger] < value - 1e-9:
                    part = _joined(subset, names) or "nothing"
                    wrong = f"{_joined(larger, names)} has {values[larger]:g}, less than its part {part}"
                    raise ValueError(f"not a capacity: {wrong} with {value:g}")

    def _values(self, names: Sequence[str]) -> list[float]:
        """v(S) of all subsets. Bit j of a subset's number is set if it has criterion j."""
        given = {0: 0.0}
        for key, value in self.capacity.items():
            members = {part.strip() for part in key.split("+")}
            for member in members:
                _require_known(f"{key!r} names", member, names)
            subset = sum(1 << list(names).index(member) for member in members)
            if subset in given:
                raise ValueError(f"{_joined(subset, names)} is given twice")
            given[subset] = float(value)
        subsets = range(2 ** len(names))
        missing = [_joined(subset, names) for subset in subsets if subset not in given]
        if missing:
            raise ValueError(f"the capacity has no value for {', '.join(missing)}")
        return [given[subset] for subset in subsets]

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """Σ_i (c_(i) − c_(i+1))·v(the i criteria with the largest values), and c_(m+1) = 0."""
        largest_first, order = values.sort(dim=1, descending=True)
        steps = largest_first - pad(largest_first[:, 1:], (0, 1))
        subsets = (2**order).cumsum(1)
        capacity = torch.tensor(self._values(names)).to(values)
        return (steps * capacity[subsets]).sum(1)


@SCORES.register("product")
@dataclass(frozen=True)
class Product(Score):
    """Π_j max(0, c_j − threshold_j)^power_j (P3): accuracy², accuracy × size, accuracy above 55%; powers default to 1.

    Thresholds are in the criteria's own units and need `normalise = "none"`, the default here. Without
    thresholds, the weights do not depend on the normaliser. If scores would overflow, every criterion is
    divided by its largest value first, which does not change the weights.

    Args:
        powers: by the criterion's label, zero or more.
        thresholds: by the criterion's label; 0 if left out.

    >>> Product(powers={"accuracy": 2.0})(["accuracy", "size"], torch.tensor([[0.5, 8.0]]))
    tensor([2.])
    """

    powers: Mapping[str, float] | None = None
    thresholds: Mapping[str, float] | None = None

    default_normaliser = "none"

    def __post_init__(self) -> None:
        if not all(0 <= power < math.inf for power in (self.powers or {}).values()):
            raise ValueError(
                "powers must be zero or more: a score grows with its criteria (P1 Eq. 7)"
            )

    def check(self, names: Sequence[str]) -> None:
        """ValueError if powers or thresholds name a criterion that the method lacks."""
        for option, given in (("powers", self.powers), ("thresholds", self.thresholds)):
            for name in given or {}:
                _require_known(f"{option} names", name, names)

    @property
    def needs_units(self) -> bool:
        """Thresholds are in the criteria's own units."""
        return bool(self.thresholds)

    def prepare(self, names: Sequence[str], raw: Tensor) -> Tensor:
        """What exceeds the thresholds."""
        if not self.thresholds:
            return raw
        thresholds = [self.thresholds.get(name, 0.0) for name in names]
        return (raw - torch.tensor(thresholds, dtype=raw.dtype)).clip(min=0)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        values = self.prepare(names, values)
        exponents = torch.tensor(self._exponents(names), dtype=values.dtype)
        scores = values.pow(exponents).prod(1)
        if math.isfinite(scores.sum()):
            return scores
        largest = values.amax(0)
        return (values / torch.where(largest > 0, largest, 1.0)).pow(exponents).prod(1)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """The product is a single term."""
        return (Term(1.0, self._exponents(names)),)

    def _exponents(self, names: Sequence[str]) -> tuple[float, ...]:
        powers = self.powers or {}
        return tuple(powers.get(name, 1.0) for name in names)


def _joined(subset: int, names: Sequence[str]) -> str:
    return "+".join(sorted(name for bit, name in enumerate(names) if subset >> bit & 1))


def _require_known(reads: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        hint = suggest(name, names)
        raise ValueError(f"{reads} {name!r}, which is not among the criteria{hint}")


def _require_same(
    option: str, given: Sequence[str] | Mapping[str, Any], names: Sequence[str]
) -> None:
    listed = list(given)
    for name in listed:
        _require_known(f"{option} names", name, names)
        if listed.count(name) > 1:
            raise ValueError(f"{option} names {name!r} twice")
    missing = [name for name in names if name not in listed]
    if missing:
        raise ValueError(f"{option} leaves out {', '.join(missing)}")


def score_by(function: Callable[..., Any]) -> type[FunctionScore]:
    """A class of scores that call this function.

    Example:
        >>> def weaker(size, accuracy):
        ...     return torch.minimum(size, accuracy)
        >>> score_by(weaker)()(("size", "accuracy"), torch.tensor([[2.0, 9.0], [8.0, 1.0]])).tolist()
        [2.0, 1.0]
    """
    name = function.__name__
    members = {"function": staticmethod(function), "__doc__": inspect.getdoc(function) or name}
    return type(name, (FunctionScore,), members)


class FunctionScore(Score):
    """A score by a plain function: of (names, values [n, m]), or of criteria by their labels, each [n]."""

    compares_clients = True  # it may
    is_own = True
    function: ClassVar[Callable[..., Any]]

    def check(self, names: Sequence[str]) -> None:
        """ValueError if the function does not take these criteria, or does not return a score per client."""
        name = type(self).__name__
        asked = self._arguments()
        if asked != ("names", "values") and {*asked} != {*names}:
            raise ValueError(
                f"{name}({', '.join(asked)}): the criteria are {', '.join(names)}. Its arguments must "
                "be these, or `names` and `values`"
            )
        try:
            found: object = self(names, torch.ones(2, len(names), dtype=torch.float64))
        except Exception as error:  # a user's own function may raise anything
            raise ValueError(f"{name} failed: {type(error).__name__}: {error}") from None
        if not isinstance(found, Tensor) or found.shape != (2,):
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"{name} must return a tensor with one score per client, returned {given} for 2"
            )

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        function = type(self).function
        if self._arguments() == ("names", "values"):
            scores: Tensor = function(names, values)
        else:
            scores = function(**dict(zip(names, values.unbind(1), strict=True)))
        return scores

    def _arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(type(self).function).parameters)
