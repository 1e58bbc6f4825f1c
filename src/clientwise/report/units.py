"""How the values of a metric are written: shares in percent, other metrics as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .document import Cell, percent_of
from .statistics import Difference, deviation_of, mean_of

WHOLE_NUMBERS = 1000, 1_000_000  # numbers between these have no decimals


@dataclass(frozen=True)
class Unit:
    """The unit of a metric.

    Args:
        percent: the metric is a share: values are in percent, differences in percentage points.
    """

    percent: bool

    step: ClassVar[float] = 0.05  # to which a share is rounded as a target

    @property
    def points(self) -> str:
        """What follows the size of a difference."""
        return " points" if self.percent else ""

    @property
    def of_differences(self) -> str:
        """The unit of differences, for notes of tables; empty where it is that of the metric."""
        return ", in percentage points" if self.percent else ""

    def text(self, value: float | None) -> str:
        """A value.

        >>> Unit(True).text(0.1234), Unit(False).text(12.3456), Unit(False).text(None)
        ('12.3%', '12.35', '–')
        """
        if self.percent:
            return percent_of(value)
        return "–" if value is None else number_text(value)

    def cell(self, value: float | None) -> Cell:
        """A value as a cell."""
        return Cell(value, self.text(value))

    def spread(self, values: Sequence[float | None]) -> str:
        """Mean and standard deviation.

        >>> Unit(True).spread([0.5, 0.6]), Unit(False).spread([11.0, 13.0])
        ('55.0% ± 7.1', '12 ± 1.41')
        """
        mean = self.text(mean_of(values))
        deviation = deviation_of(values)
        return mean if deviation is None else f"{mean} ± {self.size(deviation)}"

    def size(self, difference: float) -> str:
        """The size of a difference, without a sign where it has none.

        >>> Unit(True).size(0.0123), Unit(False).size(1.234)
        ('1.2', '1.23')
        """
        return f"{100 * difference:.1f}" if self.percent else number_text(difference, 3)

    def error(self, error: float) -> str:
        """A standard error, with two digits however small it is.

        >>> Unit(True).error(0.00043), Unit(False).error(1.234)
        ('0.043', '1.2')
        """
        return number_text(100 * error if self.percent else error, 2)

    def signed(self, difference: float) -> str:
        """A difference with its sign, and without −0.

        >>> Unit(True).signed(0.0126), Unit(True).signed(-0.0001), Unit(False).signed(-1.234)
        ('+1.3', '+0.0', '-1.23')
        """
        if self.percent:
            return f"{round(100 * difference, 1) + 0.0:+.1f}"
        text = number_text(difference + 0.0, 3)
        return text if text.startswith("-") else f"+{text}"

    def interval(self, difference: Difference) -> str:
        """A difference with half of its confidence interval.

        >>> Unit(True).interval(Difference(0.05, 0.012, 5)), Unit(False).interval(Difference(5, 1.2, 5))
        ('5.0 ± 1.2', '5 ± 1.2')
        """
        text = self.size(difference.mean)
        margin = difference.corrected_margin
        return text if margin is None else f"{text} ± {self.size(margin)}"

    def target(self, value: float) -> str:
        """A target.

        >>> Unit(True).target(0.9), Unit(False).target(12.5)
        ('90%', '12.5')
        """
        return f"{value:.0%}" if self.percent else f"{value:g}"

    def rounded(self, value: float, *, up: bool) -> float | None:
        """A value as a target that is easy to read: in steps of 5%, or of two digits; None below the first step.

        >>> Unit(True).rounded(0.83, up=False), Unit(False).rounded(12.3, up=True)
        (0.8, 13.0)
        """
        if value <= 0 or not math.isfinite(value):
            return None
        step = self.step if self.percent else 10.0 ** (math.floor(math.log10(value)) - 1)
        steps = int(value / step)
        if not steps:
            return None
        return float(f"{(steps + up) * step:.6g}")


def number_text(value: float, digits: int = 4) -> str:
    """A number with that many significant digits.

    >>> number_text(0.123456), number_text(123456.7), number_text(3.4e8)
    ('0.1235', '123457', '3.4e+08')
    """
    low, high = WHOLE_NUMBERS
    return f"{value:.0f}" if low <= abs(value) < high else f"{value:.{digits}g}"
