"""The clients: each under every method, and how their metrics are spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from ...record.run import RunFolder
from ..document import (
    Cell,
    Chart,
    Content,
    Section,
    Table,
    table,
)
from ..lines import carried_on, has_lines, line_chart
from ..marks import (
    MAX_POINTS,
    Box,
    Boxes,
    value_axis,
)
from ..series import Series
from ..statistics import mean_of, paired_difference
from ..units import Unit
from .fairness import fairness_tables

MAX_LISTED = 100  # clients in the table of all of them, the worst first
MAX_CLIENTS = 2000  # of a box plot, per seed

MetricBySeed = Mapping[int, float]


def clients_section(series: Sequence[Series]) -> Section:
    """Every client under every method, and how they are spread, by round."""
    tables = _client_tables(series)
    charts = _charts(series)
    sampled = sampling_in_words(series)
    which = evaluated_clients(series[0].run).capitalize()
    lead = " ".join([f"{which}, each on its own test data.", *sampled])
    if charts and not tables and not sampled:
        lead += " Clients have no names and are drawn anew for every seed: none can be followed."
    return Section("clients", "Clients", lead, [*fairness_of(series), *tables, *charts])


def fairness_of(series: Sequence[Series]) -> list[Table]:
    """How the clients' results differ, one row per method."""
    return fairness_tables(series, evaluated_clients(series[0].run))


def sampling_in_words(series: Sequence[Series]) -> list[str]:
    """Where a sample of the clients evaluates models: its size and standard error; a sentence per run."""
    sentences: dict[str, None] = {}
    for one in series:
        drawn = one.run.clients_drawn()
        if drawn is None:
            continue
        own = [other for other in series if other.run is one.run]
        size = f"{drawn:,} of {one.run.client_sizes(one.seed).clients:,}"
        sentence = f"The clients' results are on a random sample, {size} clients in a round"
        errors = [error for other in own for error in _last_errors(other)]
        if errors:
            largest = one.unit.error(max(errors))
            which = f"the standard error of their mean {one.run.metric} in the last round"
            most = " (the largest of all methods and seeds)" if len(errors) > 1 else ""
            sentence = f"{sentence}; {which} is ± {largest}{one.unit.points}{most}"
        sentences[f"{sentence}."] = None
    return list(sentences)


def _last_errors(one: Series) -> Iterator[float]:
    """Of each seed, the standard error of the sampling in the last round that has one."""
    for seed in one.summary.seeds:
        errors = [error for _, error in one.run.sampling_errors(one.method, seed)]
        if errors and errors[-1] is not None:
            yield errors[-1]


def client_word(run: RunFolder) -> str:
    """What the worst client is one of."""
    return "client" if run.clients_drawn() is None else "sampled client"


def evaluated_clients(run: RunFolder) -> str:
    """The clients that results are about; which of them are honest is known in simulations alone."""
    word = f"{client_word(run)}s"
    return f"honest {word}" if run.has_hostile else word


def worst_client(one: Series) -> tuple[str | None, float | None]:
    """The client with the worst mean over the seeds, and its metric.

    Without a name where every seed draws the clients anew: then the mean of each seed's worst.
    """
    means = client_means(one)
    if not means:
        return None, mean_of(one.summary.worst_client)
    name = _worst_first(means, one.run.higher_is_better)[0]
    return name, means[name]


def client_means(one: Series) -> dict[str, float]:
    """Every client's metric on its own test data, mean over the seeds; hostile ones are left out.

    Empty where no client can be followed over the seeds.
    """
    return {name: statistics.fmean(own.values()) for name, own in by_client(one).items()}


def _worst_first(means: Mapping[str, float], higher_is_better: bool) -> list[str]:
    return sorted(means, key=lambda name: means[name] if higher_is_better else -means[name])


def by_client(one: Series) -> dict[str, dict[int, float]]:
    """The metric by client and seed.

    Without names, a client's number means the same client only where seeds have the same data. Of
    sampled clients, every seed has others.
    """
    seeds = set(one.summary.seeds)
    if len(seeds) > 1 and one.run.clients_drawn() is not None:
        return {}
    rows = [row for row in one.run.client_metrics(one.method) if row.seed in seeds]
    has_names = all(row.name is not None for row in rows)
    has_same_data = len({one.run.data.get(seed) for seed in seeds}) == 1
    if len(seeds) > 1 and not has_names and not has_same_data:
        return {}
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row.name or f"client {row.client}", {})[row.seed] = row.metric
    return found


