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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pandas
from matplotlib.figure import Figure
from PIL import Image

from clientwise.experiment.matrix.grid import MatrixCell, look_at
from clientwise.record.run import RunFolder
from clientwise.report.results import NOT_AVAILABLE, NOT_AVAILABLE_MEANS
from clientwise.report.standings import (
    Federation,
    MeanDifference,
    Results,
    by_mean,
    mean_differences,
    standings,
)
from clientwise.report.statistics import (
    Difference,
    holm,
    p_number,
    paired_difference,
)

LAB = Path(__file__).parents[1]
RAW = LAB / "results"
DOCS = LAB.parent / "docs" / "results"
PAGES = (DOCS / "evidence.md", DOCS / "privacy.md")

OURS = "Recommended"
ORACLE = "KnowsHonestTuned"  # regrets are counted against it
EARLIER = f"{OURS} "  # how the name of an earlier version of ours begins
CLEAN = "clean"
MOST_REGRET = 2.0  # points behind the oracle in a cell: the aim of the fifth protocol
SLOW_TURN = "slow turn"
EVERY_ROUND = 25  # up to this round all are kept, later ones only where `STEP` divides them
STEP = 5
STRONGEST = 4  # rivals in the forest plot: those with the best mean
BASELINES = ("ServerOnly", "FedAvg")  # usable, and always shown

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


def results_of(raw: pandas.DataFrame, round_num: int | None = None) -> Results:
    """The results at a round (None: the last), for the functions of the library."""
    at = _rounds(raw)[-1] if round_num is None else str(round_num)
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
                    for values in (rows[at], rows["backdoor_success"], alarms)
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


def kind_of(method: str, raw: pandas.DataFrame) -> str:
    """What a method is for: usable, not available, or an earlier version of ours."""
    if method.startswith(EARLIER):
        return "earlier version"
    kind = str(raw.loc[raw["method"] == method, "kind"].iloc[0])
    return kind if kind == "not available" else "usable"


def at_share(raw: pandas.DataFrame, share: float) -> pandas.DataFrame:
    """The rows of the columns with this share of hostile clients; 0: with none."""
    return raw[raw["share"] == share]


