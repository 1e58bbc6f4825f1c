"""The raw results of the protocol on backdoors: one row for every federation, column, method and seed.

    python lab/backdoors/collect.py lab/results/backdoors.csv.gz FOLDER FOLDER

The folders are those of matrices; a file has raw results of earlier runs. Where two have the same run, the later one
counts.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas

from clientwise.experiment.matrix.grid import MatrixCell, look_at
from clientwise.record.run import RunFolder

KEYS = ["network", "federation", "attack", "share", "method", "seed"]
LAST_ROUNDS = 5  # over which the success of a trigger is averaged


def main(target: Path, folders: list[Path]) -> None:
    """Write the raw results of all folders."""
    rows = pandas.concat([rows for folder in folders for rows in rows_of(folder)])
    rows = rows.drop_duplicates(KEYS, keep="last").sort_values(KEYS)
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        rows.to_csv(file, index=False, float_format="%.6g")


def rows_of(folder: Path) -> Iterator[pandas.DataFrame]:
    """The rows of each cell of a matrix, or those of a file."""
    if folder.is_file():
        yield pandas.read_csv(folder)
        return
    for cell in look_at(folder).cells:
        if (folder / cell.folder / "run.sqlite").is_file():
            yield cell_rows(folder, cell)


def cell_rows(folder: Path, cell: MatrixCell) -> pandas.DataFrame:
    """The finished lanes of a cell."""
    run = RunFolder(folder / cell.folder)
    rounds = run.frame("rounds")
    if "attack_success" not in rounds:
        rounds["attack_success"] = float("nan")
    if "suspects" not in rounds:
        rounds["suspects"] = None
    weights = run.frame("weights")
    found = []
    for (method, seed), lane in rounds.groupby(["method", "seed"]):
        lane = lane.set_index("round").sort_index()
        if lane.index[-1] < run.facts.rounds:
            continue
        own = weights[(weights["method"] == method) & (weights["seed"] == seed)]
        last = own[own["round"] == own["round"].max()]
        is_hostile = last["hostile"].notna()
        honest = last[~is_hostile]
        notes = [note for one in lane["notes"].dropna() for note in one]
        found.append(
            {
                "network": "cnn" if folder.name.startswith("cnn") else "mlp",
                "federation": cell.data,
                "attack": cell.attack,
                "share": cell.share,
                "method": method,
                "seed": seed,
                "metric": lane["metric"].iloc[-1],
                "success": lane["attack_success"].iloc[-LAST_ROUNDS:].mean(),
                "hostile_influence": last["influence"][is_hostile].sum(),
                "lowered": (honest["influence"] < honest["prior"] / 2).mean(),
                "watched": bool(lane["suspects"].notna().any()),
                "suspected": any("a backdoor is suspected" in note for note in notes),
                "seconds": lane["seconds"].sum(),
            }
        )
    return pandas.DataFrame(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
