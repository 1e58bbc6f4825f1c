"""Fill the tables of docs/results/devices.md from run folders.

    python lab/time/make_devices.py RUNS       (RUNS/devices-digits, RUNS/devices-wisdm: see lab/run_all.py)

A place is what lies between `<!-- run NAME -->` and `<!-- end -->`. The page's protocol says what is measured.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import pandas
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import clientwise as cw
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.record.run import RunFolder
from clientwise.report.charts import draw
from clientwise.report.items import Chart, in_time, percent
from clientwise.report.results import Method, Results, at_rounds
from clientwise.report.sections import (
    curves,
    first_rounds,
    metric_chart,
    reached_column,
    scales,
)
from clientwise.report.statistics import Difference, holm, paired_difference

PAGE = Path(__file__).parents[2] / "docs" / "results" / "devices.md"
PLACE = re.compile(r"(<!-- run (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = [
    "method",
    "time to target",
    "share of FedAvg's time",
    "held-out accuracy",
    "slowest quarter",
    "against FedAvg",
]
ALONE = ["methods", "time to target, as a share", "slowest quarter"]
PAIRS = [
    ("size × speed", "FedAvg"),
    ("buffered, by age", "buffered"),
    ("buffered, by speed", "buffered"),
]


@dataclass(frozen=True)
class AtOneTime:
    """The accuracy of a method at a time at which all were still running, one value per seed."""

    held_out: list[float]
    slow: list[float]


def main(runs: Path, page: Path = PAGE) -> None:
    """Fill every place whose run is there."""

    def fill(place: re.Match[str]) -> str:
        folder = runs / place[2]
        if not (folder / "run.sqlite").exists():
            return place[0]
        picture = page.parent / "devices" / f"{place[2]}.png"
        return f"{place[1]}\n{block(RunFolder(folder, place[2]), picture)}\n{place[3]}"

    page.write_text(PLACE.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


def block(run: RunFolder, picture: Path) -> str:
    """The tables of a run, and its curves over time."""
    results = Results([run])
    methods = results.methods
    over_time = next(
        item for item in curves(results) if not isinstance(item, str) and item.id == "metric-time"
    )
    chart = replace(over_time, alt=ends(metric_chart(results)))
    picture.parent.mkdir(exist_ok=True)
    draw(chart, picture)
    describe(picture, chart.alt)
    quarters = {seed: slowest(run, seed) for seed in methods[0].seeds}
    last = {
        seed: min(float(one.curve("ended")[seed].max()) for one in methods) for seed in quarters
    }
    found = {one.label: at_one_time(one, last, quarters) for one in methods}
    until = until_target(results)
    then = in_time(statistics.median(last.values()))
    rounds, target = results.facts.rounds, percent(results.facts.target)
    return "\n\n".join(
        [
            f"*{len(quarters)} seeds, {rounds} rounds, target {target}; accuracy after {then} "
            "(median over the seeds).*",
            table(HEAD, rows_of(methods, until, found)),
            "**Effect of the criterion alone, against the same pace weighted by size**",
            table(ALONE, alone(methods, until, found)),
            f"![{chart.alt}](devices/{picture.name})\n",
        ]
    )


def ends(chart: Chart) -> str:
    """Which methods end highest and lowest, in words."""
    last = chart.frame.groupby("method")["value"].last()
    high, low = last.idxmax(), last.idxmin()
    return (
        f"{chart.title} over time: of {len(last)} methods {high} with {percent(last[high])} ends highest "
        f"and {low} with {percent(last[low])} lowest."
    )


def describe(picture: Path, text: str) -> None:
    """Write what a picture shows into its file."""
    about = PngInfo()
    about.add_text("Description", text)
    with Image.open(picture) as image:
        image.save(picture, pnginfo=about)


def until_target(results: Results) -> list[pandas.Series]:
    """The time at which every method reaches the target, by seed."""
    so_far = next(scale[2] for scale in scales(results) if scale[0] == "time")
    target = results.facts.target
    return [
        at_rounds(so_far(one), first_rounds(one, one.metric, target)) for one in results.methods
    ]


def alone(
    methods: Sequence[Method], until: Sequence[pandas.Series], found: Mapping[str, AtOneTime]
) -> list[list[str]]:
    """Every method that differs from another by a criterion alone, less that other."""
    time = {one.label: numpy.log(own) for one, own in zip(methods, until, strict=True)}
    shares = corrected([paired_difference(time[one], time[other]) for one, other in PAIRS])
    slow = corrected(
        [paired_difference(found[one].slow, found[other].slow) for one, other in PAIRS]
    )
    return [
        [f"{one} against {other}", ratio(share), points(difference)]
        for (one, other), share, difference in zip(PAIRS, shares, slow, strict=True)
    ]


def rows_of(
    methods: Sequence[Method], until: Sequence[pandas.Series], found: Mapping[str, AtOneTime]
) -> list[list[str]]:
    """Time to target and accuracy at one time of every method, beside those of the first one."""
    logs = [numpy.log(own) for own in until]
    shares = corrected([paired_difference(own, logs[0]) for own in logs[1:]])
    first, *others = found.values()
    slow = corrected([paired_difference(one.slow, first.slow) for one in others])
    every = f"{len(until[0])}/{len(until[0])}: "
    times = [text.removeprefix(every) for text in reached_column("time", until, in_time).text]
    return [
        [
            method,
            time,
            ratio(share),
            percent(statistics.fmean(one.held_out)),
            percent(statistics.fmean(one.slow)),
            points(difference),
        ]
        for (method, one), time, share, difference in zip(
            found.items(), times, [None, *shares], [None, *slow], strict=True
        )
    ]


def at_one_time(
    one: Method, last: Mapping[int, float], quarters: Mapping[int, list[int]]
) -> AtOneTime:
    """A method at the time of each seed at which the first of all ended."""
    found = AtOneTime([], [])
    local = one.frame("local")
    for seed, until in last.items():
        times = one.curve("ended")[seed].dropna()
        ended = int(times.index[times <= until].max())
        found.held_out.append(float(one.metric[seed][ended]))
        own = local[(local["seed"] == seed) & (local["round"] <= ended)].dropna(subset=["metric"])
        latest = own.groupby("client")["metric"].last()
        found.slow.append(float(latest.reindex(quarters[seed]).mean()))
    return found


def slowest(run: RunFolder, seed: int) -> list[int]:
    """The slowest quarter of the clients of a seed by response time, of those with test data."""
    experiment = cw.load(run.folder / "config.toml")
    data, _ = build_data(experiment, load_samples(experiment), seed)
    assert data.devices is not None
    seconds = data.devices.seconds(
        experiment.training.epochs * data.train.sizes.double(), run.facts.model_bytes
    )
    order = [
        client for client in seconds.argsort(descending=True).tolist() if data.test.sizes[client]
    ]
    return order[: len(order) // 4]


def corrected(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """With p after Holm's correction."""
    known = iter(holm([one for one in differences if one is not None]))
    return [None if one is None else next(known) for one in differences]


def points(difference: Difference | None) -> str:
    """A difference of shares in percentage points; with a star if it is statistically significant."""
    if difference is None or difference.interval is None:
        return "–"
    low, high = difference.interval
    return f"{100 * difference.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]{' *' * difference.is_significant}"


def ratio(difference: Difference | None) -> str:
    """A difference of logarithms as a share; with a star if it is statistically significant."""
    if difference is None or difference.interval is None:
        return "–"
    mean, low, high = (
        f"{math.exp(value):.0%}" for value in (difference.mean, *difference.interval)
    )
    return f"{mean} [{low}, {high}]{' *' * difference.is_significant}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
