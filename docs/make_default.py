"""The tables of docs/evidence.md, "Third protocol", from the raw results.

python docs/make_default.py           # from docs/results/default.csv.gz
python docs/make_default.py FOLDER    # collect them first, from a run of experiments/default.toml
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy
import pandas

from clientwise.experiment.matrix import look_at
from clientwise.report.statistics import paired_difference
from clientwise.runs.folder import RunFolder

RAW = Path(__file__).parent / "results" / "default.csv.gz"
REGRESSIONS = ("parkinsons", "air quality")  # their metric is an error
OURS = "Recommended"
ORACLE = "KnowsHonestTuned"
UNAVAILABLE = (ORACLE, "ServerOnly")  # not federated methods that one could use


def read_raw() -> pandas.DataFrame:
    """One row per federation, column, method, seed and round."""
    return pandas.read_csv(RAW)


def goodness(raw: pandas.DataFrame) -> pandas.DataFrame:
    """The last round in points, so that more is better: accuracy, or minus the error."""
    last = raw[raw["round"] == raw["round"].max()].copy()
    sign = numpy.where(last["federation"].isin(REGRESSIONS), -100.0, 100.0)
    last["points"] = sign * last["metric"]
    return last


def over_cells(last: pandas.DataFrame) -> str:
    """Mean over cells and worst cell of the classifications."""
    classes = last[~last["federation"].isin(REGRESSIONS)]
    cells = classes.groupby(["method", "federation", "column"])["points"].mean()
    lines = ["| method | mean over cells | worst cell | at | without hostile clients |"]
    lines.append("| :-- | --: | --: | :-- | --: |")
    means = cells.groupby("method").mean().sort_values(ascending=False)
    for method, mean in means.items():
        own = cells[method]
        federation, column = own.idxmin()
        clean = own.xs("clean", level="column").mean()
        where = f"{federation}: {column}"
        lines.append(f"| {method} | {mean:.1f} | {own.min():.1f} | {where} | {clean:.1f} |")
    return "\n".join(lines)


def by_federation(last: pandas.DataFrame) -> str:
    """The four aims, federation by federation."""
    lines = ["| federation | clean: best other | behind it | largest regret | at | false alarms |"]
    lines.append("| :-- | :-- | --: | --: | :-- | --: |")
    for federation, rows in last.groupby("federation", sort=False):
        table = rows.pivot_table(index=["column", "seed"], columns="method", values="points")
        clean = table.loc["clean"]
        others = clean.drop(columns=[OURS, *UNAVAILABLE]).mean()
        best = str(others.idxmax())
        behind = _shown(clean[best], clean[OURS])
        regrets = (table[ORACLE] - table[OURS]).groupby("column").mean()
        worst = str(regrets.idxmax())
        regret = _shown(table.loc[worst][ORACLE], table.loc[worst][OURS])
        alarms = rows[(rows["column"] == "clean") & (rows["method"] == OURS)]
        share = alarms["lowered_clients"].sum() / alarms["honest_clients"].sum()
        lines.append(
            f"| {federation} | {best} | {behind} | {regret} | {worst} | {100 * share:.1f}% |"
        )
    return "\n".join(lines)


def lead(last: pandas.DataFrame) -> str:
    """Ours against every usable method: mean over cells, federations as the unit."""
    classes = last[~last["federation"].isin(REGRESSIONS)]
    means = classes.groupby(["method", "federation"])["points"].mean().unstack()
    lines = ["| against | difference, 95% interval over five federations |", "| :-- | --: |"]
    for method in means.drop(index=[OURS, ORACLE]).mean(axis=1).sort_values(ascending=False).index:
        lines.append(f"| {method} | {_shown(means.loc[OURS], means.loc[method])} |")
    return "\n".join(lines)


def _shown(one: pandas.Series, other: pandas.Series) -> str:
    """A paired difference in points with the margin of its 95% interval."""
    found = paired_difference(one.tolist(), other.tolist())
    assert found is not None
    return f"{found.mean:+.1f} ± {found.margin or 0:.1f}"


def collect(folder: Path) -> None:
    """Write the raw results of a matrix."""
    parts = []
    for cell in look_at(folder).cells:
        run = RunFolder(folder / cell.folder)
        rounds = pandas.DataFrame(run.columns("rounds"))
        weights = pandas.DataFrame(run.columns("weights"))
        parts.append(_rows(cell.data, cell.attack, rounds, weights, _alarms(run)))
    with gzip.GzipFile(RAW, "wb", mtime=0) as file:
        pandas.concat(parts).to_csv(file, index=False)


def _rows(
    federation: str,
    column: str,
    rounds: pandas.DataFrame,
    weights: pandas.DataFrame,
    alarms: pandas.DataFrame,
) -> pandas.DataFrame:
    keys = ["method", "seed", "round"]
    hostile = weights[weights["hostile"].notna()].groupby(keys)["weight"].sum()
    rows = rounds[[*keys, "metric"]].merge(
        hostile.rename("hostile_weight").reset_index(), on=keys, how="left"
    )
    rows = rows.merge(alarms, on=["method", "seed"], how="left")
    rows.insert(0, "column", column)
    rows.insert(0, "federation", federation)
    return rows


def _alarms(run: RunFolder) -> pandas.DataFrame:
    """Honest clients that evidence ever lowered, by method and seed."""
    rows = []
    for lane in run.lanes:
        found = run.false_alarms(lane.method, lane.seed)
        if found.honest:
            rows.append((lane.method, lane.seed, *found))
    names = ["method", "seed", "lowered_clients", "honest_clients"]
    return pandas.DataFrame(rows, columns=names)


def main() -> None:
    """Print the tables."""
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    last = goodness(read_raw())
    for table in (over_cells(last), by_federation(last), lead(last)):
        print(f"{table}\n")


if __name__ == "__main__":
    main()
