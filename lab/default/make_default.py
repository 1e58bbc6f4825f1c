"""Results of matrices: raw results, and the tables and figures of the pages that are made from them.

python lab/default/make_default.py                  # tables and figures, from lab/results/*.csv.gz
python lab/default/make_default.py FOLDER FOLDER    # collect the raw results of these matrices first

Folders of matrices with the same name are parts of one matrix: by federation, by method, by seed.
Where two parts have the same federation, column, method and seed, the later folder counts.

A table stands in a page between `<!-- make_default: RAW TABLE -->` and `<!-- end -->`. RAW is the
name of the matrix, and TABLE one of `TABLES`. `FIGURES` has the figures. Every figure carries its numbers
as text (`numbers_in`), so that a test can compare it with the raw results.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
import pandas
from matplotlib.figure import Figure
from PIL import Image

from clientwise.experiment.matrix.grid import MatrixCell, look_at
from clientwise.record.run import RunFolder
from clientwise.report.results import NOT_AVAILABLE
from clientwise.report.standings import Federation, Results
from clientwise.report.statistics import Difference, holm, p_number, paired_difference

LAB = Path(__file__).parents[1]
RAW = LAB / "results"
DOCS = LAB.parent / "docs" / "results"
PAGES = (DOCS / "privacy.md",)

ORACLE = "KnowsHonestTuned"  # told which clients are honest
EVERY_ROUND = 25  # up to this round all are kept, later ones only where `STEP` divides them
STEP = 5

KEYS = ["federation", "column", "share", "method", "seed"]
MARKER = re.compile(r"<!-- make_default: (\S+) (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


Rows = Sequence[Sequence[str]]


def main() -> None:
    """Collect the raw results of the folders that are given, then write all tables."""
    collect([Path(folder) for folder in sys.argv[1:]])
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(with_tables(text), encoding="utf-8")
    for path, (raw, make) in FIGURES.items():
        draw_figure(make(read_raw(raw)), path)


def with_tables(text: str) -> str:
    """A page with its tables made anew from the raw results."""

    def make(found: re.Match[str]) -> str:
        raw, name = found[1], found[2]
        return f"<!-- make_default: {raw} {name} -->\n{make_table(raw, name)}\n<!-- end -->"

    return MARKER.sub(make, text)


def make_table(raw: str, name: str) -> str:
    """One table in Markdown, from a file of raw results."""
    return TABLES[name](read_raw(raw))


# Raw results


def collect(folders: Sequence[Path], into: Path = RAW) -> None:
    """Write the raw results of matrices, one file for all that have the same name."""
    parts: dict[str, list[pandas.DataFrame]] = {}
    for folder in folders:
        matrix = look_at(folder)
        for cell in matrix.cells:
            parts.setdefault(matrix.name, []).append(_cell_rows(folder, cell))
    for name, frames in parts.items():
        rows = pandas.concat(frames, ignore_index=True)
        rows = rows.drop_duplicates(KEYS, keep="last").sort_values(KEYS)
        rows = rows[[*_facts(rows), *_rounds(rows)]]
        into.mkdir(exist_ok=True)
        with gzip.GzipFile(into / f"{name}.csv.gz", "wb", mtime=0) as file:
            rows.to_csv(file, index=False, float_format="%.5g")


def read_raw(name: str, folder: Path = RAW) -> pandas.DataFrame:
    """One row per federation, column, method and seed; the metric of round 7 in column "7"."""
    return pandas.read_csv(folder / f"{name}.csv.gz")


def _cell_rows(folder: Path, cell: MatrixCell) -> pandas.DataFrame:
    run = RunFolder(folder / cell.folder)
    rounds = run.frame("rounds")
    kept = rounds[(rounds["round"] <= EVERY_ROUND) | (rounds["round"] % STEP == 0)]
    rows = kept.pivot_table(index=["method", "seed"], columns="round", values="metric")
    rows = rows.round(5).rename(columns=str)
    last = rounds[rounds["round"] == run.facts.rounds].set_index(["method", "seed"])
    rows["backdoor_success"] = last.get("attack_success", numpy.nan)
    ever = _ever_lowered(run.frame("weights")).groupby(["method", "seed"])
    rows["lowered_clients"] = ever.sum().astype(float)
    rows["honest_clients"] = ever.size().astype(float)
    rows = rows.reset_index()
    rows["federation"] = cell.data
    rows["measure"] = run.facts.metric
    rows["higher_is_better"] = int(run.facts.higher_is_better)
    rows["column"] = cell.attack
    rows["share"] = cell.share
    rows["hostile"] = int(run.frame("clients")["hostile"].notna().any())
    rows["kind"] = [_recorded_kind(run, method) for method in rows["method"]]
    return rows


def _ever_lowered(weights: pandas.DataFrame) -> pandas.Series:
    """Whether evidence ever lowered an honest client below half of the most favoured one of a round."""
    judged = weights[weights["posterior"].notna() & weights["hostile"].isna()]
    factor = judged["posterior"] * judged["copies"].fillna(1) / judged["prior"]
    most = factor.groupby([judged[key] for key in ("method", "seed", "round")]).transform("max")
    lowered = judged.assign(lowered=factor < 0.5 * most)
    return lowered.groupby(["method", "seed", "client"])["lowered"].any()


def _recorded_kind(run: RunFolder, method: str) -> str:
    """Whether a method is federated and available."""
    about = run.about(method)
    if about.is_available:
        return "not federated" if about.is_control else "federated"
    return "not available"


def _rounds(rows: pandas.DataFrame) -> list[str]:
    """The columns that hold the metric of a round, in order."""
    return sorted((name for name in rows.columns if name.isdigit()), key=int)


def _facts(rows: pandas.DataFrame) -> list[str]:
    """The other columns."""
    others = [name for name in rows.columns if not name.isdigit() and name not in KEYS]
    return [*KEYS, *others]


def results_of(raw: pandas.DataFrame) -> Results:
    """The results at the last round, for the functions of the library."""
    last = _rounds(raw)[-1]
    methods = tuple(raw["method"].unique())
    seeds = sorted(raw["seed"].unique())
    kinds = raw.drop_duplicates("method").set_index("method")["kind"]
    federations = []
    for name, rows in raw.groupby("federation", sort=False):
        alarms = rows["lowered_clients"] / rows["honest_clients"]
        alarms = alarms.where(rows["hostile"] == 0)
        columns = _column_labels(rows)
        federations.append(
            Federation(
                str(name),
                str(rows["measure"].iloc[0]),
                bool(rows["higher_is_better"].iloc[0]),
                tuple(columns.unique()),
                *(
                    _grid(rows.assign(value=values, label=columns), methods, seeds)
                    for values in (rows[last], rows["backdoor_success"], alarms)
                ),
            )
        )
    unavailable = frozenset(method for method in methods if kinds[method] == "not available")
    return Results("", ORACLE, methods, unavailable, len(seeds), tuple(federations))


def _column_labels(rows: pandas.DataFrame) -> pandas.Series:
    """As in a report: "sign flip 40%", and "clean" without a share."""
    shares = rows["share"].map(lambda share: f" {share:.0%}" if share else "")
    return rows["column"] + shares


def _grid(rows: pandas.DataFrame, methods: Sequence[str], seeds: Sequence[int]) -> numpy.ndarray:
    """The values as [methods, columns, seeds]; NaN where there is none."""
    columns = list(rows["label"].unique())
    wide = rows.set_index(["method", "label", "seed"])["value"]
    every = pandas.MultiIndex.from_product([methods, columns, seeds])
    return wide.reindex(every).to_numpy().reshape(len(methods), len(columns), len(seeds))


# Tables


def privacy_table(raw: pandas.DataFrame) -> str:
    """What noise costs: the accuracy of uniform weights, and every other method less those with the same ε."""
    last = _rounds(raw)[-1]
    by_method = raw.set_index(["federation", "method", "seed"])[last].sort_index()
    federations = list(dict.fromkeys(raw["federation"]))
    columns = ["ε", "weights", *federations]
    methods = list(dict.fromkeys(raw["method"]))
    methods.sort(key=lambda name: (_epsilon(name) is None, _epsilon(name) or 0.0))
    found = {}
    for method in methods:
        for name in federations:
            values = by_method[name, method]
            baseline = by_method[name, _uniform_beside(method)]
            found[method, name] = (values, paired_difference(values.tolist(), baseline.tolist()))
    compared = {key: one for key, (_, one) in found.items() if key[0] != _uniform_beside(key[0])}
    corrected = dict(zip(compared, holm([*compared.values()]), strict=True))
    rows = []
    for method in methods:
        if method.startswith("FedAvg"):  # as prioritized weights; compared, but not shown
            continue
        epsilon = _epsilon(method)
        row = ["no noise" if epsilon is None else f"{epsilon:g}", method.partition(", ε")[0]]
        for name in federations:
            difference = corrected.get((method, name))
            mean = float(found[method, name][0].mean())
            row.append(_percent(mean) if difference is None else _points(difference))
        rows.append(row)
    largest = max(corrected.values(), key=lambda one: one.p_value or 0.0)
    note = (
        f"Uniform weights: accuracy in percent after round {last}, {raw['seed'].nunique()} seeds. The others: "
        f"difference to it in points, paired by seed, with 95% intervals. The largest p of the {len(compared)} "
        f"comparisons, corrected (Holm), is {_p_value(largest)}."
    )
    return f"{_markdown(columns, rows, texts=('ε', 'weights'))}\n\n*{note}*"


def _epsilon(method: str) -> float | None:
    """The ε in the name of a method of `privacy.toml`; None without noise."""
    _, _, epsilon = method.partition("ε = ")
    return float(epsilon) if epsilon else None


def _uniform_beside(method: str) -> str:
    """The method with uniform weights and the same ε."""
    epsilon = _epsilon(method)
    return "uniform" if epsilon is None else f"uniform, ε = {epsilon:g}"


TABLES: Mapping[str, Callable[[pandas.DataFrame], str]] = {"privacy": privacy_table}


class Drawn(NamedTuple):
    """A figure, and the numbers in it as text."""

    figure: Figure
    numbers: str


def draw_figure(drawn: Drawn, path: Path) -> None:
    """Write a figure with its numbers."""
    about = {"Software": None, "Description": drawn.numbers}
    drawn.figure.savefig(path, dpi=110, bbox_inches="tight", metadata=about)


def numbers_in(path: Path) -> str:
    """The numbers that a figure was drawn from."""
    with Image.open(path) as image:
        return str(image.info["Description"])


def heat_map(raw: pandas.DataFrame) -> Drawn:
    """The heat map of a matrix of one federation, as its report has it."""
    clean_first = raw["hostile"].sort_values(kind="stable").index
    results = results_of(raw.loc[clean_first])
    (federation,) = results.federations
    worst = federation.goodness.mean(2).min(1)
    order = sorted(numpy.flatnonzero(~numpy.isnan(worst)).tolist(), key=lambda index: -worst[index])
    means = 100 * federation.values.mean(2)[order]
    names = [_marked(results.methods[index], results) for index in order]
    figure = Figure(
        figsize=(1.2 + 0.9 * len(federation.columns), 1 + 0.3 * len(names)), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(means, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    axes.set_xticks(range(len(federation.columns)), federation.columns)
    axes.set_yticks(range(len(names)), names)
    texts = [[f"{value:.0f}" for value in row] for row in means.tolist()]
    for row, own in enumerate(texts):
        for column, text in enumerate(own):
            colour = "black" if means[row, column] > 50 else "white"
            axes.text(column, row, text, ha="center", va="center", color=colour)
    rows = [f"{name}: {', '.join(own)}" for name, own in zip(names, texts, strict=True)][::-1]
    return Drawn(figure, "; ".join([", ".join(federation.columns), *rows]))


# By path: the raw results, and what makes the figure from them.
FIGURES: Mapping[Path, tuple[str, Callable[[pandas.DataFrame], Drawn]]] = {
    DOCS / "arena-quick.png": ("arena-quick", heat_map),
}


def _marked(method: str, results: Results) -> str:
    return f"{method} {NOT_AVAILABLE}" if method in results.unavailable else method


def _points(difference: Difference) -> str:
    if abs(difference.mean) > 9.99:
        return "> +999" if difference.mean > 0 else "< -999"  # a model that diverged
    text = f"{100 * difference.mean:+.1f}"
    return text if difference.margin is None else f"{text} ± {100 * difference.margin:.1f}"


def _p_value(difference: Difference) -> str:
    if difference.p_value is None:
        return "–"
    text = p_number(difference.p_value)
    return f"**{text}**" if difference.is_significant else text


def _percent(value: float) -> str:
    return "> 999" if value > 9.99 else f"{100 * value:.1f}"


def _markdown(columns: Sequence[str], rows: Rows, texts: Sequence[str]) -> str:
    """A table; the columns named in `texts` are words, the others numbers."""
    rule = [":--" if column in texts else "--:" for column in columns]
    lines = [columns, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
