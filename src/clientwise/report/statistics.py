"""Whether one method is significantly better: paired by seed, by federation or by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy

SIGNIFICANCE = 0.05  # a smaller p is called significant
MIN_SEEDS = 5  # or federations: with fewer, no difference is called significant
SMALLEST_P = 0.001  # a smaller p-value is not spelt out


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences; of several pairs with Student's 95% confidence interval and p."""

    mean: float
    error: float | None  # standard error of the mean; None for a single pair
    pairs: int
    p_value: float | None = None
    tests: int = 1  # how many p and interval are corrected for
    factor: float = 1.0  # by which that has multiplied p
    round_num: int | None = None  # where it was taken, if that is not the last round of both

    @property
    def margin(self) -> float | None:
        """Half the width of the uncorrected 95% confidence interval."""
        return self._margin(SIGNIFICANCE)

    @property
    def corrected_margin(self) -> float | None:
        """Half the width of `interval`."""
        return self._margin(SIGNIFICANCE / self.factor)

    def _margin(self, level: float) -> float | None:
        if self.error is None:
            return None
        from scipy.special import stdtrit  # `scipy.stats` takes a second to import

        return float(stdtrit(self.pairs - 1, 1 - level / 2)) * self.error

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval, corrected as p is: it excludes 0 if and only if p < 0.05."""
        margin = self.corrected_margin
        return None if margin is None else (self.mean - margin, self.mean + margin)

    @property
    def numbers(self) -> dict[str, float | None]:
        """What a file of numbers has of it."""
        low, high = self.interval or (None, None)
        known = {"mean": self.mean, "low": low, "high": high, "p": self.p_value}
        return {**known, "pairs": self.pairs}

    @property
    def is_significant(self) -> bool:
        """Whether p < 0.05, with five pairs or more."""
        return self._is_unlikely and self.pairs >= MIN_SEEDS

    @property
    def is_of_too_few(self) -> bool:
        """Whether p < 0.05, but with fewer than five pairs."""
        return self._is_unlikely and self.pairs < MIN_SEEDS

    @property
    def _is_unlikely(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANCE

    def significance(self, pairs: str = "seeds") -> str:
        """Whether it is significant, in words, with its p."""
        if self.is_of_too_few:
            return f"no significance is claimed with fewer than {MIN_SEEDS} {pairs}"
        return f"{'' if self.is_significant else 'not '}statistically significant ({self.chance})"

    @property
    def chance(self) -> str:
        """The p-value: `p = 0.08, Holm` where it is corrected.

        >>> Difference(0.1, 0.1, 5, p_value=0.0812, tests=3).chance
        'p = 0.081, Holm'
        """
        if self.p_value is None:
            return "no p-value"
        number = p_number(self.p_value)
        text = f"p {number}" if number.startswith("<") else f"p = {number}"
        return f"{text}, Holm" if self.tests > 1 else text

    def text(self, signed: Callable[[float], str]) -> str:
        """The mean, and the interval in brackets: not with ±, which is a standard deviation in the same tables."""
        text = signed(self.mean)
        if self.interval is not None:
            low, high = map(signed, self.interval)
            text += f" [{low}, {high}]"
        return text if self.round_num is None else f"{text} (round {self.round_num})"


NONE = Difference(math.nan, None, 0)  # stands where there is no pair


def paired_difference(ours: Iterable[float], theirs: Iterable[float]) -> Difference | None:
    """Ours minus theirs, pair by pair; pairs without both values do not count. None where there is no pair.

    >>> found = paired_difference([3.0, 4.0, 5.0], [1.0, 1.0, 1.0])
    >>> found.mean, round(found.margin, 3), found.pairs, round(found.p_value, 3)
    (3.0, 2.484, 3, 0.035)
    """
    both = zip(ours, theirs, strict=True)
    values = numpy.array(
        [numpy.nan if None in pair else pair[0] - pair[1] for pair in both], dtype=float
    )
    values = values[~numpy.isnan(values)]
    if not len(values):
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Difference(mean, None, 1)
    from scipy.special import stdtr

    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    p_value = 2 * float(stdtr(len(values) - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(mean, error, len(values), p_value)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with p and interval corrected for their number (Holm, 1979).

    The i-th smallest of m p-values is multiplied by m − i + 1, and none is smaller than one before it. Where p is
    multiplied by k, the interval is that of the level 1 − 0.05/k. It contains the uncorrected one.

    >>> found = holm([Difference(1, 0.5, 5, p_value=p) for p in (0.01, 0.04, 0.03)])
    >>> [one.p_value for one in found], [round(one.corrected_margin, 2) for one in found]
    ([0.03, 0.06, 0.06], [1.98, 1.59, 1.75])
    """
    tested = sorted(
        (one.p_value, place) for place, one in enumerate(differences) if one.p_value is not None
    )
    corrected = list(differences)
    highest = 0.0
    for rank, (p_value, place) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p_value))
        factor = highest / p_value if p_value else 1.0
        corrected[place] = replace(
            corrected[place], p_value=highest, tests=len(tested), factor=factor
        )
    return corrected


def p_number(value: float) -> str:
    """A p-value as a number of two digits.

    >>> p_number(0.0812), p_number(0.00001), p_number(float("nan"))
    ('0.081', '< 0.001', '–')
    """
    if value != value:
        return "–"
    return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.2g}"
