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
# Of the tables by column and by federation; the raw results have all methods
SHOWN = [ORACLE, "RLR", SCAN, "AlignIns", "trimmed mean", DEFAULT]
ADAPTIVE = ["Neurotoxin", "constrain and scale", "edge cases", "covered", "decoy"]
HIGH = 0.25  # success of a trigger that no cell should exceed


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
    shown = mlp[~adapts & mlp["method"].isin(SHOWN)]
    tables = {
        "methods": methods_table(mlp[~adapts]),
        "attacks": attacks_table(shown),
        "federations": federations_table(shown),
        "network": network_table(rows[rows["network"] == "cnn"]),
    }
    if adapts.any():
        tables["adaptive"] = adaptive_table(mlp[adapts])
    if AFTER.exists():
        tables["after"] = after_table(pandas.read_csv(AFTER))
    return tables


def methods_table(rows: pandas.DataFrame) -> str:
    """Of each method: success, accuracy against the default with its interval, and what it costs."""
    lines = []
    default = rows[rows["method"] == DEFAULT]
    for method, own in rows.groupby("method"):
        attacked = own[own["share"] > 0]
        cells = attacked.groupby(["federation", "attack", "share"])["success"].mean()
        clean = own[own["share"] == 0]
        lines.append(
            {
                "method": f"**{method}**" if method == SCAN else method,
                "success of the trigger": 100 * federations(attacked, "success").mean(),
                "minus `Recommended`": interval(attacked, default[default["share"] > 0], "success"),
                "cells above 25%": 100 * (cells > HIGH).mean(),
                "accuracy under attack": interval(attacked, default[default["share"] > 0]),
                "accuracy, clean": interval(clean, default[default["share"] == 0]),
                "influence of the hostile": 100 * federations(attacked, "hostile_influence").mean(),
                "honest clients lowered, clean": 100 * federations(clean, "lowered").mean(),
                "suspected, clean": 100 * clean["suspected"].mean(),
            }
        )
    table = pandas.DataFrame(lines).sort_values("success of the trigger")
    return markdown(table)


def attacks_table(rows: pandas.DataFrame) -> str:
    """Success by attack and share."""
    attacked = rows[rows["share"] > 0]
    column = attacked["attack"] + attacked["share"].map(" {:.0%}".format)
    found = attacked.assign(column=column).pivot_table("success", "method", "column") * 100
    return markdown(found.reset_index())


def federations_table(rows: pandas.DataFrame) -> str:
    """Success under attack, and accuracy without, by federation."""
    attacked = rows[rows["share"] > 0].pivot_table("success", "method", "federation") * 100
    clean = rows[rows["share"] == 0].pivot_table("metric", "method", "federation") * 100
    clean.columns = [f"{name}: clean accuracy" for name in clean.columns]
    return markdown(attacked.join(clean).reset_index())


def adaptive_table(rows: pandas.DataFrame) -> str:
    """Success of attackers that avoid defences, by attack, and the accuracy under them."""
    found = rows.pivot_table("success", "method", "attack")[ADAPTIVE] * 100
    by_method = rows.groupby("method")
    found.insert(0, "mean", 100 * by_method["success"].mean())
    found["accuracy"] = 100 * by_method["metric"].mean()
    found["influence of the hostile"] = 100 * by_method["hostile_influence"].mean()
    return markdown(found.sort_values("mean").reset_index())


def after_table(rows: pandas.DataFrame) -> str:
    """Of each defence after the training: success and accuracy, and their differences to none."""
    lines = []
    none = rows[rows["defence"] == "none"]
    for defence, own in rows.groupby("defence"):
        attacked, clean = own[own["share"] > 0], own[own["share"] == 0]
        lines.append(
            {
                "defence": defence,
                "success of the trigger": 100 * federations(attacked, "success").mean(),
                "minus none": interval(attacked, none[none["share"] > 0], "success"),
                "accuracy under attack": 100 * federations(attacked, "metric").mean(),
                "minus none ": interval(attacked, none[none["share"] > 0]),
                "accuracy, clean": 100 * federations(clean, "metric").mean(),
                "minus none  ": interval(clean, none[none["share"] == 0]),
            }
        )
    return markdown(pandas.DataFrame(lines))


def network_table(rows: pandas.DataFrame) -> str:
    """Of each method, the runs that ended: success, accuracy and duration."""
    by_method = rows.groupby("method")
    table = pandas.DataFrame(
        {
            "runs that ended": by_method.size().map(str),
            "success of the trigger": 100 * by_method["success"].mean(),
            "accuracy": 100 * by_method["metric"].mean(),
            "seconds a run": by_method["seconds"].mean(),
        }
    )
    return markdown(table.reset_index())


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
