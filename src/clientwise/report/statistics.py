"""Whether one method is significantly better: paired by seed, by federation or by sample."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

SIGNIFICANCE = 0.05  # a smaller p is called significant
MIN_SEEDS = 5  # or federations: with fewer, no difference is called significant


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None where there are none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def deviation_of(values: Sequence[float | None]) -> float | None:
    """The standard deviation of the known values; None for a single one."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences; with several pairs, a 95% confidence interval and Student's p."""

    mean: float
    margin: float | None  # half the width of the uncorrected interval; None for a single pair
    pairs: int
    round_num: int | None = None  # where it was taken, if that is not the last round of both
    p_value: float | None = None
    tests: int = 1  # how many its p is corrected for
    widening: float = 1.0  # of the interval, by the same correction

    @property
    def is_significant(self) -> bool:
        """Whether p < 0.05, with five pairs or more."""
        return self._is_unlikely and self.pairs >= MIN_SEEDS

    @property
    def lacks_seeds(self) -> bool:
        """Whether p < 0.05, but with too few pairs for a claim."""
        return self._is_unlikely and self.pairs < MIN_SEEDS

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval, corrected as p is: it excludes 0 if and only if p < 0.05."""
        margin = self.corrected_margin
        return None if margin is None else (self.mean - margin, self.mean + margin)

    @property
    def corrected_margin(self) -> float | None:
        """Half the width of `interval`."""
        return None if self.margin is None else self.margin * self.widening

    @property
    def _is_unlikely(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANCE


def paired_difference(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
) -> Difference | None:
    """Ours minus theirs, seed by seed, with Student's interval; None where no seed has both.

    >>> difference = paired_difference([3.0, 4.0, 5.0], [1.0, 1.0, 1.0])
    >>> difference.mean, round(difference.margin, 3), difference.pairs, round(difference.p_value, 3)
    (3.0, 2.484, 3, 0.035)
    """
    both = zip(ours, theirs, strict=True)
    pairs = [one - other for one, other in both if one is not None and other is not None]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Difference(pairs[0], None, 1)
    from scipy.special import stdtr, stdtrit  # `scipy.stats` takes a second to import

    mean = statistics.fmean(pairs)
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    freedom = len(pairs) - 1
    p_value = 2 * float(stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
    margin = float(stdtrit(freedom, 0.975)) * error
    return Difference(mean, margin, len(pairs), p_value=p_value)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with p and interval corrected for their number (Holm, 1979).

    Where p is multiplied by k, the interval is that of the level 1 − 0.05/k. It contains the uncorrected one.

    >>> found = holm([Difference(1, 1, 5, p_value=p) for p in (0.01, 0.04, 0.03)])
    >>> [one.p_value for one in found], [round(one.corrected_margin, 2) for one in found]
    ([0.03, 0.06, 0.06], [1.43, 1.15, 1.26])
    """
    p_values = [one.p_value for one in differences]
    tests = sum(p_value is not None for p_value in p_values)
    corrected = []
    for one, p_value in zip(differences, holm_p_values(p_values), strict=True):
        if one.p_value is None or p_value is None:
            corrected.append(one)
            continue
        widening = _widening(one.p_value, p_value, one.pairs)
        corrected.append(replace(one, p_value=p_value, tests=tests, widening=widening))
    return corrected


def _widening(p_value: float, corrected: float, pairs: int) -> float:
    """How much wider Student's interval is at the level that a corrected p tests at."""
    if p_value == corrected:
        return 1.0
    from scipy.special import stdtrit

    level = SIGNIFICANCE * p_value / corrected
    wide, narrow = stdtrit(pairs - 1, [1 - level / 2, 1 - SIGNIFICANCE / 2]).tolist()
    return float(wide / narrow)


def holm_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number (Holm, 1979); None stands where there was no test.

    The i-th smallest of m is multiplied by m − i + 1. None is smaller than one before it.

    >>> holm_p_values([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    numbered = enumerate(p_values)
    tested = sorted((p_value, index) for index, p_value in numbered if p_value is not None)
    corrected = list(p_values)
    highest = 0.0
    for rank, (p_value, index) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p_value))
        corrected[index] = highest
    return corrected


@dataclass(frozen=True)
class Contingency:
    """How many of the same samples two methods classified correctly (P1's Tables 3, 5 and 7)."""

    both_wrong: int
    only_ours: int  # correct with our method, wrong with the other
    only_theirs: int
    both_right: int

    @property
    def p_value(self) -> float:
        """McNemar's exact test: how often two equally good methods would differ by as much.

        >>> round(Contingency(0, 9, 1, 90).p_value, 4)
        0.0215
        """
        from scipy.special import bdtr

        differing = self.only_ours + self.only_theirs
        fewer = min(self.only_ours, self.only_theirs)
        return min(1.0, 2 * float(bdtr(fewer, differing, 0.5)))


def contingency(ours: NDArray[numpy.bool_], theirs: NDArray[numpy.bool_]) -> Contingency:
    """From which samples [N] each method classified correctly.

    >>> contingency(numpy.array([True, True, False]), numpy.array([True, False, False]))
    Contingency(both_wrong=1, only_ours=1, only_theirs=0, both_right=1)
    """
    counts = numpy.bincount(2 * theirs.astype(int) + ours.astype(int), minlength=4).tolist()
    return Contingency(*counts)
