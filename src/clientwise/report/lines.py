"""Charts of curves over the rounds: one line per method, its mean and range over the seeds."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .document import Chart, value_text
from .marks import (
    Axis,
    Band,
    Line,
    Lines,
    value_axis,
)
from .series import Series

MAX_BANDS = 2  # that can overlap and still be read
MAX_NAMED = 5  # lines whose ends a chart's description tells one by one
WIDE = 1000  # times the lowest value: beyond, an axis of losses is logarithmic
ROUNDS = Axis("round")

Curve = list[tuple[int, float]]  # (round, value)
Curves = Sequence[tuple[Series, Sequence[Curve]]]  # of each method one curve per seed


def line_chart(name: str, title: str, curves: Curves, *, percent: bool) -> Chart:
    """Mean and range over the seeds, one line per method."""
    lines = []
    for one, of_seeds in curves:
        values = _by_round(of_seeds)
        if values:
            lines.append(_line(one, values, visible=len(curves) <= MAX_BANDS))
    alt = f"{title} over the rounds: {_ends_in_words(lines, percent)}."
    heights = [height for line in lines for height in _heights(line)]
    y_axis = value_axis(heights, percent=percent)
    if name == "loss" and _is_wide(heights):  # a method that diverged presses the others flat
        y_axis = Axis(log=True)
        alt += " The axis is logarithmic."
    return Chart(name, title, alt, Lines(lines, ROUNDS, y_axis))


def carried_on(one: Series, curves: Sequence[Curve]) -> list[Curve]:
    """A curve per seed of what a model is worth: where training stopped early, the model stays, and its worth."""
    longest: Curve = max(curves, key=lambda curve: curve[-1][0] if curve else 0)
    found = []
    for seed, curve in zip(one.summary.seeds, curves, strict=True):
        if one.ended_with(seed) > one.rounds(seed):
            found.append(_at_rounds([round_num for round_num, _ in longest], curve))
        else:
            found.append(curve)
    return found


def has_lines(chart: Chart) -> bool:
    """Whether a chart of curves has any."""
    return isinstance(chart.mark, Lines) and bool(chart.mark.lines)


def _at_rounds(rounds: Sequence[int], curve: Curve) -> Curve:
    """A curve at these rounds, each with the last value so far."""
    known = [round_num for round_num, _ in curve]
    found = []
    for round_num in rounds:
        passed = bisect_right(known, round_num)
        if passed:
            found.append((round_num, curve[passed - 1][1]))
    return found


def _by_round(curves: Sequence[Curve]) -> dict[int, list[float]]:
    """The values of the seeds by round.

    A seed that has only begun is left out: it must not shorten the line of the others. `carried_on`
    extends those of seeds that stopped early.
    """
    known = [curve for curve in curves if curve]
    farthest = max((curve[-1][0] for curve in known), default=0)
    values: dict[int, list[float]] = defaultdict(list)
    for curve in known:
        if curve[-1][0] == farthest:
            for round_num, value in curve:
                values[round_num].append(value)
    return {round_num: values[round_num] for round_num in sorted(values)}


def _line(one: Series, values: Mapping[int, Sequence[float]], *, visible: bool) -> Line:
    seeds = max(map(len, values.values()))
    lows = [min(own) for own in values.values()]
    highs = [max(own) for own in values.values()]
    return Line(
        one.label,
        list(values),
        [statistics.fmean(own) for own in values.values()],
        one.colour,
        one.dash,
        band=Band(lows, highs, seeds, visible) if seeds > 1 else None,
        links=one.links("round"),
    )


def _heights(line: Line) -> list[float]:
    if line.band is None:
        return list(line.y)
    return [*line.y, *line.band.low, *line.band.high]


def _is_wide(heights: Sequence[float]) -> bool:
    positive = [height for height in heights if 0 < height < math.inf]
    return bool(positive) and max(positive) > WIDE * min(positive)


def _ends_in_words(lines: Sequence[Line], percent: bool) -> str:
    """Where lines begin and end; of many, only how the highest and the lowest end."""

    def text(value: float) -> str:
        return value_text(value, percent)

    if not lines:
        return "nothing recorded yet"
    if len(lines) <= MAX_NAMED:
        ends = [f"{line.name} from {text(line.y[0])} to {text(line.y[-1])}" for line in lines]
        return "; ".join(ends)
    by_end = sorted(lines, key=lambda line: -line.y[-1])
    high, low = (f"{line.name} with {text(line.y[-1])}" for line in (by_end[0], by_end[-1]))
    return f"of {len(lines)} methods {high} ends highest and {low} lowest"
