"""The sections of a report: each is a function of `Results` that yields texts, tables and charts.

A new section is a function here, and a line in `page.SECTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy
import pandas
from pandas import DataFrame as Frame
from pandas import Series

from .explanation import Round, suspicions
from .items import (
    BYTES,
    TIME,
    Chart,
    Column,
    Item,
    Table,
    counted,
    fixed,
    in_bytes,
    in_time,
    percent,
    table,
    unit_for,
)
from .results import (
    MOST_SHOWN,
    Method,
    Results,
    at_rounds,
    class_names,
    client_names,
    encoding,
    marks_in_words,
    stated,
)
from .statistics import NONE, Difference

MOST_POINTS = 200  # of a line
MOST_CELLS = 100  # of a heat map, in either direction
MOST_LISTED = 100  # clients, refusals or inputs in a table
WIDE = 1000  # times the lowest loss: beyond, its axis is logarithmic
CENSORED = (
    "Rounds to a target: the number of seeds that reached it, and the median round. Seeds that did "
    "not reach it count as slowest; – where the median seed did not."
)
SIMULATED = "simulated: known from the seed, protects nobody"


# Result -------------------------------------------------------------------------------------------


def result(results: Results) -> Iterator[Item]:
    """Every method with its metric, its difference to the baseline and what else was measured, and the curves."""
    yield result_table(results)
    if not results.is_unmeasured:
        yield metric_chart(results)


def result_table(results: Results) -> Table:
    """The main table: one row per method, the best first."""
    rows, unit, higher = results.ranked, results.unit, results.facts.higher_is_better
    leads = [results.differences.get((results.best.label, one.label)) for one in results.rivals[1:]]
    is_ahead = bool(leads) and all(one is not None and one.is_significant for one in leads)
    is_marked = is_ahead and len(results.comparable) == len(results.methods)
    values = [one.last("metric") for one in rows]
    against = [results.differences.get((one.label, results.baseline.label)) for one in rows]
    spread = {"deviation": [own.std() for own in values], "seeds": [len(own) for own in values]}
    worst = [_over_seeds(one, lambda own: worst_tenth(own, higher)) for one in rows]
    columns = [
        Column("method", [one.label for one in rows], [one.marked for one in rows]),
        Column(
            results.facts.metric,
            [own.mean() for own in values],
            [_metric_text(one, results) for one in rows],
            spread,
        ),
        difference_column(
            "against the baseline", against, unit.signed, rows.index(results.baseline)
        ),
        Column("macro F1", [one.last("macro_f1").mean() for one in rows], fixed(3), secondary=True),
        Column("worst 10%", worst, unit.text),
        *_to_target(results),
    ]
    shares = {
        "hostile influence": [one.mean("hostile_influence") for one in rows],
        "backdoor success": [one.last("attack_success").mean() for one in rows],
    }
    columns += [Column(name, own, percent) for name, own in shares.items()]
    if has_search(results):
        tests = [one.rounds["testing_rounds"].sum() / len(one.seeds) for one in rows]
        columns.append(Column("testing rounds", tests, fixed(0)))
    note = result_notes(results)
    if is_marked:
        note.append("Bold: the lead over every other method is statistically significant.")
    title = "Methods, best first" if results.comparable else "Methods, not ranked"
    bold = (rows.index(results.best),) if is_marked else ()
    return table("summary", title, columns, " ".join(note), bold)


def _metric_text(one: Method, results: Results) -> str:
    own = one.last("metric")
    text = results.unit.spread(own.mean(), own.std())
    is_behind = bool(results.comparable) and one not in results.comparable
    return f"{text} (round {one.last_round})" if is_behind else text


def difference_column(
    name: str,
    found: Sequence[Difference | None],
    signed: Callable[[float], str],
    baseline: int | None = None,
) -> Column:
    """Differences with their intervals, which a CSV has apart.

    Args:
        name: of the column.
        found: the differences; None where there is none.
        signed: how a difference is written.
        baseline: the row that others are compared with.
    """
    texts = [one.text(signed) if one else "–" for one in found]
    if baseline is not None:
        texts[baseline] = "baseline"
    numbers = Frame([(one or NONE).numbers for one in found])
    return Column(name, numbers.pop("mean"), texts, dict(numbers))


def _over_seeds(one: Method, measure: Callable[[Series], float]) -> float:
    """Something of the clients' metrics, mean over the seeds."""
    if one.clients.empty:
        return math.nan
    return float(one.clients.groupby("seed")["metric"].agg(measure).mean())


