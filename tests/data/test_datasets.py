from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy
import pytest
import torch

from clientwise.data.datasets import DATASETS, DataError
from clientwise.data.federated import FederatedData


@pytest.mark.parametrize(
    ("name", "count", "shape", "kind"),
    [
        ("digits", 1797, (1, 8, 8), "classification"),
        ("mnist5k", 5000, (1, 28, 28), "classification"),
        ("diabetes", 442, (10,), "regression"),
    ],
)
def test_datasets_inside_dependencies(name: str, count: int, shape: tuple[int, ...], kind: str) -> None:
    samples = DATASETS.get(name)(None)
    assert samples.inputs.shape == (count, *shape)
    assert samples.problem.kind == kind
    batch = samples.batch(torch.arange(count))
    assert batch.dtype == torch.float32
    if kind == "classification":
        assert samples.inputs.dtype == torch.uint8  # compact where it lies, float only in a batch
        assert (float(batch.min()), float(batch.max())) == (0, 1)
        assert sorted(samples.targets.unique().tolist()) == list(range(10))
    else:
        assert bool((samples.targets > 0).all())


def write_idx(path: Path, array: numpy.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(numpy.uint8).tobytes()))


def test_mnist_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data-dir"):
        DATASETS.get("mnist")(None)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is missing"):
        DATASETS.get("mnist")(tmp_path)
    (tmp_path / "mnist").mkdir()
    for part, count in (("train", 60), ("t10k", 10)):
        write_idx(tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz", numpy.zeros((count, 28, 28)))
        write_idx(tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz", numpy.zeros(count))
    with pytest.raises(DataError, match="expected 60,000 images"):
        DATASETS.get("mnist")(tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x09abc")
    with pytest.raises(DataError, match="cut off"):
        DATASETS.get("mnist")(tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(b"<html>")
    with pytest.raises(DataError, match="not an idx file"):
        DATASETS.get("mnist")(tmp_path)


def test_mnist_from_the_published_files() -> None:
    folder = os.environ.get("CLIENTWISE_DATA")
    if folder is None or not (Path(folder) / "mnist").exists():
        pytest.skip("CLIENTWISE_DATA names no folder with mnist/")
    samples = DATASETS.get("mnist")(Path(folder))
    assert samples.inputs.shape == (70_000, 1, 28, 28)
    counts = torch.bincount(samples.targets[:60_000]).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_your_own_arrays() -> None:
    random = numpy.random.default_rng(1)
    clients = [(random.normal(size=(n, 3)), random.integers(0, 4, n)) for n in (5, 9, 2)]
    tests = [(random.normal(size=(2, 3)), random.integers(0, 4, 2)) for _ in range(3)]
    report = (random.normal(size=(6, 3)), random.integers(0, 4, 6))
    data = FederatedData.from_clients(
        clients, tests, report=report, num_classes=4, attributes={"premium": [True, False, True]}
    )
    assert data.num_clients == 3
    assert data.train.sizes.tolist() == [5, 9, 2]
    assert data.weigh is None
    numpy.testing.assert_allclose(data.samples.batch(data.train.numbers[data.train.slice(1)]), clients[1][0], rtol=1e-6)
    assert data.report.targets.tolist() == report[1].tolist()
    assert data.samples.problem.num_classes == 4
    assert data.attributes["premium"].tolist() == [1, 0, 1]
    sharp = FederatedData.from_clients(
        clients, tests, sample_attributes={"Blurry": [numpy.ones(5), numpy.zeros(9), numpy.ones(2)]}
    )
    assert sharp.samples.sample_attributes["Blurry"][sharp.train.numbers].tolist() == [1] * 5 + [0] * 9 + [1] * 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"test": []}, "give one of each"),
        ({"train": [(numpy.zeros((3, 2)), [0, 1])] * 2}, "has 3 inputs, 2 targets"),
        ({"train": [(numpy.zeros((2, 2)), [0, -1])] * 2}, "labels must be 0 to 1"),
        ({"num_classes": 2, "report": (numpy.zeros((1, 2)), [5])}, "labels must be 0 to 1"),
        ({"attributes": {"age": [1, 2, 3]}}, "'age' has 3 values for 2 clients"),
    ],
)
def test_arrays_that_do_not_fit(changes, reason: str) -> None:
    fine = [(numpy.zeros((2, 2)), [0, 1])] * 2
    with pytest.raises(ValueError, match=reason):
        FederatedData.from_clients(**({"train": fine, "test": fine} | changes))


def test_one_class_alone_is_still_a_problem_of_two() -> None:
    one = [(numpy.zeros((2, 2)), [0, 0])]
    assert FederatedData.from_clients(one, one).samples.problem.num_classes == 2


def test_gather_picks_clients_in_any_order() -> None:
    clients = [(torch.full((n, 1), float(n)), torch.full((n,), n)) for n in (1, 2, 3)]
    data = FederatedData.from_clients(clients, clients)
    numbers, targets, owner = data.train.gather([2, 0])
    assert targets.tolist() == [3, 3, 3, 1]
    assert owner.tolist() == [0, 0, 0, 1]
    assert data.samples.batch(numbers).flatten().tolist() == [3, 3, 3, 1]
    for one, two in zip(data.train.gather(range(3)), data.train.gather([0, 1, 2]), strict=True):
        assert torch.equal(one, two)
