"""The lines of every chart: a method of a run, over its seeds."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .document import Json, chart, percent_of
from .figures import COLOURS
from .statistics import Difference, paired_difference
from .summary import MethodSummary, Run

MAX_POINTS = 500  # of one curve: no more than a screen has pixels
WIDE = 1000  # times the lowest value of a chart: from there on its axis is logarithmic
DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Series:
    """A method of a run: one line in every chart."""

    label: str
    run: Run
    summary: MethodSummary
    colour: str
    dash: str

    @property
    def method(self) -> str:
        """Its name in the run."""
        return self.summary.method

    def opens(self, kind: str, seed: int) -> Json:
        """Says of a whole trace that a click on a point opens an audit; one by one they would fill megabytes."""
        return {"open": kind, "method": self.method, "seed": seed, "run": self.run.id}

    def lanes(self) -> list[tuple[int, int]]:
        """(lane, seed) of every seed."""
        return [(lane, seed) for lane, method, seed in self.run.lanes if method == self.method]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """The methods of all runs; with several runs their names say which."""
    pairs = [(run, line) for run in runs for line in run.summary()]
    return [
        Series(
            f"{run.id}: {line.method}" if len(runs) > 1 else line.method,
            run,
            line,
            COLOURS[index % len(COLOURS)],
            DASHES[index % len(DASHES)],
        )
        for index, (run, line) in enumerate(pairs)
    ]


def ranked(series: Sequence[Series]) -> list[Series]:
    """Best first; those without a value last."""

    def key(one: Series) -> tuple[bool, float]:
        value = mean_of(one.summary.metric)
        return (value is None, 0.0 if value is None else -value if one.run.higher_is_better else value)

    return sorted(series, key=key)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def spread_of(values: Sequence[float | None]) -> str:
    """Mean and standard deviation of shares, as they read."""
    known = [value for value in values if value is not None]
    mean = percent_of(mean_of(known))
    return f"{mean} ± {100 * statistics.stdev(known):.1f}" if len(known) > 1 else mean


def difference_between(one: Series, other: Series) -> Difference | None:
    """One minus the other at the last round, paired over the seeds both have; None where their data differ."""
    if one.run.data != other.run.data:
        return None
    ours, theirs = (dict(zip(each.summary.seeds, each.summary.metric, strict=True)) for each in (one, other))
    shared = sorted(ours.keys() & theirs.keys())
    return paired_difference([ours[seed] for seed in shared], [theirs[seed] for seed in shared])


def in_words(difference: Difference, higher_is_better: bool) -> str:
    """A difference of shares in a sentence that says how sure it is."""
    better = "better" if (difference.mean > 0) == higher_is_better else "worse"
    points = f"{100 * abs(difference.mean):.1f} points {better}"
    if difference.margin is None:
        return f"{points} with one seed, so there is no telling how sure that is"
    low, high = 100 * (difference.mean - difference.margin), 100 * (difference.mean + difference.margin)
    sure = "sure at the 95% level" if difference.is_sure else "not sure: the interval includes zero"
    if difference.is_sure and difference.pairs < 3:
        sure = "without zero, but two seeds are too few to rely on that"
    return f"{points}, 95% interval {low:+.1f} to {high:+.1f} over {difference.pairs} seeds, {sure}"


def signed(difference: Difference) -> str:
    """A difference of shares in percentage points, with its margin."""
    text = f"{100 * difference.mean:+.1f}"
    return text if difference.margin is None else f"{text} ± {100 * difference.margin:.1f}"


def signed_rounds(difference: Difference) -> str:
    """A difference in rounds, with its margin."""
    return (
        f"{difference.mean:+.1f} (one seed)"
        if difference.margin is None
        else f"{difference.mean:+.1f} ± {difference.margin:.1f}"
    )


def line_chart(
    name: str, title: str, lines: Sequence[tuple[Series, list[list[tuple[int, float]]]]], *, percent: bool
) -> Json:
    """Mean and range over the seeds, one line per method."""
    traces: list[Json] = []
    said = []
    for one, curves in lines:
        values: dict[int, list[float]] = defaultdict(list)
        # A seed that has only begun takes no part: the line of the others must not shrink to its first rounds.
        farthest = max((curve[-1][0] for curve in curves if curve), default=0)
        curves = [curve for curve in curves if curve and curve[-1][0] == farthest]
        for curve in curves:
            for round_num, value in curve:
                values[round_num].append(value)
        rounds = sorted(values)
        if not rounds:
            continue
        if len(curves) > 1:
            band = [max(values[r]) for r in rounds] + [min(values[r]) for r in reversed(rounds)]
            traces.append(
                {
                    "x": rounds + rounds[::-1],
                    "y": band,
                    "fill": "toself",
                    "fillcolor": _faint(one.colour, 0.4 / max(3, len(lines))),  # however many lie upon each other
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "legendgroup": one.label,
                    "name": f"{one.label}, range",
                    "mode": "lines",
                }
            )
        middle = [statistics.fmean(values[r]) for r in rounds]
        seed = one.summary.seeds[0]
        traces.append(
            {
                "x": rounds,
                "y": middle,
                "name": one.label,
                "mode": "lines" if len(rounds) > 1 else "markers",
                "line": {"color": one.colour, "dash": one.dash, "width": 2},
                "legendgroup": one.label,
                "meta": one.opens("round", seed),
            }
        )
        said.append(f"{one.label} from {_shown(middle[0], percent)} to {_shown(middle[-1], percent)}")
    alt = f"{title} over the rounds: {'; '.join(said) or 'nothing recorded yet'}."
    heights = [height for trace in traces for height in trace["y"] if 0 < height < math.inf]
    upwards: Json = {"tickformat": ".0%"} if percent else {}
    if name == "loss" and heights and max(heights) > WIDE * min(heights):  # one that diverged presses all others flat
        upwards, alt = {"type": "log", "uirevision": "log"}, f"{alt} The axis is logarithmic."
    return chart(name, title, alt, traces, {"xaxis": {"title": {"text": "round"}}, "yaxis": upwards})


def _shown(value: float, percent: bool) -> str:
    return percent_of(value) if percent else f"{value:.3f}" if abs(value) < 1e5 else f"{value:.2g}"


def _faint(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity:.3f})"
