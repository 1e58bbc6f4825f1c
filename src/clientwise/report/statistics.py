"""How surely one method is better than another: paired over the seeds, or sample by sample."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences; with several pairs, the half-width of its 95% confidence interval."""

    mean: float
    margin: float | None  # None for a single pair, of which nothing can be said
    pairs: int
    round_num: int | None = None  # at which it was taken, where that is not the last round of both

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.margin is not None and abs(self.mean) > self.margin


def paired_difference(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Difference | None:
    """Ours minus theirs, seed by seed, with Student's interval; None where no seed has both.

    >>> difference = paired_difference([3.0, 4.0, 5.0], [1.0, 1.0, 1.0])
    >>> difference.mean, round(difference.margin, 3), difference.pairs
    (3.0, 2.484, 3)
    """
    pairs = [one - other for one, other in zip(ours, theirs, strict=True) if one is not None and other is not None]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Difference(pairs[0], None, 1)
    from scipy.stats import t  # imported here: it takes a while

    margin = float(t.ppf(0.975, len(pairs) - 1)) * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Difference(statistics.fmean(pairs), margin, len(pairs))


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
