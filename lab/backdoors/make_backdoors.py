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
SCAN, DEFAULT, ORACLE = "with scan", "Recommended", "KnowsHonestTuned"
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
    return {
        "methods": methods_table(mlp),
        "attacks": attacks_table(mlp),
        "federations": federations_table(mlp),
        "network": network_table(rows[rows["network"] == "cnn"]),
    }


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
                "worst cell": 100 * cells.max(),
                "cells above 25%": 100 * (cells > HIGH).mean(),
                "accuracy under attack": 100 * federations(attacked, "metric").mean(),
                "to `Recommended`": interval(attacked, default[default["share"] > 0]),
                "accuracy, clean": 100 * federations(clean, "metric").mean(),
                "to `Recommended` ": interval(clean, default[default["share"] == 0]),
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
