"""Movie reviews: is a text positive? Words become numbers by a vocabulary of the clients' training texts."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy
import torch
from annotated_types import Ge, Gt, Le

from ...core.objective.problem import Classification
from ..federated import DATASETS, FederatedData, Samples
from ..folder import Writer, cached, expect, find
from ..table import parse_csv

if TYPE_CHECKING:
    from pandas import DataFrame

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
PER_CLASS = {"imdb": 12_500, "rotten_tomatoes": 4_265}  # of the sources known
_TAG, _WORD = re.compile(r"<[^>]*>"), re.compile(r"\w+(?:'\w+)?")


@DATASETS.register("movie_reviews")
def movie_reviews(
    data_dir: Path | None,
    *,
    words: Annotated[int, Ge(3), Le(10**9)] = 10_000,
    length: Annotated[int, Gt(0), Le(2_500)] = 200,
) -> Samples:
    """Movie reviews, positive or negative, from a CSV file with the columns text, label (0 or 1) and source.

    A review is the numbers of its last words: 0 is padding in front, 1 a word that is not among the
    most frequent ones of the clients' training texts. Each source is an id.

    Args:
        data_dir: the data folder.
        words: size of the vocabulary, padding and unknown words included.
        length: words of a review.
    """
    get = "make it from the Large Movie Review Dataset (IMDB) or your own reviews: columns text, label (0, 1), source"
    path = find(
        data_dir,
        "movie_reviews",
        ["movie_reviews/reviews.csv.gz", "movie_reviews/reviews.csv"],
        get,
    )

    def build(arrays: Writer) -> None:
        rows = _read_reviews(path)
        _, ids = numpy.unique(rows["source"].to_numpy(object), return_inverse=True)
        arrays.save(targets=rows["label"].to_numpy(numpy.int64), ids=ids)
        numbers: dict[str, int] = {}  # of all words; the vocabulary is chosen later
        inputs = arrays.create("inputs", (len(rows), length), numpy.int32)
        for row, text in zip(inputs, rows["text"], strict=True):
            found = [numbers.setdefault(word, len(numbers) + 1) for word in tokens(text)][-length:]
            row[length - len(found) :] = found

    arrays = cached("movie_reviews", [path], build, length)
    return Samples(
        arrays["inputs"],
        arrays["targets"],
        Classification(2),
        ids=arrays["ids"],
        after_partition=partial(_with_vocabulary, words=words),
    )


def tokens(text: str) -> list[str]:
    """The words of a text, in lower case, without markup.

    >>> tokens("It's <br />GOOD, isn't it?")
    ["it's", 'good', "isn't", 'it']
    """
    # Behind it there are no tags, and nothing is looked for in vain: time stays linear
    end = text.rfind(">") + 1
    return _WORD.findall((_TAG.sub(" ", text[:end]) + text[end:]).lower())


def _with_vocabulary(data: FederatedData, words: int) -> FederatedData:
    """Words by their rank in the clients' training texts; test texts must not decide on the vocabulary."""
    inputs = data.samples.inputs
    trained = inputs[torch.unique(data.train.indices)]
    counts = torch.bincount(trained.flatten(), minlength=int(inputs.max()) + 1)
    counts[0] = 0  # the padding is no word
    known = min(words - FIRST_WORD, int((counts > 0).sum()))
    number = torch.full((len(counts),), UNKNOWN, dtype=torch.int32)
    ranked = counts.argsort(descending=True, stable=True)[:known]
    number[ranked] = torch.arange(FIRST_WORD, FIRST_WORD + known, dtype=torch.int32)
    number[0] = PADDING
    return replace(data, samples=replace(data.samples, inputs=number[inputs]))


def _read_reviews(path: Path) -> DataFrame:
    """The columns text, label and source."""
    rows = parse_csv(path, dtype=str, na_filter=False)
    expect({"text", "label"} <= {*rows.columns}, path, "needs the columns text and label")
    wrong = ~rows["label"].isin(["0", "1"])
    expect(not wrong.any(), path, f"row {wrong.argmax() + 1} has a label that is not 0 or 1")
    expect(rows["label"].nunique() == 2, path, "needs reviews of both classes")
    if "source" not in rows:
        rows["source"] = ""
    for source, wanted in PER_CLASS.items():
        found = rows["label"][rows["source"] == source].value_counts(sort=False).tolist()
        said = f"{wanted:,} reviews of each class expected from {source}, found {found}"
        expect(found in ([], [wanted, wanted]), path, said)
    return rows
