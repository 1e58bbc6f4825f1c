"""From a user's own table to predictions for new rows: they are those of the run's own evaluation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import nn
from typer.testing import CliRunner

import clientwise as cw
from clientwise.cli import app
from clientwise.data.folder import DataError
from clientwise.errors import ClientwiseError
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.prediction import load_predictor
from clientwise.record.run import RunFolder
from clientwise.report.about import about
from recorded import last
from reported import items_of

MODEL = {"name": "mlp", "hidden": [8]}
TRAINING = {"epochs": 1, "batch_size": 16, "learning_rate": 0.05}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLIENTWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def rows_of(kind: str) -> pandas.DataFrame:
    """A table with words, umlauts, quotes and missing values."""
    bunch = load_breast_cancer(as_frame=True)
    if kind != "classification":
        bunch = load_diabetes(as_frame=True)
    frame = bunch.data.iloc[:200, :5].copy()
    frame.columns = ["Größe", "b", "c", "d", "e"]
    draws = numpy.random.default_rng(0)
    frame["site"] = draws.choice(["north", "south", "west; far"], len(frame))
    frame["ward"] = draws.choice(['"A"', "Köln", None], len(frame), p=[0.5, 0.4, 0.1])
    frame["code"] = draws.choice([1, 2, 7], len(frame))
    frame.loc[draws.random(len(frame)) < 0.2, "b"] = numpy.nan
    target = bunch.target.iloc[:200]
    frame["y"] = numpy.where(target == 1, "böse", "gut") if kind == "classification" else target
    if kind == "survival":
        frame["died"] = draws.integers(0, 2, len(frame))
    return frame


def config_of(kind: str, folder: Path, **changes: Any) -> dict[str, Any]:
    rows_of(kind).to_csv(folder / f"{kind}.csv", index=False)
    data = {"name": "table", "files": f"{kind}.csv", "target": "y", "kind": kind, "client": "site"}
    data["categories"] = ["ward", "code"]
    if kind == "survival":
        data["event"] = "died"
    return {
        "name": kind,
        "rounds": 3,
        "seeds": [1],
        "data": data | changes,
        "data_dir": str(folder),
        "partition": "by_id",
        "model": MODEL,
        "training": TRAINING,
        "methods": ["FedAvg"],
    }


@pytest.fixture(scope="module", params=["classification", "regression", "survival"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    config = config_of(request.param, folder)
    return config, cw.Run(cw.run(config, folder / "run"))


def evaluated(config: dict[str, Any], run: cw.Run, held: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of samples, and the network's outputs for them as the run prepares them."""
    experiment = cw.load(config)
    data, _ = build_data(experiment, load_samples(experiment), 1)
    indices = getattr(data, held).indices
    with torch.no_grad():
        return indices, run.model("FedAvg")(data.samples.batch(indices))


@pytest.mark.parametrize("held", ["report", "test", "train"])
def test_predictions_are_those_of_the_runs_evaluation(
    trained: tuple[dict[str, Any], cw.Run], held: str, tmp_path: Path
) -> None:
    config, run = trained
    kind = config["name"]
    indices, outputs = evaluated(config, run, held)
    rows = rows_of(kind).iloc[indices.tolist()]
    path = run.export("FedAvg", 1, tmp_path)
    found = cw.load(path).predict(rows)
    assert found.index.equals(rows.index)
    assert run.predict(rows).equals(found)
    if kind == "classification":
        wanted = torch.sigmoid(outputs[:, 0])  # of the second class
        numpy.testing.assert_allclose(found["probability of gut"], wanted, rtol=1e-6)
        chosen = numpy.where(outputs[:, 0] > 0, "gut", "böse")
        assert found["prediction"].tolist() == chosen.tolist()
        if held == "report":
            accuracy = (found["prediction"] == rows["y"]).mean()
            assert accuracy == pytest.approx(last(run, "metric")["FedAvg"])
    else:
        column = "prediction" if kind == "regression" else "risk"
        numpy.testing.assert_allclose(found[column], outputs[:, 0], rtol=1e-6)


