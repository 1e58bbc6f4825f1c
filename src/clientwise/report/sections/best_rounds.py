"""Each method at its best round, sample by sample against the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from ..differences import shared_seeds
from ..document import (
    Cell,
    Content,
    Section,
    table,
)
from ..series import Series
from ..statistics import contingency, holm_p_values


def best_rounds_section(series: Sequence[Series]) -> Section:
    """P1's Tables 3, 5 and 7: which samples a method and the baseline classified correctly."""
    baseline = series[0]
    rows: list[list[Content]] = []
    p_values: list[float | None] = []
    for one in series[1:]:
        for seed in _equally_far(one, baseline):
            found = _row(one, baseline, seed)
            if found is not None:
                rows.append(found[0])
                p_values.append(found[1])
    for row, p_value in zip(rows, holm_p_values(p_values), strict=True):
        row.append(Cell(p_value, f"{p_value:.2g}"))
    columns = [
        "method",
        "seed",
        "best",
        "baseline's best",
        "both right",
        "only this",
        "only the baseline",
        "both wrong",
        "p (McNemar, Holm)",
    ]
    note = (
        f"Counts of {baseline.run.reported_on}, every method at its own best round. That round "
        "was chosen on these same samples, so both values are optimistic. McNemar's exact test: "
        "whether the samples that only one of the two classifies correctly are divided by chance; "
        "p is corrected for all rows (Holm). Seeds in which the two have run different numbers of "
        "rounds are left out."
    )
    shown = table(
        "contingency",
        f"Right and wrong, against {baseline.label}",
        columns,
        rows,
        note,
        lower=["both wrong", "only the baseline", "p (McNemar, Holm)"],
    )
    return Section("best", "Best rounds, sample by sample", "", [shown] if rows else [])


def _equally_far(one: Series, other: Series) -> list[int]:
    """The seeds they share in which both have run as many rounds."""
    return [seed for seed in shared_seeds(one, other) if one.rounds(seed) == other.rounds(seed)]


def _row(one: Series, baseline: Series, seed: int) -> tuple[list[Content], float] | None:
    """A row and its p, not corrected.

    None where nothing was kept (regression), or other samples: other clients were hostile.
    """
    ours = one.run.best_round(one.method, seed)
    theirs = baseline.run.best_round(baseline.method, seed)
    if ours is None or theirs is None or len(ours.right) != len(theirs.right):
        return None
    found = contingency(ours.right, theirs.right)
    row: list[Content] = [
        one.label,
        seed,
        Cell(ours.metric, f"{one.unit.text(ours.metric)} (round {ours.round_num})"),
        Cell(theirs.metric, f"{one.unit.text(theirs.metric)} (round {theirs.round_num})"),
        found.both_right,
        found.only_ours,
        found.only_theirs,
        found.both_wrong,
    ]
    return row, found.p_value
