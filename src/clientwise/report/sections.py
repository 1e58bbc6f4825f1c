"""The sections of a report but for the weights: result, curves, targets, clients, the two loops, refusals, cost."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .document import Json, cell, chart, in_bytes, number, percent_of, section, table
from .series import (
    MAX_POINTS,
    Series,
    difference_between,
    line_chart,
    mean_of,
    ranked,
    signed,
    signed_rounds,
    spread_of,
)
from .statistics import Difference, contingency, paired_difference
from .summary import thinned

MAX_CELLS = 150  # of a heat map, in either direction


def result(series: Sequence[Series]) -> Json:
    """Which method won, by how much and how surely."""
    run = series[0].run
    target = next((one.run.target for one in series if one.run.target is not None), None)
    lower = [f"rounds to {target:.0%}" if target is not None else ""] + ([] if run.higher_is_better else [run.metric])
    columns: list[tuple[str, Callable[[Series], Any]]] = [
        ("method", lambda one: one.label),
        (run.metric, lambda one: cell(mean_of(one.summary.metric), spread_of(one.summary.metric))),
        ("against the baseline", lambda one: _against(one, series[0])),
        ("worst decile of clients", lambda one: _share(one.summary.worst_decile)),
    ]
    if run.higher_is_better:
        columns.insert(3, ("macro F1", lambda one: _plain(one.summary.macro_f1)))
    if target is not None:  # one for all, also where compared runs were given different ones
        columns.append((f"rounds to {target:.0%}", lambda one: _rounds_to(one, target)))
    if any(one.run.has_hostile for one in series):
        columns.append(("weight of the hostile", lambda one: _share(one.summary.hostile_weight)))
    rows = [[make(one) for _, make in columns] for one in ranked(series)]
    note = (
        f"Values of the last round on {run.reported_on}; ± is the standard deviation over the seeds. Differences are "
        "paired seed by seed, in percentage points, with their 95% confidence interval; with one seed there is none, "
        "and no telling how sure they are, and none is given between runs on different data."
    )
    return section(
        "result",
        "Result",
        "",
        [table("summary", "Methods, best first", [name for name, _ in columns], rows, note, lower=lower)],
    )


def _share(values: Sequence[float | None]) -> Json:
    return cell(mean_of(values), percent_of(mean_of(values)))


def _plain(values: Sequence[float | None]) -> Json:
    return cell(mean_of(values), number(mean_of(values), 3))


def _against(one: Series, baseline: Series) -> Json:
    if one is baseline:
        return cell(None, "baseline")
    difference = difference_between(one, baseline)
    return cell(difference.mean, signed(difference)) if difference else cell(None, "–")


def _rounds_to(one: Series, target: float) -> Json:
    return _rounds_cell([one.run.rounds_to(target, one.method, seed) for seed in one.summary.seeds])


def _rounds_cell(rounds: Sequence[int | None]) -> Json:
    """Mean of rounds; where a seed never got there it is words, and no number to sort by."""
    known = [value for value in rounds if value is not None]
    missing = len(rounds) - len(known)
    if not known:
        return cell(None, "not reached")
    mean = statistics.fmean(known)
    return cell(None, f"{mean:.1f} ({missing} of {len(rounds)} not)") if missing else cell(mean, f"{mean:.1f}")


def curves_section(series: Sequence[Series]) -> Json:
    """Metric, macro F1 and loss over the rounds."""
    charts = [metric_chart(series)]
    if series[0].run.higher_is_better:
        charts.append(_curve_chart(series, "macro_f1", f"macro F1 on {series[0].run.reported_on}", percent=False))
    charts.append(_curve_chart(series, "loss", f"loss on {series[0].run.reported_on}", percent=False))
    lead = (
        "Lines are means over the seeds, bands the range." if any(len(one.summary.seeds) > 1 for one in series) else ""
    )
    return section("curves", "Over the rounds", lead, charts)


def metric_chart(series: Sequence[Series]) -> Json:
    """The metric on held-out samples over the rounds, with the target."""
    run = series[0].run
    shown = _curve_chart(series, "metric", f"{run.metric} on {run.reported_on}", percent=True)
    if run.target is not None:
        height = {"y0": run.target, "y1": run.target, "line": {"width": 1, "color": "#999999"}}
        shown["layout"]["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, **height}]
    return shown


def _curve_chart(series: Sequence[Series], column: str, title: str, *, percent: bool) -> Json:
    def curves(one: Series) -> list[list[tuple[int, float]]]:
        return [one.run.curve(column, one.method, seed, MAX_POINTS) for seed in one.summary.seeds]

    return line_chart(column, title, [(one, curves(one)) for one in series], percent=percent)


def targets(series: Sequence[Series]) -> Json:
    """P1's tables: the first round in which 10 ... 90% of the clients reach a target on their own test data."""
    run = series[0].run
    tables = []
    for target in target_choices(series):
        rows = []
        baseline = _until_reached(series[0], target)
        for one in series:
            reached = _until_reached(one, target)
            measured = any(any(rounds) for rounds in reached.values()) or any(
                one.run.reached(one.method, seed, 1) for seed in reached
            )
            cells: list[Any] = [one.label]
            cells += [
                _rounds_cell([rounds[place] for rounds in reached.values()]) if measured else "–" for place in range(9)
            ]
            paired = one is not series[0] and one.run.data == run.data
            gain = average_gain(baseline, reached) if paired else None
            cells.append(
                cell(
                    gain.mean if gain else None,
                    signed_rounds(gain) if gain else "baseline" if one is series[0] else "–",
                )
            )
            rows.append(cells)
        shares = [f"{share}%" for share in range(10, 100, 10)]
        note = (
            "Rounds until that share of the honest clients reaches the target on its own test data, mean over the "
            "seeds. The gain is in rounds against the first method, over all shares both reach, with a 95% confidence "
            "interval over the seeds; with one seed there is none."
        )
        title = f"{run.metric} {'of at least' if run.higher_is_better else 'of at most'} {target:.0%}"
        tables.append(table(f"target-{target:g}", title, ["method", *shares, "average gain"], rows, note, lower=shares))
    return section("targets", "Rounds to target", "", tables)


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


