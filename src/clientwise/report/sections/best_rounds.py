"""Each method at its best round, sample by sample against the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from ..differences import shared_seeds
from ..document import Cell, Content, Section, percent_of, table
from ..series import Series
from ..statistics import contingency


def best_rounds_section(series: Sequence[Series]) -> Section:
    """P1's Tables 3, 5 and 7: which samples a method and the baseline classified correctly."""
    baseline = series[0]
    rows = []
    for one in series[1:]:
        for seed in _equally_far(one, baseline):
            row = _row(one, baseline, seed)
            if row is not None:
                rows.append(row)
    columns = [
        "method",
        "seed",
        "best",
        "baseline's best",
        "both right",
        "only this",
        "only the baseline",
        "both wrong",
        "McNemar's p",
    ]
    note = (
        f"Counts of {baseline.run.reported_on}, every method at its own best round. That round "
        "was chosen on these same samples, so both values are optimistic. McNemar's exact test: "
        "whether the samples that only one of the two classifies correctly are divided by chance. "
        "Of twenty such tests, one falls below 0.05 by chance. Seeds in which the two have run "
        "different numbers of rounds are left out."
    )
    shown = table(
        "contingency",
        f"Right and wrong, against {baseline.label}",
        columns,
        rows,
        note,
        lower=["both wrong", "only the baseline", "McNemar's p"],
    )
    return Section("best", "Best rounds, sample by sample", "", [shown] if rows else [])


def _equally_far(one: Series, other: Series) -> list[int]:
    """The seeds they share in which both have run as many rounds."""
    return [seed for seed in shared_seeds(one, other) if one.rounds(seed) == other.rounds(seed)]


def _row(one: Series, baseline: Series, seed: int) -> list[Content] | None:
    """None where nothing was kept (regression), or other samples: other clients were hostile."""
    ours = one.run.best_round(one.method, seed)
    theirs = baseline.run.best_round(baseline.method, seed)
    if ours is None or theirs is None or len(ours.right) != len(theirs.right):
        return None
    found = contingency(ours.right, theirs.right)
    return [
        one.label,
        seed,
        Cell(ours.metric, f"{percent_of(ours.metric)} (round {ours.round_num})"),
        Cell(theirs.metric, f"{percent_of(theirs.metric)} (round {theirs.round_num})"),
        found.both_right,
        found.only_ours,
        found.only_theirs,
        found.both_wrong,
        Cell(found.p_value, f"{found.p_value:.2g}"),
    ]
