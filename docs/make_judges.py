"""The table "How many judges" of docs/results/evidence.md, from a run of experiments/judges.toml.

python docs/make_judges.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas

from clientwise.experiment.matrix.grid import look_at
from clientwise.record.run import RunFolder

ROUND = ["method", "seed", "round"]


def false_alarms(weights: pandas.DataFrame) -> pandas.Series:
    """By method: share of the clients below half of the largest factor of a round, in any round."""
    factor = weights["posterior"] / weights["prior"]
    largest = factor.groupby([weights[key] for key in ROUND]).transform("max")
    lowered = weights.assign(lowered=factor < 0.5 * largest)
    ever = lowered.groupby(["method", "seed", "client"])["lowered"].any()
    return ever.groupby("method").mean()


def main() -> None:
    """Print one row per number of judges, one column per method and share of lying judges."""
    folder = Path(sys.argv[1])
    found = {}
    for cell in look_at(folder).cells:
        weights = RunFolder(folder / cell.folder).frame("weights")
        for method, share in false_alarms(weights[weights["hostile"].isna()]).items():
            found[int(cell.data), (method, f"{100 * cell.share:.0f}% lying")] = share
    table = pandas.Series(found).unstack()
    columns = sorted(table.columns, key=lambda column: (column[0], int(column[1].split("%")[0])))
    print("| judges | " + " | ".join(f"{method}, {lying}" for method, lying in columns) + " |")
    print("| --: |" + " --: |" * len(columns))
    for judges, row in table.sort_index().iterrows():
        shares = [f"{100 * row[column]:.0f}%" for column in columns]
        print(f"| {judges} | " + " | ".join(shares) + " |")


if __name__ == "__main__":
    main()
