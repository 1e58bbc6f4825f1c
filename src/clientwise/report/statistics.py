"""How surely one method is better than another: paired over the seeds, since methods of a seed share all else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences; with several pairs, the half-width of its 95% confidence interval."""

    mean: float
    margin: float | None  # None for a single pair, of which nothing can be said
    pairs: int

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