def average_gain(
    baseline: Mapping[int, Sequence[int | None]], ours: Mapping[int, Sequence[int | None]]
) -> Difference | None:
    """Rounds saved against the baseline, averaged over the shares of clients both reach, paired over the seeds."""
    gains: list[float | None] = []
    for seed in sorted(baseline.keys() & ours.keys()):
        pairs = zip(baseline[seed], ours[seed], strict=True)
        both = [before - after for before, after in pairs if before is not None and after is not None]
        gains.append(statistics.fmean(both) if both else None)
    return paired_difference(gains, [0.0] * len(gains))


def best_rounds(series: Sequence[Series]) -> Json:
    """P1's Tables 3, 5 and 7: which samples each method and the baseline got right, each at its best round."""
    baseline, rows = series[0], []
    for one in series[1:]:
        if one.run.data != baseline.run.data:
            continue
        for seed in sorted({*one.summary.seeds} & {*baseline.summary.seeds}):
            ours, theirs = one.run.best_round(one.method, seed), baseline.run.best_round(baseline.method, seed)
            if ours is None or theirs is None:
                continue
            found = contingency(ours[2], theirs[2])
            rows.append(
                [
                    one.label,
                    seed,
                    cell(ours[1], f"{percent_of(ours[1])} (round {ours[0]})"),
                    cell(theirs[1], f"{percent_of(theirs[1])} (round {theirs[0]})"),
                    found.both_right,
                    found.only_ours,
                    found.only_theirs,
                    found.both_wrong,
                    cell(found.p_value, f"{found.p_value:.2g}"),
                ]
            )
    columns = ["method", "seed", "best", "baseline's best", "both right", "only this", "only the baseline"]
    note = (
        f"Samples of {series[0].run.reported_on}, every method at its own best round, which was picked on these very "
        "samples: both look better than they are. McNemar's exact test asks whether the samples that only one of the "
        "two got right fall to either side by chance; of twenty such tests one falls below 0.05 by chance."
    )
    shown = table(
        "contingency",
        f"Right and wrong, against {baseline.label}",
        [*columns, "both wrong", "McNemar's p"],
        rows,
        note,
        lower=["both wrong", "only the baseline", "McNemar's p"],
    )
    return section("best", "Best rounds, sample by sample", "", [shown] if rows else [])


