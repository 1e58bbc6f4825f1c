"""Tables give the inputs, targets, columns and split that they have always given: `golden_tables.json`.

The file was written when tables were still read in pieces. Numbers in it are rounded to six digits.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest

from clientwise.data.datasets import DATASETS
from clientwise.data.division import hand_out
from clientwise.data.federated import FederatedData
from clientwise.data.own import read_own
from clientwise.data.partition import by_id
from dividing import federate

GOLDEN = Path(__file__).with_name("golden_tables.json")
DIGITS = 6


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path_factory.mktemp("cache")))


def rows(count: int, first: int = 0) -> pandas.DataFrame:
    """Numbers, words and gaps that follow from the number of the row."""
    numbers = range(first, first + count)
    return pandas.DataFrame(
        {
            "age": [20 + (number * 37) % 61 + number % 4 / 4 for number in numbers],
            "dose": [None if number % 7 == 3 else (number * 13 % 29) / 8 for number in numbers],
            "ward": [["B", "A", " C ", None, "B"][number % 5] for number in numbers],
            "code": [["1", "2", "1.0", "10"][number * 3 % 4] for number in numbers],
            "fixed": [2.5] * count,
            "note": [f"row {number}" for number in numbers],
            "y": [None if number % 19 == 5 else number * 5 % 11 for number in numbers],
        }
    )


def federated(samples: Any, **options: float) -> FederatedData:
    fractions = {"test_fraction": 0.25, "server_fraction": 0.2, "report_fraction": 0.5}
    return federate(samples, partial(by_id, minimum=2), 1, **fractions | options)


def write(folder: Path, name: str, frame: pandas.DataFrame, **options: Any) -> None:
    text = frame.to_csv(index=False, **options).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def a_file_per_client(folder: Path) -> FederatedData:
    """Words as classes and categories, with an unknown mark, spaces and columns in another order."""
    first, second = rows(24), rows(17, 50)
    write(folder, "north.csv", first.assign(y=first["y"].map({0: "no", 1: "no"}).fillna("yes")))
    second = second.assign(y=second["y"].map({0: "yes", 3: "yes"}).fillna("no"))
    write(folder, "south.csv", second[second.columns[::-1]], na_rep="?")
    load = DATASETS.get("table")
    options = {"target": "y", "categories": ["ward", "code"], "ignore": ["note"]}
    return federated(load(folder, files="*.csv", **options))


def a_column_of_clients(folder: Path) -> FederatedData:
    """Numbers to predict, compressed and separated by tabs."""
    frame = rows(48).assign(site=["10", "9", "b "] * 16).drop(columns=["note"])
    write(folder, "all.tsv.gz", frame, sep="\t", na_rep="NA")
    options = {"kind": "regression", "client": "site"}
    options |= {"target": "y", "categories": ["ward", "code"]}
    return federated(DATASETS.get("table")(folder, files="all.tsv.gz", **options))


def times_with_decimal_commas(folder: Path) -> FederatedData:
    """Survival, as a spreadsheet in German writes it, with truth values; nothing is scaled."""
    frame = rows(40).assign(died=[number % 3 % 2 for number in range(40)])
    frame["y"] = frame["y"] + 0.5
    frame["smokes"] = [["True", "False"][number % 2] for number in range(40)]
    write(folder, "all.csv", frame.assign(site=["x", "y"] * 20), sep=";", decimal=",")
    options = {"kind": "survival", "client": "site", "event": "died", "standardise": False}
    options |= {"target": "y", "ignore": ["note", "fixed", "ward"]}
    return federated(DATASETS.get("table")(folder, files="all.csv", **options))


def a_parquet_file(folder: Path) -> FederatedData:
    """Types that CSV does not have: truth values, categories and integers with gaps, an index."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = rows(36).drop(columns="note")
    frame["well"] = pandas.array([None, True, False] * 12, dtype="boolean")
    frame["count"] = pandas.array([None, *range(35)], dtype="Int64")
    frame["ward"] = frame["ward"].astype("category")
    frame["y"] = frame["y"].fillna(0).astype(int) % 3
    frame.index = pandas.Index([f"row {number}" for number in frame.index])
    frame.assign(site=["x", "y"] * 18).to_parquet(folder / "all.parquet")
    options = {"target": "y", "client": "site", "categories": ["ward", "code"]}
    return federated(DATASETS.get("table")(folder, files="*.parquet", **options))


def what_training_rows_lack(folder: Path) -> FederatedData:
    """A constant, an empty column, and a category and gaps that only test rows have."""
    frame = rows(24).assign(empty=None, site=["x", "y"] * 12).drop(columns=["note", "dose"])
    frame["y"] = [number % 2 for number in range(24)]
    frame["ward"] = "B"
    options = {"target": "y", "client": "site", "categories": ["ward", "code"]}
    write(folder, "all.csv", frame)
    load = partial(DATASETS.get("table"), folder, files="all.csv", **options)
    tested = federated(load(), server_fraction=0.0).test.indices.tolist()
    frame.loc[tested[:2], "ward"] = "Z"
    frame.loc[tested[2:4], "age"] = None
    write(folder, "all.csv", frame)
    return federated(load(), server_fraction=0.0)


def frames_of_fit(folder: Path) -> FederatedData:
    """Frames as `cw.fit` takes them: words become categories; held-out and test frames."""
    clients = {"south": rows(20), "north": rows(25, 30)}
    given = {"held_out": rows(9, 100), "test": rows(8, 200), "target": "y", "ignore": ["note"]}
    own = read_own(clients, **given)
    divided = own.divide(1, test_fraction=0.2, weigh_fraction=0.1, report_fraction=0.1)
    return hand_out(own.samples, divided, 1)


CASES: list[Callable[[Path], FederatedData]] = [
    a_file_per_client,
    a_column_of_clients,
    times_with_decimal_commas,
    a_parquet_file,
    what_training_rows_lack,
    frames_of_fit,
]


def facts(data: FederatedData) -> dict[str, Any]:
    """What a case gives, as JSON has it."""
    samples = data.samples
    table = samples.table
    assert table is not None
    held = {"train": data.train, "test": data.test, "weigh": data.weigh, "report": data.report}
    columns = [
        [one.name, list(one.categories), one.marks_missing, *rounded([one.mean, one.deviation])]
        for one in table.columns
    ]
    return {
        "names": list(data.names),
        "problem": samples.problem.kind,
        "target": table.target,
        "classes": list(table.classes),
        "columns": columns,
        "missing": rounded([one.missing or 0.0 for one in table.columns]),
        "inputs": [rounded(row) for row in samples.inputs.tolist()],
        "targets": samples.targets.tolist(),
        "held": {name: one.indices.tolist() if one else None for name, one in held.items()},
        "sizes": [data.train.sizes.tolist(), data.test.sizes.tolist()],
    }


def rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_table_gives_what_it_has_always_given(case: Any, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))[case.__name__]
    found = facts(case(tmp_path))
    for fact in golden:
        if fact in ("inputs", "missing"):
            for row, wanted in zip(found[fact], golden[fact], strict=True):
                assert row == pytest.approx(wanted, rel=10**-DIGITS * 2, abs=10**-DIGITS)
        elif fact == "columns":
            for column, wanted in zip(found[fact], golden[fact], strict=True):
                assert column[:3] == wanted[:3]
                assert column[3:] == pytest.approx(wanted[3:], rel=10**-DIGITS * 2)
        else:
            assert found[fact] == golden[fact], fact
