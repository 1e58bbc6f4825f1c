"""The tables of docs/results/backdoors.md, from the raw results.

python lab/backdoors/make_backdoors.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy
import pandas
from scipy import stats

ROOT = Path(__file__).parents[2]
RAW = ROOT / "lab" / "results" / "backdoors.csv.gz"
PAGE = ROOT / "docs" / "results" / "backdoors.md"
AFTER = ROOT / "lab" / "results" / "backdoors-after.csv"
SCAN, DEFAULT, ORACLE = "with scan", "Recommended", "KnowsHonestTuned"
# Of the table by attack; the raw results have all methods
SHOWN = [DEFAULT, SCAN, "AlignIns", "RLR", ORACLE]
ADAPTIVE = ["Neurotoxin", "constrain and scale", "edge cases", "covered", "decoy"]


def main() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in all_tables(pandas.read_csv(RAW)).items():
        marked = rf"(<!-- make_backdoors: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(
            marked, lambda found, table=table: found[1] + table + "\n" + found[2], text, flags=re.S
        )
    PAGE.write_text(text, encoding="utf-8")


def all_tables(rows: pandas.DataFrame) -> dict[str, str]:
    """By the name of their place, the tables in Markdown."""
    mlp = rows[rows["network"] == "mlp"]
    adapts = mlp["attack"].isin(ADAPTIVE)
    return {
        "methods": methods_table(mlp[~adapts]),
        "attacks": attacks_table(mlp[mlp["method"].isin(SHOWN)]),
        "federations": federations_table(mlp[~adapts]),
        "after": after_table(pandas.read_csv(AFTER)),
    }


def methods_table(rows: pandas.DataFrame) -> str:
    """Of each method: success, accuracy against the default with its interval, and what it costs."""
    lines = []
    default = rows[rows["method"] == DEFAULT]
    for method, own in rows.groupby("method"):
        attacked = own[own["share"] > 0]
        clean = own[own["share"] == 0]
        lines.append(
            {
                "method": f"**{method}**" if method == SCAN else method,
                "success": 100 * federations(attacked, "success").mean(),
                "minus `Recommended`": interval(attacked, default[default["share"] > 0], "success"),
                "accuracy under attack": interval(attacked, default[default["share"] > 0]),
                "accuracy, clean": interval(clean, default[default["share"] == 0]),
            }
        )
    table = pandas.DataFrame(lines).sort_values("success")
    return markdown(table)


def attacks_table(rows: pandas.DataFrame) -> str:
    """Success by attack and share, those of attackers that avoid defences at the end with their mean."""
    attacked = rows[rows["share"] > 0]
    column = attacked["attack"] + attacked["share"].map(", {:.0%}".format)
    labels = column.where(~attacked["attack"].isin(ADAPTIVE), attacked["attack"])
    found = attacked.assign(attack=labels).pivot_table("success", "attack", "method")[SHOWN] * 100
    others = sorted(name for name in found.index if name not in ADAPTIVE)
    found = found.loc[[*others, *ADAPTIVE]]
    found.loc["mean of the last five"] = found.loc[ADAPTIVE].mean()
    return markdown(found.reset_index())


def federations_table(rows: pandas.DataFrame) -> str:
    """Success under attack, and accuracy without, by federation."""
    of = {"success": rows["share"] > 0, "metric": rows["share"] == 0}
    success, clean = (
        100 * rows[kept].pivot_table(column, "federation", "method") for column, kept in of.items()
    )
    table = success[[DEFAULT, SCAN, ORACLE]]
    for method in (DEFAULT, SCAN):
        table = table.assign(**{f"{method}: clean accuracy": clean[method]})
    return markdown(table.reset_index())


def after_table(rows: pandas.DataFrame) -> str:
    """Of each defence after the training: success, and differences to none."""
    lines = []
    none = rows[rows["defence"] == "none"]
    for defence, own in rows[rows["defence"] != "none"].groupby("defence"):
        attacked, clean = own[own["share"] > 0], own[own["share"] == 0]
        lines.append(
            {
                "defence": defence,
                "success": 100 * federations(attacked, "success").mean(),
                "minus none": interval(attacked, none[none["share"] > 0], "success"),
                "accuracy under attack": interval(attacked, none[none["share"] > 0]),
                "accuracy, clean": interval(clean, none[none["share"] == 0]),
            }
        )
    return markdown(pandas.DataFrame(lines))


def federations(rows: pandas.DataFrame, column: str) -> pandas.Series:
    """Means by federation, over cells and seeds."""
    return rows.groupby("federation")[column].mean()


def interval(own: pandas.DataFrame, other: pandas.DataFrame, column: str = "metric") -> str:
    """The difference in points, with Student's 95% interval over federations."""
    difference = 100 * (federations(own, column) - federations(other, column)).dropna()
    if len(difference) < 2 or not difference.any():
        return "–"
    margin = (
        stats.t.ppf(0.975, len(difference) - 1) * difference.std() / numpy.sqrt(len(difference))
    )
    return f"{difference.mean():+.1f} ± {margin:.1f}"


def shown(value: object) -> str:
    """A word, or a number with one decimal."""
    if isinstance(value, str):
        return value
    return "–" if pandas.isna(value) else f"{value:.1f}"


def markdown(table: pandas.DataFrame) -> str:
    """A table of words and numbers with one decimal."""
    lines: list[Sequence[str]] = [[str(one) for one in table.columns]]
    lines.append([":--", *("--:" for _ in table.columns[1:])])
    lines += [[shown(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
