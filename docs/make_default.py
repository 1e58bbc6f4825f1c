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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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
    MethodStanding,
    Results,
    by_mean,
    complete_methods,
    mean_differences,
    standings,
)
from clientwise.report.statistics import (
    MIN_SEEDS,
    Difference,
    holm,
    p_number,
    paired_difference,
)

DOCS = Path(__file__).parent
RAW = DOCS / "results"
PAGES = (RAW / "evidence.md", RAW / "privacy.md", DOCS.parent / "README.md")

OURS = "Recommended"
ORACLE = "KnowsHonestTuned"  # regrets are counted against it
ABLATION = "without "  # how the name of a method begins that lacks one part of ours
EARLIER = f"{OURS} "  # likewise, of an earlier version of ours
KEPT_ASIDE = {"faces", "two classes"}  # federations that were not used in development
CLEAN = "clean"
AIMS = {"clean": 0.5, "regret": 2.0, "alarms": 5.0}  # points, points, percent
FIFTH_AIMS = {"clean": 3.0, "slow turn": 4.0}  # points; those of regret and alarms are the same
FEW_SAMPLES = 50  # of the median client: with fewer, the fifth protocol has no aim of alarms
ADAPTIVE = "FedAdam, tuned"  # the rival without hostile clients, in the fifth protocol
SLOW_TURN = "slow turn"
FAMILIES = {  # of attacks, which the fifth protocol gives equal weight
    "labels": ("mirrored labels", "boasts, mirrored labels"),
    "sign flips": (
        "sign flip ×1",
        "sign flip ×2",
        "sign flip ×4",
        "delayed sign flip",
        "on-off sign flip",
    ),
    "ALIE": ("ALIE",),
    "inner product": ("inner product",),
    SLOW_TURN: (SLOW_TURN,),
}
RESAMPLES = 1000  # of the bootstrap
EVERY_ROUND = 25  # up to this round all are kept, later ones only where `STEP` divides them
STEP = 5
STRONGEST = 4  # rivals in the README's table and in the forest plot: those with the best mean
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
    rows["kept_aside"] = int(cell.data in KEPT_ASIDE)
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


def at_share(raw: pandas.DataFrame, share: float) -> pandas.DataFrame:
    """The rows of the columns with this share of hostile clients; 0: with none."""
    return raw[raw["share"] == share]


