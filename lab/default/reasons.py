"""False alarms and detection of the cells of a matrix, from its run folders: the table of `lab/default/reasons.toml`.

    python lab/default/reasons.py runs/reasons [runs/other]

A client's share is its influence over its weight by the criteria. A false alarm is an honest client whose share by the
evidence alone ever fell below half of the largest one of an honest client. AUROC tells hostile from honest clients by
the mean logarithm of their shares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import clientwise as cw

METHOD = "Recommended"
LEAST = 1e-12  # share; smaller ones count as this


def auroc(hostile: pd.Series, score: pd.Series) -> float:
    """Probability that a hostile client has a higher score than an honest one."""
    ranks = score.rank()
    ones = int(hostile.sum())
    zeros = len(hostile) - ones
    return float((ranks[hostile].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def of_seed(rows: pd.DataFrame) -> dict[str, float]:
    """False alarms in percent, and AUROC where some clients are hostile."""
    clients = rows.groupby("client")
    hostile = clients["hostile"].first().notna()
    factor = rows["posterior"] * rows["copies"].fillna(1) / rows["prior"]
    honest = rows["hostile"].isna()
    largest = factor[honest].groupby(rows["round"]).max()
    is_low = factor[honest] < 0.5 * rows["round"][honest].map(largest)
    found = {"false alarms": 100 * is_low.groupby(rows["client"]).max().mean()}
    if hostile.any():
        share = np.log((rows["influence"] / rows["prior"]).clip(lower=LEAST))
        found["AUROC"] = 100 * auroc(hostile, -share.groupby(rows["client"]).mean())
    return found


def of_cell(folder: Path) -> dict[str, float]:
    """Means over the seeds, and the metric of every method in the last round."""
    run = cw.Run(folder)
    rounds = run.frame("rounds")
    last = rounds[rounds["round"] == rounds["round"].max()]
    weights = run.frame("weights")
    mine = weights[(weights["method"] == METHOD) & weights["posterior"].notna()]
    seeds = pd.DataFrame([of_seed(rows) for _, rows in mine.groupby("seed")])
    return {**last.groupby("method")["metric"].mean(), **seeds.mean()}


def table(matrix: Path) -> pd.DataFrame:
    """A row for every cell of a matrix."""
    cells = sorted(path.parent for path in matrix.glob("*/run.sqlite"))
    return pd.DataFrame({cell.name: of_cell(cell) for cell in cells}).T


def main() -> None:
    """Print the table of every matrix, and the means without attacks and under attack."""
    for name in sys.argv[1:]:
        found = table(Path(name))
        is_clean = found.index.str.endswith("clean")
        print(found.round(3).to_string())
        print(f"false alarms without attacks: {found['false alarms'][is_clean].mean():.1f}%")
        print(f"false alarms under attack: {found['false alarms'][~is_clean].mean():.1f}%")
        print(f"AUROC: {found['AUROC'].mean():.1f}")


if __name__ == "__main__":
    main()
