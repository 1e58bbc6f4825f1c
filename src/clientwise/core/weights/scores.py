"""Score functions f: a client's m criteria become one number (P1 4.3).

A score is called with the criteria's names and a matrix [n, m] of their values, and returns n scores.

A score that is a sum of products of powers, Σ_t a_t Π_j c_j^e_tj, declares its `terms`. Then the sums
Σ_k Π_j r_jk^e_tj · model_k over the *raw* criteria r are enough to aggregate, because the cohort's scales
factor out. Models can be folded in as they arrive (`core/aggregation/sums.py`).

The scores of this library take NumPy arrays as well as tensors, so that a report imports no PyTorch.
"""

from __future__ import annotations

import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy
import torch
from torch import Tensor

from ...registry import NonNegativeFloat, OpenShare, Registry, Share, suggest

Quantifier = Literal["any", "at_least_half", "most", "as_many_as_possible", "all"]
QUANTIFIERS = {  # Q rises from 0 to 1 between these shares of the criteria
    "at_least_half": (0.0, 0.5),
    "most": (0.3, 0.8),
    "as_many_as_possible": (0.5, 1.0),
}


def library_of(values: object) -> Any:
    """NumPy for its arrays, else PyTorch. Both have the functions that are used here, by the same names."""
    if isinstance(values, numpy.ndarray):
        return numpy
    import torch

    return torch


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


class Equal(Score):
    """1 for every client, where its criteria count otherwise."""

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        ones: Tensor = library_of(values).ones(len(values), dtype=values.dtype)
        return ones

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """A constant."""
        return (Term(1.0, (0.0,) * len(names)),)


SCORES: Registry[Any] = Registry(
    "score", "scores", "Combination of a client's criteria into one number"
)


@SCORES.register("prioritized")
@dataclass(frozen=True)
class Prioritized(Score):
    """f(c) = Σ_i Π_{j≤i} c_(j), from the most to the least important (P1 Eq. 6, P2 Eq. 4); default: as listed.

    Args:
        priority: labels of all criteria, the most important first; None: the order in which they are listed.

    >>> import torch
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

    >>> import torch
    >>> prioritized("accuracy", "size")(["size", "accuracy"], torch.tensor([[0.5, 0.8]]))
    tensor([1.2000])
    """
    return Prioritized(priority or None)


