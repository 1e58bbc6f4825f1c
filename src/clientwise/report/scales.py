"""Progress in time and in bytes sent, beside rounds, where clients have a clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..record.run import RunFolder
from .document import Chart, in_bytes, in_time
from .marks import Axis, Line, Lines
from .series import Series


@dataclass(frozen=True)
class Scale:
    """A way to measure how far a run is."""

    name: str
    so_far: Callable[[RunFolder, str, int], Mapping[int, float]]  # by round, of a method and seed
    text: Callable[[float], str]
    units: Mapping[str, float]  # of an axis, the smallest first
    axis: str  # what follows the unit in its label

    def of(self, one: Series, seed: int) -> Mapping[int, float]:
        """By round: how much was used up when it had ended."""
        return self.so_far(one.run, one.method, seed)

    def unit(self, most: float) -> str:
        """The largest unit in which `most` is 2 or more; otherwise the smallest."""
        smallest, *others = self.units
        fitting = [name for name in others if most >= 2 * self.units[name]]
        return fitting[-1] if fitting else smallest


TIME_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
BYTE_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
TIME = Scale("time", RunFolder.times, in_time, TIME_UNITS, " on the clients' clock")
BYTES = Scale("bytes", RunFolder.bytes_moved, in_bytes, BYTE_UNITS, "")


def scales(series: Sequence[Series]) -> list[Scale]:
    """Those to show beside rounds: none where no client has a clock."""
    return [TIME, BYTES] if any(one.run.has_clock for one in series) else []


def rescaled(chart: Chart, scale: Scale, series: Sequence[Series]) -> Chart:
    """A chart over the rounds as one over time or bytes, each round at its end in the mean."""
    lines = chart.mark
    assert isinstance(lines, Lines)
    ends = {one.label: _mean_by_round(one, scale) for one in series}
    most = max((max(own.values()) for own in ends.values() if own), default=0.0)
    unit = scale.unit(most)
    size = scale.units[unit]
    moved = [_moved(line, ends[line.name], size) for line in lines.lines if ends[line.name]]
    words = f"over {scale.name}"
    return replace(
        chart,
        id=f"{chart.id}-{scale.name}",
        title=f"{chart.title}, {words}",
        alt=chart.alt.replace("over the rounds", words),
        mark=replace(lines, lines=moved, x=Axis(f"{unit}{scale.axis}", unit=unit)),
    )


def _mean_by_round(one: Series, scale: Scale) -> dict[int, float]:
    """Over the seeds that have come as far as any, as the lines of a chart are."""
    curves = [scale.of(one, seed) for seed in one.summary.seeds]
    farthest = max((len(curve) for curve in curves), default=0)
    complete = [curve for curve in curves if len(curve) == farthest > 0]
    if not complete:
        return {}
    shared = sorted(set.intersection(*map(set, complete)))
    return {r: statistics.fmean(curve[r] for curve in complete) for r in shared}


def _moved(line: Line, ends: Mapping[int, float], size: float) -> Line:
    """The line over what its rounds had used up at their end; a click still opens the round."""
    assert line.links is not None
    rounds = [int(number) for number in line.x if number is not None]
    x = [ends[number] / size if number in ends else None for number in rounds]
    return replace(line, x=x, links=replace(line.links, numbers=rounds))
