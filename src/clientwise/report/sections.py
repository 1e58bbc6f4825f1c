"""The sections of a report but for the weights: result, curves, targets, clients, the two loops, refusals, cost."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

from ..runs.reader import thinned
from ..runs.rows import PriorityRow
from .document import (
    AuditLink,
    Cell,
    Chart,
    Content,
    Plotly,
    Section,
    Table,
    client_cell,
    in_bytes,
    in_time,
    number,
    percent_of,
    table,
)
from .figures import value_axis
from .scales import Scale, rescaled, scales
from .series import (
    MAX_POINTS,
    Curve,
    Series,
    all_differences,
    comparable,
    deviation_of,
    line_chart,
    mean_of,
    ranked,
    shared_seeds,
    signed,
    signed_rounds,
    spread_of,
)
from .statistics import Difference, contingency, paired_difference

MAX_CELLS = 150  # of a heat map, in either direction
NEVER = 1e9  # behind any round, where a target was not reached
MAX_REFUSALS = 100  # of a method, in the table
MAX_LISTED = 100  # clients in the table of all of them, the worst first
MAX_CLIENTS = 2000  # of a box plot, per seed
WORST_CLIENT, WORST_DECILE = "worst client", "worst decile of clients"
BEST_DECILE = "best decile of clients"  # with the worst, LEAF's 90th and 10th percentile
CENSORED = (
    "Rounds to a target: how many of the seeds got there, and the median round, in which those that did not are the "
    "slowest; – where they are the median."
)


def result(series: Sequence[Series]) -> Section:
    """Which method won, by how much and how surely."""
    run = series[0].run
    in_order, best_first, differences = ranked(series), comparable(series), all_differences(series)
    target = next((one.run.target for one in series if one.run.target is not None), None)
    several = any(len(one.summary.seeds) > 1 for one in series)
    metric = f"{run.metric} ± deviation" if several else run.metric
    against = "against the baseline [95% interval]" if several else "against the baseline"
    columns: list[tuple[str, Callable[[Series], Content]]] = [
        ("method", lambda one: one.label),
        (metric, lambda one: _metric(one, not best_first or one in best_first)),
        (against, lambda one: _against(one, series[0], differences)),
    ]
    lower = ["weight of the hostile"] + (
        [] if run.higher_is_better else [metric, against, WORST_CLIENT, WORST_DECILE, BEST_DECILE]
    )
    names = {metric: run.metric, against: "against the baseline"}
    if run.shows("macro_f1"):
        columns.append(("macro F1", lambda one: _plain(one.summary.macro_f1)))
    if any(value is not None for one in series for value in one.summary.worst_decile):
        columns.append((WORST_DECILE, lambda one: _share(one.summary.worst_decile)))
        columns.append((BEST_DECILE, lambda one: _share(one.summary.best_decile)))
    else:
        columns.append((WORST_CLIENT, _worst_client))
    if target is not None:  # one for all, also where compared runs were given different ones
        rounds = f"rounds to {target:.0%}" + (" (reached: median)" if several else "")
        columns.append((rounds, lambda one: _rounds_to(one, target)))
        lower.append(rounds)
        names[rounds] = f"rounds to {target:.0%}"
        for scale in scales(series):
            used = rounds.replace("rounds", scale.name)
            columns.append((used, partial(_used_to, target=target, scale=scale)))
            lower.append(used)
            names[used] = f"{scale.name} to {target:.0%}"
    if any(one.run.has_hostile for one in series):
        columns.append(("weight of the hostile", lambda one: _share(one.summary.hostile_weight)))
    if any(value is not None for one in series for value in one.summary.attack_success):
        columns.append(("success of the backdoor", lambda one: _share(one.summary.attack_success)))
        lower.append("success of the backdoor")
    rows = [[make(one) for _, make in columns] for one in in_order]
    note = (
        f"Values of the last round on {run.reported_on}, in the mean over the seeds; ± is the standard deviation over "
        "them. Differences are paired seed by seed on the same data, at the last round both have, in percentage "
        "points, with their 95% confidence interval in brackets; with one seed there is none, and no telling how sure "
        "they are. Each interval is of one difference: what is called sure above is corrected for all pairs of methods."
    )
    if target is not None:
        note += " " + CENSORED
    if scales(series):
        note += " The last rounds of two methods need not have ended at the same time on the clients' clock."
    title = "Methods, best first" if best_first else "Methods, not ranked"
    all_ranked = len(best_first) == len(series)
    return Section(
        "result",
        "Result",
        "",
        [
            table(
                "summary", title, [name for name, _ in columns], rows, note, lower=lower, names=names, rivals=all_ranked
            )
        ],
    )


def _metric(one: Series, is_ranked: bool) -> Cell:
    values = one.summary.metric
    text = spread_of(values) if is_ranked else f"{spread_of(values)} (round {max(one.summary.rounds)})"
    return Cell(mean_of(values), text, numbers=_mean_and_deviation(values))


def _mean_and_deviation(values: Sequence[float | None]) -> dict[str, float | None]:
    known = sum(value is not None for value in values)
    return {"mean": mean_of(values), "deviation": deviation_of(values), "seeds": known}


def _share(values: Sequence[float | None]) -> Cell:
    return Cell(mean_of(values), percent_of(mean_of(values)))


def _plain(values: Sequence[float | None]) -> Cell:
    return Cell(mean_of(values), number(mean_of(values), 3))


def _worst_client(one: Series) -> Cell:
    name, value = worst_client(one)
    text = f"{percent_of(value)} ({name})" if name else percent_of(value)
    return Cell(value, text, numbers={"": value, "name": name})


def worst_client(one: Series) -> tuple[str | None, float | None]:
    """Who did worst over the seeds, and how; without a name the worst of each, where every seed draws them anew."""
    means = client_means(one)
    if not means:
        return None, mean_of(one.summary.worst_client)
    return _worst_first(means, one.run.higher_is_better)[0]


def _worst_first(means: Mapping[str, float], higher_is_better: bool) -> list[tuple[str, float]]:
    return sorted(means.items(), key=lambda item: item[1] if higher_is_better else -item[1])


def client_means(one: Series) -> dict[str, float]:
    """Every honest client's metric on its own test data, mean over the seeds; empty where none can be followed."""
    return {name: statistics.fmean(values.values()) for name, values in _by_client(one).items()}