def clients_section(series: Sequence[Series]) -> Json:
    """Distribution of the local metric over the clients, by round."""
    run = series[0].run
    charts = []
    for share, words in ((50, "half"), (90, "nine of ten")):
        place = share // 10 - 1

        def curves(one: Series, place: int = place) -> list[list[tuple[int, float]]]:
            return [
                [(r, values[place]) for r, values in one.run.reached(one.method, seed, MAX_POINTS)]
                for seed in one.summary.seeds
            ]

        title = f"{run.metric} that {words} of the clients reach on their own test data"
        charts.append(line_chart(f"reached-{share}", title, [(one, curves(one)) for one in series], percent=True))
    violin = [_distribution(one) for one in series]
    traces = [trace for trace in violin if trace["y"]]
    if traces:
        alt = (
            "Spread over the clients at the last round: "
            + "; ".join(
                f"{t['name']} median {percent_of(statistics.median(t['y']))}, lowest {percent_of(min(t['y']))}"
                for t in traces
            )
            + "."
        )
        charts.append(
            chart(
                "distribution",
                f"{run.metric} of the clients at the last round",
                alt,
                traces,
                {"yaxis": {"tickformat": ".0%"}, "showlegend": False},
            )
        )
    return section(
        "clients", "Clients", "Honest clients, each on its own test data.", [chart for chart in charts if chart["data"]]
    )


def _distribution(one: Series) -> Json:
    values = [
        value
        for lane, seed in one.lanes()
        for (value,) in one.run.query(
            """SELECT local.metric FROM local JOIN clients ON clients.client = local.client AND clients.seed = ?
               WHERE lane = ? AND hostile IS NULL
                 AND round_num = (SELECT MAX(round_num) FROM rounds WHERE lane = ? AND reached IS NOT NULL)
               LIMIT 2000""",
            seed,
            lane,
            lane,
        )
    ]
    return {"type": "box", "y": values, "name": one.label, "marker": {"color": one.colour}, "boxpoints": "outliers"}


def priority_section(series: Sequence[Series]) -> Json:
    """P2's loop: the order of priority over time, with its testing rounds."""
    items: list[Json] = []
    for one in series:
        if not any(one.summary.testing_rounds):
            continue
        lane, seed = one.lanes()[0]
        rows = one.run.query(
            """SELECT round_num, priority, testing_rounds FROM rounds
               WHERE lane = ? AND priority IS NOT NULL ORDER BY round_num""",
            lane,
        )
        if not rows:
            continue
        every = [" > ".join(json.loads(priority)) for _, priority, _ in rows]
        common = Counter(every).most_common(1)[0]
        changes = sum(before != after for before, after in pairwise(every))
        alt = (
            f"Order of priority by round under {one.label}, seed {seed}: most often {common[0]} ({common[1]} of "
            f"{len(every)} rounds), changed {changes} times, {sum(tests for _, _, tests in rows)} testing rounds."
        )
        rows = thinned(rows, MAX_POINTS)
        orders = [" > ".join(json.loads(priority)) for _, priority, _ in rows]
        traces = [
            {
                "x": [r for r, _, _ in rows],
                "y": orders,
                "mode": "markers",
                "name": "order",
                "marker": {"color": one.colour, "size": 7},
                "meta": one.opens("round", seed),
            },
            {
                "type": "bar",
                "x": [r for r, _, _ in rows],
                "y": [tests for _, _, tests in rows],
                "name": "testing rounds",
                "yaxis": "y2",
                "marker": {"color": "#56B4E9", "opacity": 0.5},
            },
        ]
        layout = {
            "xaxis": {"title": {"text": "round"}, "anchor": "y2"},
            "yaxis": {"type": "category", "automargin": True, "domain": [0.35, 1]},
            "yaxis2": {"domain": [0, 0.25], "title": {"text": "tests"}, "anchor": "x"},
        }
        items.append(
            chart(f"priority-{one.label}", f"{one.label}: order of priority, seed {seed}", alt, traces, layout)
        )
    return section(
        "priority",
        "Order of priority",
        "Online adjustment changes the order when the model got worse; a testing round costs a message to all clients.",
        items,
    )


