"""Hospitals with a CSV file each: compare methods on your own tables, then predict new rows.

    python examples/own_csv.py

The files are made here from scikit-learn's breast cancer table. One hospital has confused the two diagnoses.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas
from sklearn.datasets import load_breast_cancer

import clientwise as cw

SIZES = {"north": 120, "east": 90, "south": 70, "west": 100}


def write_files(folder: Path) -> None:
    """A file for every hospital, and two of the server: rows to weigh by, and rows to report on."""
    table = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=1)
    table["target"] = table["target"].map({0: "malignant", 1: "benign"})
    first = 0
    for name, size in {**SIZES, "held_out": 60, "test": 129}.items():
        rows = table.iloc[first : first + size].copy()
        if name == "west":
            rows["target"] = rows["target"].map({"malignant": "benign", "benign": "malignant"})
        rows.to_csv(folder / f"{name}.csv", index=False)
        first += size


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_files(folder)
        tables = {path.stem: pandas.read_csv(path) for path in sorted(folder.glob("*.csv"))}
        run = cw.fit(
            "linear",
            {name: tables[name] for name in SIZES},
            held_out=tables["held_out"],
            test=tables["test"],
            target="target",
            methods=["FedAvg", "Recommended"],
            seeds=[1, 2, 3],
            rounds=15,
            training={"epochs": 2, "batch_size": 16, "learning_rate": 0.05},
        )
        print(run)
        print(run.weights[15].unstack(sort=False).round(2))
        print(run.why("west", "Recommended"))
        new_rows = tables["test"].drop(columns="target").head(3)
        print(run.predict(new_rows, "Recommended"))


if __name__ == "__main__":
    main()
