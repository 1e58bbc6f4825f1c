"""Columns that predict the target too well alone are named, and others are not."""

from __future__ import annotations

import time
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

from clientwise.core.objective.problem import Regression
from clientwise.data import table as _  # noqa: F401
from clientwise.data.datasets import DATASETS
from clientwise.data.encoding import Encoding, InputColumn
from clientwise.data.federated import Samples
from clientwise.data.summary import column_hints


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENTWISE_CACHE", str(tmp_path_factory.mktemp("cache")))


def hints_of(frame: pandas.DataFrame, folder: Path, **options: object) -> list[str]:
    frame.to_csv(folder / "all.csv", index=False)
    return column_hints(DATASETS.get("table")(folder, files="all.csv", target="y", **options))


def test_identifiers_and_copies_of_the_target(tmp_path: Path) -> None:
    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.data.assign(y=bunch.target)
    assert hints_of(frame, tmp_path) == []  # the best column alone has 91%
    draws = numpy.random.default_rng(0)
    by_class = numpy.argsort(numpy.argsort(frame["y"] + draws.random(len(frame)) / 2))
    frame["patient"] = by_class + 1000
    frame["shuffled"] = draws.permutation(len(frame))
    frame["letter"] = numpy.where(draws.random(len(frame)) < 0.03, 1 - frame["y"], frame["y"])
    frame["person"] = numpy.arange(len(frame)) // 10  # ten rows each
    frame["y"] = frame["person"].map(dict(enumerate(draws.integers(0, 2, len(frame)))))
    assert [line.split("'")[1] for line in hints_of(frame, tmp_path)] == [
        "patient",
        "shuffled",
        "person",
    ]
    frame["y"] = bunch.target
    lines = hints_of(frame.drop(columns=["person", "shuffled"]), tmp_path)
    assert lines[0].startswith("column 'patient': It has a different value in every row")
    assert "put it into `ignore`" in lines[0]
    assert lines[1].startswith("column 'letter': Alone it predicts 'y' with 9")
    assert "(the most frequent class: 6" in lines[1]


def test_numbers_and_times(tmp_path: Path) -> None:
    bunch = load_diabetes(as_frame=True)
    frame = bunch.data.assign(y=bunch.target + 1)
    assert hints_of(frame, tmp_path, kind="regression") == []
    frame["later"] = 3 * frame["y"] + 1
    (line,) = hints_of(frame, tmp_path, kind="regression")
    assert "column 'later': Alone it predicts 'y' with R² = 1.00" in line
    frame["died"] = numpy.arange(len(frame)) % 2
    (line,) = hints_of(frame, tmp_path, kind="survival", event="died")
    assert "'later'" in line


def test_dates_as_categories(tmp_path: Path) -> None:
    days = pandas.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d")
    frame = pandas.DataFrame({"day": [*days, *days], "ward": [1, 2] * 40, "y": [0, 0, 1, 1] * 20})
    (line,) = hints_of(frame, tmp_path, categories=["day", "ward"])
    assert "column 'day': It has 40 categories, each an input of its own. They look like" in line
    assert "dates: turn them into numbers" in line


def test_wide_tables_take_a_moment() -> None:
    inputs = torch.randn(3000, 2000, dtype=torch.float64)
    inputs[:, 0] = torch.nan
    columns = tuple(InputColumn(str(index)) for index in range(2000))
    samples = Samples(inputs, inputs[:, 1].float(), Regression(), table=Encoding("y", columns))
    began = time.perf_counter()
    (line,) = column_hints(samples)
    assert "column '1'" in line
    assert time.perf_counter() - began < 60
    few = Samples(inputs[:9], inputs[:9, 1], Regression(), table=Encoding("y", columns))
    assert column_hints(few) == []
    assert column_hints(Samples(inputs, inputs[:, 1].float(), Regression())) == []
