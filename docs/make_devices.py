"""What came of the experiment on devices: fills the marked places of docs/results/devices.md from run folders.

    python docs/make_devices.py RUNS       (RUNS/devices-digits, RUNS/devices-wisdm: see experiments/run_all.py)

A place is what lies between `<!-- run NAME -->` and `<!-- end -->`. The page's protocol says what is measured.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clientwise.report.document import in_bytes, in_time, percent_of
from clientwise.report.output.figures import draw
from clientwise.report.scales import TIME, rescaled
from clientwise.report.sections.curves import metric_chart
from clientwise.report.sections.targets import median_rounds, rounds_cell
from clientwise.report.series import series_of

import clientwise as cw
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.report.statistics import Difference, holm, paired_difference

DOCS = Path(__file__).parent
PLACE = re.compile(r"(<!-- run (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ["method", "rounds to target", "time to target", "share of FedAvg's time", "bytes to target"]
AT_ONE_TIME = [
    "method",
    "held out",
    "slowest quarter",
    "against FedAvg",
    "fastest quarter",
    "against FedAvg",
]

ALONE = ["methods", "time to target, as a share", "slowest quarter", "fastest quarter"]
PAIRS = [
    ("size × speed", "FedAvg"),
    ("buffered, by age", "buffered"),
    ("buffered, by speed", "buffered"),
]


@dataclass(frozen=True)
class AtOneTime:
    """How a method did at a time at which all were still running, one value per seed."""

    held_out: list[float]
    slow: list[float]
    fast: list[float]


def main(runs: Path, page: Path = DOCS / "results" / "devices.md") -> None:
    """Fill every place whose run is there."""

    def fill(place: re.Match[str]) -> str:
        folder = runs / place[2]
        if not (folder / "run.sqlite").exists():
            return place[0]
        return f"{place[1]}\n{block(cw.Run(folder, place[2]), page.parent / 'devices' / f'{place[2]}.png')}\n{place[3]}"

    page.write_text(PLACE.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


def block(run: cw.Run, picture: Path) -> str:
    """The tables of a run, and its curves over time."""
    series = series_of([run])
    chart = rescaled(metric_chart(series), TIME, series)
    picture.parent.mkdir(exist_ok=True)
    draw([chart], picture)
    quarters = {seed: slow_and_fast(run, seed) for seed in run.seeds(run.methods[0])}
    last = {
        seed: min(max(run.times(method, seed).values()) for method in run.methods)
        for seed in quarters
    }
    found = {method: at_one_time(run, method, last, quarters) for method in run.methods}
    then = in_time(statistics.median(last.values()))
    return "\n\n".join(
        [
            f"*{len(quarters)} seeds, {run.rounds} rounds, target {percent_of(run.target)}.*",
            table(HEAD, times(run)),
            f"**Accuracy at the same time: {then} after the start (median over the seeds)**",
            table(AT_ONE_TIME, accuracies(found)),
            "**Effect of the criterion alone, against the same pace weighted by size**",
            table(ALONE, alone(run, found)),
            f"![{chart.alt}](devices/{picture.name})\n",
        ]
    )


def alone(run: cw.Run, found: Mapping[str, AtOneTime]) -> list[list[str]]:
    """Every method that differs from another by a criterion alone, less that other."""
    time = {line.method: logarithms(line.time_to_target) for line in run.summary()}
    shares = corrected([paired_difference(time[one], time[other]) for one, other in PAIRS])
    slow = corrected(
        [paired_difference(found[one].slow, found[other].slow) for one, other in PAIRS]
    )
    fast = corrected(
        [paired_difference(found[one].fast, found[other].fast) for one, other in PAIRS]
    )
    return [
        [f"{one} against {other}", ratio(share), points(slow_difference), points(fast_difference)]
        for (one, other), share, slow_difference, fast_difference in zip(
            PAIRS, shares, slow, fast, strict=True
        )
    ]


def logarithms(values: Sequence[float | None]) -> list[float | None]:
    """Of what is known."""
    return [None if value is None else math.log(value) for value in values]


def times(run: cw.Run) -> list[list[str]]:
    """Time to target, and that of every method as a share of the first one's."""
    lines = run.summary()
    logs = [logarithms(line.time_to_target) for line in lines]
    shares = corrected([paired_difference(own, logs[0]) for own in logs[1:]])
    rows = []
    for line, share in zip(lines, [None, *shares], strict=True):
        sent = median_rounds(line.bytes_to_target)
        cells = [
            rounds_cell(line.rounds_to_target).text,
            rounds_cell(line.time_to_target, in_time).text,
        ]
        rows.append([line.method, *cells, ratio(share), "–" if sent is None else in_bytes(sent)])
    return rows


def at_one_time(
    run: cw.Run,
    method: str,
    last: Mapping[int, float],
    quarters: Mapping[int, tuple[list[int], list[int]]],
) -> AtOneTime:
    """A method at the time of each seed at which the first of all ended."""
    found = AtOneTime([], [], [])
    for seed, until in last.items():
        ended = max(number for number, time in run.times(method, seed).items() if time <= until)
        found.held_out.append(dict(run.curve("metric", method, seed))[ended])
        for clients, values in zip(quarters[seed], (found.slow, found.fast), strict=True):
            curves = [run.client_curve(method, seed, client) for client in clients]
            known = [
                [value for number, value in curve if number <= ended and value is not None]
                for curve in curves
            ]
            values.append(statistics.fmean(curve[-1] for curve in known if curve))
    return found


def slow_and_fast(run: cw.Run, seed: int) -> tuple[list[int], list[int]]:
    """The slowest and the fastest quarter of the clients of a seed, by how long an answer takes; of those who test."""
    experiment = cw.load(run.folder / "config.toml")
    data, _ = build_data(experiment, load_samples(experiment), seed)
    assert data.devices is not None
    seconds = data.devices.seconds(
        experiment.training.epochs * data.train.sizes.double(), run.model_bytes
    )
    order = [
        client for client in seconds.argsort(descending=True).tolist() if data.test.sizes[client]
    ]
    quarter = len(order) // 4
    return order[:quarter], order[-quarter:]


def accuracies(found: Mapping[str, AtOneTime]) -> list[list[str]]:
    """Accuracy at one time, and that of every method less the first one's."""
    first, *others = found.values()
    slow = corrected([paired_difference(one.slow, first.slow) for one in others])
    fast = corrected([paired_difference(one.fast, first.fast) for one in others])
    return [
        [
            method,
            percent_of(statistics.fmean(one.held_out)),
            percent_of(statistics.fmean(one.slow)),
            points(slow_difference),
            percent_of(statistics.fmean(one.fast)),
            points(fast_difference),
        ]
        for (method, one), slow_difference, fast_difference in zip(
            found.items(), [None, *slow], [None, *fast], strict=True
        )
    ]


def corrected(differences: Sequence[Difference | None]) -> list[Difference | None]:
    """With p after Holm's correction."""
    known = iter(holm([one for one in differences if one is not None]))
    return [None if one is None else next(known) for one in differences]


def points(difference: Difference | None) -> str:
    """A difference of shares in percentage points; with a star where it is sure."""
    if difference is None or difference.interval is None:
        return "–"
    low, high = difference.interval
    return f"{100 * difference.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]{' *' * difference.is_significant}"


def ratio(difference: Difference | None) -> str:
    """A difference of logarithms as a share; with a star where it is sure."""
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
