"""Heart disease in four hospitals."""

from __future__ import annotations

from pathlib import Path

import numpy

from ..federated import DATASETS, Samples
from ..folder import DataError, find
from ..table import SampleTable, Sheet, Standardise, cached_table, join, read_csv

HOSPITALS = {"Cleveland": 303, "Hungarian": 294, "Switzerland": 123, "VA": 200}  # patients
NAMES = [
    *(
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
    ),
    "ill",
]
# Kinds of chest pain, ECG, slope, thallium scan: numbers by name only
CATEGORIES = (
    "cp",
    "restecg",
    "slope",
    "thal",
)
# Blood pressure and cholesterol: a zero means that it was not measured
NEVER_ZERO = ["trestbps", "chol"]
MOST_BYTES = 2**20


@DATASETS.register("heart")
def heart(data_dir: Path | None, *, standardise: Standardise = "pooled") -> Samples:
    """920 patients of four hospitals with 13 measurements each: heart disease or not (UCI, Janosi et al. 1988).

    Many measurements are missing. Each hospital is an id.

    Args:
        data_dir: the data folder.
        standardise: numbers by the training samples of all clients ("pooled"), of each ("client"), or not ("off").
    """
    get = "it belongs to the Heart Disease data of the UCI Machine Learning Repository (processed.*.data)"
    paths = [
        find(data_dir, "heart", [f"heart/processed.{name.lower()}.data"], get) for name in HOSPITALS
    ]

    def read() -> SampleTable:
        sheets = [_read(path, hospital) for path, hospital in zip(paths, HOSPITALS, strict=True)]
        return join(sheets, target="ill", kind="classification", categories=CATEGORIES)

    return cached_table("heart", paths, read).samples(standardise)


def _read(path: Path, hospital: str) -> Sheet:
    rows = read_csv(path, MOST_BYTES, names=NAMES)
    if len(rows) != HOSPITALS[hospital] or not rows["ill"].isin(range(5)).all():
        raise DataError(
            f"{path}: {HOSPITALS[hospital]} patients with a diagnosis of 0 to 4 expected, found {len(rows)} rows; "
            "get the file again"
        )
    rows["ill"] = (rows["ill"] > 0).astype(int)
    rows[NEVER_ZERO] = rows[NEVER_ZERO].mask(rows[NEVER_ZERO] == 0, numpy.nan)
    return Sheet(path, rows, hospital)