def _by_client(one: Series) -> dict[str, dict[int, float]]:
    """By client and seed. Without names, client 3 of one seed is that of another only where both have the same data."""
    seeds = set(one.summary.seeds)
    rows = [row for row in one.run.client_metrics(one.method) if row.seed in seeds]
    if len(seeds) > 1 and any(row.name is None for row in rows) and len({one.run.data.get(seed) for seed in seeds}) > 1:
        return {}
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row.name or f"client {row.client}", {})[row.seed] = row.metric
    return found


def _against(one: Series, baseline: Series, differences: Mapping[tuple[str, str], Difference]) -> Cell:
    if one is baseline:
        return Cell(None, "baseline")
    difference = differences.get((one.label, baseline.label))
    if difference is None:
        return Cell(None, "–")
    numbers = {**_in_numbers(difference), "p by Holm": difference.p_value}
    return Cell(difference.mean, signed(difference), numbers=numbers)


def _in_numbers(difference: Difference) -> dict[str, float | None]:
    low, high = difference.interval or (None, None)
    return {"mean": difference.mean, "low": low, "high": high, "seeds": difference.pairs}


def _rounds_to(one: Series, target: float) -> Cell:
    return rounds_cell([one.run.rounds_to(target, one.method, seed) for seed in one.summary.seeds])


def _used_to(one: Series, target: float, scale: Scale) -> Cell:
    """Time or bytes until a target was reached; a control has no clock."""
    so_far = {seed: scale.of(one, seed) for seed in one.summary.seeds}
    if not any(so_far.values()):
        return Cell(None, "–")
    rounds = {seed: one.run.rounds_to(target, one.method, seed) for seed in so_far}
    return rounds_cell([so_far[seed].get(number or 0) for seed, number in rounds.items()], scale.text)


def rounds_cell(rounds: Sequence[float | None], text_of: Callable[[float], str] = "{:g}".format) -> Cell:
    """How many seeds got there first of all, then the median round, in which those that did not are the slowest.

    >>> rounds_cell([3, 4, None]).text, rounds_cell([3, None]).text, rounds_cell([7]).text
    ('2/3: 4', '1/2: –', '7')
    """
    reached, median = sum(value is not None for value in rounds), median_rounds(rounds)
    if len(rounds) == 1:
        text = "not reached" if median is None else text_of(median)
    else:
        text = f"{reached}/{len(rounds)}: {'–' if median is None else text_of(median)}"
    order = NEVER - reached / len(rounds) if median is None else median
    return Cell(order, text, numbers={"median": median, "reached": reached, "not reached": len(rounds) - reached})


