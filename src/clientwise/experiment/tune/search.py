"""Spaces of parameters by dotted keys, and how values are drawn from them.

    training.learning_rate = [0.01, 0.1, 1.0]             one of these
    server_step.learning_rate = { low = 0.001, high = 1 } between these, log-uniformly where low > 0

Draws are a Latin hypercube: of n draws, every nth part of a range has one (McKay et al., 1979). They
depend on the key and n alone, so that methods that share a key try the same values.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import needing

KeyPath = tuple[str, ...]  # of a key: ("training", "learning_rate")
Values = dict[KeyPath, Any]
ENDS = {"low", "high"}
DIGITS = 3  # of a drawn number
MOST_BATCHES = 100  # of draws, until enough of them are distinct


@dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: Sequence[Any]

    def at(self, share: float) -> Any:
        """The value at a share of the list, in [0, 1)."""
        return self.values[int(share * len(self.values))]

    def suggest(self, trial: Any, name: str) -> Any:
        """The value that Optuna suggests; it keeps positions, since values may be tables."""
        return self.values[trial.suggest_categorical(name, range(len(self.values)))]

    def plain(self) -> Any:
        """As TOML has it."""
        return list(self.values)

    def samples(self) -> Sequence[Any]:
        """Values to check before anything runs."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers between two ends; integers where both ends are."""

    low: float
    high: float

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> float:
        """The number at a share of the way, in [0, 1); on a log scale where both ends are above 0."""
        if self.low > 0:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if self.is_whole else self._rounded(value)

    def suggest(self, trial: Any, name: str) -> float:
        """The number that Optuna suggests."""
        if self.is_whole:
            return int(trial.suggest_int(name, self.low, self.high, log=self.low > 0))
        return self._rounded(trial.suggest_float(name, self.low, self.high, log=self.low > 0))

    def _rounded(self, value: float) -> float:
        return min(self.high, max(self.low, float(f"{value:.{DIGITS}g}")))

    def plain(self) -> Any:
        """As TOML has it."""
        return {"low": self.low, "high": self.high}

    def samples(self) -> Sequence[Any]:
        """Values to check before anything runs."""
        return [self.low, self.high]


Space = dict[KeyPath, Choices | Range]


def read_space(table: Mapping[str, Any], path: KeyPath = ()) -> Space:
    """The space that nested tables describe. ValueError, which names the key, where it is none.

    >>> read_space({"training": {"learning_rate": [0.1, 1.0]}})
    {('training', 'learning_rate'): Choices(values=[0.1, 1.0])}
    """
    space: Space = {}
    for key, value in table.items():
        here = (*path, str(key))
        if isinstance(value, Mapping) and value.keys() & ENDS:
            space[here] = _range(here, value)
        elif isinstance(value, Mapping):
            space |= read_space(value, here)
        elif isinstance(value, list | tuple) and value:
            space[here] = Choices(list(value))
        else:
            raise ValueError(f"{dotted(here)} = {value!r}: {_HOW}")
    return space


_HOW = "give a list of values, or { low = ..., high = ... }"


def _range(path: KeyPath, ends: Mapping[str, Any]) -> Range:
    are_numbers = all(type(end) in (int, float) and math.isfinite(end) for end in ends.values())
    if ends.keys() != ENDS or not are_numbers:
        raise ValueError(f"{dotted(path)} = {dict(ends)}: {_HOW}")
    if ends["low"] >= ends["high"]:
        low, high = ends["low"], ends["high"]
        raise ValueError(f"{dotted(path)}: low = {low:g} must be less than high = {high:g}")
    return Range(ends["low"], ends["high"])


def dotted(path: KeyPath) -> str:
    """A path as a key."""
    return ".".join(path)


def combinations(space: Space) -> Iterator[Values] | None:
    """All combinations of values; None where a space has ranges."""
    lists = [one.values for one in space.values() if isinstance(one, Choices)]
    if len(lists) < len(space):
        return None
    return (dict(zip(space, values, strict=True)) for values in itertools.product(*lists))


# Asks for the values of the next trial, and takes its loss.
Search = Iterator[tuple[Values, Callable[[float], None]]]


def search(space: Space, trials: int) -> Search:
    """All combinations where there are no more than `trials`, else as many random ones."""
    known = combinations(space)
    if known is not None:
        found = list(itertools.islice(known, trials + 1))
        if len(found) <= trials:
            return ((values, _ignore) for values in found)
    return ((values, _ignore) for values in _distinct(space, trials))


def _distinct(space: Space, trials: int) -> Iterator[Values]:
    seen: set[str] = set()
    for batch in range(MOST_BATCHES):
        columns = [
            [one.at(share) for share in _shares(path, batch, trials)] for path, one in space.items()
        ]
        for row in zip(*columns, strict=True):
            if repr(row) not in seen:
                seen.add(repr(row))
                yield dict(zip(space, row, strict=True))
            if len(seen) == trials:
                return


def _shares(path: KeyPath, batch: int, count: int) -> list[float]:
    """One number in every nth part of [0, 1), in random order.

    SciPy's `qmc.LatinHypercube` does the same. It would draw other values for the configs of 0.2.0,
    and takes no text as a seed.
    """
    numbers = random.Random(f"{dotted(path)} {batch}")
    return [(part + numbers.random()) / count for part in numbers.sample(range(count), count)]


def _ignore(loss: float) -> None:
    """Random draws do not depend on results."""


def search_by_optuna(space: Space, trials: int) -> Search:
    """Draws by Optuna's tree-structured Parzen estimator, which learns from earlier trials."""
    with needing("optuna", 'tune.sampler = "optuna"'):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

    def ask() -> Search:
        for _ in range(trials):
            trial = study.ask()
            values = {path: one.suggest(trial, dotted(path)) for path, one in space.items()}
            yield values, partial(_tell, study, trial)

    return ask()


def _tell(study: Any, trial: Any, loss: float) -> None:
    study.tell(trial, loss)