@SCORES.register("mean")
@dataclass(frozen=True)
class Mean(Score):
    """The plain mean of the criteria (P1 Example 4.1).

    >>> import torch
    >>> Mean()(["a", "b"], torch.tensor([[0.2, 0.6]]))
    tensor([0.4000])
    """

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        return values.mean(1)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per criterion."""
        return _linear_terms([1.0 / len(names)] * len(names))


@SCORES.register("weighted_mean")
@dataclass(frozen=True)
class WeightedMean(Score):
    """Σ_j a_j·c_j with a weight a_j, zero or more, for every criterion.

    Args:
        weights: a_j by the criterion's label; they need not sum to 1.

    >>> import torch
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

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        listed = [self.weights[name] for name in names]
        weights: Tensor = library_of(values).asarray(listed, dtype=values.dtype)
        return values @ weights

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """One term per criterion."""
        return _linear_terms([self.weights[name] for name in names])


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
        if self.quantifier is not None and self.quantifier not in get_args(Quantifier):
            raise ValueError(
                f"unknown quantifier {self.quantifier!r}{suggest(self.quantifier, get_args(Quantifier))}"
            )
        if self.weights is None:
            return
        if any(weight < 0 for weight in self.weights) or not abs(sum(self.weights) - 1) < 1e-6:
            raise ValueError(f"weights must be zero or more and sum to 1, got {list(self.weights)}")

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless there is one weight per criterion."""
        if self.weights is not None and len(self.weights) != len(names):
            raise ValueError(f"weights has {len(self.weights)} values for {len(names)} criteria")

    def position_weights(self, num_criteria: int, values: object = None) -> Tensor:
        """Weights [m] of the largest value, of the second largest, and so on; an array for an array."""
        library = library_of(values)
        weights: Tensor
        if self.weights is not None:
            weights = library.asarray(self.weights, dtype=library.float64)
        elif self.quantifier == "any":
            weights = library.eye(num_criteria, dtype=library.float64)[0]
        elif self.quantifier == "all":
            weights = library.eye(num_criteria, dtype=library.float64)[-1]
        else:
            low, high = QUANTIFIERS[str(self.quantifier)]
            proportion = library.linspace(0, 1, num_criteria + 1, dtype=library.float64)
            weights = library.diff(((proportion - low) / (high - low)).clip(0, 1))
        return weights

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        library = library_of(values)
        row = library.arange(len(values))[:, None]
        largest_first = values[row, library.argsort(-values, 1)]
        by_position = self.position_weights(len(names), values)
        weights: Tensor = library.asarray(by_position, dtype=values.dtype)
        return largest_first @ weights


@SCORES.register("choquet")
@dataclass(frozen=True)
class Choquet(Score):
    """Choquet integral: criteria that support or repeat each other, by a capacity v(S) for every subset S.

    Give either a `capacity`, or `importances` and `interactions` of a 2-additive one (Grabisch, 1997).

    Args:
        capacity: v(S) of every subset, with keys such as "a", "b", "a+b"; 1 for all criteria together.
        importances: Shapley value of every criterion; they sum to 1.
        interactions: of pairs, with keys such as "a+b", between −1 and 1; 0 for pairs left out.

    >>> import torch
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
        """ValueError unless the capacity is complete, v(all) = 1, and never smaller for a larger set."""
        if len(names) > 8:
            raise ValueError(
                f"choquet takes up to 8 criteria, got {len(names)}: a capacity has 2^m values"
            )
        values = self.capacities(names)
        everything = frozenset(names)
        if abs(values[everything] - 1) > 1e-6:
            raise ValueError(
                f"the capacity of all criteria together must be 1, got {values[everything]:g}"
            )
        for subset in sorted(values, key=lambda members: (len(members), sorted(members))):
            for name in sorted(everything - subset):
                larger = subset | {name}
                if values[larger] < values[subset] - 1e-9:
                    part = _joined(subset) or "nothing"
                    wrong = f"{_joined(larger)} has {values[larger]:g}, less than its part {part}"
                    raise ValueError(f"not a capacity: {wrong} with {values[subset]:g}")

    def capacities(self, names: Sequence[str]) -> dict[frozenset[str], float]:
        """v(S) of every subset of the criteria."""
        if self.capacity is not None:
            return _given_capacities(self.capacity, names)
        mobius = self._two_additive_mobius(names)
        capacities = {frozenset[str](): 0.0}
        for subset in _subsets(names):
            capacities[subset] = sum(value for part, value in mobius.items() if part <= subset)
        return capacities

    def _two_additive_mobius(self, names: Sequence[str]) -> dict[frozenset[str], float]:
        """m(S) of single criteria and of pairs, from importances and interactions."""
        importances = self.importances or {}
        _require_same("importances", importances, names)
        interactions = self.interactions or {}
        pairs = {_subset(key, names): float(value) for key, value in interactions.items()}
        for pair in pairs:
            if len(pair) != 2:
                raise ValueError(f"interactions are between two criteria, got {_joined(pair)!r}")
        singles = {}
        for name in names:
            interacting = sum(value for pair, value in pairs.items() if name in pair)
            singles[frozenset({name})] = importances[name] - interacting / 2
        return singles | pairs

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """Σ_S m(S)·min_{j∈S} c_j, with m the Möbius transform of the capacity; equals the sorted form."""
        capacities = self.capacities(names)
        library = library_of(values)
        result: Tensor = library.zeros(len(values), dtype=values.dtype)
        for subset in _subsets(names):
            mobius = _mobius(subset, capacities)
            columns = [index for index, name in enumerate(names) if name in subset]
            result += mobius * library.amin(values[:, columns], 1)
        return result


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

    >>> import torch
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
                _require_known(option, name, names)

    @property
    def needs_units(self) -> bool:
        """Thresholds are in the criteria's own units."""
        return bool(self.thresholds)

    def prepare(self, names: Sequence[str], raw: Tensor) -> Tensor:
        """What exceeds the thresholds."""
        if not self.thresholds:
            return raw
        thresholds = [self.thresholds.get(name, 0.0) for name in names]
        least: Tensor = library_of(raw).asarray(thresholds, dtype=raw.dtype)
        return (raw - least).clip(min=0)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        library = library_of(values)
        values = self.prepare(names, values)
        exponents: Tensor = library.asarray(self._exponents(names), dtype=values.dtype)
        scores = (values**exponents).prod(1)
        if math.isfinite(scores.sum()):
            return scores
        largest = library.amax(values, 0)
        relative: Tensor = values / library.where(largest > 0, largest, 1.0)
        return (relative**exponents).prod(1)

    def terms(self, names: Sequence[str]) -> tuple[Term, ...]:
        """The product is a single term."""
        return (Term(1.0, self._exponents(names)),)

    def _exponents(self, names: Sequence[str]) -> tuple[float, ...]:
        powers = self.powers or {}
        return tuple(powers.get(name, 1.0) for name in names)