def median_rounds(rounds: Sequence[float | None]) -> float | None:
    """The median, "not reached" being more than any number; None where that is what it is."""
    median = statistics.median(math.inf if value is None else value for value in rounds)
    return median if math.isfinite(median) else None


def curves_section(series: Sequence[Series]) -> Section:
    """Metric, macro F1 and loss over the rounds."""
    charts = [metric_chart(series)]
    charts += [rescaled(charts[0], scale, series) for scale in scales(series)]
    if series[0].run.shows("macro_f1"):
        charts.append(_curve_chart(series, "macro_f1", f"macro F1 on {series[0].run.reported_on}", percent=False))
    charts.append(_curve_chart(series, "loss", f"loss on {series[0].run.reported_on}", percent=False))
    lead = (
        "Lines are means over the seeds; point at one to see its range."
        if any(len(one.summary.seeds) > 1 for one in series)
        else ""
    )
    return Section("curves", "Over the rounds", lead, charts)


def metric_chart(series: Sequence[Series]) -> Chart:
    """The metric on held-out samples over the rounds, with the target."""
    run = series[0].run
    shown = _curve_chart(series, "metric", f"{run.metric} on {run.reported_on}", percent=True)
    if run.target is None:
        return shown
    height = {"y0": run.target, "y1": run.target, "line": {"width": 1, "color": "#999999"}}
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, **height}
    return replace(shown, layout={**shown.layout, "shapes": [line]})


def _curve_chart(series: Sequence[Series], column: str, title: str, *, percent: bool) -> Chart:
    def curves(one: Series) -> list[Curve]:
        return [one.run.curve(column, one.method, seed, MAX_POINTS) for seed in one.summary.seeds]

    return line_chart(column, title, [(one, curves(one)) for one in series], percent=percent)


def targets(series: Sequence[Series]) -> Section:
    """P1's tables: the first round in which 10 ... 90% of the clients reach a target on their own test data."""
    tables = []
    for target in target_choices(series):
        tables += [_target_table(series, target), *(_used_table(series, target, scale) for scale in scales(series))]
    return Section("targets", "Rounds to target", "", tables)


def _used_table(series: Sequence[Series], target: float, scale: Scale) -> Table:
    """Time or bytes until 10 ... 90% of the clients reach a target on their own test data."""
    shares = [f"{share}%" for share in range(10, 100, 10)]
    rows: list[list[Content]] = []
    for one in series:
        if not any(scale.of(one, seed) for seed in one.summary.seeds):
            continue  # a control has no clock
        reached = []
        for seed, rounds in _until_reached(one, target).items():
            so_far = scale.of(one, seed)
            reached.append([so_far.get(number or 0) for number in rounds])
        rows.append([one.label, *(rounds_cell(used, scale.text) for used in zip(*reached, strict=True))])
    run = series[0].run
    title = f"{scale.name} to {run.metric} {'of at least' if run.higher_is_better else 'of at most'} {target:.0%}"
    note = f"{scale.name.capitalize()} until that share of the honest clients reaches the target; see the table above."
    all_ranked = len(comparable(series)) == len(series)
    columns = ["method", *shares]
    return table(f"target-{target:g}-{scale.name}", title, columns, rows, note, lower=shares, rivals=all_ranked)


