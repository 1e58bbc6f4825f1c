"""Columns that predict the target too well alone are named, and others are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from sklearn.datasets import load_breast_cancer

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


def test_copies_of_the_target_and_names_of_clients(tmp_path: Path) -> None:
    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.data.assign(y=bunch.target)
    assert hints_of(frame, tmp_path) == []  # the best column alone has 91%
    draws = numpy.random.default_rng(0)
    frame["letter"] = numpy.where(draws.random(len(frame)) < 0.03, 1 - frame["y"], frame["y"])
    frame["number"] = draws.permutation(len(frame))
    letter, number = hints_of(frame, tmp_path)
    assert letter.startswith("column 'letter': Alone it predicts 'y' almost always.")
    assert "put it into `ignore`" in letter
    assert number.startswith("column 'number': It has a different value in every row")


def test_what_is_no_table_has_no_hints() -> None:
    inputs = torch.randn(300, 2, dtype=torch.float64)
    columns = (InputColumn("a"), InputColumn("b"))
    samples = Samples(inputs, inputs[:, 1].float(), Regression(), table=Encoding("y", columns))
    assert len(column_hints(samples)) == 1
    assert column_hints(replace(samples, table=None)) == []
    assert column_hints(samples.rows(torch.arange(9))) == []
