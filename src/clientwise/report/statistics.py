"""How surely one method is better than another: paired over the seeds, or sample by sample."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

SURE = 0.05  # the largest p of what is called sure
FEW = 5  # seeds: with fewer, nothing is


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences; with several pairs, its 95% interval and Student's p."""

    mean: float
    margin: float | None  # half the width of the interval; None for a single pair, of which nothing can be said
    pairs: int
    round_num: int | None = None  # at which it was taken, where that is not the last round of both
    p_value: float | None = None
    tests: int = 1  # as one of which it was picked, and for which its p is corrected

    @property
    def is_sure(self) -> bool:
        """Whether it is hardly due to chance, with enough seeds to say so."""
        return self.p_value is not None and self.p_value < SURE and self.pairs >= FEW

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where it lies with 95% confidence; of one difference, not corrected for others."""
        return None if self.margin is None else (self.mean - self.margin, self.mean + self.margin)


def paired_difference(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Difference | None:
    """Ours minus theirs, seed by seed, with Student's interval; None where no seed has both.

    >>> difference = paired_difference([3.0, 4.0, 5.0], [1.0, 1.0, 1.0])
    >>> difference.mean, round(difference.margin, 3), difference.pairs, round(difference.p_value, 3)
    (3.0, 2.484, 3, 0.035)
    """
    pairs = [one - other for one, other in zip(ours, theirs, strict=True) if one is not None and other is not None]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Difference(pairs[0], None, 1)
    from scipy.stats import t  # imported here: it takes a while

    mean, error, freedom = statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs)), len(pairs) - 1
    p_value = 2 * float(t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Difference(mean, float(t.ppf(0.975, freedom)) * error, len(pairs), p_value=p_value)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """With p corrected for their number: that any falls below 0.05 by chance happens once in twenty (Holm, 1979).

    >>> [one.p_value for one in holm([Difference(1, 1, 5, p_value=p) for p in (0.01, 0.04, 0.03)])]
    [0.03, 0.06, 0.06]
    """
    tested = sorted((one.p_value, place) for place, one in enumerate(differences) if one.p_value is not None)
    corrected, highest = list(differences), 0.0
    for rank, (p_value, place) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p_value))
        corrected[place] = replace(differences[place], p_value=highest, tests=len(tested))
    return corrected


@dataclass(frozen=True)
class Contingency:
    """What two methods made of the same samples (P1's Tables 3, 5 and 7)."""

    both_wrong: int
    only_ours: int  # right with our method, wrong with the other
    only_theirs: int
    both_right: int

    @property
    def p_value(self) -> float:
        """McNemar's test, exact: how often two equally good methods would differ by as much.

        >>> round(Contingency(0, 9, 1, 90).p_value, 4)
        0.0215
        """
        from scipy.stats import binomtest

        differing = self.only_ours + self.only_theirs
        return float(binomtest(self.only_ours, differing, 0.5).pvalue) if differing else 1.0


def contingency(ours: NDArray[numpy.bool_], theirs: NDArray[numpy.bool_]) -> Contingency:
    """From which samples [N] each method classified rightly.

    >>> contingency(numpy.array([True, True, False]), numpy.array([True, False, False]))
    Contingency(both_wrong=1, only_ours=1, only_theirs=0, both_right=1)
    """
    counts = numpy.bincount(2 * theirs.astype(int) + ours.astype(int), minlength=4).tolist()
    return Contingency(*counts)
