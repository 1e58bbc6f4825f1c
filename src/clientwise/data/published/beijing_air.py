"""Air over Beijing, hour by hour, at twelve stations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from ..federated import DATASETS, Samples
from ..folder import DataError, find
from ..table import SampleTable, Sheet, Standardise, cached_table, join, read_csv

if TYPE_CHECKING:
    from pandas import DataFrame

STATIONS = (
    *(
        "Aotizhongxin",
        "Changping",
        "Dingling",
        "Dongsi",
        "Guanyuan",
        "Gucheng",
        "Huairou",
        "Nongzhanguan",
        "Shunyi",
    ),
    *("Tiantan", "Wanliu", "Wanshouxigong"),
)
HOURS = 35_064  # of every station, four years
TARGET = "PM2.5"
CATEGORIES = ("month", "hour", "wd")  # wd: the direction of the wind
# PM10 is what is to be predicted and coarser dust
IGNORE = (
    "No",
    "year",
    "day",
    "PM10",
    "station",
)
MOST_BYTES = 2**24


@DATASETS.register("beijing_air")
def beijing_air(data_dir: Path | None, *, standardise: Standardise = "pooled") -> Samples:
    """Hourly PM2.5 at twelve stations in Beijing, from gases and weather (regression, Zhang et al. 2017).

    The target is log10 of PM2.5, since errors of a concentration are relative. Hours without PM2.5
    are left out. Each station is an id.

    Args:
        data_dir: the data folder.
        standardise: numbers by the training samples of all clients ("pooled"), of each ("client"), or not ("off").
    """
    get = "it belongs to the Beijing Multi-Site Air-Quality data of the UCI Machine Learning Repository"
    paths = [_file(data_dir, station, get) for station in STATIONS]

    def read() -> SampleTable:
        tables = [_read(path) for path in paths]
        sheets = []
        for path, station, rows in zip(paths, STATIONS, tables, strict=True):
            logarithms = rows.assign(**{TARGET: numpy.log10(rows[TARGET])})
            sheets.append(Sheet(path, logarithms, station))
        made = join(sheets, target=TARGET, kind="regression", categories=CATEGORIES, ignore=IGNORE)
        given = numpy.concatenate([rows[TARGET].to_numpy() for rows in tables])
        return replace(made, target=f"log10({TARGET})", given=given)

    return cached_table("beijing_air", paths, read, ["given"]).samples(standardise)


def _file(data_dir: Path | None, station: str, get: str) -> Path:
    name = f"PRSA_Data_{station}_20130301-20170228.csv"
    folders = ("beijing_air", "beijing_air/PRSA_Data_20130301-20170228")
    return find(
        data_dir,
        "beijing_air",
        [f"{folder}/{name}{end}" for folder in folders for end in ("", ".gz")],
        get,
    )


def _read(path: Path) -> DataFrame:
    """The hours with a measurement."""
    rows = read_csv(path, MOST_BYTES)
    if len(rows) != HOURS or TARGET not in rows or rows[TARGET].dtype.kind != "f":
        raise DataError(
            f"{path}: {HOURS:,} hours with {TARGET} expected, found {len(rows):,} rows; get it again"
        )
    if (rows[TARGET] <= 0).any():
        raise DataError(f"{path}: a {TARGET} is not above zero; get the file again")
    return rows.dropna(subset=[TARGET])
