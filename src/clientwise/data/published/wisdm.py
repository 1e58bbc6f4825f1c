"""WISDM: activities of people, by the accelerometer of their phone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ..federated import DATASETS, Samples
from ..folder import DataError, find, read_file
from ..table import SampleTable, Sheet, Standardise, cached_table, join, parse_csv

WINDOWS, PEOPLE, ACTIVITIES = 5_418, 36, 6
MOST_BYTES = 2**24
_ATTRIBUTE = re.compile(r'^@attribute\s+"?(\w+)"?', re.IGNORECASE | re.MULTILINE)
_DATA = re.compile(rb"^@data\s*$", re.IGNORECASE | re.MULTILINE)


@DATASETS.register("wisdm")
def wisdm(data_dir: Path | None, *, standardise: Standardise = "pooled") -> Samples:
    """5,418 accelerometer windows of 36 people in six activities (WISDM 1.1, Kwapisz et al. 2010).

    A window has ten seconds. Each person is an id.

    Args:
        data_dir: the data folder.
        standardise: numbers by the training samples of all clients ("pooled"), of each ("client"), or not ("off").
    """
    get = "it belongs to the activity prediction data of the WISDM lab (WISDM_ar_v1.1)"
    names = [
        "wisdm/WISDM_ar_v1.1_transformed.arff",
        "wisdm/WISDM_ar_v1.1/WISDM_ar_v1.1_transformed.arff",
    ]
    path = find(data_dir, "wisdm", names, get)

    def read() -> SampleTable:
        made = join(
            [_read(path)],
            target="class",
            kind="classification",
            client="user",
            ignore=["UNIQUE_ID"],
        )
        return replace(made, names=tuple(f"person {number}" for number in made.names))

    return cached_table("wisdm", [path], read).samples(standardise)


def _read(path: Path) -> Sheet:
    """An ARFF file: lines that name the attributes, @data, and rows of commas."""
    head, *rest = _DATA.split(read_file(path, MOST_BYTES), maxsplit=1)
    names = _ATTRIBUTE.findall(head.decode("utf-8", "replace"))
    if not rest or not {"user", "class", "UNIQUE_ID"} <= set(names) or len(set(names)) < len(names):
        raise DataError(f"{path}: not the ARFF file of WISDM's windows; get it again")
    rows = parse_csv(path, rest[0], names=names)
    counts = len(rows), rows["user"].nunique(), rows["class"].nunique()
    if counts != (WINDOWS, PEOPLE, ACTIVITIES):
        raise DataError(
            f"{path}: {WINDOWS:,} windows of {PEOPLE} people in {ACTIVITIES} activities expected, "
            f"found {counts[0]:,}, {counts[1]} and {counts[2]}; get it again"
        )
    return Sheet(path, rows)