def by_share(raw: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The rows under attack by their share of hostile clients, then all rows."""
    shares = sorted(share for share in raw["share"].unique() if share)
    found = {f"{share:.0%} hostile": at_share(raw, share) for share in shares}
    return {**found, "all cells": raw}


# Tables


def lead_by_share_table(raw: pandas.DataFrame) -> str:
    """Ours against every other method over federations, by the share of hostile clients."""
    results = results_of(raw)
    overall = _leads(results)
    overall.sort(key=lambda one: one.over_federations.mean)
    methods = [one.method for one in overall]
    columns = {}
    for label, rows in by_share(raw).items():
        found = {one.method: one.over_federations for one in _leads(results_of(rows))}
        columns[label] = [found[method] for method in methods]
    columns["worst cell of each federation"] = [one.worst for one in overall]
    return _leads_markdown(methods, columns, results)


def _leads(results: Results) -> list[MeanDifference]:
    return mean_differences(results, OURS)


def _leads_markdown(
    methods: Sequence[str],
    columns: Mapping[str, Sequence[Difference]],
    results: Results,
) -> str:
    """A row for every method, with each of its differences and p."""
    rows = []
    for index, method in enumerate(methods):
        row = [_marked(method, results)]
        for differences in columns.values():
            row += [_points(differences[index]), _p_value(differences[index])]
        rows.append(row)
    heads = ["against"]
    for label in columns:
        heads += [label, "p"]
    note = (
        f"`{OURS}` minus the method, in points with 95% intervals. p is corrected for {len(methods)} "
        "comparisons (Holm). Over federations: what other federations would give, if these are a "
        f"random choice of them. Bold: p < 0.05. {NOT_AVAILABLE_MEANS}"
    )
    return f"{_markdown(heads, rows, texts=('against',))}\n\n*{note}*"


def regret_table(raw: pandas.DataFrame) -> str:
    """How far every method is behind the one that is told which clients are honest."""
    results = results_of(raw)
    lines = _by_mean(results)
    slow = _slow_turns(results)
    regrets = _regrets(results)
    rows = []
    for one in lines:
        if one.method == ORACLE:
            continue
        own = regrets[one.method]
        within = sum(100 * regret <= MOST_REGRET for regret in own.values())
        largest = max(own, key=lambda cell: own[cell])
        row = [_marked(one.method, results), f"{100 * within / len(own):.1f}%"]
        row += [_plain_points(_mean(own.values())), _plain_points(own[largest])]
        row.append(f"{largest[0]}: {largest[1]}")
        for column in slow:
            turned = [own[federation.name, column] for federation in results.federations]
            row.append(_plain_points(_mean(turned)))
        rows.append(row)
    note = (
        f"Points behind {ORACLE}, in {results.cells} cells (a federation with a column), mean of "
        f"{results.seeds} seeds. {SLOW_TURN.capitalize()}: mean over the federations."
    )
    columns = ["method", f"cells within {MOST_REGRET:g} points", "mean", "largest", "at", *slow]
    return f"{_markdown(columns, rows, texts=('method', 'at'))}\n\n*{note}*"


def _by_mean(results: Results) -> list[Any]:
    """The standings on all federations as rows, the best mean first."""
    return [*by_mean(standings(results), results).itertuples()]


def _slow_turns(results: Results) -> list[str]:
    """The columns of this attack, one for each share of hostile clients."""
    return [one for one in results.federations[0].columns if one.startswith(SLOW_TURN)]


def privacy_table(raw: pandas.DataFrame) -> str:
    """What noise costs: every method beside uniform weights with the same ε."""
    last = _rounds(raw)[-1]
    by_method = raw.set_index(["federation", "method", "seed"])[last].sort_index()
    columns = ["ε", "weights"]
    federations = list(dict.fromkeys(raw["federation"]))
    for name in federations:
        columns += [name, f"{name}: minus uniform"]
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
        epsilon = _epsilon(method)
        row = ["no noise" if epsilon is None else f"{epsilon:g}", method.partition(", ε")[0]]
        for name in federations:
            row.append(_percent(float(found[method, name][0].mean())))
            difference = corrected.get((method, name))
            row.append("–" if difference is None else _points(difference))
        rows.append(row)
    largest = max(corrected.values(), key=lambda one: one.p_value or 0.0)
    note = (
        f"Accuracy in percent after round {last}, {raw['seed'].nunique()} seeds. Differences in points, "
        f"paired by seed, with 95% intervals. The largest p of the {len(compared)} comparisons, corrected "
        f"(Holm), is {_p_value(largest)}."
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


TABLES: Mapping[str, Callable[[pandas.DataFrame], str]] = {
    "lead-by-share": lead_by_share_table,
    "regret": regret_table,
    "privacy": privacy_table,
}


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


def forest_plot(raw: pandas.DataFrame) -> Drawn:
    """The lead of ours over its strongest rivals by federation, and over all of them."""
    results = results_of(raw)
    rivals = _rivals(results, raw)[:STRONGEST]
    over_all = {one.method: one.over_federations for one in _leads(results)}
    leads = {}
    for one in results.federations:
        ours = _goodness(results, one, OURS).mean(1)
        theirs = {rival: _goodness(results, one, rival).mean(1) for rival in rivals}
        leads[one.name] = {rival: _paired(ours - theirs[rival]) for rival in rivals}
    names = sorted(leads, key=lambda name: _mean(one.mean for one in leads[name].values()))
    figure = Figure(figsize=(11, 0.21 * len(names) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(rivals), sharex=True, sharey=True)
    numbers = []
    for axes, rival in zip(panels, rivals, strict=True):
        axes.axvline(0, color="black", linewidth=0.8)
        found = {f"all {len(names)} federations": over_all[rival]}
        found |= {name: leads[name][rival] for name in names}
        for height, (name, lead) in enumerate(found.items()):
            style = (
                {"color": "#1f5fa8", "fmt": "D"}
                if height == 0
                else {"color": "#777777", "fmt": "o"}
            )
            margin = 100 * (lead.margin or 0.0)
            axes.errorbar(
                100 * lead.mean, height, xerr=margin, markersize=4.5, linewidth=1.4, **style
            )
            numbers.append(f"{rival}, {name}: {_points(lead)}")
        axes.axhline(0.5, color="#cccccc", linewidth=0.8)
        axes.set_yticks(range(len(found)), found, fontsize=8)
        axes.set_title(f"against {rival}", fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    columns = len(results.federations[0].columns)
    intervals = f"95% intervals over {columns} columns (grey) and over the federations (blue)"
    figure.supxlabel(f"lead of {OURS} in points, with {intervals}", fontsize=9)
    return Drawn(figure, "; ".join(numbers))


def regret_map(raw: pandas.DataFrame) -> Drawn:
    """How far ours is behind the method that is told which clients are honest, cell by cell."""
    rows = raw.sort_values("share", kind="stable")  # clean first, then 20%, then 40%
    results = results_of(rows)
    regrets = _regrets(results)[OURS]
    columns = results.federations[0].columns
    names = [one.name for one in results.federations]
    points = [[100 * regrets[name, column] for column in columns] for name in names]
    texts = [[_without_minus(f"{value:.1f}") for value in row] for row in points]
    reach = float(numpy.abs(points).max())
    size = (0.42 * len(columns) + 2.4, 0.27 * len(names) + 2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(points, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    for (row, column), value in numpy.ndenumerate(points):
        colour = "white" if abs(value) > 0.6 * reach else "black"
        place = {"ha": "center", "va": "center", "fontsize": 7}
        axes.text(column, row, texts[row][column], color=colour, **place)
    figure.colorbar(image, ax=axes, label=f"points behind {ORACLE}", shrink=0.8)
    rows_as_text = [f"{name}: {', '.join(row)}" for name, row in zip(names, texts, strict=True)]
    return Drawn(figure, "; ".join([", ".join(columns), *rows_as_text]))


def _without_minus(text: str) -> str:
    """Zero has no sign."""
    return "0.0" if text == "-0.0" else text


# By path: the raw results, and what makes the figure from them.
FIGURES: Mapping[Path, tuple[str, Callable[[pandas.DataFrame], Drawn]]] = {
    DOCS / "federations-lead.png": ("federations", forest_plot),
    DOCS / "federations-regret.png": ("federations", regret_map),
    DOCS / "arena-quick.png": ("arena-quick", heat_map),
}


def _rivals(results: Results, raw: pandas.DataFrame) -> list[str]:
    """The other usable methods but the baselines, the best mean first."""
    lines = _by_mean(results)
    usable = [one.method for one in lines if kind_of(one.method, raw) == "usable"]
    return [method for method in usable if method not in (OURS, *BASELINES)]


def _means(rows: pandas.DataFrame) -> dict[str, float]:
    """By method, the mean over these rows in the last round."""
    means = rows.groupby("method")[_rounds(rows)[-1]].mean()
    return {str(method): float(mean) for method, mean in means.items()}


def _regrets(results: Results) -> dict[str, dict[tuple[str, str], float]]:
    """By method, then by federation and column, how far it is behind the oracle."""
    found: dict[str, dict[tuple[str, str], float]] = {method: {} for method in results.methods}
    for one in results.federations:
        regrets = (_goodness(results, one, ORACLE) - one.goodness).mean(2)
        for method, row in zip(results.methods, regrets.tolist(), strict=True):
            for column, regret in zip(one.columns, row, strict=True):
                found[method][one.name, column] = regret
    return found


def _goodness(results: Results, one: Federation, method: str) -> numpy.ndarray:
    """[columns, seeds], the higher the better."""
    return one.goodness[results.methods.index(method)]


def _paired(paired: numpy.ndarray) -> Difference:
    found = paired_difference(paired.tolist(), [0.0] * len(paired))
    assert found is not None
    return found


def _marked(method: str, results: Results) -> str:
    return f"{method} {NOT_AVAILABLE}" if method in results.unavailable else method


def _mean(values: Iterable[float]) -> float:
    return float(numpy.mean([*values]))


def _plain_points(value: float) -> str:
    return _points(Difference(value, None, 1))


def _points(difference: Difference) -> str:
    if abs(difference.mean) > 9.99:
        return "> +999" if difference.mean > 0 else "< -999"  # a model that diverged
    text = f"{100 * difference.mean:+.1f}"
    return text if difference.margin is None else f"{text} ± {100 * difference.margin:.1f}"


def _p_value(difference: Difference) -> str:
    if difference.p_value is None:
        return "–"
    return _bold(p_number(difference.p_value), difference.is_significant)


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return "> 999" if value > 9.99 else f"{100 * value:.1f}"


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _markdown(columns: Sequence[str], rows: Rows, texts: Sequence[str]) -> str:
    """A table; the columns named in `texts` are words, the others numbers."""
    rule = [":--" if column in texts else "--:" for column in columns]
    lines = [[column.strip() for column in columns], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
