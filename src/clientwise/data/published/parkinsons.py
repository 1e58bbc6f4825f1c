"""Parkinson's disease followed by telephone: forty-two voices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..federated import DATASETS, Samples
from ..folder import DataError, find, read_file
from ..table import SampleTable, Sheet, Standardise, cached_table, join, parse_csv

RECORDINGS, PATIENTS = 5_875, 42
SCORES = ["motor_UPDRS", "total_UPDRS"]
MOST_BYTES = 2**24


@DATASETS.register("parkinsons")
def parkinsons(
    data_dir: Path | None,
    *,
    target: Literal["total_UPDRS", "motor_UPDRS"] = "total_UPDRS",
    standardise: Standardise = "pooled",
) -> Samples:
    """5,875 voice recordings of 42 Parkinson's patients: their UPDRS score (regression, Tsanas et al. 2009).

    The target is the score divided by 10. Each patient is an id.

    Args:
        data_dir: the data folder.
        target: the total or the motor score.
        standardise: numbers by the training samples of all clients ("pooled"), of each ("client"), or not ("off").
    """
    get = "it belongs to the Parkinsons Telemonitoring data of the UCI Machine Learning Repository"
    path = find(data_dir, "parkinsons", ["parkinsons/parkinsons_updrs.data"], get)

    def read() -> SampleTable:
        content = read_file(path, MOST_BYTES)
        rows = parse_csv(path, content, sep="\t" if b"\t" in content[:1000] else ",")
        if missing := {"subject#", "age", *SCORES} - set(rows.columns):
            raise DataError(f"{path}: no column {sorted(missing)[0]!r}; get the file again")
        if len(rows) != RECORDINGS or rows["subject#"].nunique() != PATIENTS:
            found = f"{len(rows):,} of {rows['subject#'].nunique()}"
            raise DataError(
                f"{path}: {RECORDINGS:,} rows of {PATIENTS} patients expected, found {found}; get it again"
            )
        others = [score for score in SCORES if score != target]
        made = join(
            [Sheet(path, rows)],
            target=target,
            kind="regression",
            client="subject#",
            ignore=others,
        )
        return replace(
            made,
            targets=made.targets / 10,
            target=f"{target} / 10",
            names=tuple(f"patient {number}" for number in made.names),
        )

    return cached_table("parkinsons", [path], read, [target]).samples(standardise)