def _target_table(series: Sequence[Series], target: float) -> Table:
    run, baseline = series[0].run, _until_reached(series[0], target)
    rows: list[list[Content]] = []
    for one in series:
        reached = _until_reached(one, target)
        measured = any(any(rounds) for rounds in reached.values()) or any(
            one.run.reached(one.method, seed, 1) for seed in reached
        )
        cells: list[Content] = [one.label]
        cells += [
            rounds_cell([rounds[index] for rounds in reached.values()]) if measured else "–" for index in range(9)
        ]
        if one is series[0]:
            cells.append(Cell(None, "baseline"))
        else:
            gain = gain_against(one, series[0], reached, baseline)
            cells.append(Cell(gain.mean, signed_rounds(gain), numbers=_in_numbers(gain)) if gain else Cell(None, "–"))
        rows.append(cells)
    shares = [f"{share}%" for share in range(10, 100, 10)]
    note = (
        f"Rounds until that share of the honest clients reaches the target on its own test data. {CENSORED} The gain "
        "is in rounds against the first method, in the mean over the nine shares, with a 95% confidence interval over "
        "the seeds. A share that is not reached counts as reached in the last round that both have run (P1's rule): "
        "a loss is at least as large, and what neither reaches is no gain."
    )
    title = f"{run.metric} {'of at least' if run.higher_is_better else 'of at most'} {target:.0%}"
    all_ranked = len(comparable(series)) == len(series)
    return table(
        f"target-{target:g}", title, ["method", *shares, "average gain"], rows, note, lower=shares, rivals=all_ranked
    )


def target_choices(series: Sequence[Series]) -> list[float]:
    """The config's targets; without any, what half of the baseline's clients reached in the end, rounded to 5%."""
    run = series[0].run
    if run.client_targets:
        return run.client_targets
    last = [run.reached(series[0].method, seed)[-1:] for seed in series[0].summary.seeds]
    medians = [curve[0][1][4] for curve in last if curve]
    if not medians:
        return []
    steps = statistics.fmean(medians) / 0.05
    return [round((int(steps) if run.higher_is_better else int(steps) + 1) * 0.05, 2)] if steps >= 1 else []


def _until_reached(one: Series, target: float) -> dict[int, list[int | None]]:
    """By seed, the first rounds in which 10 ... 90% of the clients reach a target."""
    return {seed: one.run.rounds_until_clients_reach(one.method, seed, target) for seed in one.summary.seeds}


def _until(reached: Mapping[int, Sequence[int | None]], last: Mapping[int, int]) -> dict[int, list[int | None]]:
    """What was reached up to a round of each seed: of one that has run longer, the rest would not be fair."""
    return {
        seed: [number if number is not None and number <= end else None for number in reached[seed]]
        for seed, end in last.items()
    }


def gain_against(
    one: Series,
    baseline: Series,
    ours: Mapping[int, Sequence[int | None]],
    theirs: Mapping[int, Sequence[int | None]],
) -> Difference | None:
    """The average gain of a method, in the rounds that both have run; see `average_gain`."""
    both = {seed: min(one.rounds(seed), baseline.rounds(seed)) for seed in shared_seeds(one, baseline)}
    return average_gain(_until(theirs, both), _until(ours, both), both)


def average_gain(
    baseline: Mapping[int, Sequence[int | None]], ours: Mapping[int, Sequence[int | None]], last: Mapping[int, int]
) -> Difference | None:
    """Rounds saved against the baseline, averaged over the shares of clients (P1's Avg.), paired over the seeds.

    A share that is not reached counts as reached in the `last` round (P1's Table 6). None where nobody reaches any.

    >>> average_gain({1: [1, 20, None]}, {1: [1, 10, 80]}, {1: 100}).mean  # (0 + 10 + 20)/3
    10.0
    """
    seeds = sorted(baseline.keys() & ours.keys())
    if not any(number for seed in seeds for number in (*baseline[seed], *ours[seed])):
        return None
    gains: list[float | None] = [
        statistics.fmean(
            (before or last[seed]) - (after or last[seed])
            for before, after in zip(baseline[seed], ours[seed], strict=True)
        )
        for seed in seeds
    ]
    return paired_difference(gains, [0.0] * len(gains))