def test_a_resumed_run_and_a_file_in_another_dress_predict_the_same(tmp_path: Path) -> None:
    config = config_of("classification", tmp_path)
    whole = cw.Run(cw.run(config, tmp_path / "whole"))
    cw.run(config | {"rounds": 2}, tmp_path / "part")
    run = cw.Run(cw.run(config, tmp_path / "part", resume=True))
    rows = rows_of("classification").drop(columns=["y", "site"])
    wanted = whole.predict(rows)
    assert run.predict(rows).equals(wanted)
    path = run.export("FedAvg", 1, tmp_path)
    other = tmp_path / "other.csv"  # as a spreadsheet in German writes it, columns reversed
    rows.iloc[:, ::-1].to_csv(other, index=False, sep=";", decimal=",", encoding="utf-8-sig")
    output = tmp_path / "predicted.csv"
    done = CliRunner().invoke(app, ["predict", str(path), str(other), "--out", str(output)])
    assert done.exit_code == 0, done.output
    written = pandas.read_csv(output, sep=";")
    assert written["prediction"].tolist() == wanted["prediction"].tolist()
    numpy.testing.assert_allclose(written["probability of gut"], wanted["probability of gut"])
    assert len(written.columns) == len(rows.columns) + 3
    shown = CliRunner().invoke(app, ["predict", str(path), str(other)]).output
    assert "Predictions of y" in shown
    assert "180 more rows" in shown
    assert f"{wanted['probability of gut'][0]:.3f}" in shown


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    run = cw.Run(cw.run(config_of("classification", folder), folder / "run"))
    return run.export("FedAvg", 1, folder)


