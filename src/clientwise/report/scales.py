"""What progress can be measured in beside rounds, where clients have a clock: time, and bytes over the wire."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..runs.folder import RunFolder
from .document import Chart, Plotly, in_bytes, in_time
from .series import Series


@dataclass(frozen=True)
class Scale:
    """A way to measure how far a run is."""

    name: str
    so_far: Callable[[RunFolder, str, int], Mapping[int, float]]  # by round, of a method with a seed
    text: Callable[[float], str]
    units: Mapping[str, float]  # of an axis, the smallest first

    def of(self, one: Series, seed: int) -> Mapping[int, float]:
        """By round: how much was used up when it had ended."""
        return self.so_far(one.run, one.method, seed)

    def unit(self, most: float) -> str:
        """The largest that gives an axis up to `most` numbers above 1."""
        smallest, *others = self.units
        return next((name for name in reversed(others) if most >= 2 * self.units[name]), smallest)


TIME = Scale("time", RunFolder.times, in_time, {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400})
BYTES = Scale("bytes", RunFolder.bytes_moved, in_bytes, {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12})


def scales(series: Sequence[Series]) -> list[Scale]:
    """Those to show beside rounds: none where no client has a clock."""
    return [TIME, BYTES] if any(one.run.has_clock for one in series) else []


def rescaled(chart: Chart, scale: Scale, series: Sequence[Series]) -> Chart:
    """A chart over the rounds as one over time or bytes; a round stands where it ends in the mean over the seeds."""
    places = {one.label: own for one in series if (own := _mean_by_round(one, scale))}
    unit = scale.unit(max((max(own.values()) for own in places.values()), default=0.0))
    shown = [(trace, places[trace["legendgroup"]]) for trace in chart.data if trace["legendgroup"] in places]
    traces = [_moved(trace, own, unit, scale.units[unit]) for trace, own in shown]
    axis = {"title": {"text": unit if scale is BYTES else f"{unit} on the clients' clock"}}
    words = f"over {scale.name}"
    return replace(
        chart,
        id=f"{chart.id}-{scale.name}",
        title=f"{chart.title}, {words}",
        alt=chart.alt.replace("over the rounds", words),
        data=traces,
        layout={**chart.layout, "xaxis": axis},
    )


def _mean_by_round(one: Series, scale: Scale) -> dict[int, float]:
    """Over the seeds that have come as far as any, as the lines of a chart are."""
    curves = [scale.of(one, seed) for seed in one.summary.seeds]
    farthest = max((len(curve) for curve in curves), default=0)
    complete = [curve for curve in curves if len(curve) == farthest > 0]
    shared = sorted(set.intersection(*map(set, complete))) if complete else []
    return {number: statistics.fmean(curve[number] for curve in complete) for number in shared}


def _moved(trace: Plotly, places: Mapping[int, float], unit: str, size: float) -> Plotly:
    rounds = trace["x"]
    moved = {**trace, "x": [places[number] / size if number in places else None for number in rounds]}
    if "open" in trace["meta"]:
        moved["meta"] = {**trace["meta"], "numbers": rounds}
        moved["hovertemplate"] = trace["hovertemplate"].replace("round %{x}", f"%{{x:.3g}} {unit}")
    return moved
