"""How evenly a method serves the clients: the worst tenth, the spread, and gaps between groups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...record.reading.config_view import recorded_config
from ..document import Cell, Column, Table, number_cell, tabulate
from ..series import Series
from ..statistics import mean_of

MOST_GROUPS = 10  # an attribute with more values is divided at its median
MOST_ATTRIBUTES = 10  # each is a column


@dataclass(frozen=True)
class Clients:
    """A method, and the metric of every honest client in the last round, for every seed."""

    of: Series
    by_seed: Sequence[Mapping[int, float]]

    def mean(self, measure: Callable[[list[float]], float | None]) -> float | None:
        """What is measured over the clients of a seed, mean over the seeds."""
        return mean_of([measure([*metrics.values()]) for metrics in self.by_seed if metrics])


def fairness_tables(series: Sequence[Series], clients: str) -> list[Table]:
    """One row per method; no table where fewer than two clients are evaluated.

    Args:
        series: the methods.
        clients: what the evaluated clients are called.
    """
    rows = [Clients(one, _by_seed(one)) for one in series]
    if not any(len(metrics) > 1 for row in rows for metrics in row.by_seed):
        return []
    first = series[0]
    attributes = _attributes(first)
    sentences = [
        f"{first.run.metric} of the {clients} on their own test data in the last round, "
        "each client with equal weight; mean over the seeds.",
        "Worst and best 10%: mean over a tenth of the clients, rounded up.",
        "Jain's index: (Σx)²/(n·Σx²), 1 if all clients have the same value.",
    ]
    if attributes:
        sentences.append(
            "Gap: difference between the groups of clients with the highest and the lowest mean; "
            f"attributes with more than {MOST_GROUPS} values are divided at their median."
        )
    columns = [*_columns(first), *_gap_columns(attributes)]
    return [tabulate("fairness", "Fairness among clients", columns, rows, " ".join(sentences))]


def _by_seed(one: Series) -> list[dict[int, float]]:
    """The clients' metrics, of every seed that is as far as the farthest."""
    found: dict[int, dict[int, float]] = {}
    for seed in one.summary.seeds:
        if one.ended_with(seed) == one.ended:
            found[seed] = {}
    for row in one.run.client_metrics(one.method):
        if row.seed in found:
            found[row.seed][row.client] = row.metric
    return [*found.values()]


def _columns(first: Series) -> Iterator[Column[Clients]]:
    higher = first.run.higher_is_better
    unit = first.unit

    def in_unit(measure: Callable[[list[float]], float | None]) -> Callable[[Clients], Cell]:
        return lambda row: unit.cell(row.mean(measure))

    def deviation(row: Clients) -> Cell:
        found = row.mean(statistics.pstdev)
        if found is None:
            return Cell(None, "–")
        numbers = {"": found, "variance": row.mean(statistics.pvariance)}
        return Cell(found, f"{unit.size(found)}{unit.points}", numbers=numbers)

    yield Column("method", lambda row: row.of.label, numeric=False)
    yield Column("mean", in_unit(statistics.fmean), lower_is_better=not higher)
    yield Column(
        "worst 10%", in_unit(lambda values: worst_tenth(values, higher)), lower_is_better=not higher
    )
    yield Column(
        "best 10%",
        in_unit(lambda values: worst_tenth(values, not higher)),
        lower_is_better=not higher,
    )
    yield Column("standard deviation", deviation, lower_is_better=True)
    yield Column("Jain's index", lambda row: number_cell(row.mean(jain_index), 3))


def worst_tenth(values: Iterable[float], higher_is_better: bool) -> float:
    """Mean over the worst tenth of the clients, rounded up.

    >>> worst_tenth([0.5, 0.9, 0.7], higher_is_better=True)
    0.5
    """
    worst_first = sorted(values, reverse=not higher_is_better)
    return statistics.fmean(worst_first[: math.ceil(len(worst_first) / 10)])


def jain_index(values: Sequence[float]) -> float | None:
    """(Σx)²/(n·Σx²) of values of zero or more; None for others, and where all are zero.

    >>> jain_index([1.0, 1.0]), jain_index([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = sum(value**2 for value in values)
    if not squares or min(values) < 0:
        return None
    return sum(values) ** 2 / (len(values) * squares)


def _attributes(one: Series) -> dict[str, list[str]]:
    """Every client's group by each attribute that the config states and that has several groups."""
    found: dict[str, list[str]] = {}
    for name, values in recorded_config(one.run.folder).attributes.items():
        groups = groups_of(values)
        if len({*groups}) > 1 and len(found) < MOST_ATTRIBUTES:
            found[name] = groups
    return found


def groups_of(values: Sequence[object]) -> list[str]:
    """The group of every client by an attribute: its value or, of many numbers, a half.

    >>> groups_of(["nurse", "cook"])
    ['nurse', 'cook']
    >>> groups_of([float(age) for age in range(30, 42)])[5:7]
    ['below 35.5', 'from 35.5']
    """
    names = [str(value) for value in values]
    if len({*names}) <= MOST_GROUPS:
        return names
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values):
        return []  # many words make no groups
    middle = statistics.median(numbers)
    return [f"below {middle:g}" if number < middle else f"from {middle:g}" for number in numbers]


def _gap_columns(attributes: Mapping[str, Sequence[str]]) -> Iterator[Column[Clients]]:
    def gap_by(groups: Sequence[str]) -> Callable[[Clients], Cell]:
        return lambda row: _gap_cell(row, groups)

    for name, groups in attributes.items():
        yield Column(f"gap by {name}", gap_by(groups), lower_is_better=True)


def _gap_cell(row: Clients, groups: Sequence[str]) -> Cell:
    means = _group_means(row, groups)
    if len(means) < 2:
        return Cell(None, "–")
    lowest, *_, highest = sorted(means, key=means.__getitem__)
    gap = means[highest] - means[lowest]
    worst = lowest if row.of.run.higher_is_better else highest
    unit = row.of.unit
    text = f"{unit.size(gap)}{unit.points} (worst: {worst})"
    return Cell(gap, text, numbers={"": gap, "worst": worst})


def _group_means(row: Clients, groups: Sequence[str]) -> dict[str, float]:
    """The mean of every group over its clients and the seeds."""
    found: dict[str, list[float]] = {}
    for metrics in row.by_seed:
        for client, value in metrics.items():
            if client < len(groups):
                found.setdefault(groups[client], []).append(value)
    return {group: statistics.fmean(values) for group, values in found.items()}