@pytest.fixture
def rows() -> pandas.DataFrame:
    return rows_of("classification").drop(columns=["y", "site"]).head(3).reset_index(drop=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="Größe"), "no column 'Größe'"),
        (lambda rows: rows.rename(columns={"Größe": "Grösse"}), "did you mean 'Grösse'"),
        (
            lambda rows: rows.assign(ward=["Köln", "Bonn", '"A"']),
            "'ward', row 2: 'Bonn' is not one",
        ),
        (lambda rows: rows.assign(code=[1, 2, 3]), r"'code', row 3: '3' .*\(1, 2, 7\)"),
        (lambda rows: rows.assign(b=["1", "2", "much"]), "'b', row 3: 'much' is not a number"),
        (lambda rows: rows.head(0), "has no rows below the column names"),
    ],
)
def test_wrong_rows_are_named(
    model: Path, rows: pandas.DataFrame, change: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        cw.load(model).predict(change(rows))


def test_all_problems_at_once_and_files_that_are_none(
    model: Path, rows: pandas.DataFrame, tmp_path: Path
) -> None:
    predictor = cw.load(model)
    with pytest.raises(DataError, match=r"(?s)'b', row 1: 'x'.* 2 other cells.*'ward', row 1: 'y'"):
        predictor.predict(rows.assign(b="x", ward="y"))
    path = tmp_path / "rows.csv"
    for content, message in {
        b"": "rows.csv: not a table of rows and columns",
        "Größe,b\n1,2\n".encode("latin-1"): "is not UTF-8 text; save it as",
        "Größe,b,c,d,e,ward,code\n".encode(): "has no rows below the column names",
    }.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            predictor.predict(path)
    with pytest.raises(DataError, match=r"absent\.csv: no such file$"):
        predictor.predict(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"rows.xlsx: a table is a file .csv"):
        predictor.predict(tmp_path / "rows.xlsx")
    with pytest.raises(ClientwiseError, match="must be a pandas or polars frame"):
        predictor.predict(7)


def test_other_orders_extra_columns_and_other_types_of_cells(
    model: Path, rows: pandas.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = cw.load(model)
    wanted = predictor.predict(rows)
    assert not caplog.records
    assert predictor.predict(rows.iloc[:, ::-1]).equals(wanted)
    assert predictor.predict(rows.assign(code=rows["code"].astype(float))).equals(wanted)
    assert predictor.predict(rows.astype({"b": object, "code": str})).equals(wanted)
    assert predictor.predict(rows.to_dict("list")) == wanted.to_dict("list")
    caplog.set_level(logging.WARNING)
    assert predictor.predict(rows.assign(y="gut", id=3)).equals(wanted)
    assert "Not used: columns that the model does not know: y, id." in caplog.text
    predictor.predict(rows.assign(c=numpy.nan))
    assert "Column 'c' is empty in some rows, and never was in training." in caplog.text


def test_rows_far_from_the_training_data_are_said(
    model: Path, rows: pandas.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = cw.load(model)
    predictor.predict(rows)
    assert not caplog.records
    scale = {column.name: column for column in predictor.table.columns}
    far = rows.assign(b=scale["b"].mean + 50 * scale["b"].deviation)
    far.loc[far.index[:1], "c"] = scale["c"].mean - 50 * scale["c"].deviation
    predictor.predict(far)
    said = [record.getMessage() for record in caplog.records]
    assert [line.split("'")[1] for line in said] == ["b", "c"]
    assert all("is more than 10 standard deviations from the mean" in line for line in said)


def test_polars_frames_give_polars_frames(model: Path, rows: pandas.DataFrame) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame({name: rows[name].tolist() for name in rows})
    found = cw.load(model).predict(frame)
    assert isinstance(found, polars.DataFrame)
    assert found["prediction"].to_list() == cw.load(model).predict(rows)["prediction"].tolist()


def test_the_record_and_the_page_name_columns_and_classes(tmp_path: Path) -> None:
    config = config_of("classification", tmp_path)
    rows = rows_of("classification")
    run = cw.Run(cw.run(config, tmp_path / "run"))
    said = dict(about(RunFolder(run.folder)))
    assert "Größe, b, c, d, e, ward" in said["columns"]
    assert said["target"] == "y: böse, gut"
    table = RunFolder(run.folder).model_facts(1).table
    assert table is not None
    assert table.columns[0].mean == pytest.approx(rows["Größe"].mean(), rel=0.05)
    shown = next(item for name, item in items_of(run).items() if name.startswith("per_class_f1"))
    assert {*shown.frame["class"]} == {"böse", "gut"}
    config["rounds"] = 1
    file = tmp_path / "config.toml"
    file.write_text(tomli_w.dumps(config), encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(file), "--data"])
    assert "Columns to predict y from" in done.output
    assert "böse" in done.output


class Net(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.only = nn.Linear(input_shape[0], num_outputs)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.only(samples)


class NetWithLogits(Net):
    def forward(self, samples: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.only(samples)}


def test_a_network_of_ones_own_and_models_that_cannot_predict(
    tmp_path: Path, rows: pandas.DataFrame
) -> None:
    config = config_of("classification", tmp_path)
    run = cw.run(config, tmp_path / "own", model=Net)
    path = run.export("FedAvg", 1, tmp_path / "models")
    with pytest.raises(ClientwiseError, match=r"network Net is not part of .*module=Net"):
        cw.load(path)
    found = cw.load(path, module=Net).predict(rows)
    assert found.equals(run.predict(rows))
    assert cw.load(path, module=NetWithLogits).predict(rows).equals(found)
    digits = {"name": "d", "rounds": 1, "data": "digits", "model": "linear", "methods": ["FedAvg"]}
    run = cw.Run(cw.run(digits | {"partition": {"name": "iid", "clients": 2}}, tmp_path / "digits"))
    path = run.export("FedAvg", 1, tmp_path / "models")
    with pytest.raises(ClientwiseError, match=r"not the columns of a table.*RUN_FOLDER\).predict"):
        cw.load(path)
    with pytest.raises(ClientwiseError, match="is a folder; name a file"):
        load_predictor(tmp_path / "models")


def damaged(model: Path, path: Path, **changes: str) -> Path:
    """The file with other metadata; an empty text leaves a key out."""
    from safetensors import safe_open

    with safe_open(model, framework="pt") as file:
        header = file.metadata() | changes
    save_file(load_file(model), path, {key: text for key, text in header.items() if text})
    return path


def test_a_file_of_others_is_refused_where_it_does_not_fit(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    for changes, message in [
        ({"table": "{"}, "not a model that `clientwise export` wrote .table"),
        ({"table": "[" * 10_000}, "table"),
        ({"input_shape": "[3]"}, "inputs of columns"),
        ({"outputs": "7"}, "cannot be used to predict"),
        ({"kind": "oracle"}, "unknown kind of problem 'oracle'"),
        ({"network": '{"name": "mlp", "hidden": [3]}'}, "cannot be used to predict"),
        ({"network": '{"name": "mlp", "hidden": [1000000, 1000000]}'}, "parameters"),
        ({"network": '{"name": "mlp", "hiden": [3]}'}, "hiden"),
        ({"run": ""}, "run: "),
    ]:
        with pytest.raises(ClientwiseError, match=message):
            cw.load(damaged(model, path, **changes))
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ClientwiseError, match="not a model that"):
        cw.load(path)
    with pytest.raises(ClientwiseError, match="no such file"):
        cw.load(tmp_path / "none.safetensors")
