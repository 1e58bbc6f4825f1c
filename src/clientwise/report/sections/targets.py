"""Rounds to a target, and P1's tables: when 10 ... 90% of the clients reach it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from ..differences import shared_seeds, signed_rounds
from ..document import (
    Cell,
    Content,
    Section,
    Table,
    table,
)
from ..scales import Scale, scales
from ..series import Series
from ..statistics import Difference, paired_difference
from .clients import evaluated_clients

NEVER = 1e9  # later than any round: a target that was not reached
PERCENTAGES = [f"{percentage}%" for percentage in range(10, 100, 10)]
CENSORED = (
    "Rounds to a target: the number of seeds that reached it, and the median round. Seeds that did "
    "not reach it count as slowest; – where the median seed did not."
)

RoundsBySeed = Mapping[int, Sequence[int | None]]  # one round per percentage of the clients


def targets_section(series: Sequence[Series]) -> Section:
    """The first round in which 10 ... 90% of the clients reach a target on their own test data."""
    tables = []
    for target in target_choices(series):
        tables.append(_target_table(series, target))
        tables += [_used_table(series, target, scale) for scale in scales(series)]
    return Section("targets", "Rounds to target", "", tables)


def target_choices(series: Sequence[Series]) -> list[float]:
    """The config's targets; otherwise what half of the baseline's clients reached, rounded."""
    run = series[0].run
    if run.client_targets:
        return run.client_targets
    last = [run.reached(series[0].method, seed)[-1:] for seed in series[0].summary.seeds]
    medians = [curve[0][1][4] for curve in last if curve]
    if not medians:
        return []
    target = series[0].unit.rounded(statistics.fmean(medians), up=not run.higher_is_better)
    if target is None or (run.is_share and target in (0, 1)):
        return []  # all that can be reached: nobody asked for it
    return [target]


def _target_table(series: Sequence[Series], target: float) -> Table:
    baseline = series[0]
    theirs = _until_reached(baseline, target)
    rows: list[list[Content]] = []
    for one in series:
        ours = _until_reached(one, target)
        row: list[Content] = [one.label, *_percentage_cells(one, ours)]
        row.append(_gain_cell(one, baseline, ours, theirs))
        rows.append(row)
    gain = "average gain"
    note = (
        f"Rounds until that percentage of the {evaluated_clients(series[0].run)} reaches the target on its own test "
        f"data. {CENSORED} The gain is in rounds against the first method, mean over the nine "
        "percentages, with a 95% confidence interval over the seeds. A percentage that is not "
        "reached counts as reached in the last round that both methods have run (P1's rule): a "
        "loss is at least as large, and what neither reaches is no gain."
    )
    return table(
        f"target-{target:g}",
        _title(series, target),
        ["method", *PERCENTAGES, gain],
        rows,
        note,
        lower=PERCENTAGES,
    )


def _used_table(series: Sequence[Series], target: float, scale: Scale) -> Table:
    """Time or bytes until 10 ... 90% of the clients reach a target on their own test data."""
    rows: list[list[Content]] = []
    for one in series:
        so_far = {seed: scale.of(one, seed) for seed in one.summary.seeds}
        if not any(so_far.values()):
            continue  # a control has no clock
        used = []
        for seed, rounds in _until_reached(one, target).items():
            used.append([so_far[seed].get(number or 0) for number in rounds])
        cells = [rounds_cell(of_seeds, scale.text) for of_seeds in zip(*used, strict=True)]
        rows.append([one.label, *cells])
    note = (
        f"{scale.name.capitalize()} until that percentage of the {evaluated_clients(series[0].run)} reaches the "
        "target; see the table above."
    )
    return table(
        f"target-{target:g}-{scale.name}",
        f"{scale.name} to {_title(series, target)}",
        ["method", *PERCENTAGES],
        rows,
        note,
        lower=PERCENTAGES,
    )


def _title(series: Sequence[Series], target: float) -> str:
    run = series[0].run
    limit = "least" if run.higher_is_better else "most"
    return f"{run.metric} of at {limit} {series[0].unit.target(target)}"


def _percentage_cells(one: Series, reached: RoundsBySeed) -> list[Content]:
    measured = any(any(rounds) for rounds in reached.values())
    if not measured and not any(one.run.reached(one.method, seed, 1) for seed in reached):
        return ["–"] * len(PERCENTAGES)  # no client has been evaluated yet
    return [rounds_cell(of_seeds) for of_seeds in zip(*reached.values(), strict=True)]


def _gain_cell(one: Series, baseline: Series, ours: RoundsBySeed, theirs: RoundsBySeed) -> Cell:
    if one is baseline:
        return Cell(None, "baseline")
    gain = gain_against(one, baseline, ours, theirs)
    if gain is None:
        return Cell(None, "–")
    return Cell(gain.mean, signed_rounds(gain), numbers=difference_numbers(gain))


def difference_numbers(difference: Difference) -> dict[str, float | None]:
    """A difference in the columns of a CSV."""
    low, high = difference.interval or (None, None)
    return {"mean": difference.mean, "low": low, "high": high, "seeds": difference.pairs}


def rounds_cell(
    rounds: Sequence[float | None],
    text_of: Callable[[float], str] = "{:g}".format,
) -> Cell:
    """How many seeds reached a target, and the median round; those that did not are slowest.

    >>> rounds_cell([3, 4, None]).text, rounds_cell([3, None]).text, rounds_cell([7]).text
    ('2/3: 4', '1/2: –', '7')
    """
    reached = sum(value is not None for value in rounds)
    median = median_rounds(rounds)
    text = "–" if median is None else text_of(median)
    if len(rounds) > 1:
        text = f"{reached}/{len(rounds)}: {text}"
    elif median is None:
        text = "not reached"
    order = NEVER - reached / len(rounds) if median is None else median
    missed = len(rounds) - reached
    return Cell(order, text, numbers={"median": median, "reached": reached, "not reached": missed})


def median_rounds(rounds: Sequence[float | None]) -> float | None:
    """The median, where "not reached" exceeds any number; None where that is the median."""
    median = statistics.median(math.inf if value is None else value for value in rounds)
    return median if math.isfinite(median) else None


def _until_reached(one: Series, target: float) -> dict[int, list[int | None]]:
    """By seed, the first rounds in which 10 ... 90% of the clients reach a target."""
    found = {}
    for seed in one.summary.seeds:
        found[seed] = one.run.rounds_until_clients_reach(one.method, seed, target)
    return found


def gain_against(
    one: Series,
    baseline: Series,
    ours: RoundsBySeed,
    theirs: RoundsBySeed,
) -> Difference | None:
    """The average gain of a method, in the rounds that both have run; see `average_gain`."""
    last = {}
    for seed in shared_seeds(one, baseline):
        last[seed] = min(one.rounds(seed), baseline.rounds(seed))
    return average_gain(_until(theirs, last), _until(ours, last), last)


def _until(reached: RoundsBySeed, last: Mapping[int, int]) -> dict[int, list[int | None]]:
    """What was reached up to a round of each seed, so that running longer is no advantage."""

    def cut(number: int | None, end: int) -> int | None:
        return number if number is not None and number <= end else None

    return {seed: [cut(number, end) for number in reached[seed]] for seed, end in last.items()}


def average_gain(
    baseline: RoundsBySeed,
    ours: RoundsBySeed,
    last: Mapping[int, int],
) -> Difference | None:
    """Rounds saved against the baseline, mean over the percentages (P1's Avg.), paired by seed.

    A percentage that is not reached counts as reached in the `last` round (P1's Table 6). None
    where neither reaches any.

    >>> average_gain({1: [1, 20, None]}, {1: [1, 10, 80]}, {1: 100}).mean  # (0 + 10 + 20)/3
    10.0
    """
    seeds = sorted(baseline.keys() & ours.keys())
    if not any(any(baseline[seed]) or any(ours[seed]) for seed in seeds):
        return None
    gains = [_mean_gain(baseline[seed], ours[seed], last[seed]) for seed in seeds]
    return paired_difference(gains, [0.0] * len(gains))


def _mean_gain(before: Sequence[int | None], after: Sequence[int | None], last: int) -> float:
    pairs = zip(before, after, strict=True)
    return statistics.fmean((theirs or last) - (ours or last) for theirs, ours in pairs)
