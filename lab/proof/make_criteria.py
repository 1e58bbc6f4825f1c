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
from make_proof import PAGE, by_federation, markdown, shown

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
    yield "Accuracy in the last round, minus dataset size; in brackets, federations:"
    yield methods_table(raw)


def tests_table(raw: pandas.DataFrame) -> str:
    """Each defect with the criterion that measures it, by every measure; p of the first."""
    found = {}
    for defect, rows in raw.groupby("variant"):
        if defect in MEASURED_BY:
            leads = [lead_over_size(rows, MEASURED_BY[defect], measure) for measure in MEASURES]
            found[defect] = leads
    lines = []
    for (defect, leads), lead in zip(
        found.items(), holm([one[0] for one in found.values()]), strict=True
    ):
        first, *others = [shown(one) for one in leads]
        lines.append([defect, MEASURED_BY[defect], first, p_number(lead.p_value), *others])
    last, *others = MEASURES.values()
    return markdown(["defect", "criterion", f"{last}, minus {BASELINE}", "p", *others], lines)


def methods_table(raw: pandas.DataFrame) -> str:
    """The difference of every method to weights by dataset size, by defect."""
    by_defect = dict(tuple(raw.groupby("variant")))
    methods = [one for one in raw["method"].unique() if one != BASELINE]
    lines = [
        [
            method,
            *(shown(lead_over_size(rows, method, "points")) for rows in by_defect.values()),
        ]
        for method in methods
    ]
    heads = [f"{name} ({rows['federation'].nunique()})" for name, rows in by_defect.items()]
    return markdown(["method", *heads], lines)


def lead_over_size(rows: pandas.DataFrame, method: str, measure: str) -> Difference | None:
    """A method minus weights by dataset size, over federations; None without a result."""
    means = rows.groupby(["federation", "method"])[measure].mean().unstack()
    if method not in means:
        return None
    leads = (means[method] - means[BASELINE]).dropna()
    return by_federation(leads) if len(leads) else None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