def worst_tenth(values: Series, higher_is_better: bool) -> float:
    """Mean over the worst tenth of the clients, rounded up.

    >>> worst_tenth(pandas.Series([0.5, 0.9, 0.7]), higher_is_better=True)
    0.5
    """
    worst_first = values.sort_values(ascending=higher_is_better)
    return float(worst_first.iloc[: math.ceil(len(worst_first) / 10)].mean())


def result_notes(results: Results) -> list[str]:
    """What the columns of the result mean, sentence by sentence."""
    sentences = [f"Values of the last round on {results.facts.reported_on}."]
    if results.has_several_seeds:
        sentences.append("Mean over the seeds; ± is the standard deviation over the seeds.")
    if len(results.methods) > 1:
        sentences.append(
            "Differences are paired by seed on the same data, in the last round that both methods "
            f"have run{results.unit.in_points}."
        )
        sentences.append(
            "Their 95% confidence intervals stand in brackets. Intervals and p-values are corrected for all pairs "
            "(Holm): an interval excludes 0 if and only if p < 0.05."
            if results.has_several_seeds
            else "With one seed, no confidence interval can be given."
        )
    sentences += brief_notes(results)
    cases = {
        "Hostile influence: the share of all hostile clients in the model, mean over all rounds.": results.has_hostile,
        "Testing rounds are counted over all rounds.": has_search(results),
        CENSORED: any(run.facts.target is not None for run in results.runs),
        "The last round of two methods may end at different times on the clock.": results.has_clock,
    }
    return sentences + [sentence for sentence, is_so in cases.items() if is_so]


def brief_notes(results: Results) -> list[str]:
    """What the terminal says, too: how many samples the values are about, and the marks of methods."""
    sentences = [_reporting_size(run.facts) for run in results.runs if run.facts.report_samples]
    if any(len(one.clients) for one in results.methods):
        who = (
            f"over a tenth of the {evaluated_clients(results)}, rounded up, on their own test data"
        )
        sentences.append(f"Worst 10%: mean {results.facts.metric} {who}.")
    else:
        sentences.append("No client has results on test data of its own.")
    about = [one.about for one in results.methods]
    is_unavailable = not all(one.is_available for one in about)
    sentences += marks_in_words(is_unavailable, any(one.trains_on_server for one in about))
    return list(dict.fromkeys(sentences))


def _reporting_size(facts: Any) -> str:
    """On how many samples results are reported."""
    said = f"Reported on {counted(facts.report_samples, 'sample')}"
    if facts.report_rarest is None:
        return f"{said}."
    return f"{said} ({facts.report_rarest:,} of the rarest class)."


def evaluated_clients(results: Results) -> str:
    """The clients that results are about; which of them are honest is known in simulations alone."""
    return "honest clients" if results.has_hostile else "clients"


def has_search(results: Results) -> bool:
    """Whether a method tries several orders of priority."""
    return any(one.rounds["testing_rounds"].any() for one in results.methods)


# Curves -------------------------------------------------------------------------------------------


