"""Score functions f: a client's m criteria become one number (P1 4.3).

A score is called with the criteria's names and a matrix [n, m] of their values, and returns n scores.

Scores that are a sum of products of powers, Σ_t a_t Π_j c_j^e_tj, say so with `terms`. Then the sums
Σ_k Π_j r_jk^e_tj · model_k over the *raw* criteria r are enough to aggregate, since dividing by the cohort's scales
comes out of the sum: models can be folded in as they arrive and forgotten (`aggregate.py`).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..registry import NonNegativeFloat, OpenShare, Registry, Share, suggest

Quantifier = Literal["any", "at_least_half", "most", "as_many_as_possible", "all"]


@dataclass(frozen=True)
class Term:
    """One product of powers: coefficient · Π_j c_j^exponents[j]."""

    coefficient: float
    exponents: tuple[float, ...]  # [m]


class Score(ABC):
    """A score function. Constructors only store and check; criteria are known by name."""

    default_normaliser = "sum"

    def check(self, names: Sequence[str]) -> None:  # noqa: B027  (most scores suit any criteria)
        """Raise ValueError where this score does not fit these criteria."""

    @property
    def needs_units(self) -> bool:
        """Whether it compares values with numbers in the criterion's own units, so that they must stay as measured."""
        return False

    @abstractmethod
    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """Scores [n] of values [n, m], whose columns are `names`."""

    def order(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """The criteria from the most to the least important; None for a score that knows no order."""
        return None

    def with_order(self, order: Sequence[str] | None) -> Score:
        """The same score with another order of priority; itself where it knows none."""
        return self

    def terms(self, names: Sequence[str]) -> tuple[Term, ...] | None:
        """The score as a sum of products of powers; None where it is not one."""
        return None

    def terms_of_all_orders(self, names: Sequence[str]) -> tuple[Term, ...] | None:
        """The terms of the score in every order of priority; None where it is no sum of such."""
        return self.terms(names)

    def prepare(self, names: Sequence[str], raw: Tensor) -> Tensor:
        """What is done to the raw values [n, m] before the terms apply."""
        return raw


SCORES: Registry[Any] = Registry("score", "scores", "How a client's criteria become one number")


@SCORES.register("prioritized")
@dataclass(frozen=True)
class Prioritized(Score):
    """f(c) = Σ_i Π_{j≤i} c_(j), from the most to the least important (P1 Eq. 6, P2 Eq. 4); default: as listed.

    >>> alice, bob = [0.9, 0.2, 0.4], [0.1, 0.8, 0.5]  # P1 Example 4.2: dataset size, clothes diversity, sharpness
    >>> Prioritized()(["DS", "CD", "IS"], torch.tensor([alice, bob]))
    tensor([1.1520, 0.2200])
    """

    priority: Sequence[str] | None = None

    def check(self, names: Sequence[str]) -> None:
        """The priority must name every criterion once."""
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
        return tuple(Term(1.0, tuple(float(name in prefix) for name in names)) for prefix in prefixes)

    def terms_of_all_orders(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per non-empty subset of the criteria: every prefix of every order is one."""
        exponents = itertools.product((0.0, 1.0), repeat=len(names))
        return tuple(Term(1.0, chosen) for chosen in exponents if any(chosen))


def prioritized(*priority: str) -> Prioritized:
    """The prioritized score with its order written out: `prioritized("accuracy", "size")`."""
    return Prioritized(priority or None)


@SCORES.register("mean")
@dataclass(frozen=True)
class Mean(Score):
    """The plain mean of the criteria (P1 Example 4.1)."""

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        return values.mean(1)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per criterion."""
        return _linear_terms([1.0 / len(names)] * len(names))


@SCORES.register("weighted_mean")
@dataclass(frozen=True)
class WeightedMean(Score):
    """Σ_j a_j·c_j with a weight a_j, zero or more, for every criterion."""

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if not (all(weight >= 0 for weight in self.weights.values()) and 0 < sum(self.weights.values()) < torch.inf):
            raise ValueError("weights must be zero or more, and not all zero")

    def check(self, names: Sequence[str]) -> None:
        """There must be one weight per criterion."""
        _require_same("weights", self.weights, names)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        return values @ torch.tensor([self.weights[name] for name in names], dtype=values.dtype)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per criterion."""
        return _linear_terms([self.weights[name] for name in names])


@SCORES.register("owa")
@dataclass(frozen=True)
class Owa(Score):
    """Yager's ordered weighted average: weights on the *sorted* values, largest first, or from a `quantifier`.

    The quantifier Q gives w_i = Q(i/m) − Q((i−1)/m). "any" is the maximum, "all" the minimum.

    >>> Owa(quantifier="most").position_weights(3).float()  # Q rises from 0 at 30% to 1 at 80%
    tensor([0.0667, 0.6667, 0.2667])
    """

    weights: Sequence[float] | None = None
    quantifier: Quantifier | None = None

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.quantifier is None):
            raise ValueError("give either weights or a quantifier")
        if self.quantifier is not None and self.quantifier not in get_args(Quantifier):
            raise ValueError(f"unknown quantifier {self.quantifier!r}{suggest(self.quantifier, get_args(Quantifier))}")
        if self.weights is not None and not (all(w >= 0 for w in self.weights) and abs(sum(self.weights) - 1) < 1e-6):
            raise ValueError(f"weights must be zero or more and sum to 1, got {list(self.weights)}")

    def check(self, names: Sequence[str]) -> None:
        """There must be one weight per place."""
        if self.weights is not None and len(self.weights) != len(names):
            raise ValueError(f"weights has {len(self.weights)} values for {len(names)} criteria")

    def position_weights(self, num_criteria: int) -> Tensor:
        """The weight of the largest value, of the second largest, and so on."""
        if self.weights is not None:
            return torch.tensor(self.weights, dtype=torch.float64)
        if self.quantifier in ("any", "all"):
            place = 0 if self.quantifier == "any" else num_criteria - 1
            return torch.eye(num_criteria, dtype=torch.float64)[place]
        low, high = {"at_least_half": (0.0, 0.5), "most": (0.3, 0.8), "as_many_as_possible": (0.5, 1.0)}[
            str(self.quantifier)
        ]
        proportion = torch.linspace(0, 1, num_criteria + 1, dtype=torch.float64)
        return ((proportion - low) / (high - low)).clamp(0, 1).diff()

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        return values.sort(1, descending=True).values @ self.position_weights(len(names)).to(values.dtype)


@SCORES.register("choquet")
@dataclass(frozen=True)
class Choquet(Score):
    """Choquet integral: criteria that support or repeat each other, by a capacity v(S) for every subset S.

    Either `capacity` gives v of every subset ("a", "b", "a+b"; all criteria together 1), or `importances` (Shapley
    values that sum to 1) and `interactions` ("a+b", between −1 and 1) give a 2-additive one.

    >>> pair = Choquet({"a": 0.3, "b": 0.3, "a+b": 1.0})  # together they are worth more than apart
    >>> pair(["a", "b"], torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.3000, 0.5000])
    """

    capacity: Mapping[str, float] | None = None
    importances: Mapping[str, float] | None = None
    interactions: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if (self.capacity is None) == (self.importances is None):
            raise ValueError("give either a capacity or importances")
        if self.capacity is not None and self.interactions is not None:
            raise ValueError("interactions go with importances, not with a capacity")

    def check(self, names: Sequence[str]) -> None:
        """The capacity must be one: complete, v(all) = 1, and never smaller for a larger set."""
        if len(names) > 8:
            raise ValueError(f"choquet takes up to 8 criteria, got {len(names)}: a capacity has 2^m values")
        values = self.capacities(names)
        everything = frozenset(names)
        if abs(values[everything] - 1) > 1e-6:
            raise ValueError(f"the capacity of all criteria together must be 1, got {values[everything]:g}")
        for subset in sorted(values, key=lambda members: (len(members), sorted(members))):
            for name in sorted(everything - subset):
                larger = subset | {name}
                if values[larger] < values[subset] - 1e-9:
                    raise ValueError(
                        f"not a capacity: {_joined(larger)} has {values[larger]:g}, less than its part "
                        f"{_joined(subset) or 'nothing'} with {values[subset]:g}"
                    )

    def capacities(self, names: Sequence[str]) -> dict[frozenset[str], float]:
        """v(S) of every subset of the criteria."""
        if self.capacity is not None:
            given = {_subset(key, names): float(value) for key, value in self.capacity.items()} | {frozenset(): 0.0}
            if len(given) <= len(self.capacity):
                raise ValueError("the capacity gives one set of criteria twice")
            missing = [subset for subset in _subsets(names) if subset not in given]
            if missing:
                raise ValueError(f"the capacity has no value for {', '.join(map(_joined, missing))}")
            return given
        mobius = self._two_additive_mobius(names)
        return {
            subset: sum(value for part, value in mobius.items() if part <= subset)
            for subset in [frozenset[str](), *_subsets(names)]
        }

    def _two_additive_mobius(self, names: Sequence[str]) -> dict[frozenset[str], float]:
        importances = self.importances or {}
        _require_same("importances", importances, names)
        pairs = {_subset(key, names): float(value) for key, value in (self.interactions or {}).items()}
        for pair in pairs:
            if len(pair) != 2:
                raise ValueError(f"interactions are between two criteria, got {_joined(pair)!r}")
        singles = {
            frozenset({name}): importances[name] - sum(value for pair, value in pairs.items() if name in pair) / 2
            for name in names
        }
        return singles | pairs

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """Σ_S m(S)·min_{j∈S} c_j, with m the Möbius transform of the capacity: the same integral without sorting."""
        capacities = self.capacities(names)
        result = torch.zeros(len(values), dtype=values.dtype)
        for subset in _subsets(names):
            mobius = sum(
                (-1) ** (len(subset) - size) * capacities[frozenset(part)]
                for size in range(len(subset) + 1)
                for part in itertools.combinations(sorted(subset), size)
            )
            columns = [index for index, name in enumerate(names) if name in subset]
            result += mobius * values[:, columns].min(1).values
        return result


@SCORES.register("product")
@dataclass(frozen=True)
class Product(Score):
    """Π_j max(0, c_j − threshold_j)^power_j (P3): accuracy², accuracy × size, accuracy above 55%; powers default to 1.

    A threshold is in the criterion's own units, so it goes with `normalise = "none"`, the default here. A product's
    weights are the same under every other normalising. Where powers are so large that the scores would overflow,
    every criterion is first divided by its largest value, which does not change the weights either.
    """

    powers: Mapping[str, float] | None = None
    thresholds: Mapping[str, float] | None = None

    default_normaliser = "none"

    def __post_init__(self) -> None:
        if not all(0 <= power < torch.inf for power in (self.powers or {}).values()):
            raise ValueError("powers must be zero or more: a score grows with its criteria (P1 Eq. 7)")

    def check(self, names: Sequence[str]) -> None:
        """Powers and thresholds must be of criteria that are there."""
        for option, given in (("powers", self.powers), ("thresholds", self.thresholds)):
            for name in given or {}:
                if name not in names:
                    raise ValueError(f"{option} names {name!r}, which is not among the criteria{suggest(name, names)}")

    @property
    def needs_units(self) -> bool:
        """A threshold means nothing once the values are normalised."""
        return bool(self.thresholds)

    def prepare(self, names: Sequence[str], raw: Tensor) -> Tensor:
        """Only what lies above the threshold counts."""
        if not self.thresholds:
            return raw
        thresholds = [self.thresholds.get(name, 0.0) for name in names]
        return (raw - torch.tensor(thresholds, dtype=raw.dtype)).clamp(min=0)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        values, exponents = self.prepare(names, values), torch.tensor(self._exponents(names), dtype=values.dtype)
        scores = values.pow(exponents).prod(1)
        if bool(scores.sum().isfinite()):
            return scores
        largest = values.amax(0)
        return (values / torch.where(largest > 0, largest, 1.0)).pow(exponents).prod(1)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """The product is a single term."""
        return (Term(1.0, self._exponents(names)),)

    def _exponents(self, names: Sequence[str]) -> tuple[float, ...]:
        return tuple((self.powers or {}).get(name, 1.0) for name in names)


@SCORES.register("disco")
@dataclass(frozen=True)
class Disco(Score):
    """max(0, n − a·d + b): a client's share n of the cohort's samples, less its label discrepancy d (Ye et al., 2023).

    d = 1 − closeness, in its own units, so it goes with `normalise = "none"`, the default here.

    >>> Disco(a=0.5, b=0.1)(["dataset_size", "label_closeness"], torch.tensor([[30.0, 0.8], [10.0, 0.1]]))
    tensor([0.7500, 0.0000])
    """

    a: NonNegativeFloat = 0.5
    b: NonNegativeFloat = 0.1
    size: str = "dataset_size"
    closeness: str = "label_closeness"

    default_normaliser = "none"
    needs_units = True

    def check(self, names: Sequence[str]) -> None:
        """Both criteria must be there."""
        _require_some((self.size, self.closeness), names)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        size, closeness = (values[:, list(names).index(name)] for name in (self.size, self.closeness))
        share = size / size.sum().clamp(min=1e-300)
        return (share - self.a * (1 - closeness) + self.b).clamp(min=0)


@SCORES.register("iowa")
@dataclass(frozen=True)
class Iowa(Score):
    """Induced OWA over the *clients*: the criterion `by` orders them, weights belong to places (Yager, 1999).

    w_i = Q(S_i) − Q(S_(i−1)), with S_i the share of the best i clients: each counts one, or the product of its other
    criteria. Q rises to `most` over the best clients up to the share `best`, then to 1 at the share `end`: who comes
    after that has no weight (Rodríguez-Barroso et al., 2022). Clients that are equal by `by` share their places.

    >>> Iowa(by="accuracy", best=0.25, most=0.4, end=0.75)(["accuracy"], torch.tensor([[0.9], [0.1], [0.7], [0.8]]))
    tensor([0.4000, 0.0000, 0.3000, 0.3000])
    """

    by: str
    best: OpenShare = 0.2
    most: Share = 0.4
    end: OpenShare = 0.8

    def __post_init__(self) -> None:
        if not self.best < self.end:
            raise ValueError(f"best must be below end, got {self.best:g} and {self.end:g}")
        if self.most / self.best < (1 - self.most) / (self.end - self.best):
            raise ValueError("most is so small that better clients would weigh less: raise it, or lower best")

    def check(self, names: Sequence[str]) -> None:
        """The criterion that orders must be there."""
        _require_some((self.by,), names)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        column = list(names).index(self.by)
        others = [place for place in range(len(names)) if place != column]
        counts = values[:, others].prod(1)
        counts = counts / counts.sum().clamp(min=1e-300)
        _, group = torch.unique(values[:, column], return_inverse=True)  # groups of equals, the best last
        sizes = torch.zeros(int(group.max()) + 1, dtype=values.dtype).index_add_(0, group, counts).flip(0)
        gains = self._quantifier(sizes.cumsum(0)).diff(prepend=torch.zeros(1, dtype=values.dtype))
        per_count = torch.where(sizes > 0, gains / sizes, 0.0).flip(0)
        return counts * per_count[group]

    def _quantifier(self, share: Tensor) -> Tensor:
        first = share / self.best * self.most
        second = self.most + (share - self.best) / (self.end - self.best) * (1 - self.most)
        return torch.where(share < self.best, first, second.clamp(max=1))


def _linear_terms(coefficients: Sequence[float]) -> tuple[Term, ...]:
    count = len(coefficients)
    return tuple(
        Term(value, tuple(float(column == index) for column in range(count)))
        for index, value in enumerate(coefficients)
    )


def _subsets(names: Sequence[str]) -> list[frozenset[str]]:
    return [frozenset(chosen) for size in range(1, len(names) + 1) for chosen in itertools.combinations(names, size)]


def _subset(key: str, names: Sequence[str]) -> frozenset[str]:
    members = frozenset(part.strip() for part in key.split("+"))
    for member in members:
        if member not in names:
            raise ValueError(f"{key!r} names {member!r}, which is not among the criteria{suggest(member, names)}")
    return members


def _joined(subset: frozenset[str]) -> str:
    return "+".join(sorted(subset))


def _require_some(wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise ValueError(f"it reads {name!r}, which is not among the criteria{suggest(name, names)}")


def _require_same(option: str, given: Sequence[str] | Mapping[str, Any], names: Sequence[str]) -> None:
    listed = list(given)
    for name in listed:
        if name not in names:
            raise ValueError(f"{option} names {name!r}, which is not among the criteria{suggest(name, names)}")
        if listed.count(name) > 1:
            raise ValueError(f"{option} names {name!r} twice")
    missing = [name for name in names if name not in listed]
    if missing:
        raise ValueError(f"{option} leaves out {', '.join(missing)}")
