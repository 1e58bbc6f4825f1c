"""Survival of breast cancer in six regions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...core.objective.problem import Survival
from ..federated import DATASETS, Samples
from ..folder import DataError, find
from ..table import SampleTable, Sheet, Standardise, cached_table, join, read_csv

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
# Patients of each in FLamby's split
TRAIN, TEST = (
    (248, 156, 164, 129, 129, 40),
    (63, 40, 42, 33, 33, 11),
)
MOST_DAYS = 36_500
MOST_BYTES = 2**20


@DATASETS.register("tcga_brca")
def tcga_brca(data_dir: Path | None, *, standardise: Standardise = "pooled") -> Samples:
    """1,088 breast-cancer patients of six regions with 39 attributes each: survival time (FLamby's TCGA-BRCA).

    The target is days until death, negative where the patient was alive then. Each region is an id.

    Args:
        data_dir: the data folder.
        standardise: numbers by the training samples of all clients ("pooled"), of each ("client"), or not ("off").
    """
    get = "it belongs to Fed-TCGA-BRCA of FLamby (flamby/datasets/fed_tcga_brca in its repository)"
    patients = find(data_dir, "tcga_brca", ["tcga_brca/brca.csv"], get)
    split = find(data_dir, "tcga_brca", ["tcga_brca/train_test_split.csv"], get)

    def read() -> SampleTable:
        made = join(
            [_read(patients, split)],
            target="T",
            kind="regression",
            client="region",
            ignore=["pid", "E"],
        )
        return replace(made, names=REGIONS)

    made = cached_table("tcga_brca", [patients, split], read)
    return replace(made.samples(standardise, Survival()), test_from=sum(TRAIN))


def _read(patients: Path, split: Path) -> Sheet:
    """The training patients by region, then the test patients; days are negative if the patient was alive then."""
    rows, folds = read_csv(patients, MOST_BYTES), read_csv(split, MOST_BYTES)
    import pandas

    for path, known, needed in (
        (patients, rows, ("pid", "E", "T")),
        (split, folds, ("pid", "fold2")),
    ):
        if missing := [name for name in needed if name not in known.columns]:
            raise DataError(f"{path}: no column {missing[0]!r}; get the file again")
    fold = (
        rows["pid"]
        .astype(str)
        .map(dict(zip(folds["pid"].astype(str), folds["fold2"], strict=True)))
    )
    parts = [
        rows[fold == f"{kind}_{region}"].assign(region=region)
        for kind in ("train", "test")
        for region in range(len(REGIONS))
    ]
    if (found := tuple(map(len, parts))) != TRAIN + TEST:
        raise DataError(
            f"{split}: {TRAIN + TEST} patients expected in its parts, found {found}; get both files again"
        )
    rows = pandas.concat(parts, ignore_index=True)
    died, days = (pandas.to_numeric(rows[name], errors="coerce") for name in ("E", "T"))
    if not (died.isin([0, 1]) & days.between(died, MOST_DAYS)).all():
        raise DataError(
            f"{patients}: E must be 0 or 1 and T days, one at least where E is 1; get the file again"
        )
    return Sheet(patients, rows.assign(T=days.where(died == 1, -days)))
