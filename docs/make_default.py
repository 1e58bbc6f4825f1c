"""Results of matrices: raw results, and the tables and figures of the pages that are made from them.

python docs/make_default.py                  # tables and figures, from docs/results/*.csv.gz
python docs/make_default.py FOLDER FOLDER    # collect the raw results of these matrices first

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
from clientwise.record.reading.config_view import RecordedConfig, recorded_config
from clientwise.record.reading.folder import RunFolder
from clientwise.report.arena.standings import (
    Federation,
    MethodStanding,
    Results,
    complete_methods,
    leads_significantly,
    mean_differences,
    significant_leads,
    standings,
)
from clientwise.report.arena.standings_tables import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_MEANS,
    by_mean,
    federation_section,
)
from clientwise.report.differences import p_number
from clientwise.report.document import Chart
from clientwise.report.marks import HeatMap
from clientwise.report.output.figures import draw_into
from clientwise.report.statistics import Difference, holm, paired_difference

DOCS = Path(__file__).parent
RAW = DOCS / "results"
PAGES = (RAW / "evidence.md", RAW / "privacy.md", DOCS.parent / "README.md")

OURS = "Recommended"
ORACLE = "KnowsHonestTuned"  # regrets are counted against it
ABLATION = "without "  # how the name of a method begins that lacks one part of ours
EARLIER = f"{OURS} "  # likewise, of an earlier version of ours
KEPT_ASIDE = "kept aside"  # the tag of a federation that was not used in development
CLEAN = "clean"
AIMS = {"clean": 0.5, "regret": 2.0, "alarms": 5.0}  # points, points, percent
EVERY_ROUND = 25  # up to this round all are kept, later ones only where `STEP` divides them
STEP = 5
README_RIVALS = 5  # in the README's table and figure: the best usable methods beside ours

KEYS = ["federation", "column", "share", "method", "seed"]
MARKER = re.compile(r"<!-- make_default: (\S+) (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)

_BOLD = (
    "Bold: statistically significantly better than every other available method, over the seeds "
    "(Holm)."
)

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
    config = recorded_config(run.folder)
    rounds = pandas.DataFrame(run.columns("rounds"))
    kept = rounds[(rounds["round"] <= EVERY_ROUND) | (rounds["round"] % STEP == 0)]
    rows = kept.pivot_table(index=["method", "seed"], columns="round", values="metric")
    rows = rows.round(5).rename(columns=str)
    last = rounds[rounds["round"] == run.rounds].set_index(["method", "seed"])
    rows["backdoor_success"] = last["attack_success"].astype(float)
    alarms = {}
    for _, method, seed in run.lanes:
        found = run.false_alarms(method, seed)
        if found.honest:
            alarms[method, seed] = found
    for position, label in enumerate(("lowered_clients", "honest_clients")):
        counts = {lane: found[position] for lane, found in alarms.items()}
        rows[label] = pandas.Series(counts, dtype=float)
    rows = rows.reset_index()
    rows["federation"] = cell.data
    rows["kept_aside"] = int(KEPT_ASIDE in config.tags)
    rows["measure"] = run.metric
    rows["higher_is_better"] = int(run.higher_is_better)
    rows["column"] = cell.attack
    rows["share"] = cell.share
    rows["hostile"] = int(run.has_hostile)
    rows["kind"] = [_recorded_kind(config, method) for method in rows["method"]]
    return rows


def _recorded_kind(config: RecordedConfig, method: str) -> str:
    """Whether a method is federated and available, as its config says."""
    found = config.method(method)
    if found is None or found.is_available:
        return "not federated" if found is not None and found.is_control else "federated"
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
    """What a method is for: usable, not available, ablation, or an earlier version of ours."""
    if method.startswith(ABLATION):
        return "ablation"
    if method.startswith(EARLIER):
        return "earlier version"
    kind = str(raw.loc[raw["method"] == method, "kind"].iloc[0])
    return kind if kind == "not available" else "usable"


def chosen(raw: pandas.DataFrame, which: str = "classification") -> pandas.DataFrame:
    """The rows of some federations: of classifications, those kept aside, or regressions."""
    is_error = raw["higher_is_better"] == 0
    choices = {
        "classification": ~is_error,
        "kept-aside": ~is_error & (raw["kept_aside"] == 1),
        "regression": is_error,
    }
    return raw[choices[which]]


# Tables


def cells_table(raw: pandas.DataFrame) -> str:
    """(a) Mean over cells, worst cell, clean, success of backdoors."""
    results = results_of(raw)
    lines = by_mean(standings(results, results.federations), results.federations[0])
    has_backdoors = any(one.success is not None for one in lines)
    columns = ["method", "kind", "mean over cells", "worst cell", "at", "clean"]
    if has_backdoors:
        columns.append("backdoor success")
    higher = results.federations[0].higher_is_better
    clean = {one.method: _clean_mean(results, one.method) for one in lines}
    values = {
        "mean over cells": {one.method: one.mean for one in lines},
        "worst cell": {one.method: one.worst for one in lines},
        "clean": clean,
    }
    leads = _significant_leads(results)
    bold = {}
    for label, own in values.items():
        bold[label] = _best(results, own, higher) if leads[label] else set()
    rows = []
    for one in lines:
        row = [_marked(one.method, results), kind_of(one.method, raw)]
        row.append(_percent(one.mean, one.method in bold["mean over cells"]))
        row.append(_percent(one.worst, one.method in bold["worst cell"]))
        row += [one.worst_at, _percent(clean[one.method], one.method in bold["clean"])]
        if has_backdoors:
            row.append(_percent(one.success))
        rows.append(row)
    cells = sum(len(one.columns) for one in results.federations)
    note = (
        f"{_measure(results)} in percent, {cells} cells (a federation with a column), "
        f"{results.seeds} seeds. {_BOLD} {NOT_AVAILABLE_MEANS}"
    )
    return f"{_markdown(columns, rows, texts=('method', 'kind', 'at'))}\n\n*{note}*"


def federations_table(raw: pandas.DataFrame) -> str:
    """(b) The aims by federation: clean, regret, false alarms."""
    results = results_of(raw)
    columns = ["federation", "clean: best other", "behind it", "largest regret", "at"]
    columns.append("false alarms")
    rivals = [method for method in results.methods if _is_federated(method, raw)]
    aside = set(raw.loc[raw["kept_aside"] == 1, "federation"])
    rows = []
    for one in results.federations:
        ours = one.goodness[results.methods.index(OURS)]
        clean = one.columns.index(CLEAN)
        best = max(rivals, key=lambda name: _goodness(results, one, name)[clean].mean())
        behind = _over_seeds(_goodness(results, one, best)[clean] - ours[clean])
        regrets = _goodness(results, one, ORACLE) - ours
        at = int(regrets.mean(1).argmax())
        regret = _over_seeds(regrets[at])
        alarms = 100 * float(one.false_alarms[results.methods.index(OURS)])
        row = [f"{one.name} ‡" if one.name in aside else one.name, best]
        row.append(_bold(_points(behind), 100 * behind.mean > AIMS["clean"]))
        row.append(_bold(_points(regret), 100 * regret.mean > AIMS["regret"]))
        row += [one.columns[at], _bold(f"{alarms:.1f}%", alarms > AIMS["alarms"])]
        rows.append(row)
    note = (
        "Points, of error with the sign turned where less is better; ± is the 95% interval over "
        f"{results.seeds} seeds. Bold: the aim is missed (more than {AIMS['clean']} points behind, "
        f"more than {AIMS['regret']:g} points of regret, more than {AIMS['alarms']:g}% false alarms)."
    )
    if aside:
        note += " ‡ Not used in development."
    texts = ("federation", "clean: best other", "at")
    return f"{_markdown(columns, rows, texts)}\n\n*{note}*"


def lead_table(raw: pandas.DataFrame) -> str:
    """(c) Ours against every other method: over federations and over seeds, with Holm."""
    results = results_of(raw)
    others = [name for name in complete_methods(results, results.federations) if name != OURS]
    found = mean_differences(results, results.federations, OURS, others)
    found.sort(key=lambda one: one.over_seeds.mean)
    federations = len(results.federations)
    columns = [
        "against",
        f"mean, over {federations} federations",
        "p",
        f"over {results.seeds} seeds",
    ]
    columns += ["p ", "worst cell of each federation", "p  "]
    rows = []
    for one in found:
        row = [_marked(one.method, results)]
        for difference in (one.over_federations, one.over_seeds, one.worst):
            row += [_points(difference), _p_value(difference)]
        rows.append(row)
    note = (
        f"`{OURS}` minus the method, in points with 95% intervals. p is corrected for {len(others)} "
        "comparisons (Holm). Over federations: what other federations would give, if these are a "
        "random choice of them. Over seeds: what other seeds would give on these federations. "
        f"Bold: p < 0.05. {NOT_AVAILABLE_MEANS}"
    )
    return f"{_markdown(columns, rows, texts=('against',))}\n\n*{note}*"


def ablations_table(raw: pandas.DataFrame) -> str:
    """(d) What every part of ours adds: paired over the seeds, federation by federation."""
    results = results_of(raw)
    complete = complete_methods(results, results.federations)
    ablations = [name for name in complete if kind_of(name, raw) == "ablation"]
    over = mean_differences(results, results.federations, OURS, ablations)
    columns = [OURS, *(one.name for one in results.federations), "all federations", "p"]
    columns.append("largest effect")
    rows = []
    for one in over:
        effects = {}
        row = [one.method]
        for federation in results.federations:
            gain = _goodness(results, federation, OURS) - _goodness(results, federation, one.method)
            row.append(_points(_over_seeds(gain.mean(0))))
            for column, effect in zip(federation.columns, gain.mean(1).tolist(), strict=True):
                effects[f"{federation.name}: {column}"] = effect
        largest = max(effects, key=lambda cell: abs(effects[cell]))
        row += [_points(one.over_federations), _p_value(one.over_federations)]
        row.append(f"{_points(Difference(effects[largest], None, 1))}, {largest}")
        rows.append(row)
    note = (
        f"`{OURS}` minus the same method without the part, mean over the columns, in points (of "
        "error with the sign turned where less is better); above zero, the part helps. ± is the "
        f"95% interval over {results.seeds} seeds, in the column “all federations” over "
        f"{len(results.federations)} federations, with p corrected for {len(over)} comparisons (Holm)."
    )
    return f"{_markdown(columns, rows, texts=(OURS, 'largest effect'))}\n\n*{note}*"


def flat_table(raw: pandas.DataFrame) -> str:
    """(e) Whether the order holds where the curves are flat."""
    rounds = [int(number) for number in _rounds(raw)]
    last = rounds[-1]
    before = max(number for number in rounds if number <= 0.8 * last)
    columns = ["method", f"mean, round {EVERY_ROUND}", f"mean, round {last}"]
    columns += [f"worst cell, round {EVERY_ROUND}", f"worst cell, round {last}"]
    columns.append(f"change since round {before}")
    by_round = {}
    for number in (EVERY_ROUND, before, last):
        results = results_of(raw, number)
        by_round[number] = {one.method: one for one in standings(results, results.federations)}
    rows = []
    for one in by_mean([*by_round[last].values()], results.federations[0]):
        early = by_round[EVERY_ROUND][one.method]
        row = [_marked(one.method, results), _percent(early.mean), _percent(one.mean)]
        row += [_percent(early.worst), _percent(one.worst)]
        row.append(f"{100 * (one.mean - by_round[before][one.method].mean):+.1f}")
        rows.append(row)
    note = f"{_measure(results)} in percent, {results.seeds} seeds, the same runs. {NOT_AVAILABLE_MEANS}"
    return f"{_markdown(columns, rows, texts=('method',))}\n\n*{note}*"


def readme_table(raw: pandas.DataFrame) -> str:
    """(f) The README's table: ours, its strongest rivals, and what they are measured by."""
    results = results_of(raw)
    lines = _for_readme(results, raw)
    rows = []
    for one in lines:
        name = f"**`{one.method}`**" if one.method == OURS else _marked(one.method, results)
        clean = _percent(_clean_mean(results, one.method))
        rows.append([name, _percent(one.mean), _percent(one.worst), clean])
    cells = sum(len(one.columns) for one in results.federations)
    columns = ["method", f"mean over {cells} cells", "worst cell", "no hostile clients"]
    return _markdown(columns, rows, texts=("method",))


