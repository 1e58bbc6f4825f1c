"""Movie reviews: is a text positive? Words become numbers by a vocabulary of the clients' training texts."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy
import torch
from annotated_types import Ge, Gt, Le

from ...core.objective.problem import Classification
from ..federated import DATASETS, FederatedData, Samples
from ..folder import DataError, Writer, cached, expect, find, read_file

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
        texts, labels, sources = _read_reviews(path)
        _, ids = numpy.unique(numpy.array(sources, object), return_inverse=True)
        arrays.save(targets=numpy.array(labels), ids=ids)
        numbers: dict[str, int] = {}  # of all words; the vocabulary is chosen later
        inputs = arrays.create("inputs", (len(texts), length), numpy.int32)
        for row, text in zip(inputs, texts, strict=True):
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


def _read_reviews(path: Path) -> tuple[list[str], list[int], list[str]]:
    """Texts, labels and sources."""
    content = io.TextIOWrapper(io.BytesIO(read_file(path)), encoding="utf-8", newline="")
    try:
        rows = list(csv.DictReader(content))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from None
    counts = Counter[tuple[str, str]]()
    for line, row in enumerate(rows, start=1):
        if row.get("text") is None or row.get("label") not in ("0", "1"):
            said = f"row {line} needs a column text and a column label with 0 or 1; put it right"
            raise DataError(f"{path}: {said}")
        row["source"] = row.get("source") or ""
        counts[row["source"], row["label"]] += 1
    for source, wanted in PER_CLASS.items():
        found = [counts[source, label] for label in "01"]
        said = f"{wanted:,} reviews of each class expected from {source}, found {found}"
        expect(found in ([0, 0], [wanted, wanted]), path, said)
    expect(len({label for _, label in counts}) == 2, path, "needs reviews of both classes")
    texts, labels, sources = ([row[name] for row in rows] for name in ("text", "label", "source"))
    return texts, [int(label) for label in labels], sources
