"""P1's tables: rounds until shares of the clients reach a target, gains in rounds, and samples classified correctly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
from pandas import DataFrame as Frame
from pandas import Series

from clientwise.experiment.trackers import Progress, lane_file
from clientwise.record.run import RunFolder
from clientwise.report.results import Method, shared_seeds
from clientwise.report.sections import first_rounds
from clientwise.report.statistics import Difference, paired_difference

PERCENTAGES = [f"{share}%" for share in range(10, 100, 10)]
TARGETS = {  # by experiment
    "p1-celeba": (0.7, 0.8, 0.85),
    "p1-mnist-iid": (0.7, 0.8, 0.9, 0.95),
    "p1-mnist-shards": (0.7, 0.8, 0.9, 0.95),
    "p2-digits-by-writer": (0.75, 0.8, 0.9, 0.95),
    "p2-operators": (0.7, 0.8, 0.9, 0.95),
    "p2-operators-by-writer": (0.75, 0.8, 0.9, 0.95),
    "q-max-normalisation": (0.7, 0.8, 0.9, 0.95),
    "q-online-adjustment": (0.8, 0.9),
}


def until_clients_reach(one: Method, target: float) -> Frame:
    """The first rounds in which 10 ... 90% of the clients reach a target [seeds, percentages]; NaN: never."""
    return Frame({name: rounds_until(one, int(name[:-1]), target) for name in PERCENTAGES})


def rounds_until(one: Method, percentage: int, target: float) -> Series:
    """By seed, the first round in which so many percent of the honest clients reach a target; NaN: never."""
    local = one.frame("local")
    honest = local[local["hostile"].isna()]

    def value_reached(values: Series) -> float:
        best_first = values.sort_values(ascending=not one.run.facts.higher_is_better)
        return float(best_first.iloc[math.ceil(percentage * len(values) / 100) - 1])

    curves = honest.groupby(["round", "seed"])["metric"].agg(value_reached).unstack()
    return first_rounds(one, curves, target)


def gain_against(one: Method, baseline: Method, ours: Frame, theirs: Frame) -> Difference | None:
    """Rounds saved against the baseline, mean over the percentages (P1's Avg.), paired by seed.

    A percentage that is not reached counts as reached in the last round that both have run (P1's Table 6): running
    longer is no advantage. None where neither reaches any.
    """
    last = {seed: min(one.done[seed], baseline.done[seed]) for seed in shared_seeds(one, baseline)}
    return average_gain(theirs, ours, last)


def average_gain(baseline: Frame, ours: Frame, last: dict[int, int]) -> Difference | None:
    """See `gain_against`; frames are [seeds, percentages], and `last` is the last round by seed.

    >>> frames = [Frame([row], index=[1]) for row in ([1, 20, math.nan], [1, 10, 80])]
    >>> round(average_gain(*frames, {1: 100}).mean, 6)  # (0 + 10 + 20)/3
    10.0
    """
    ends = Series(last, dtype=float)
    before, after = (
        frame.reindex(ends.index).where(lambda own: own.le(ends, axis=0))
        for frame in (baseline, ours)
    )
    if before.isna().all(axis=None) and after.isna().all(axis=None):
        return None
    return paired_difference(before.T.fillna(ends).mean(), after.T.fillna(ends).mean())


def keep_best(progress: Progress) -> None:
    """After a round: keep which samples its model classified correctly, if no round before was as good."""
    found = progress.record.report or progress.record.local
    if found is None or found.right is None:
        return
    path = _best_file(progress.folder, progress.lane_file)
    metric = float(found.overall()[0])
    if path.exists() and metric <= numpy.load(path)["metric"]:
        return
    path.parent.mkdir(exist_ok=True)
    right = found.right[0].cpu().numpy()
    numpy.savez(path, metric=metric, round=progress.record.round_num, right=right)


def best_of(run: RunFolder, method: str, seed: int) -> Any:
    """Which samples [N] the model of the best round classified correctly; None where that was not kept."""
    path = _best_file(run.folder, lane_file(method, seed))
    return numpy.load(path)["right"] if path.exists() else None


def _best_file(folder: Path, lane: str) -> Path:
    return folder / "best" / f"{lane}.npz"


def mcnemar(ours: Any, theirs: Any) -> tuple[dict[str, int], float]:
    """Of the same samples, how many two methods classified correctly, and the p of McNemar's exact test.

    p: how often two equally good methods would divide as unevenly the samples that only one of them
    classifies correctly.

    >>> ours, theirs = numpy.array([True] * 99 + [False]), numpy.array([True] * 90 + [False] * 9 + [True])
    >>> counts, p_value = mcnemar(ours, theirs)
    >>> counts["only this"], counts["only the baseline"], round(p_value, 4)
    (9, 1, 0.0215)
    """
    from scipy.special import bdtr

    counts = {
        "both right": int((ours & theirs).sum()),
        "only this": int((ours & ~theirs).sum()),
        "only the baseline": int((~ours & theirs).sum()),
        "both wrong": int((~ours & ~theirs).sum()),
    }
    only = (counts["only this"], counts["only the baseline"])
    return counts, min(1.0, 2 * float(bdtr(min(only), sum(only), 0.5)))
