"""The lines of every chart: a method of a run, over its seeds."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..runs.folder import RunFolder
from ..runs.rows import ArrivedRow, MethodSummary
from .document import Chart, Plotly, percent_of
from .figures import COLOURS, MANY_LINES, value_axis
from .statistics import SURE, Difference, holm, paired_difference

MAX_POINTS = 500  # of one curve: no more than a screen has pixels
FEW = 2  # lines whose ranges can lie upon each other and still be read
DIVERGED = 100  # times the lowest loss
LARGEST_LOSS = 1e9  # of a model that has learned anything
WIDE = 1000  # times the lowest value of a chart: from there on its axis is logarithmic
DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")
Curve = list[tuple[int, float]]  # (round, value)


@dataclass(frozen=True)
class Series:
    """A method of a run: one line in every chart."""

    label: str
    run: RunFolder
    summary: MethodSummary
    colour: str
    dash: str
    seed: int  # that stands for all where only one can be shown

    @property
    def method(self) -> str:
        """Its name in the run."""
        return self.summary.method

    def rounds(self, seed: int) -> int:
        """Rounds done with a seed."""
        return self.summary.rounds[self.summary.seeds.index(seed)]

    @functools.cached_property
    def arrived(self) -> ArrivedRow:
        """What became of its updates, with all seeds."""
        return self.run.arrived(self.method)

    @property
    def learned(self) -> bool:
        """Whether any update was ever accepted: otherwise its model is the initial one."""
        return not any(self.summary.refused) or self.arrived.refused < self.arrived.arrived

    @functools.cached_property
    def metric(self) -> dict[int, dict[int, float]]:
        """What was reported, by seed and round; read once, since every method is compared with every other."""
        return {seed: dict(self.run.curve("metric", self.method, seed)) for seed in self.summary.seeds}

    @functools.cached_property
    def diverged(self) -> dict[int, float]:
        """The seeds in which training diverged, with the loss of their last round."""
        curves = {seed: [loss for _, loss in self.run.curve("loss", self.method, seed)] for seed in self.summary.seeds}
        return {
            seed: losses[-1]
            for seed, losses in curves.items()
            # Worse than it began, not merely than its best; or it had diverged before it was first looked at.
            if losses and (losses[-1] > max(losses[0], DIVERGED * min(losses)) or losses[-1] > LARGEST_LOSS)
        }

    def opens(self, kind: Literal["round", "client"]) -> Plotly:
        """Says of a whole trace that a click on a point opens an audit; one by one they would fill megabytes."""
        return {"open": kind, "method": self.method, "seed": self.seed, "run": self.run.id}


def series_of(runs: Sequence[RunFolder], seed: int | None = None) -> list[Series]:
    """The methods of all runs; with several runs their names say which. `seed` stands for all where it is there.

    Those that have come as far as any have only the seeds that all of these have, on the same data: a mean over other
    seeds is no better or worse, it is another question.
    """
    pairs = [(run, line) for run in runs for line in run.summary()]
    series = [
        Series(
            f"{run.id}: {line.method}" if len(runs) > 1 else line.method,
            run,
            line,
            COLOURS[index % len(COLOURS)],
            DASHES[index % len(DASHES)],
            line.seeds[0] if seed is None or seed not in line.seeds else seed,
        )
        for index, (run, line) in enumerate(pairs)
    ]
    ahead = _ahead(series)
    seeds = _shared_by_all(ahead)
    return [_with(seeds, one) if seeds and one in ahead else one for one in series]


def _with(seeds: set[int], one: Series) -> Series:
    summary = one.summary.only(seeds)
    return replace(one, summary=summary, seed=one.seed if one.seed in seeds else summary.seeds[0])


def _ahead(series: Sequence[Series]) -> list[Series]:
    """Those that have run as many rounds as any."""
    farthest = max((max(one.summary.rounds) for one in series), default=0)
    return [one for one in series if max(one.summary.rounds) == farthest > 0]


def _shared_by_all(series: Sequence[Series]) -> set[int]:
    """The seeds that all have run equally far, on the same data."""
    farthest = max((max(one.summary.rounds) for one in series), default=0)
    done = [
        {(seed, one.run.data.get(seed)) for seed in one.summary.seeds if one.rounds(seed) == farthest} for one in series
    ]
    return {seed for seed, _ in set.intersection(*done)} if done else set()


def comparable(series: Sequence[Series]) -> list[Series]:
    """Those that can be ranked: at the same round, with the same seeds on the same data, and trained at all."""
    ahead = _ahead(series)
    if not _shared_by_all(ahead):
        return []
    return [one for one in ahead if one.learned and mean_of(one.summary.metric) is not None]


def ranked(series: Sequence[Series]) -> list[Series]:
    """Best first; behind them those that cannot be ranked, as they come."""

    def key(one: Series) -> float:
        value = mean_of(one.summary.metric) or 0.0
        return -value if one.run.higher_is_better else value

    best_first = sorted(comparable(series), key=key)
    return [*best_first, *(one for one in series if one not in best_first)]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def spread_of(values: Sequence[float | None]) -> str:
    """Mean and standard deviation of shares, as they read."""
    deviation = deviation_of(values)
    mean = percent_of(mean_of(values))
    return mean if deviation is None else f"{mean} ± {100 * deviation:.1f}"


def deviation_of(values: Sequence[float | None]) -> float | None:
    """The standard deviation of what is known; None of a single value."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None