def by_share(raw: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The rows under attack by their share of hostile clients, then all rows."""
    shares = sorted(share for share in raw["share"].unique() if share)
    found = {f"{share:.0%} hostile": at_share(raw, share) for share in shares}
    return {**found, "all cells": raw}


def by_family(raw: pandas.DataFrame) -> pandas.DataFrame:
    """The rows under attack, each family of attacks as one column: the mean over its columns."""
    families = {column: name for name, columns in FAMILIES.items() for column in columns}
    attacked = raw[raw["share"] > 0]
    attacked = attacked.assign(column=attacked["column"].map(families), share=0.0)
    how = dict.fromkeys(_facts(attacked)[len(KEYS) :], "first")
    how |= dict.fromkeys(_rounds(attacked), "mean")
    return attacked.groupby(KEYS, as_index=False).agg(how)


def median_clients() -> dict[str, int]:
    """By federation, the training samples of the median client, as the page of federations says."""
    page = (RAW / "federations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|.*\| \d+, (\d+), \d+ \|", page, re.MULTILINE)
    return {name: int(median) for name, median in rows}


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
        f"{results.seeds} seeds. {_bold_means(results)} {NOT_AVAILABLE_MEANS}"
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
        behind = _paired(_goodness(results, one, best)[clean] - ours[clean])
        regrets = _goodness(results, one, ORACLE) - ours
        at = int(regrets.mean(1).argmax())
        regret = _paired(regrets[at])
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
    found = _leads(results)
    found.sort(key=lambda one: one.over_seeds.mean)
    federations = len(results.federations)
    columns = {
        f"mean, over {federations} federations": [one.over_federations for one in found],
        f"over {results.seeds} seeds": [one.over_seeds for one in found],
        "worst cell of each federation": [one.worst for one in found],
    }
    seeds = "Over seeds: what other seeds would give on these federations. "
    return _leads_markdown([one.method for one in found], columns, results, seeds)


def lead_by_share_table(raw: pandas.DataFrame) -> str:
    """(h) Ours against every other method over federations, by the share of hostile clients."""
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
    others = [name for name in complete_methods(results, results.federations) if name != OURS]
    return mean_differences(results, results.federations, OURS, others)


def _leads_markdown(
    methods: Sequence[str],
    columns: Mapping[str, Sequence[Difference]],
    results: Results,
    more: str = "",
) -> str:
    """A row for every method, with each of its differences and p; `more` goes into the note."""
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
        f"random choice of them. {more}Bold: p < 0.05. {NOT_AVAILABLE_MEANS}"
    )
    return f"{_markdown(heads, rows, texts=('against',))}\n\n*{note}*"


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
            row.append(_points(_paired(gain.mean(0))))
            for column, effect in zip(federation.columns, gain.mean(1).tolist(), strict=True):
                effects[f"{federation.name}: {column}"] = effect
        largest = max(effects, key=lambda cell: abs(effects[cell]))
        row += [_points(one.over_federations), _p_value(one.over_federations)]
        row.append(f"{_plain_points(effects[largest])}, {largest}")
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
    first = min(EVERY_ROUND, before)
    columns = ["method", f"mean, round {first}", f"mean, round {last}"]
    columns += [f"worst cell, round {first}", f"worst cell, round {last}"]
    columns.append(f"change since round {before}")
    by_round = {}
    for number in (first, before, last):
        results = results_of(raw, number)
        by_round[number] = {one.method: one for one in standings(results, results.federations)}
    rows = []
    for one in by_mean([*by_round[last].values()], results.federations[0]):
        early = by_round[first][one.method]
        row = [_marked(one.method, results), _percent(early.mean), _percent(one.mean)]
        row += [_percent(early.worst), _percent(one.worst)]
        row.append(f"{100 * (one.mean - by_round[before][one.method].mean):+.1f}")
        rows.append(row)
    note = f"{_measure(results)} in percent, {results.seeds} seeds, the same runs. {NOT_AVAILABLE_MEANS}"
    return f"{_markdown(columns, rows, texts=('method',))}\n\n*{note}*"


def readme_table(raw: pandas.DataFrame) -> str:
    """(f) The README's table: ours, its strongest rivals, and what they are measured by."""
    results = results_of(raw)
    leads = {one.method: one.over_federations for one in _leads(results)}
    parts = {"no hostile clients": at_share(raw, 0), **by_share(raw)}
    del parts["all cells"]  # the lead is over all of them
    means = {label: _means(rows) for label, rows in parts.items()}
    rows = []
    for one in _strongest(results, raw):
        name = f"**`{one.method}`**" if one.method == OURS else _marked(one.method, results)
        row = [name, *(_percent(mean[one.method]) for mean in means.values())]
        row.append(_percent(one.worst))
        row.append("–" if one.method == OURS else _points(leads[one.method]))
        rows.append(row)
    columns = ["method", *parts, "worst cell", f"lead of `{OURS}`"]
    return _markdown(columns, rows, texts=("method",))


def regret_table(raw: pandas.DataFrame) -> str:
    """(i) How far every method is behind the one that is told which clients are honest."""
    results = results_of(raw)
    lines = by_mean(standings(results, results.federations), results.federations[0])
    slow = _slow_turns(results)
    regrets = _regrets(results)
    rows = []
    for one in lines:
        if one.method == ORACLE:
            continue
        own = regrets[one.method]
        within = sum(100 * regret <= AIMS["regret"] for regret in own.values())
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
    columns = ["method", f"cells within {AIMS['regret']:g} points", "mean", "largest", "at", *slow]
    return f"{_markdown(columns, rows, texts=('method', 'at'))}\n\n*{note}*"


def _slow_turns(results: Results) -> list[str]:
    """The columns of this attack, one for each share of hostile clients."""
    return [one for one in results.federations[0].columns if one.startswith(SLOW_TURN)]


def families_table(raw: pandas.DataFrame) -> str:
    """(j) Means under attack, with equal weight for every family of attacks."""
    rows_by_family = by_family(raw)
    results = results_of(rows_by_family)
    lines = by_mean(standings(results, results.federations), results.federations[0])
    leads = {one.method: one.over_federations for one in _leads(results)}
    means = [_means(rows_by_family[rows_by_family["column"] == name]) for name in FAMILIES]
    rows = []
    for one in lines:
        row = [_marked(one.method, results), *(_percent(mean[one.method]) for mean in means)]
        row.append(_percent(one.mean))
        lead = leads.get(one.method)
        row += ["–", "–"] if lead is None else [_points(lead), _p_value(lead)]
        rows.append(row)
    columns = ["method", *FAMILIES, "mean of the families", f"lead of `{OURS}`", "p"]
    families = "; ".join(f"{name}: {len(columns)}" for name, columns in FAMILIES.items())
    note = (
        f"{_measure(results)} in percent under attack. Attacks in a family: {families}. The lead has its "
        f"95% interval over {len(results.federations)} federations; p is corrected for {len(leads)} "
        f"comparisons (Holm). Bold: p < 0.05. {NOT_AVAILABLE_MEANS}"
    )
    return f"{_markdown(columns, rows, texts=('method',))}\n\n*{note}*"


def worst_table(raw: pandas.DataFrame) -> str:
    """(k) The worst cell of every method, with a bootstrap interval over the seeds."""
    results = results_of(raw)
    rows = []
    for one in standings(results, results.federations):
        index = results.methods.index(one.method)
        cells = numpy.concatenate([each.values[index] for each in results.federations])
        low, high = _worst_interval(cells)
        row = [_marked(one.method, results), _percent(one.worst)]
        row += [f"{_percent(low)} to {_percent(high)}", one.worst_at]
        rows.append(row)
    note = (
        f"{_measure(results)} in percent. The interval is the 95% range of the worst cell over {RESAMPLES:,} draws "
        f"of {results.seeds} seeds with replacement. {NOT_AVAILABLE_MEANS}"
    )
    columns = ["method", "worst cell", "interval", "at"]
    return f"{_markdown(columns, rows, texts=('method', 'at'))}\n\n*{note}*"


def _worst_interval(cells: numpy.ndarray) -> tuple[float, float]:
    """Of the least mean of a cell: its 95% range over draws of the seeds, from [cells, seeds]."""
    seeds = cells.shape[1]
    draws = numpy.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    worst = cells[:, draws].mean(2).min(0)
    low, high = numpy.quantile(worst, [0.025, 0.975])
    return float(low), float(high)


def means_table(raw: pandas.DataFrame) -> str:
    """(l) The mean of every federation over its columns, of ours and its strongest rivals."""
    results = results_of(raw)
    earlier = [one for one in results.methods if kind_of(one, raw) == "earlier version"]
    methods = [one.method for one in _strongest(results, raw)]
    methods[methods.index(OURS) + 1 : 0] = earlier
    regrets = _regrets(results)[OURS]
    rows = []
    for one in results.federations:
        means = one.values[[results.methods.index(method) for method in methods]].mean((1, 2))
        row = [one.name, *(_percent(float(mean)) for mean in means)]
        within = sum(100 * regrets[one.name, name] <= AIMS["regret"] for name in one.columns)
        row.append(f"{within} of {len(one.columns)}")
        rows.append(row)
    columns = ["federation", *(_marked(method, results) for method in methods)]
    columns.append(f"cells of `{OURS}` within {AIMS['regret']:g} points of {ORACLE}")
    note = (
        f"{_measure(results)} in percent, mean over the columns and {results.seeds} seeds. "
        f"{NOT_AVAILABLE_MEANS}"
    )
    return f"{_markdown(columns, rows, texts=('federation',))}\n\n*{note}*"


def fifth_aims_table(raw: pandas.DataFrame) -> str:
    """(m) The other aims of the fifth protocol by federation: clean, slow turn, false alarms."""
    results = results_of(raw)
    medians = median_clients()
    earlier = [one for one in results.methods if kind_of(one, raw) == "earlier version"]
    regrets = _regrets(results)[OURS]
    slow = _slow_turns(results)
    columns = ["federation", f"clean: behind {ADAPTIVE}", *(f"{one}: regret" for one in slow)]
    columns += ["median client", "false alarms", *(f"of {one}" for one in earlier)]
    rows = []
    for one in results.federations:
        clean = one.columns.index(CLEAN)
        ahead = _goodness(results, one, ADAPTIVE)[clean] - _goodness(results, one, OURS)[clean]
        behind = float(ahead.mean())
        row = [one.name, _bold(_plain_points(behind), 100 * behind > FIFTH_AIMS["clean"])]
        for column in slow:
            regret = regrets[one.name, column]
            row.append(_bold(_plain_points(regret), 100 * regret > FIFTH_AIMS[SLOW_TURN]))
        row.append(str(medians[one.name]))
        for method in (OURS, *earlier):
            alarms = 100 * float(one.false_alarms[results.methods.index(method)])
            is_aim = method == OURS and medians[one.name] >= FEW_SAMPLES
            row.append(_bold(f"{alarms:.1f}%", is_aim and alarms > AIMS["alarms"]))
        rows.append(row)
    note = (
        f"Points, mean of {results.seeds} seeds. Median client: its training samples. Bold: more than "
        f"{FIFTH_AIMS['clean']:g} points behind, more than {FIFTH_AIMS[SLOW_TURN]:g} points of regret (the aim is "
        f"about the mean over federations), more than {AIMS['alarms']:g}% false alarms where the median "
        f"client has at least {FEW_SAMPLES} samples."
    )
    return f"{_markdown(columns, rows, texts=('federation',))}\n\n*{note}*"


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
    "lead-by-share": lambda raw: lead_by_share_table(chosen(raw)),
    "regret": lambda raw: regret_table(chosen(raw)),
    "families": lambda raw: families_table(chosen(raw)),
    "worst": lambda raw: worst_table(chosen(raw)),
    "means": lambda raw: means_table(chosen(raw)),
    "fifth-aims": lambda raw: fifth_aims_table(chosen(raw)),
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
    """Every cell of ours and its strongest rivals."""
    rows = chosen(raw)
    results = results_of(rows)
    lines = _strongest(results, rows, 5)[::-1]
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
    rows = chosen(raw)
    results = results_of(rows)
    rivals = _rivals(results, rows)[:STRONGEST]
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
    rows = chosen(raw).sort_values("share", kind="stable")  # clean first, then 20%, then 40%
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
    RAW / "default.png": ("default", cells_figure),
    RAW / "federations-lead.png": ("federations", forest_plot),
    RAW / "federations-regret.png": ("federations", regret_map),
    RAW / "arena-quick.png": ("arena-quick", heat_map),
}