@SCORES.register("disco")
@dataclass(frozen=True)
class Disco(Score):
    """max(0, n − a·d + b): a client's share n of the cohort's samples, less its label discrepancy d (Ye et al., 2023).

    d = 1 − closeness is in its own units, which needs `normalise = "none"`, the default here (FedDisco).

    Args:
        a: weight of the discrepancy.
        b: what every client gets.
        size: label of the criterion with the number of samples.
        closeness: label of the criterion `label_closeness`.

    >>> import torch
    >>> Disco(a=0.5, b=0.1)(["dataset_size", "label_closeness"], torch.tensor([[30.0, 0.8], [10.0, 0.1]]))
    tensor([0.7500, 0.0000])
    """

    a: NonNegativeFloat = 0.5
    b: NonNegativeFloat = 0.1
    size: str = "dataset_size"
    closeness: str = "label_closeness"

    default_normaliser = "none"
    needs_units = True
    compares_clients = True

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless the method has both criteria."""
        _require_some((self.size, self.closeness), names)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        size, closeness = (
            values[:, list(names).index(name)] for name in (self.size, self.closeness)
        )
        share = size / size.sum().clip(min=1e-300)
        return (share - self.a * (1 - closeness) + self.b).clip(min=0)


@SCORES.register("iowa")
@dataclass(frozen=True)
class Iowa(Score):
    """Induced OWA over the *clients*: the criterion `by` orders them, weights belong to ranks (Yager, 1999).

    w_i = Q(S_i) − Q(S_(i−1)), with S_i the share of the best i clients. A client counts 1, or the product
    of its other criteria. Q rises linearly to `most` at the share `best`, then to 1 at the share `end`. The
    clients after that have weight 0 (Rodríguez-Barroso et al., 2022). Clients that tie get equal weights.

    Args:
        by: label of the criterion that orders the clients.
        best: share of the best clients.
        most: their part of the whole weight.
        end: share of the clients that have any weight.

    >>> import torch
    >>> Iowa(by="accuracy", best=0.25, most=0.4, end=0.75)(["accuracy"], torch.tensor([[0.9], [0.1], [0.7], [0.8]]))
    tensor([0.4000, 0.0000, 0.3000, 0.3000])
    """

    by: str
    best: OpenShare = 0.2
    most: Share = 0.4
    end: OpenShare = 0.8

    compares_clients = True

    def __post_init__(self) -> None:
        if not self.best < self.end:
            raise ValueError(f"best must be below end, got {self.best:g} and {self.end:g}")
        if self.most / self.best < (1 - self.most) / (self.end - self.best):
            raise ValueError(
                f"most = {self.most:g} is too small: better clients would weigh less. Raise it or lower best."
            )

    def check(self, names: Sequence[str]) -> None:
        """ValueError unless the method has the criterion `by`."""
        _require_some((self.by,), names)

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        column = list(names).index(self.by)
        others = [index for index in range(len(names)) if index != column]
        counts = values[:, others].prod(1)
        counts = counts / counts.sum().clip(min=1e-300)
        # Clients that tie; the best last
        library = library_of(values)
        _, group = library.unique(values[:, column], return_inverse=True)
        sizes = library.flip(library.bincount(group, counts), (0,))
        before = library.zeros(1, dtype=values.dtype)
        gains = library.diff(self._quantifier(sizes.cumsum(0)), prepend=before)
        per_count: Tensor = library.flip(library.where(sizes > 0, gains / sizes, 0.0), (0,))
        return counts * per_count[group]

    def _quantifier(self, share: Tensor) -> Tensor:
        first = share / self.best * self.most
        second = self.most + (share - self.best) / (self.end - self.best) * (1 - self.most)
        found: Tensor = library_of(share).where(share < self.best, first, second.clip(max=1))
        return found


def _linear_terms(coefficients: Sequence[float]) -> tuple[Term, ...]:
    """The terms of Σ_j a_j·c_j."""
    terms = []
    for index, value in enumerate(coefficients):
        exponents = [0.0] * len(coefficients)
        exponents[index] = 1.0
        terms.append(Term(value, tuple(exponents)))
    return tuple(terms)


def _subsets(names: Sequence[str]) -> list[frozenset[str]]:
    """All non-empty subsets, the smallest first."""
    subsets: list[frozenset[str]] = []
    for size in range(1, len(names) + 1):
        subsets += map(frozenset, itertools.combinations(names, size))
    return subsets


def _given_capacities(
    capacity: Mapping[str, float], names: Sequence[str]
) -> dict[frozenset[str], float]:
    """v(S) of every subset, from keys such as "a+b"."""
    given = {_subset(key, names): float(value) for key, value in capacity.items()}
    if len(given) < len(capacity):
        raise ValueError("the capacity gives one set of criteria twice")
    missing = [subset for subset in _subsets(names) if subset not in given]
    if missing:
        raise ValueError(f"the capacity has no value for {', '.join(map(_joined, missing))}")
    given[frozenset()] = 0.0
    return given


def _mobius(subset: frozenset[str], capacities: Mapping[frozenset[str], float]) -> float:
    """m(S) = Σ_{T⊆S} (−1)^|S∖T| v(T)."""
    total = 0.0
    for size in range(len(subset) + 1):
        sign = (-1) ** (len(subset) - size)
        for part in itertools.combinations(sorted(subset), size):
            total += sign * capacities[frozenset(part)]
    return total


def _subset(key: str, names: Sequence[str]) -> frozenset[str]:
    """The criteria of a key such as "a+b"."""
    members = frozenset(part.strip() for part in key.split("+"))
    for member in members:
        _require_known(repr(key), member, names)
    return members


def _joined(subset: frozenset[str]) -> str:
    return "+".join(sorted(subset))


def _require_some(wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"it reads {name!r}, which is not among the criteria{suggest(name, names)}"
            )


def _require_known(option: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ValueError(
            f"{option} names {name!r}, which is not among the criteria{suggest(name, names)}"
        )


def _require_same(
    option: str, given: Sequence[str] | Mapping[str, Any], names: Sequence[str]
) -> None:
    listed = list(given)
    for name in listed:
        _require_known(option, name, names)
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
        asked = self._arguments()
        if asked != ("names", "values") and {*asked} != {*names}:
            raise ValueError(
                f"{self._name}({', '.join(asked)}): the criteria are {', '.join(names)}. Its arguments must "
                "be these, or `names` and `values`"
            )
        tried = torch.ones(2, len(names), dtype=torch.float64)
        try:
            found = self._call(names, tried)
        except Exception as error:  # a user's own function may raise anything
            raise ValueError(f"{self._name} failed: {type(error).__name__}: {error}") from None
        if not isinstance(found, Tensor) or found.shape != (2,):
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"{self._name} must return a tensor with one score per client, returned {given} for 2"
            )

    def __call__(self, names: Sequence[str], values: Tensor) -> Tensor:
        """See the class."""
        scores: Tensor = self._call(names, values)
        return scores

    def _call(self, names: Sequence[str], values: Tensor) -> Any:
        if self._arguments() == ("names", "values"):
            return type(self).function(names, values)
        columns = dict(zip(names, values.unbind(1), strict=True))
        return type(self).function(**columns)

    def _arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(type(self).function).parameters)

    @property
    def _name(self) -> str:
        return type(self).__name__
