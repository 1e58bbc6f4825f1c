"""The raw results of the proof: one row for every federation, variant, column, method and seed.

    python lab/proof/collect.py lab/results/proof.csv.gz FOLDER FOLDER

The folders are those of matrices. Where two have the same run, the later folder counts. A matrix whose federations are
called "writers: 5% of the clients" has variants of the federation "writers".
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy
import pandas

from clientwise.experiment.matrix.grid import MatrixCell, look_at
from clientwise.record.run import RunFolder
from clientwise.report.standings import false_alarms

KEYS = ["federation", "variant", "attack", "share", "method", "seed"]
SMALLEST = 1e-12  # ratio of influence to prior weight; smaller ones count as this


def main(target: Path, folders: list[Path]) -> None:
    """Write the raw results of all folders."""
    rows = pandas.concat([matrix_rows(folder) for folder in folders])
    rows = rows.drop_duplicates(KEYS, keep="last").sort_values(KEYS)
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        rows.to_csv(file, index=False, float_format="%.6g")


def matrix_rows(folder: Path) -> pandas.DataFrame:
    """The rows of a matrix."""
    return pandas.concat([cell_rows(folder, cell) for cell in look_at(folder).cells])


def cell_rows(folder: Path, cell: MatrixCell) -> pandas.DataFrame:
    """The rows of a cell.

    Columns:
        points: the metric in the last round, times 100.
        curve: its mean over the rounds, times 100.
        p10: of the honest clients' own test sets, the 10th percentile in the last round that has it, times 100.
        alarms: share of the honest clients that evidence ever lowered below half of the largest one.
        auroc: probability that a hostile client lost more weight than an honest one, mean over rounds.
        seconds: mean duration of a round.
    """
    run = RunFolder(folder / cell.folder)
    rounds = run.frame("rounds").groupby(["method", "seed"])
    rows = pandas.DataFrame({"points": 100 * rounds["metric"].last()})
    rows["curve"] = 100 * rounds["metric"].mean()
    rows["p10"] = 100 * rounds["local_p10"].last() if "local_p10" in rounds.obj else numpy.nan
    rows["alarms"] = false_alarms(run)
    rows["auroc"] = detection(run.frame("weights"))
    rows["seconds"] = rounds["seconds"].mean()
    federation, _, variant = cell.data.partition(": ")
    place = {
        "federation": federation,
        "variant": variant or "as it is",
        "attack": cell.attack,
        "share": cell.share,
    }
    return rows.reset_index().assign(**place)[[*KEYS, *rows.columns]]


def detection(weights: pandas.DataFrame) -> pandas.Series:
    """By method and seed, the AUROC of hostile against honest clients, where evidence changed weights."""
    judged = weights[weights["posterior"].notna()]
    ratio = (judged["influence"].astype(float) / judged["prior"]).clip(lower=SMALLEST)
    by_client = judged.assign(loss=-numpy.log(ratio), hostile=judged["hostile"].notna())
    clients = by_client.groupby(["method", "seed", "client"]).agg(
        loss=("loss", "mean"), hostile=("hostile", "first")
    )
    lanes = clients.groupby(level=["method", "seed"])
    return pandas.Series(
        {key: auroc(own["hostile"], own["loss"]) for key, own in lanes}, dtype=float
    )


def auroc(is_positive: pandas.Series, score: pandas.Series) -> float:
    """Probability that a positive has a higher score than a negative; NaN without either.

    >>> auroc(pandas.Series([True, False, False]), pandas.Series([3.0, 1.0, 3.0]))
    0.75
    """
    positives = int(is_positive.sum())
    negatives = len(score) - positives
    if not positives or not negatives:
        return numpy.nan
    above = score.rank()[is_positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
