"""The two loops that change a method from round to round: the order of priority, and the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from ...record.reading.reader import thinned
from ...record.reading.rows import PriorityRow
from ..document import Chart, Section
from ..marks import (
    MAX_CELLS,
    MAX_POINTS,
    HeatMap,
    Timeline,
)
from ..series import Series


def priority_section(series: Sequence[Series]) -> Section:
    """P2's loop: the order of priority over time, with its testing rounds."""
    charts = []
    for one in series:
        rows: list[PriorityRow] = []
        if any(one.summary.testing_rounds):
            rows = one.run.priorities(one.method, one.seed)
        if rows:
            charts.append(_priority_chart(one, rows))
    lead = (
        "Online adjustment changes the order when the model gets worse. A testing round costs one "
        "message to every client."
    )
    return Section("priority", "Order of priority", lead, charts, series[0].seed)


def _priority_chart(one: Series, rows: list[PriorityRow]) -> Chart:
    orders = [" > ".join(row.priority) for row in rows]
    (common, times), *_ = Counter(orders).most_common(1)
    changes = sum(before != after for before, after in pairwise(orders))
    tests = sum(row.testing_rounds for row in rows)
    alt = (
        f"Order of priority by round under {one.label}, seed {one.seed}: most often {common} "
        f"({times} of {len(orders)} rounds), changed {changes} times, {tests} testing rounds."
    )
    shown = thinned(rows, MAX_POINTS)
    timeline = Timeline(
        [row.round_num for row in shown],
        [" > ".join(row.priority) for row in shown],
        one.colour,
        [row.testing_rounds for row in shown],
        "testing rounds",
        one.links("round"),
    )
    title = f"{one.label}: order of priority, seed {one.seed}"
    return Chart(f"priority-{one.label}", title, alt, timeline)


VALUE_LABELS = {"per_class_f1": "F1", "class_weights": "class weight κ"}


def classes_section(series: Sequence[Series]) -> Section:
    """P3's loop: F1 and weight of every class over time."""
    charts = [
        *_class_charts(series, "per_class_f1", "F1 of every class"),
        *_class_charts(series, "class_weights", "class weights κ sent to the clients"),
    ]
    lead = (
        "F1 and loss weight of every class. With AdaFed's adaptive loss, classes with a low F1 "
        "weigh more in the next round."
    )
    return Section("classes", "Classes", lead, charts, series[0].seed)


def _class_charts(
    series: Sequence[Series], column: Literal["per_class_f1", "class_weights"], words: str
) -> list[Chart]:
    """A value of every class over the rounds, on the same colour scale for all methods."""
    highest = 1.0
    found = []
    for one in series:
        rows = one.run.classes(column, one.method, one.seed, MAX_CELLS)
        if rows:
            highest = max([highest, *(value for _, values in rows for value in values)])
            found.append((one, rows))
    return [_class_chart(one, rows, column, words, highest) for one, rows in found]


def _class_chart(
    one: Series,
    rows: Sequence[tuple[int, Sequence[float]]],
    column: str,
    words: str,
    highest: float,
) -> Chart:
    by_class = list(zip(*(values for _, values in rows), strict=True))
    names = one.run.class_names(len(by_class))
    last = [values[-1] for values in by_class]
    low = min(last)
    high = max(last)
    alt = (
        f"{words} over the rounds under {one.label}: in the last round lowest for "
        f"{names[last.index(low)]} ({low:.2f}), highest for {names[last.index(high)]} ({high:.2f})."
    )
    grid = HeatMap(
        [round_num for round_num, _ in rows],
        names,
        by_class,
        highest,
        column_label="round",
        value_label=VALUE_LABELS[column],
    )
    title = f"{one.label}: {words}, seed {one.seed}"
    return Chart(f"{column}-{one.label}", title, alt, grid)