def shared_seeds(one: Series, other: Series) -> list[int]:
    """The seeds that both have, on the same data."""
    seeds = {*one.summary.seeds} & {*other.summary.seeds}
    return sorted(seed for seed in seeds if one.run.data.get(seed) == other.run.data.get(seed))


def difference_between(one: Series, other: Series) -> Difference | None:
    """One minus the other at the last round both have, paired over the seeds they share; None where they share none."""
    ours, theirs = one.metric, other.metric
    seeds = shared_seeds(one, other)
    round_num = max((_last(ours[seed].keys() & theirs[seed].keys()) for seed in seeds), default=0)
    difference = paired_difference(
        [ours[seed].get(round_num) for seed in seeds], [theirs[seed].get(round_num) for seed in seeds]
    )
    is_end = all(_last(curve) <= round_num for curve in (*ours.values(), *theirs.values()))
    return difference if difference is None or is_end else replace(difference, round_num=round_num)


def all_differences(series: Sequence[Series]) -> dict[tuple[str, str], Difference]:
    """Of every method to every other, by label. Whoever picks out the best has looked at all pairs: p is Holm's."""
    pairs = list(itertools.combinations(series, 2))
    found = [(one, other, difference_between(one, other)) for one, other in pairs]
    known = [(one, other, difference) for one, other, difference in found if difference is not None]
    corrected = holm([difference for _, _, difference in known])
    both_ways = {}
    for (one, other, _), difference in zip(known, corrected, strict=True):
        both_ways[one.label, other.label] = difference
        both_ways[other.label, one.label] = replace(difference, mean=0.0 - difference.mean)  # not −0
    return both_ways


def _last(rounds: Iterable[int]) -> int:
    return max(rounds, default=0)


def in_words(difference: Difference, higher_is_better: bool) -> str:
    """A difference of shares in a sentence that says how sure it is."""
    better = "better" if (difference.mean > 0) == higher_is_better else "worse"
    points = f"{100 * abs(difference.mean):.1f} points {better}" if difference.mean else "no difference"
    if difference.round_num is not None:
        points += f" at round {difference.round_num}, the last that both have"
    if difference.interval is None or difference.p_value is None:
        return f"{points} with one seed, so there is no telling how sure that is"
    low, high = (_plus(100 * end) for end in difference.interval)
    corrected = f" after Holm's correction for {difference.tests} pairs of methods" if difference.tests > 1 else ""
    chance = f"p {'< 0.001' if difference.p_value < 0.001 else f'= {difference.p_value:.2g}'}{corrected}"
    sure = f"sure ({chance})" if difference.is_sure else f"not sure ({chance})"
    if difference.p_value < SURE and not difference.is_sure:
        sure = f"{chance}, but {difference.pairs} seeds are few to be sure by"
    return f"{points}, 95% interval {low} to {high} over {difference.pairs} seeds: {sure}"


def signed(difference: Difference) -> str:
    """A difference of shares in percentage points, with its interval."""
    text = f"{_plus(100 * difference.mean)}{_in_brackets(difference, 100)}"
    return text if difference.round_num is None else f"{text} (round {difference.round_num})"


def signed_rounds(difference: Difference) -> str:
    """A difference in rounds, with its interval."""
    return f"{_plus(difference.mean)}{_in_brackets(difference, 1) or ' (one seed)'}"