def best_rounds(series: Sequence[Series]) -> Section:
    """P1's Tables 3, 5 and 7: which samples each method and the baseline got right, each at its best round."""
    baseline = series[0]
    rows: list[list[Content]] = []
    for one in series[1:]:
        for seed in _equally_far(one, baseline):
            ours, theirs = one.run.best_round(one.method, seed), baseline.run.best_round(baseline.method, seed)
            if ours is None or theirs is None or len(ours.right) != len(theirs.right):
                continue  # nothing is kept in regression; without a server's set, others may be hostile in another run
            found = contingency(ours.right, theirs.right)
            rows.append(
                [
                    one.label,
                    seed,
                    Cell(ours.metric, f"{percent_of(ours.metric)} (round {ours.round_num})"),
                    Cell(theirs.metric, f"{percent_of(theirs.metric)} (round {theirs.round_num})"),
                    found.both_right,
                    found.only_ours,
                    found.only_theirs,
                    found.both_wrong,
                    Cell(found.p_value, f"{found.p_value:.2g}"),
                ]
            )
    columns = ["method", "seed", "best", "baseline's best", "both right", "only this", "only the baseline"]
    note = (
        f"Samples of {series[0].run.reported_on}, every method at its own best round, which was picked on these very "
        "samples: both look better than they are. McNemar's exact test asks whether the samples that only one of the "
        "two got right fall to either side by chance; of twenty such tests one falls below 0.05 by chance. Seeds in "
        "which the two have not run the same number of rounds are left out."
    )
    shown = table(
        "contingency",
        f"Right and wrong, against {baseline.label}",
        [*columns, "both wrong", "McNemar's p"],
        rows,
        note,
        lower=["both wrong", "only the baseline", "McNemar's p"],
    )
    return Section("best", "Best rounds, sample by sample", "", [shown] if rows else [])


def _equally_far(one: Series, other: Series) -> list[int]:
    """The seeds they share in which both have run as many rounds."""
    return [seed for seed in shared_seeds(one, other) if one.rounds(seed) == other.rounds(seed)]


def clients_section(series: Sequence[Series]) -> Section:
    """Every client under every method, and how they are spread, by round."""
    first = series[0]
    most = "nine of ten" if len(first.run.honest_metrics(first.method, first.seed, 10)) == 10 else "all"
    charts = [_reached_chart(series, 50, "half"), _reached_chart(series, 90, most), _distribution(series)]
    shown: list[Chart | Table] = [chart for chart in charts if chart.data]
    listed = _client_table(series)
    lead = "Honest clients, each on its own test data."
    if shown and not listed:
        lead += " They have no names and every seed draws them anew, so that none can be followed over the seeds."
    return Section("clients", "Clients", lead, [*listed, *shown])


def _client_table(series: Sequence[Series]) -> list[Table]:
    """Every client under every method, those that do worst under the first on top."""
    run, values = series[0].run, [_by_client(one) for one in series]
    baseline = values[0]
    worst_first = _worst_first(client_means(series[0]), run.higher_is_better)
    names = list(dict.fromkeys([*(name for name, _ in worst_first), *(name for own in values for name in own)]))
    rows: list[list[Content]] = [
        [
            name,
            *_marked(
                [_under_method(own.get(name, {}), baseline.get(name, {})) for own in values], run.higher_is_better
            ),
        ]
        for name in names[:MAX_LISTED]
    ]
    if not rows:
        return []
    note = (
        f"{run.metric} on the client's own test data at the last round, in the mean over the seeds; in parentheses "
        f"the difference to {series[0].label}, paired over the seeds, in percentage points."
    )
    title = f"The {len(rows)} worst of {len(names)} clients" if len(names) > len(rows) else "Client by client"
    columns = ["client", *(one.label for one in series)]
    lower = [] if run.higher_is_better else columns
    return [table("by-client", f"{title}, the worst under {series[0].label} first", columns, rows, note, lower=lower)]


def _under_method(own: Mapping[int, float], baseline: Mapping[int, float]) -> Cell:
    """A client under a method, by seed."""
    if not own:
        return Cell(None, "–")
    mean = statistics.fmean(own.values())
    both = sorted(own.keys() & baseline.keys())
    difference = paired_difference([own[seed] for seed in both], [baseline[seed] for seed in both])
    if own is baseline or difference is None:
        return Cell(mean, percent_of(mean), numbers={"mean": mean, "seeds": len(own)})
    numbers = {"mean": mean, "seeds": len(own), "difference": difference.mean}
    return Cell(mean, f"{percent_of(mean)} ({100 * difference.mean:+.1f})", numbers=numbers)


def _marked(cells: Sequence[Cell], higher_is_better: bool) -> list[Cell]:
    """With the best and the worst of them called so, where they differ."""
    known = [cell.value for cell in cells if isinstance(cell.value, float)]
    if len({*known}) < 2:
        return list(cells)
    best, worst = (max(known), min(known)) if higher_is_better else (min(known), max(known))
    marks: dict[object, str] = {best: ", best", worst: ", worst"}
    return [replace(cell, text=cell.text + marks.get(cell.value, "")) for cell in cells]


