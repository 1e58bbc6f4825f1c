"""The sections of a report: each is a function of `Results` that yields texts, tables and charts.

A new section is a function here; `page.py`, the files and the terminal show what it yields.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy
import pandas

from .items import Chart, Item, Table, Unit, counted, fixed, in_bytes, in_time, percent, plain, section
from .results import (
    MANY_CLIENTS,
    NOT_AVAILABLE_MEANS,
    SHARES,
    TRAINS_ON_SERVER_MEANS,
    Frame,
    Method,
    Results,
    client_names,
    has_hostile,
    shared_seeds,
)
from .statistics import Difference, holm, holm_p_values, mcnemar, p_number, paired_difference

NOTABLE = 0.002  # of the metric: what one sample is worth is said from here on
MOST_POINTS = 200  # of a line
MOST_CELLS = 100  # of a heat map, in either direction
MOST_LISTED = 100  # clients or refusals in a table
MOST_GROUPS = 10  # an attribute with more values is divided at its median
PERCENTAGES = [f"{share}%" for share in SHARES[:9]]
INTERVAL = ("low", "high", "p", "seeds")  # columns within that of a difference
CENSORED = (
    "Rounds to a target: the number of seeds that reached it, and the median round. Seeds that did "
    "not reach it count as slowest; – where the median seed did not."
)
SIMULATED = "simulated: known from the seed, protects nobody"
OTHER_WEIGHTS = {"chosen": "the chosen weights", "uniform": "equal weights", "size": "weights by size", "without": "without"}


# Result -------------------------------------------------------------------------------------------


@section("Result")
def result(results: Results) -> Iterator[Item]:
    """Every method with its metric, its difference to the baseline and what else was measured."""
    yield result_table(results)


def result_table(results: Results) -> Table:
    """The main table: one row per method, the best first."""
    facts, unit = results.facts, results.unit
    names = _Names(results)
    rows = [_result_row(one, results, names) for one in results.ranked]
    frame = Frame(rows).dropna(axis="columns", how="all")
    lower = {names.influence, names.backdoor, names.testing, names.target, names.time, names.bytes}
    if not facts.higher_is_better:
        lower |= {facts.metric, names.against, names.worst, names.best}
    formats: dict[str, Callable[..., str]] = {
        facts.metric: _metric_text(unit),
        names.against: _difference_text(unit, missing="baseline"),
        "macro F1": fixed(3),
        names.worst: lambda value, name=None: unit.text(value) + (f" ({name})" if name else ""),
        names.best: unit.text,
        names.influence: percent,
        names.backdoor: percent,
        names.testing: fixed(0),
        names.target: _reached_text("{:g}".format),
        names.time: _reached_text(in_time),
        names.bytes: _reached_text(in_bytes),
    }
    within = {
        facts.metric: ("deviation", "of round"),
        names.against: ("low", "high", "p", "seeds", "in round"),
        names.worst: ("worst name",),
        **{name: ("seeds to target", "of seeds") for name in (names.target, names.time, names.bytes)},
    }
    title = "Methods, best first" if results.comparable else "Methods, not ranked"
    return Table(
        "summary",
        title,
        frame,
        " ".join(result_notes(results)),
        tuple(lower & {*frame}),
        formats,
        {name: tuple(one for one in inner if one in frame) for name, inner in within.items() if name in frame},
        bold=(0,) if _leads(results) else (),
        secondary=("macro F1", names.best),
    )