def privacy_table(raw: pandas.DataFrame) -> str:
    """(g) What noise costs: every method beside uniform weights with the same ε."""
    last = _rounds(raw)[-1]
    by_method = raw.set_index(["federation", "method", "seed"])[last].sort_index()
    columns = ["ε", "weights"]
    federations = list(dict.fromkeys(raw["federation"]))
    for name in federations:
        columns += [name, f"{name}: minus uniform", f"{name}: p"]
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
            row += ["–", "–"] if difference is None else [_points(difference), _p_value(difference)]
        rows.append(row)
    note = (
        f"Accuracy in percent after round {last}, {raw['seed'].nunique()} seeds. Differences in points, "
        f"paired by seed, with 95% intervals; p is corrected for {len(compared)} comparisons (Holm). "
        "Bold: p < 0.05."
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
    "cells": lambda raw: cells_table(chosen(raw)),
    "cells-kept-aside": lambda raw: cells_table(chosen(raw, "kept-aside")),
    "cells-regression": lambda raw: cells_table(chosen(raw, "regression")),
    "federations": federations_table,
    "lead": lambda raw: lead_table(chosen(raw)),
    "lead-kept-aside": lambda raw: lead_table(chosen(raw, "kept-aside")),
    "ablations": lambda raw: ablations_table(chosen(raw)),
    "ablations-regression": lambda raw: ablations_table(chosen(raw, "regression")),
    "flat": lambda raw: flat_table(chosen(raw)),
    "readme": lambda raw: readme_table(chosen(raw)),
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


def cells_figure(raw: pandas.DataFrame) -> Drawn:
    """The README's figure: every cell of the methods in its table."""
    rows = chosen(raw)
    results = results_of(rows)
    lines = _for_readme(results, rows)[::-1]
    figure = Figure(figsize=(8, 0.42 * len(lines) + 1), layout="constrained")
    axes = figure.subplots()
    numbers = []
    for height, one in enumerate(lines):
        index = results.methods.index(one.method)
        cells = [100 * federation.values[index].mean(1) for federation in results.federations]
        values = numpy.concatenate(cells)
        colour = "#1f5fa8" if one.method == OURS else "#777777"
        heights = numpy.full(len(values), height)
        axes.plot(values, heights, "|", color=colour, markersize=9, alpha=0.5)
        axes.plot(100 * one.mean, height, "o", color=colour, markersize=7)
        axes.plot(100 * one.worst, height, "v", color="#c23b22", markersize=7)
        shown = [f"{value:.1f}" for value in (100 * one.mean, 100 * one.worst, *values)]
        numbers.append(f"{one.method}: {', '.join(shown)}")
    axes.set_yticks(range(len(lines)), [_marked(one.method, results) for one in lines])
    axes.set_xlabel(f"{_measure(results)} in %: every cell (|), mean (●), worst cell (▼)")
    axes.grid(axis="x", alpha=0.3)
    return Drawn(figure, "; ".join(numbers))


def heat_map(raw: pandas.DataFrame) -> Drawn:
    """The heat map of a matrix of one federation, as its report has it."""
    clean_first = raw["hostile"].sort_values(kind="stable").index
    results = results_of(raw.loc[clean_first])
    (federation,) = results.federations
    chart = federation_section(results, federation).items[0]
    assert isinstance(chart, Chart)
    assert isinstance(chart.mark, HeatMap)
    figure = Figure()
    draw_into(figure, [chart])
    named = zip(chart.mark.rows, chart.mark.texts or (), strict=True)
    rows = [f"{method}: {', '.join(texts)}" for method, texts in named]
    return Drawn(figure, "; ".join([", ".join(map(str, chart.mark.columns)), *rows]))


# By path: the raw results, and what makes the figure from them.
FIGURES: Mapping[Path, tuple[str, Callable[[pandas.DataFrame], Drawn]]] = {
    RAW / "default.png": ("default", cells_figure),
    DOCS / "results" / "arena-quick.png": ("arena-quick", heat_map),
}


def _for_readme(results: Results, raw: pandas.DataFrame) -> list[MethodStanding]:
    """Ours, the best usable rivals, and the methods that everything is measured by."""
    lines = by_mean(standings(results, results.federations), results.federations[0])
    usable = [one.method for one in lines if kind_of(one.method, raw) == "usable"]
    rivals = [method for method in usable if method != OURS][:README_RIVALS]
    shown = {OURS, ORACLE, "ServerOnly", "FedAvg", *rivals}
    return [one for one in lines if one.method in shown]


def _is_federated(method: str, raw: pandas.DataFrame) -> bool:
    kinds = raw.loc[raw["method"] == method, "kind"]
    return method != OURS and kinds.iloc[0] == "federated"


def _goodness(results: Results, one: Federation, method: str) -> numpy.ndarray:
    """[columns, seeds], the higher the better."""
    return one.goodness[results.methods.index(method)]


def _clean_mean(results: Results, method: str) -> float:
    """Mean over the federations without hostile clients."""
    index = results.methods.index(method)
    clean = [one.values[index, one.columns.index(CLEAN)] for one in results.federations]
    return float(numpy.mean(clean))


def _best(results: Results, values: Mapping[str, float], higher: bool) -> set[str]:
    """The available methods with the best value."""
    rivals = {name: value for name, value in values.items() if name not in results.unavailable}
    best = max(rivals.values()) if higher else min(rivals.values())
    return {name for name, value in rivals.items() if value == best}


def _significant_leads(results: Results) -> dict[str, bool]:
    """By column of the table of cells, whether the best available method leads significantly."""
    complete = complete_methods(results, results.federations)
    rivals = [results.methods.index(one) for one in complete if one not in results.unavailable]
    clean = [one.goodness[rivals, one.columns.index(CLEAN)] for one in results.federations]
    mean, worst, _ = significant_leads(results, results.federations)
    return {
        "mean over cells": mean,
        "worst cell": worst,
        "clean": leads_significantly(numpy.mean(clean, axis=0)),
    }


def _over_seeds(paired: numpy.ndarray) -> Difference:
    found = paired_difference(paired.tolist(), [0.0] * len(paired))
    assert found is not None
    return found


def _measure(results: Results) -> str:
    name = results.federations[0].metric
    return name if name.isupper() else name.capitalize()


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
    return _bold(p_number(difference.p_value), difference.is_significant)


def _percent(value: float | None, is_best: bool = False) -> str:
    if value is None:
        return "–"
    return _bold("> 999" if value > 9.99 else f"{100 * value:.1f}", is_best)


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _markdown(columns: Sequence[str], rows: Rows, texts: Sequence[str]) -> str:
    """A table; the columns named in `texts` are words, the others numbers."""
    rule = [":--" if column in texts else "--:" for column in columns]
    lines = [[column.strip() for column in columns], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
