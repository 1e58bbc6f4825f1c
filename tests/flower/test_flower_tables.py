"""A federation of members with tables of their own: trained as `flower.table` says, and used to predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import tomli_w
import torch
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs clientwise[flower]")

import clientwise as cw
from clientwise.cli import app
from clientwise.data.datasets import DataError
from clientwise.errors import ConfigError
from clientwise.experiment.build.data import build_data
from clientwise.flower import load_table
from clientwise.hosts.flower.data import from_files, server_side

MEMBERS = ["north", "south", "west"]


@pytest.fixture
def rows() -> pandas.DataFrame:
    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.data.iloc[:400, :2].set_axis(["Größe", "b"], axis="columns")
    draws = numpy.random.default_rng(0)
    frame.loc[draws.random(400) < 0.2, "b"] = numpy.nan
    frame["ward"] = draws.choice(["A", "B", None], 400)
    frame["state"] = numpy.where(bunch.target[:400] == 1, "healthy", "ill")
    return frame


@pytest.fixture
def config(rows: pandas.DataFrame, tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "data"
    folder.mkdir()
    for index, name in enumerate([*MEMBERS, "server"]):
        rows.iloc[index::4].to_csv(folder / f"{name}.csv", index=False)
    columns = [
        {"name": "Größe", "mean": 14.0, "deviation": 3.5},
        {"name": "b", "mean": 19.0, "deviation": 4.0, "marks_missing": True},
        {"name": "ward", "categories": ["A", "B"]},
    ]
    table = {"target": "state", "classes": ["healthy", "ill"], "columns": columns}
    return {
        "name": "members",
        "rounds": 12,
        "seeds": [1],
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"epochs": 2, "batch_size": 16, "learning_rate": 0.1},
        "flower": {"clients": MEMBERS, "table": table, "files": str(folder)},
        "methods": ["FedAvg"],
    }


def test_members_train_on_their_tables_and_the_model_predicts_new_rows(
    config: dict[str, Any], rows: pandas.DataFrame, tmp_path: Path
) -> None:
    run = cw.Run(cw.run(config, tmp_path / "run"))
    assert run.summary()[0].metric[0] > 0.7
    experiment = cw.load(config)
    data, _ = build_data(experiment, from_files(experiment).samples, 1, from_files(experiment))
    assert data.samples.inputs.shape[1] == 5
    sizes = data.train.sizes + data.test.sizes
    assert sizes.tolist() == [100, 100, 100]
    assert 5 < int(data.test.sizes.min()) < 40
    (path,) = run.export("FedAvg", 1, tmp_path)
    north = rows.iloc[0::4]
    found = cw.load(path).predict(north.drop(columns="state"))
    own = load_table(str(tmp_path / "data" / "north.csv"), config)
    with torch.no_grad():
        for inputs, targets in (own.train, own.test):
            wanted = torch.sigmoid(run.model("FedAvg")(torch.as_tensor(inputs))[:, 0])
            probabilities = found["probability of ill"].to_numpy()
            for value, target in zip(wanted.tolist(), targets.tolist(), strict=True):
                place = int(numpy.abs(probabilities - value).argmin())
                assert probabilities[place] == pytest.approx(value, abs=1e-6)
                assert north["state"].iloc[place] == ["healthy", "ill"][target]
    north.to_csv(tmp_path / "new.csv", index=False)
    done = CliRunner().invoke(app, ["predict", str(path), str(tmp_path / "new.csv")])
    assert done.exit_code == 0, done.output
    assert "probability of ill" in done.output


def test_a_row_stays_where_it_is_when_others_are_added(
    config: dict[str, Any], rows: pandas.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "north.csv"
    before = load_table(str(path), config)
    more = pandas.concat([rows.iloc[1::4], rows.iloc[0::4]])
    more.iloc[:, ::-1].to_csv(path, index=False, sep=";", decimal=",", encoding="utf-8-sig")
    after = load_table(str(path), config)

    def contents(part: tuple[Any, Any]) -> set[bytes]:
        return {row.tobytes() for row in part[0]}

    assert contents(before.train) <= contents(after.train)
    assert contents(before.test) <= contents(after.test)


def test_wrong_tables_and_wrong_files(
    config: dict[str, Any], rows: pandas.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "north.csv"
    part = rows.iloc[:40]
    for change, message in {
        "target": "no column 'state' for the target",
        "class": r"column 'state', row 3: 'dead' is not one of its categories \(healthy, ill\)",
        "column": "no column 'b'",
        "ward": "column 'ward', row 1: 'Z' is not one of its categories",
    }.items():
        wrong = {
            "target": part.drop(columns="state"),
            "class": part.assign(state=["ill", "ill", "dead", *["ill"] * 37]),
            "column": part.drop(columns="b"),
            "ward": part.assign(ward="Z"),
        }[change]
        wrong.to_csv(path, index=False)
        with pytest.raises(DataError, match=message):
            load_table(str(path), config)
    flower = config["flower"]
    for changes, message in [
        ({"classes": ["ill"]}, "two or more different values"),
        ({"columns": [{"name": "state"}]}, "is the target and also one of the columns"),
        ({"columns": [{"name": "b"}, {"name": "b"}]}, "two columns have the same name"),
        ({"columns": [{"name": "b", "deviation": 0.0}]}, "deviation"),
        ({"columns": []}, "columns"),
    ]:
        bad = config | {"flower": flower | {"table": flower["table"] | changes}}
        with pytest.raises(ConfigError, match=message):
            cw.load(bad)
    with pytest.raises(ConfigError, match=r"remove flower\.input_shape"):
        server_side(cw.load(config | {"flower": flower | {"input_shape": [5]}}), "")
    without = {key: value for key, value in flower.items() if key != "table"}
    with pytest.raises(ConfigError, match=r"flower.table: is needed to read tables"):
        load_table(str(path), config | {"flower": without})


def test_the_config_survives_its_file(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    assert cw.load(path).flower.table == cw.load(config).flower.table
    again = tmp_path / "again.toml"
    again.write_text(cw.load(path).to_toml(), encoding="utf-8")
    assert cw.load(again).flower.table == cw.load(config).flower.table
    server = server_side(cw.load(config), str(tmp_path / "data" / "server.csv"))
    assert server.weigh is not None
    assert server.report is not None
    assert len(server.weigh.indices) + len(server.report.indices) == 100