def curves(results: Results) -> Iterator[Item]:
    """The curves of all methods: the metric over time and bytes where there is a clock, losses, what privacy costs."""
    metric, on = metric_chart(results), results.facts.reported_on
    for name, _, so_far, units in scales(results)[1:]:
        ends = spread(results.methods, [so_far(one) for one in results.methods])
        unit = unit_for(ends["value"].max(), units)
        x = f"{name} ({unit})"
        ends[x] = ends["value"] / units[unit]
        frame = metric.frame.merge(ends[["method", "round", x]], on=["method", "round"])
        title = f"{metric.title}, over {name}"
        yield replace(metric, id=f"metric-{name}", title=title, frame=frame, x=x)
    yield from lines(results, "macro_f1", f"macro F1 on {on}", "~g")
    yield from lines(results, "loss", f"loss on {on}", "~g")
    yield from lines(results, "epsilon", "ε spent", "~g")
    # The mean of the clients' products of adapters has a higher rank than one adapter
    yield from lines(results, "residual", "Residual of the mean adapter", ".0%")


def metric_chart(results: Results) -> Chart:
    """The metric over the rounds, with the target."""
    facts = results.facts
    frame = spread(results.methods, [one.metric for one in results.methods])
    return Chart(
        "metric",
        f"{facts.metric} on {facts.reported_on}",
        frame,
        names=results.labels,
        format=results.unit.axis,
        reference=facts.target,
        alt=ends_in_words(frame, results.unit.text),
    )


def lines(results: Results, column: str, title: str, format: str) -> Iterator[Chart]:
    """A column of the rounds, one line per method; nothing where no round has it."""
    frame = spread(results.methods, [one.curve(column) for one in results.methods])
    if frame.empty:
        return
    positive = frame["value"][frame["value"] > 0]
    # A method that diverged presses the others flat
    is_wide = column == "loss" and len(positive) > 0 and positive.max() > WIDE * positive.min()
    yield Chart(
        column,
        title,
        frame,
        names=results.labels,
        format=format,
        logarithmic=bool(is_wide),
        alt=ends_in_words(frame, percent if "%" in format else "{:.3g}".format),
    )