def _strongest(
    results: Results, raw: pandas.DataFrame, rivals: int = STRONGEST
) -> list[MethodStanding]:
    """Ours, the strongest rivals, and the methods that everything is measured by."""
    lines = by_mean(standings(results, results.federations), results.federations[0])
    shown = {OURS, ORACLE, *BASELINES, *_rivals(results, raw)[:rivals]}
    return [one for one in lines if one.method in shown]


def _rivals(results: Results, raw: pandas.DataFrame) -> list[str]:
    """The other usable methods but the baselines, the best mean first."""
    lines = by_mean(standings(results, results.federations), results.federations[0])
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


def _bold_means(results: Results) -> str:
    if results.seeds < MIN_SEEDS:
        return f"With {results.seeds} seeds, no significance over seeds is claimed."
    return (
        "Bold: statistically significantly better than every other available method, over the seeds "
        "(Holm)."
    )


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
    good = numpy.concatenate([one.goodness for one in results.federations], 1)[rivals]
    worst = good[numpy.arange(len(rivals)), good.mean(2).argmin(1)]
    return {
        "mean over cells": _leads_significantly(good.mean(1)),
        "worst cell": _leads_significantly(worst),
        "clean": _leads_significantly(numpy.mean(clean, axis=0)),
    }


def _leads_significantly(goodness: numpy.ndarray) -> bool:
    """Whether the best method [methods, seeds] is significantly better than every other, paired by seed (Holm)."""
    best = int(goodness.mean(1).argmax())
    others = [row for index, row in enumerate(goodness) if index != best]
    leads = holm([_paired(goodness[best] - row) for row in others])
    return bool(leads) and all(one.is_significant for one in leads)


def _paired(paired: numpy.ndarray) -> Difference:
    found = paired_difference(paired.tolist(), [0.0] * len(paired))
    assert found is not None
    return found


def _measure(results: Results) -> str:
    name = results.federations[0].metric
    return name if name.isupper() else name.capitalize()


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
