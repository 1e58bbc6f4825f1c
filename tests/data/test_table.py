"""Tables: a user's own and the published ones, and what becomes of their columns once it is known who trains."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas
import pytest
import torch

import clientwise as cw
from clientwise.data.datasets import DATASETS
from clientwise.data.encoding import Encoding, InputColumn
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.folder import DataError
from clientwise.data.partition import by_id
from clientwise.data.table import encode_rows, prepare
from clientwise.errors import ConfigError
from dividing import federate

NAN = float("nan")
COLUMNS = (InputColumn("age"), InputColumn("stage", ("I", "II", "III")))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path_factory.mktemp("cache")))


def held(train: list, test: list, server: list) -> FederatedData:
    """Rows (age, place of the stage) of two clients, and of the server."""
    rows = [
        (torch.tensor(part).reshape(-1, 2), torch.zeros(len(part), dtype=torch.int64))
        for part in (*train, *test)
    ]
    data = FederatedData.from_clients(
        [(values.nan_to_num(), targets) for values, targets in rows[:2]],
        [(values.nan_to_num(), targets) for values, targets in rows[2:]],
        report=(torch.tensor(server), torch.zeros(len(server), dtype=torch.int64)),
    )
    raw = torch.cat([values for values, _ in rows] + [torch.tensor(server)]).double()
    return FederatedData(
        Samples(raw, data.samples.targets, data.samples.problem, table=Encoding("y", COLUMNS)),
        data.train,
        data.test,
        None,
        data.report,
    )


def prepared() -> torch.Tensor:
    train = [[(10.0, 0), (20.0, 0)], [(30.0, 1), (40.0, NAN)]]
    test = [[(NAN, 2)], [(25.0, 1)]]
    return prepare(held(train, test, [[35.0, 0.0]]), True).samples.inputs


def test_statistics_are_of_the_training_samples() -> None:
    inputs = prepared()  # age, whether it is missing, three stages, whether that is missing
    assert inputs.shape == (7, 6)
    spread = 125**0.5  # of 10, 20, 30, 40 around 25
    torch.testing.assert_close(inputs[:4, 0], torch.tensor([-15, -5, 5, 15]) / spread)
    assert inputs[4:, 0].tolist() == pytest.approx(
        [0, 0, 10 / spread]
    )  # missing is the mean; 25 is it, too
    assert inputs[:, 1].tolist() == [0] * 7  # nobody trained on a row without age
    assert inputs[:, 2:5].tolist() == [[1, 0, 0]] * 2 + [
        [0, 1, 0],
        [0, 0, 0],
        [0, 0, 0],
        [0, 1, 0],
        [1, 0, 0],
    ]
    assert inputs[:, 5].tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_a_column_that_is_constant_or_empty_in_training_says_nothing() -> None:
    train = [[(0.1, 0), (0.1, 0)], [(0.1, 0), (0.1, 0)]]
    inputs = prepare(held(train, [[(9.0, 1)], [(0.1, 0)]], [[0.1, 0.0]]), True).samples.inputs
    assert inputs[:, 0].tolist() == [0] * 7
    gone = [[(NAN, 0), (NAN, 0)], [(NAN, 0), (NAN, 0)]]
    inputs = prepare(held(gone, [[(9.0, 1)], [(0.1, 0)]], [[0.1, 0.0]]), True).samples.inputs
    assert inputs[:, 0].tolist() == [0] * 7


# The user's own table ---------------------------------------------------------------------------------------------

HOSPITALS = {
    "north.csv": "age,sex,ill\n63,male,yes\n41,female,no\n?,male,no\n55,,yes\n60,male,\n",
    "south.csv": "sex,age,ill\nfemale,70,yes\nmale,NA,no\nfemale,33,no\nother,48,yes\n",
}
OPTIONS = {"files": "hospitals/*.csv", "target": "ill", "categories": ["sex"]}


def write(folder: Path, files: dict[str, str] = HOSPITALS) -> Path:
    (folder / "hospitals").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "hospitals" / name).write_text(text, encoding="utf-8")
    return folder


def load(folder: Path, **options) -> Samples:
    return DATASETS.get("table")(folder, **OPTIONS | options)


def federated(samples: Samples) -> FederatedData:
    partition = partial(by_id, minimum=2)
    return federate(
        samples, partition, 1, test_fraction=0.25, server_fraction=0.0, report_fraction=0.0
    )


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {"files": "elsewhere/*.csv"}, "elsewhere/.*no such file"),
        (
            {},
            {"target": "il"},
            "north.csv, .*south.csv: no column 'il'; did you mean 'ill'",
        ),
        (
            {},
            {"target": "il", "client": "ward", "ignore": ["smoker"]},
            "'il'; .*'ward'; .*'smoker' to ignore",  # all at once
        ),
        (
            {},
            {"categories": []},
            "north.csv: column 'sex', row 1: 'male' is not a number below 1e\\+30, and neither are 6 other",
        ),
        (
            {},
            {"client": "sex"},
            "north.csv: column 'sex', row 4: is empty, and must name the client",
        ),
        (
            {"south.csv": "sex,age,ill\nmale,inf,yes\n"},
            {},
            "south.csv: column 'age', row 1: 'inf' is not a number",
        ),
        ({"south.csv": "sex,age,ill\nmale,1,yes,2\n"}, {}, "south.csv: not a table"),
        (
            {"south.csv": "sex,age,ill,ill\nmale,1,yes,yes\n"},
            {},
            "south.csv: two columns are called 'ill'",
        ),
        (
            {"south.csv": "sex,age,ill\nmale,1,\n"},
            {},
            "south.csv: no row has a value in column 'ill'",
        ),
        (
            {"south.parquet": "no"},
            {"files": "hospitals/*.parquet"},
            "south.parquet: (not a table|Parquet needs)",
        ),
        (
            {"north.csv": "sex,age,ill\nmale,1,no\n", "south.csv": "sex,age,ill\nmale,1,no\n"},
            {},
            "nothing to learn",
        ),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path: Path, files, options, message: str) -> None:
    folder = write(tmp_path, HOSPITALS | files)
    with pytest.raises(DataError, match=message):
        load(folder, **options)


def test_a_table_by_toml_alone(tmp_path: Path) -> None:
    """Five lines, and clients with names in the run."""
    write(tmp_path)
    config = {
        **{
            "name": "mine",
            "rounds": 2,
            "model": "linear",
            "device": "cpu",
            "data_dir": str(tmp_path),
        },
        "data": {"name": "table", **OPTIONS},
        "partition": "by_id",
        "server_set": {"fraction": 0.0},
    }
    with pytest.raises(ConfigError, match='partition: is missing; write partition = "by_id"'):
        cw.run({**config, "partition": None}, tmp_path / "run")
    run = cw.Run(cw.run(config, tmp_path / "run"))
    for frame in ("clients", "weights", "local"):
        assert run.frame(frame)["name"].unique().tolist() == ["north", "south"]


def test_categories_with_more_digits_than_their_names_are_found_again(tmp_path: Path) -> None:
    """In rows to predict, too: 1/3 is called 0.333333333333333."""
    frame = pandas.DataFrame({"part": [1 / 3, 2 / 3, 0.1 + 0.2] * 4, "ill": [0, 1] * 6})
    frame.to_csv(tmp_path / "all.csv", index=False)
    samples = load(tmp_path, files="all.csv", categories=["part"])
    assert samples.table.columns[0].categories == ("0.3", "0.333333333333333", "0.666666666666667")
    found = encode_rows(frame, samples.table, "rows")
    assert found[:, 0].tolist() == samples.inputs[:, 0].tolist() == [1, 2, 0] * 4