def classes(series: Sequence[Series]) -> Json:
    """P3's loop: F1 and weight of every class over time."""
    items: list[Json] = []
    for one in series:
        lane, seed = one.lanes()[0]
        for column, words in (
            ("per_class_f1", "F1 of every class"),
            ("class_weights", "class weights κ sent to the clients"),
        ):
            rows = one.run.query(
                f"SELECT round_num, {column} FROM rounds WHERE lane = ? AND {column} IS NOT NULL ORDER BY round_num",
                lane,
            )
            rows = thinned(rows, MAX_CELLS)
            if not rows:
                continue
            grid = list(map(list, zip(*(json.loads(values) for _, values in rows), strict=True)))
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
                **({"zmin": 0, "zmax": 1} if column == "per_class_f1" else {}),
                "colorbar": {"thickness": 12},
                "name": words,
            }
            items.append(
                chart(
                    f"{column}-{one.label}",
                    f"{one.label}: {words}, seed {seed}",
                    alt,
                    [trace],
                    {
                        "xaxis": {"title": {"text": "round"}},
                        "yaxis": {"type": "category"},
                        "height": max(240, min(700, 90 + 18 * len(grid))),
                    },
                )
            )
    return section(
        "classes",
        "Classes",
        "How every class fares. With AdaFed's adaptive loss, classes that go badly weigh more in the next round.",
        items,
    )


def refusals(series: Sequence[Series]) -> Json:
    """Updates that were refused and rounds that changed nothing, with the reasons."""
    rows: list[list[Any]] = []
    for one in series:
        for reason, client, seed, count, first in one.run.query(
            """SELECT refusal, client, seed, COUNT(*), MIN(round_num) FROM participants JOIN lanes USING (lane)
               WHERE method = ? AND refusal IS NOT NULL GROUP BY refusal, client, seed ORDER BY 4 DESC LIMIT 100""",
            one.method,
        ):
            opens = {"round": {"method": one.method, "seed": seed, "round": first, "run": one.run.id}}
            rows.append([one.label, client, seed, reason, count, {"value": first, "text": str(first), "open": opens}])
        notes = Counter(
            note
            for (text,) in one.run.query(
                "SELECT notes FROM rounds JOIN lanes USING (lane) WHERE method = ? AND notes != '[]'", one.method
            )
            for note in json.loads(text)
        )
        rows += [[one.label, None, None, note, count, None] for note, count in notes.items()]
    refused = table(
        "refused",
        "Refused updates, and rounds that changed nothing",
        ["method", "client", "seed", "reason", "times", "first in round"],
        rows,
        "",
        [False, True, True, False, True, True],
    )
    return section(
        "refusals",
        "Refusals",
        "Nothing a client sends ends a run; what was refused never reached the aggregate.",
        [refused] if rows else [],
    )


def cost(series: Sequence[Series]) -> Json:
    """Seconds, bytes and evaluations."""
    rows = []
    for one in series:
        lanes = [lane for lane, _ in one.lanes()]
        marks = ", ".join("?" * len(lanes))
        seconds, moved, evaluations, tests, rounds = one.run.query(
            f"""SELECT TOTAL(seconds), TOTAL(models_moved), TOTAL(evaluations), TOTAL(testing_rounds), COUNT(*)
                FROM rounds WHERE lane IN ({marks})""",
            *lanes,
        )[0]
        if not rounds:
            continue
        size = moved * one.run.model_bytes / rounds
        rows.append(
            [
                one.label,
                cell(seconds / rounds, number(seconds / rounds, 3)),
                cell(size, in_bytes(size)),
                cell(evaluations / rounds, number(evaluations / rounds, 1)),
                cell(tests / rounds, number(tests / rounds, 2)),
                cell(seconds, number(seconds, 1)),
            ]
        )
    columns = [
        "method",
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
    return section(
        "cost",
        "Cost",
        "",
        [table("costs", "What each method costs", columns, rows, note, lower=columns[1:])] if rows else [],
    )