def _client_tables(series: Sequence[Series]) -> list[Table]:
    """Every client under every method, the worst under the first method on top."""
    run = series[0].run
    label = series[0].label
    values = [by_client(one) for one in series]
    names = _worst_first(client_means(series[0]), run.higher_is_better)
    for own in values[1:]:
        names += [name for name in own if name not in values[0]]
    names = list(dict.fromkeys(names))
    unit = series[0].unit
    rows = [_client_row(name, values, run.higher_is_better, unit) for name in names[:MAX_LISTED]]
    if not rows:
        return []
    title = "Client by client"
    if len(names) > len(rows):
        title = f"The {len(rows)} worst of {len(names)} clients"
    note = (
        f"{run.metric} on the client's own test data in the last round, mean over the seeds; in "
        f"parentheses the difference to {label}, paired by seed{unit.of_differences}."
    )
    columns = ["client", *(one.label for one in series)]
    lower = [] if run.higher_is_better else columns
    title = f"{title}, the worst under {label} first"
    return [table("by-client", title, columns, rows, note, lower=lower)]


def _client_row(
    name: str,
    values: Sequence[Mapping[str, MetricBySeed]],
    higher_is_better: bool,
    unit: Unit,
) -> list[Content]:
    baseline = values[0].get(name, {})
    cells = [_client_cell(own.get(name, {}), baseline, unit) for own in values]
    return [name, *_marked(cells, higher_is_better)]


def _client_cell(own: MetricBySeed, baseline: MetricBySeed, unit: Unit) -> Cell:
    """A client under a method, and its difference to the baseline."""
    if not own:
        return Cell(None, "–")
    mean = statistics.fmean(own.values())
    numbers = {"mean": mean, "seeds": len(own)}
    both = sorted(own.keys() & baseline.keys())
    difference = paired_difference([own[s] for s in both], [baseline[s] for s in both])
    if own is baseline or difference is None:
        return Cell(mean, unit.text(mean), numbers=numbers)
    text = f"{unit.text(mean)} ({unit.signed(difference.mean)})"
    return Cell(mean, text, numbers={**numbers, "difference": difference.mean})


def _marked(cells: Sequence[Cell], higher_is_better: bool) -> list[Cell]:
    """The cells with "best" and "worst" added, where they differ."""
    known = [cell.value for cell in cells if isinstance(cell.value, float)]
    if len({*known}) < 2:
        return list(cells)
    marks: dict[object, str] = {max(known): ", best", min(known): ", worst"}
    if not higher_is_better:
        marks = {max(known): ", worst", min(known): ", best"}
    return [cell._replace(text=cell.text + marks.get(cell.value, "")) for cell in cells]


def _charts(series: Sequence[Series]) -> list[Chart]:
    first = series[0]
    has_many = len(first.run.honest_metrics(first.method, first.seed, 10)) == 10
    curves = [
        _reached_chart(series, 50, "half"),
        _reached_chart(series, 90, "nine of ten" if has_many else "all"),
    ]
    charts = [chart for chart in curves if has_lines(chart)]
    return charts + _distribution_charts(series)


def _reached_chart(series: Sequence[Series], percentage: int, words: str) -> Chart:
    """The metric that a percentage of the clients reaches."""
    index = percentage // 10 - 1
    curves = []
    for one in series:
        of_seeds = []
        for seed in one.summary.seeds:
            reached = one.run.reached(one.method, seed, MAX_POINTS)
            of_seeds.append([(round_num, values[index]) for round_num, values in reached])
        curves.append((one, carried_on(one, of_seeds)))
    title = f"{series[0].run.metric} that {words} of the clients reach on their own test data"
    percent = series[0].unit.percent
    return line_chart(f"reached-{percentage}", title, curves, percent=percent)


def _distribution_charts(series: Sequence[Series]) -> list[Chart]:
    """The spread over the clients in the last round; of many clients, the first."""
    boxes = []
    for one in series:
        values: list[float] = []
        for seed in one.summary.seeds:
            values += one.run.honest_metrics(one.method, seed, MAX_CLIENTS)
        if values:
            boxes.append(Box(one.label, values, one.colour))
    if not boxes:
        return []
    unit = series[0].unit
    values = [value for box in boxes for value in box.values]
    axis = value_axis(values, percent=unit.percent, label=series[0].run.metric)
    ends = "; ".join(_in_words(box, unit) for box in boxes)
    alt = f"Spread over the clients in the last round: {ends}."
    title = f"{series[0].run.metric} of the clients in the last round"
    return [Chart("distribution", title, alt, Boxes(boxes, axis))]


def _in_words(box: Box, unit: Unit) -> str:
    median = unit.text(statistics.median(box.values))
    return f"{box.name} median {median}, lowest {unit.text(min(box.values))}"
