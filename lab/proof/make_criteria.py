"""The tables of "Do criteria help?" in docs/results/proof.md, from the raw results that collect.py wrote.

    python lab/proof/make_criteria.py lab/results/criteria.csv.gz

They stand between `<!-- make_criteria -->` and `<!-- end -->`. A federation is one observation: its seeds are averaged.
Intervals are Student's over federations; p of the four tests of the protocol is corrected for their number (Holm).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas
from make_proof import PAGE, by_federation, interval, markdown

from clientwise.report.statistics import Difference, holm, p_number

PLACE = re.compile(r"(<!-- make_criteria -->\n).*?(<!-- end -->)", re.DOTALL)
BASELINE = "dataset size"
# By defect, the criterion that measures it
MEASURED_BY = {
    "wrong labels": "training loss",
    "blurred images": "sharpness",
    "late answers": "staleness",
    "dropouts": "timeliness",
}
MEASURES = {
    "points": "last round",
    "curve": "mean over the rounds",
    "p10": "10th percentile of clients",
}


def main(raw: Path, page: Path = PAGE) -> None:
    """Write the tables into the page."""
    text = page.read_text(encoding="utf-8")
    tables = "\n\n".join(all_tables(pandas.read_csv(raw)))
    page.write_text(
        PLACE.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text), encoding="utf-8"
    )


def all_tables(raw: pandas.DataFrame) -> Iterator[str]:
    """The four tests, then every method on every defect."""
    yield tests_table(raw)
    for defect, rows in raw.groupby("variant"):
        yield f"**{defect}**: {rows['federation'].nunique()} federations"
        yield defect_table(rows)


def tests_table(raw: pandas.DataFrame) -> str:
    """Each defect with the criterion that measures it."""
    found = {}
    for defect, rows in raw.groupby("variant"):
        if defect in MEASURED_BY:
            found[defect] = lead_over_size(rows, MEASURED_BY[defect], "points")
    lines = []
    for defect, lead in zip(found, holm([*found.values()]), strict=True):
        lines.append([defect, MEASURED_BY[defect], interval(lead), p_number(lead.p_value)])
    return markdown(["defect", "criterion", f"minus {BASELINE}", "p"], lines)


def defect_table(rows: pandas.DataFrame) -> str:
    """The difference of every method to weights by dataset size, by every measure."""
    lines = []
    for method in rows["method"].unique():
        if method == BASELINE:
            continue
        leads = [lead_over_size(rows, method, measure) for measure in MEASURES]
        lines.append([method, *("–" if lead is None else interval(lead) for lead in leads)])
    return markdown([f"minus {BASELINE}", *MEASURES.values()], lines)


def lead_over_size(rows: pandas.DataFrame, method: str, measure: str) -> Difference | None:
    """A method minus weights by dataset size, over federations; None without a result."""
    means = rows.groupby(["federation", "method"])[measure].mean().unstack()
    return by_federation((means[method] - means[BASELINE]).dropna())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