def _reached_chart(series: Sequence[Series], share: int, words: str) -> Chart:
    """What a share of the clients reaches, in percent."""
    index = share // 10 - 1

    def curves(one: Series) -> list[Curve]:
        return [
            [(r, values[index]) for r, values in one.run.reached(one.method, seed, MAX_POINTS)]
            for seed in one.summary.seeds
        ]

    title = f"{series[0].run.metric} that {words} of the clients reach on their own test data"
    return line_chart(f"reached-{share}", title, [(one, curves(one)) for one in series], percent=True)


def _distribution(series: Sequence[Series]) -> Chart:
    """The spread over the clients at the last round; of many clients, the first."""
    values = [
        (one, [value for seed in one.summary.seeds for value in one.run.honest_metrics(one.method, seed, MAX_CLIENTS)])
        for one in series
    ]
    known = [(one, own) for one, own in values if own]
    messages = (
        f"{one.label} median {percent_of(statistics.median(own))}, lowest {percent_of(min(own))}" for one, own in known
    )
    traces = [
        {
            "type": "box",
            "orientation": "h",
            "x": own,
            "name": one.label,
            "marker": {"color": one.colour},
            "boxpoints": "outliers",
        }
        for one, own in known
    ]
    return Chart(
        "distribution",
        f"{series[0].run.metric} of the clients at the last round",
        f"Spread over the clients at the last round: {'; '.join(messages)}.",
        traces,
        {
            "xaxis": value_axis([value for _, own in known for value in own], percent=True),
            "yaxis": {"type": "category", "autorange": "reversed"},
            "showlegend": False,
            "height": 80 + 44 * len(known),
        },
    )


def priority_section(series: Sequence[Series]) -> Section:
    """P2's loop: the order of priority over time, with its testing rounds."""
    adjusted = [one for one in series if any(one.summary.testing_rounds)]
    rows = [(one, one.run.priorities(one.method, one.seed)) for one in adjusted]
    return Section(
        "priority",
        "Order of priority",
        "Online adjustment changes the order when the model got worse; a testing round costs a message to all clients.",
        [_priority_chart(one, own) for one, own in rows if own],
        series[0].seed,
    )


def _priority_chart(one: Series, rows: list[PriorityRow]) -> Chart:
    orders = [" > ".join(row.priority) for row in rows]
    (common, times), *_ = Counter(orders).most_common(1)
    changes = sum(before != after for before, after in pairwise(orders))
    alt = (
        f"Order of priority by round under {one.label}, seed {one.seed}: most often {common} ({times} of "
        f"{len(orders)} rounds), changed {changes} times, {sum(row.testing_rounds for row in rows)} testing rounds."
    )
    shown = thinned(rows, MAX_POINTS)
    traces: list[Plotly] = [
        {
            "x": [row.round_num for row in shown],
            "y": [" > ".join(row.priority) for row in shown],
            "mode": "markers",
            "name": "order",
            "hovertemplate": "round %{x}<br>%{y}<extra></extra>",
            "marker": {"color": one.colour, "size": 7},
            "meta": one.opens("round"),
        },
        {
            "type": "bar",
            "x": [row.round_num for row in shown],
            "y": [row.testing_rounds for row in shown],
            "name": "testing rounds",
            "hovertemplate": "round %{x}: %{y} testing rounds<extra></extra>",
            "yaxis": "y2",
            "marker": {"color": "#56B4E9", "opacity": 0.5},
        },
    ]
    layout = {
        "xaxis": {"title": {"text": "round"}, "anchor": "y2"},
        "yaxis": {"type": "category", "automargin": True, "domain": [0.35, 1]},
        "yaxis2": {"domain": [0, 0.25], "title": {"text": "tests"}, "anchor": "x"},
    }
    title = f"{one.label}: order of priority, seed {one.seed}"
    return Chart(f"priority-{one.label}", title, alt, traces, layout)


def classes(series: Sequence[Series]) -> Section:
    """P3's loop: F1 and weight of every class over time."""
    charts = [
        *_class_charts(series, "per_class_f1", "F1 of every class"),
        *_class_charts(series, "class_weights", "class weights κ sent to the clients"),
    ]
    lead = "How every class fares. With AdaFed's adaptive loss, classes that go badly weigh more in the next round."
    return Section("classes", "Classes", lead, charts, series[0].seed)