def _in_brackets(difference: Difference, factor: float) -> str:
    """The interval as it reads: not with ±, which in the same tables is a standard deviation."""
    if difference.interval is None:
        return ""
    low, high = difference.interval
    return f" [{_plus(factor * low)}, {_plus(factor * high)}]"


def _plus(value: float) -> str:
    """With its sign, and no −0.0.

    >>> _plus(1.26), _plus(-0.01)
    ('+1.3', '+0.0')
    """
    return f"{round(value, 1) + 0.0:+.1f}"


def line_chart(name: str, title: str, lines: Sequence[tuple[Series, list[Curve]]], *, percent: bool) -> Chart:
    """Mean and range over the seeds, one line per method."""
    traces: list[Plotly] = []
    ends: dict[str, list[float]] = {}
    for one, curves in lines:
        # A seed that has only begun takes no part: the line of the others must not shrink to its first rounds.
        farthest = max((curve[-1][0] for curve in curves if curve), default=0)
        complete = [curve for curve in curves if curve and curve[-1][0] == farthest]
        if not complete:
            continue
        values: dict[int, list[float]] = defaultdict(list)
        for curve in complete:
            for round_num, value in curve:
                values[round_num].append(value)
        if len(complete) > 1:
            traces.append({**_band(one, values), "visible": len(lines) <= FEW})
        line = _mean_line(one, values, percent)
        traces.append(line)
        ends[one.label] = line["y"]
    alt = f"{title} over the rounds: {_ends_in_words(ends, percent)}."
    heights = [height for trace in traces for height in trace["y"]]
    positive = [height for height in heights if 0 < height < math.inf]
    y_axis = value_axis(heights, percent=percent)
    if name == "loss" and positive and max(positive) > WIDE * min(positive):  # one that diverged presses others flat
        y_axis, alt = {"type": "log", "uirevision": "log"}, f"{alt} The axis is logarithmic."
    return Chart(name, title, alt, traces, {"xaxis": {"title": {"text": "round"}}, "yaxis": y_axis})


def _ends_in_words(curves: Mapping[str, Sequence[float]], percent: bool) -> str:
    """Where lines begin and end; of many, only how the highest and the lowest end."""
    if not curves:
        return "nothing recorded yet"
    if len(curves) <= MANY_LINES:
        ends = {label: (_shown(curve[0], percent), _shown(curve[-1], percent)) for label, curve in curves.items()}
        return "; ".join(f"{label} from {first} to {last}" for label, (first, last) in ends.items())
    by_end = sorted(curves, key=lambda label: -curves[label][-1])
    high, low = (f"{label} with {_shown(curves[label][-1], percent)}" for label in (by_end[0], by_end[-1]))
    return f"of {len(curves)} methods {high} ends highest and {low} lowest"


def _band(one: Series, values: dict[int, list[float]]) -> Plotly:
    """The range over the seeds, by round."""
    rounds = sorted(values)
    return {
        "x": rounds + rounds[::-1],
        "y": [max(values[r]) for r in rounds] + [min(values[r]) for r in reversed(rounds)],
        "fill": "toself",
        "fillcolor": _faint(one.colour),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": one.label,
        "name": f"{one.label}, range",
        "mode": "lines",
        "meta": {"range": True},
    }


def _mean_line(one: Series, values: dict[int, list[float]], percent: bool) -> Plotly:
    """The mean over the seeds, by round; who points at it reads the range as well."""
    rounds = sorted(values)
    known = max(map(len, values.values()))
    template = f"%{{fullData.name}}<br>round %{{x}}: %{{y:{'.1%' if percent else '.4g'}}}"
    ranges = [f"{_shown(min(values[r]), percent)} to {_shown(max(values[r]), percent)}" for r in rounds if known > 1]
    return {
        **({"text": ranges} if ranges else {}),
        "hovertemplate": template + (f"<br>%{{text}} over {known} seeds" if ranges else "") + "<extra></extra>",
        "x": rounds,
        "y": [statistics.fmean(values[r]) for r in rounds],
        "name": one.label,
        "mode": "lines" if len(rounds) > 1 else "markers",
        "line": {"color": one.colour, "dash": one.dash, "width": 2},
        "legendgroup": one.label,
        "meta": one.opens("round"),
    }


def _shown(value: float, percent: bool) -> str:
    return percent_of(value) if percent else f"{value:.3f}" if abs(value) < 1e5 else f"{value:.2g}"


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"