def spread(methods: Sequence[Method], curves: Sequence[Frame]) -> Frame:
    """Curves [rounds, seeds] as a tidy frame: method, round, mean over the seeds, lowest and highest.

    A seed that has only begun is left out: it must not shorten the line of the others.
    """
    parts = [Frame(columns=["round", "method", "value"])]
    for one, found in zip(methods, curves, strict=True):
        if len(found):
            whole = found.loc[:, found.iloc[-1].notna()].astype(float)
            places = {*range(0, len(whole), -(-len(whole) // MOST_POINTS)), len(whole) - 1}
            thin = whole.iloc[sorted(places)]
            values = {"value": thin.mean(axis=1), "low": thin.min(axis=1), "high": thin.max(axis=1)}
            parts.append(Frame({"round": thin.index, "method": one.label, **values}))
    return pandas.concat(parts[1:] or parts, ignore_index=True)


def ends_in_words(frame: Frame, text: Callable[[float], str]) -> str:
    """Where the lines of a chart begin and end."""
    ends = frame.groupby("method", sort=False)["value"].agg(["first", "last"])
    said = [f"{name} from {text(first)} to {text(last)}" for name, first, last in ends.itertuples()]
    return f"{'; '.join(said) or 'Nothing recorded yet'}."


def privacy(results: Results) -> Iterator[Table]:
    """What each method with differential privacy has spent, and promises."""
    rows = []
    for one in results.methods:
        last = one.last("epsilon")
        if last.empty:
            continue
        settings, spent = one.about.privacy, one.rounds[one.rounds["epsilon"] == last.max()].iloc[0]
        by_clients = settings.get("local") is True
        replaced = by_clients or stated(one.run, "federation").get("sampling") != "poisson"
        rows.append(
            {
                "method": one.label,
                "ε so far": spent["epsilon"],
                "δ": settings.get("delta"),
                "budget ε": settings.get("epsilon"),
                "deviation of the noise": spent["deviation"],
                "neighbours": "replace one client" if replaced else "add or remove one client",
                "noise by": "clients" if by_clients else "server",
                "noise": "secret" if settings.get("secret") is True else SIMULATED,
            }
        )
    if rows:
        note = (
            "ε at δ of all rounds so far, the largest over the seeds; each seed spends its own. It covers the "
            "models alone: the run folder and this report show single clients (docs/privacy.md)."
        )
        formats = {"ε so far": fixed(3)}
        yield Table("privacy", "Privacy spent", Frame(rows), note, formats=formats)


# Targets -----------------------------------------------------------------------------------------

Scale = tuple[str, Callable[[float], str], Callable[[Method], Frame], dict[str, float]]


def scales(results: Results) -> list[Scale]:
    """What is used up until a round [rounds, seeds]: rounds and, where clients have a clock, time and bytes."""

    def rounds_so_far(one: Method) -> Frame:
        found = one.curve("models_moved")
        return found.mul(0).add(found.index, axis=0) if len(found) else found

    found: list[Scale] = [("rounds", "{:g}".format, rounds_so_far, {})]
    if results.has_clock:
        found.append(("time", in_time, lambda one: one.curve("ended"), TIME))
        found.append(("bytes", in_bytes, bytes_sent, BYTES))
    return found


def bytes_sent(one: Method) -> Frame:
    """The bytes of models sent until every round ended, both ways together; of a control nothing is known."""
    moved = one.curve("models_moved").cumsum() * one.run.facts.model_bytes
    return moved.where(one.curve("ended").notna()).dropna(how="all")


def first_rounds(one: Method, curves: Frame, target: float) -> Series:
    """By seed, the first round in which a curve reaches a target; NaN where it does not."""
    reached = curves >= target if one.run.facts.higher_is_better else curves <= target
    return reached.idxmax().where(reached.any()).reindex(one.seeds).astype(float)


def _to_target(results: Results) -> Iterator[Column]:
    """Rounds, time and bytes until the reported metric reaches the target."""
    targets = [run.facts.target for run in results.runs if run.facts.target is not None]
    for target in targets[:1]:
        for name, text, so_far, _ in scales(results):
            by_seed = [
                at_rounds(so_far(one), first_rounds(one, one.metric, target))
                for one in results.ranked
            ]
            yield reached_column(f"{name} to {results.unit.target(target)}", by_seed, text)


def reached_column(name: str, by_seed: Sequence[Series], text: Callable[[float], str]) -> Column:
    """How many seeds reached a target, and the median of when; those that did not are slowest."""
    medians = Series([own.fillna(math.inf).median() for own in by_seed])
    counts = {
        "reached": [int(own.notna().sum()) for own in by_seed],
        "not reached": [int(own.isna().sum()) for own in by_seed],
    }
    rows = zip(medians, counts["reached"], counts["not reached"], strict=True)
    texts = [reached_text(*row, text) for row in rows]
    return Column(name, medians.replace(math.inf, math.nan), texts, counts)


def reached_text(median: float, reached: int, missed: int, text: Callable[[float], str]) -> str:
    """How many of the seeds reached a target, and the median.

    >>> reached_text(4.0, 2, 1, str), reached_text(math.inf, 1, 1, str), reached_text(7.0, 1, 0, str)
    ('2/3: 4.0', '1/2: –', '7.0')
    """
    shown = text(median) if math.isfinite(median) else "–"
    if reached + missed > 1:
        return f"{reached}/{reached + missed}: {shown}"
    return shown if reached else "not reached"


# Clients ------------------------------------------------------------------------------------------


def clients(results: Results) -> Iterator[Item]:
    """Fairness, and every client under every method."""
    if not any(len(one.clients) for one in results.methods):
        return
    by_client = {one.label: one.by_client().mean(axis=1) for one in results.methods}
    means = Frame({name: own for name, own in by_client.items() if len(own)})
    lead = f"{evaluated_clients(results).capitalize()}, each on its own test data."
    if means.empty:
        lead += " Clients have no names and are drawn anew for every seed: none can be followed."
    yield lead
    fairness = fairness_table(results)
    if fairness is not None:
        yield fairness
    if len(means):
        higher = results.facts.higher_is_better
        worst_first = means.sort_values(means.columns[0], ascending=higher, kind="stable")
        shown = worst_first.head(MOST_LISTED)
        note = f"{results.facts.metric} on the client's own test data in the last round, mean over the seeds"
        if len(shown) < len(means):
            note += f"; {len(shown)} of {len(means)} clients"
        yield Table(
            "by-client",
            f"Client by client, the worst under {means.columns[0]} first",
            shown.rename_axis("client").reset_index(),
            f"{note}.",
            formats=dict.fromkeys(shown.columns, results.unit.text),
        )


def fairness_table(results: Results) -> Table | None:
    """How evenly each method serves the clients; None where fewer than two are evaluated."""
    sizes = [one.clients.groupby("seed").size().max() for one in results.methods]
    if not any(size > 1 for size in sizes):
        return None
    higher, unit = results.facts.higher_is_better, results.unit
    measures: dict[str, tuple[Callable[[Series], float], Callable[[float], str]]] = {
        "mean": (Series.mean, unit.text),
        "worst 10%": (lambda own: worst_tenth(own, higher), unit.text),
        "best 10%": (lambda own: worst_tenth(own, not higher), unit.text),
        "standard deviation": (lambda own: own.std(ddof=0), unit.size),
    }
    columns = [Column("method", [one.label for one in results.methods])]
    for name, (measure, text) in measures.items():
        values = [_over_seeds(one, measure) for one in results.methods]
        columns.append(Column(name, values, text))
    note = (
        f"{results.facts.metric} of the {evaluated_clients(results)} on their own test data in the last round, "
        f"each client with equal weight; mean over the seeds{unit.in_points and '; deviations in points'}. "
        "Worst and best 10%: mean over a tenth of the clients, rounded up."
    )
    return table("fairness", "Fairness among clients", columns, note)


# Weights ------------------------------------------------------------------------------------------


def weights(results: Results) -> Iterator[Item]:
    """The influence of hostile clients, and the weight of every client in every round; controls have none."""
    if results.has_hostile:
        title = "influence of all hostile clients together"
        yield from lines(results, "hostile_influence", title, ".0%")
    if len(results.shown) < len(results.methods):
        yield f"Figures and audits of single methods are those of the {MOST_SHOWN} best."
    grids = {}
    for one in results.shown:
        own = one.of_first_seed("weights").dropna(subset=["weight"])
        if len(own) and one.about.control is None:
            marks = own["hostile"].notna().map({True: " (hostile)", False: ""})
            named = own.assign(name=client_names(own) + marks)
            grids[one] = named.pivot_table("weight", ["client", "name"], "round").droplevel(0)
    highest = max((float(grid.max(axis=None)) for grid in grids.values()), default=1.0)
    for one, grid in grids.items():
        who = "every client" if len(grid) <= MOST_CELLS else f"{MOST_CELLS} clients"
        title = f"{one.label}: weight of {who}, seed {one.seeds[0]}"
        frame = cells(grid, "client", "weight")
        yield heat_map(f"weights-{one.label}", title, frame, ".2%", highest)


def backdoors(results: Results) -> Iterator[Item]:
    """Classes that react to a common pattern, and what the pattern adds to the inputs.

    Of pictures, all values, the channels side by side; of other inputs, the largest.
    """
    for one in results.shown:
        at = Round(one.run, one.name, one.seeds[0], one.last_round)
        for text, label, pattern in suspicions(at):
            yield f"{one.label}: {text}"
            id = f"pattern-{one.label}-{label}"
            title = f"{one.label}: pattern of class {label}, seed {at.seed}"
            values: Any = numpy.array(pattern)
            if values.ndim == 3:
                thin = values[:, :: 1 + values.shape[1] // MOST_CELLS]
                frame = cells(Frame(numpy.hstack(thin)), "row", "change", "column")
                yield Chart(id, title, frame, "cells", "column", "row", "change")
            else:
                table = encoding(one.run)
                names = table and [
                    column.name for column in table.columns for _ in range(column.width)
                ]
                changes = Series(values.ravel(), names, name="change")
                largest = changes.sort_values(key=abs, ascending=False).head(MOST_LISTED)
                yield Table(id, title, largest.rename_axis("input").reset_index())


def cells(grid: Frame, rows: str, value: str, columns: str = "round") -> Frame:
    """The first rows [rows, columns] of a heat map as a tidy frame, of many columns some at even distances."""
    shown = grid.iloc[:MOST_CELLS, :: -(-grid.shape[1] // MOST_CELLS)]
    names, places = [*shown.index] * shown.shape[1], shown.columns.repeat(len(shown)).astype(int)
    return Frame({rows: names, columns: places, value: shown.to_numpy().ravel("F")}).dropna()


def heat_map(id: str, title: str, frame: Frame, format: str, most: float) -> Chart:
    """A heat map whose colours end at 0 and `most`, and the rows that are highest."""
    rows, x, value = frame.columns
    highest = frame.groupby(rows)[value].mean().nlargest(3)
    alt = f"{title}. Highest on average: {', '.join(highest.index)}."
    return Chart(
        id, title, frame, "cells", x, rows, value, format=format, limits=(0.0, most), alt=alt
    )


# Loops and refusals -------------------------------------------------------------------------------


def priority(results: Results) -> Iterator[Item]:
    """P2's loop: the order of priority over time, with its testing rounds."""
    for one in results.shown:
        own = one.first_rounds.dropna(subset=["priority"])
        if not own["testing_rounds"].any():
            continue
        orders = own["priority"].map(" > ".join)
        frame = Frame({"order": orders, "round": own["round"], "tests": own["testing_rounds"]})
        common = orders.mode()[0]
        changes = sum(before != after for before, after in pairwise(orders))
        title = f"{one.label}: order of priority, seed {one.seeds[0]}"
        alt = (
            f"{title}. Most often {common} ({(orders == common).sum()} of {len(orders)} rounds), changed {changes} "
            f"times, {frame['tests'].sum()} testing rounds."
        )
        thin = frame.iloc[:: -(-len(frame) // MOST_POINTS)]
        yield Chart(
            f"priority-{one.label}",
            title,
            thin,
            "cells",
            y="order",
            colour="tests",
            format="~g",
            alt=alt,
        )


def classes(results: Results) -> Iterator[Item]:
    """P3's loop: F1 and weight of every class over time."""
    titles = {
        "per_class_f1": "F1 of every class",
        "class_weights": "class weights κ sent to the clients",
    }
    for column, words in titles.items():
        for one in results.shown:
            own = one.first_rounds.set_index("round")
            own["class_weights"] = own["loss_state"].astype(object).str.get("class_weights")
            grid = Frame(own[column].dropna().to_dict(), dtype=float)  # [classes, rounds]
            if grid.empty:
                continue
            frame = cells(grid.set_axis(class_names(one.run, len(grid))), "class", "value")
            title = f"{one.label}: {words}, seed {one.seeds[0]}"
            highest = max(1.0, float(frame["value"].max()))
            yield heat_map(f"{column}-{one.label}", title, frame, ".2f", highest)


def refusals(results: Results) -> Iterator[Item]:
    """One row per client and reason, and one per note on a round."""
    parts = []
    for one in results.methods:
        parts.append(one.missing.assign(method=one.label, client=client_names(one.missing)))
        parts.append(Frame({"method": one.label, "reason": one.notes}))
    every = pandas.concat(parts)
    if every.empty:
        return
    yield "An invalid update never ends a run. Refused updates are not part of the aggregate."
    of_one = every.groupby(["method", "client", "seed", "reason"], sort=False, dropna=False)
    found = of_one["round"].agg(**{"times": "size", "first in round": "min"})
    frame = found.nlargest(MOST_LISTED, "times").reset_index().dropna(axis="columns", how="all")
    yield Table("refused", "Refused updates, and rounds that changed nothing", frame)