def _class_charts(
    series: Sequence[Series], column: Literal["per_class_f1", "class_weights"], words: str
) -> list[Chart]:
    """A value of every class over the rounds, in the same colours for all methods."""
    found = [(one, one.run.classes(column, one.method, one.seed, MAX_CELLS)) for one in series]
    most = max((value for _, rows in found for _, values in rows for value in values), default=1.0)
    return [_class_chart(one, rows, column, words, max(1.0, most)) for one, rows in found if rows]


def _class_chart(
    one: Series, rows: Sequence[tuple[int, Sequence[float]]], column: str, words: str, most: float
) -> Chart:
    grid = list(map(list, zip(*(values for _, values in rows), strict=True)))
    ends = {label: values[-1] for label, values in enumerate(grid)}
    low, high = min(ends, key=lambda k: ends[k]), max(ends, key=lambda k: ends[k])
    alt = (
        f"{words} over the rounds under {one.label}: at the end lowest for class {low} ({ends[low]:.2f}), "
        f"highest for class {high} ({ends[high]:.2f})."
    )
    trace = {
        "type": "heatmap",
        "x": [r for r, _ in rows],
        "y": [f"class {k}" for k in range(len(grid))],
        "z": grid,
        "colorscale": "Cividis",
        "zmin": 0,
        "zmax": most,
        "hovertemplate": "%{y}<br>round %{x}: %{z:.3f}<extra></extra>",
        "colorbar": {"thickness": 12},
        "name": words,
    }
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"type": "category"},
        "height": max(240, min(700, 90 + 18 * len(grid))),
    }
    return Chart(f"{column}-{one.label}", f"{one.label}: {words}, seed {one.seed}", alt, [trace], layout)


def refusals(series: Sequence[Series]) -> Section:
    """Updates that were refused and rounds that changed nothing, with the reasons."""
    rows: list[list[Content]] = []
    for one in series:
        for row in one.run.refusals(one.method, MAX_REFUSALS):
            link = AuditLink("round", one.run.id, one.method, row.seed, row.first_round)
            first = Cell(row.first_round, str(row.first_round), link)
            rows.append([one.label, client_cell(row.client, row.name), row.seed, row.reason, row.times, first])
        notes = Counter(note for notes in one.run.notes(one.method) for note in notes)
        rows += [[one.label, None, None, note, count, None] for note, count in notes.items()]
    refused = table(
        "refused",
        "Refused updates, and rounds that changed nothing",
        ["method", "client", "seed", "reason", "times", "first in round"],
        rows,
        "",
        [False, True, True, False, True, True],
    )
    return Section(
        "refusals",
        "Refusals",
        "Nothing a client sends ends a run; what was refused never reached the aggregate.",
        [refused] if rows else [],
    )


def cost(series: Sequence[Series]) -> Section:
    """Seconds, bytes and evaluations."""
    rows: list[list[Content]] = []
    has_clock = bool(scales(series))
    for one in series:
        total = one.run.cost(one.method)
        if not total.rounds:
            continue
        seconds, size, evaluations, tests = (
            value / total.rounds
            for value in (
                total.seconds,
                total.models_moved * one.run.model_bytes,
                total.evaluations,
                total.testing_rounds,
            )
        )
        ends = [max(times.values()) for seed in one.summary.seeds if (times := one.run.times(one.method, seed))]
        on_clock = sum(ends) / total.rounds if ends else None
        rows.append(
            [
                one.label,
                *([Cell(on_clock, in_time(on_clock) if on_clock is not None else "–")] if has_clock else ()),
                Cell(seconds, number(seconds, 3)),
                Cell(size, in_bytes(size)),
                Cell(evaluations, number(evaluations, 1)),
                Cell(tests, number(tests, 2)),
                Cell(total.seconds, number(total.seconds, 1)),
            ]
        )
    columns = [
        "method",
        *(["time on the clients' clock per round"] if has_clock else ()),
        "seconds per round",
        "bytes over the wire per round",
        "evaluations per round",
        "testing rounds per round",
        "seconds in all",
    ]
    note = (
        "Bytes are models of four bytes a parameter, both ways, as a real federation would send them. Evaluations are "
        "those the method needs, by a client or by the server; watching the run is not counted."
    )
    return Section(
        "cost",
        "Cost",
        "",
        [table("costs", "What each method costs", columns, rows, note, lower=columns[1:])] if rows else [],
    )
