"""The sections of a report: each is a function of `Results` that yields texts, tables and charts.

A new section is a function here: the page and the files show what it yields.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy
import pandas

from .items import (
    Chart,
    Column,
    Item,
    Table,
    Unit,
    counted,
    fixed,
    in_bytes,
    in_time,
    percent,
    section,
    table,
)
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
WIDE = 1000  # times the lowest loss: beyond, its axis is logarithmic
PERCENTAGES = [f"{share}%" for share in SHARES[:9]]
CENSORED = (
    "Rounds to a target: the number of seeds that reached it, and the median round. Seeds that did "
    "not reach it count as slowest; – where the median seed did not."
)
SIMULATED = "simulated: known from the seed, protects nobody"
OTHER_WEIGHTS = {
    "chosen": "the chosen weights",
    "uniform": "equal weights",
    "size": "weights by size",
    "without": "without",
}


# Result -------------------------------------------------------------------------------------------


@section("Result")
def result(results: Results) -> Iterator[Item]:
    """Every method with its metric, its difference to the baseline and what else was measured."""
    yield result_table(results)


def result_table(results: Results) -> Table:
    """The main table: one row per method, the best first."""
    best, *others = results.rivals or results.methods
    leads = [results.differences.get((best.label, one.label)) for one in others]
    is_ahead = bool(leads) and all(one is not None and one.is_significant for one in leads)
    is_marked = is_ahead and len(results.comparable) == len(results.methods)
    note = result_notes(results)
    if is_marked:
        note.append("Bold: the lead over every other method is statistically significant.")
    return table(
        "summary",
        "Methods, best first" if results.comparable else "Methods, not ranked",
        _result_columns(results),
        " ".join(note),
        bold=(results.ranked.index(best),) if is_marked else (),
    )


def _result_columns(results: Results) -> Iterator[Column]:
    facts, unit, rows = results.facts, results.unit, results.ranked
    is_lower = not facts.higher_is_better
    yield Column("method", [one.label for one in rows], [one.marked for one in rows])
    yield _metric_column(results)
    against = [results.differences.get((one.label, results.baseline.label)) for one in rows]
    texts = [
        "baseline" if one is results.baseline else _signed(found, unit)
        for one, found in zip(rows, against, strict=True)
    ]
    yield difference_column("against the baseline", against, texts, is_lower)
    yield _mean_column(
        "macro F1", [one.last("macro_f1") for one in rows], fixed(3), is_secondary=True
    )
    yield from _client_columns(results)
    yield from _target_columns(results)
    if results.has_hostile:
        yield Column(
            "influence of hostile clients",
            [one.mean_by_seed("hostile_influence") for one in rows],
            percent,
            lower=True,
        )
    yield _mean_column(
        "backdoor success rate",
        [one.last("attack_success") for one in rows],
        percent,
        is_lower=True,
    )
    if has_search(results):
        tests = [one.sum("testing_rounds") / max(1, len(one.seeds)) for one in rows]
        yield Column("testing rounds", tests, fixed(0), lower=True)


def _metric_column(results: Results) -> Column:
    rows = results.ranked
    values = [one.last("metric") for one in rows]
    means, deviations = [own.mean() for own in values], [own.std() for own in values]
    texts = [results.unit.spread(*both) for both in zip(means, deviations, strict=True)]
    if results.comparable:
        texts = [
            text if one in results.comparable else f"{text} (round {one.last_round})"
            for one, text in zip(rows, texts, strict=True)
        ]
    inner = {"deviation": deviations, "seeds": [len(own) for own in values]}
    return Column(
        results.facts.metric, means, texts, inner, lower=not results.facts.higher_is_better
    )


def _mean_column(
    name: str,
    values: Sequence[Any],
    text: Callable[..., str],
    *,
    is_lower: bool = False,
    is_secondary: bool = False,
) -> Column:
    return Column(
        name, [own.mean() for own in values], text, lower=is_lower, secondary=is_secondary
    )


def difference_column(
    name: str,
    differences: Sequence[Difference | None],
    texts: Sequence[str],
    is_lower: bool = False,
) -> Column:
    """Differences, in a CSV with interval, p and number of pairs."""
    intervals = [(one and one.interval) or (math.nan, math.nan) for one in differences]
    inner = {
        "low": [low for low, _ in intervals],
        "high": [high for _, high in intervals],
        "p": [one.p_value if one else None for one in differences],
        "pairs": [one.pairs if one else None for one in differences],
    }
    means = [one.mean if one else math.nan for one in differences]
    return Column(name, means, texts, inner, lower=is_lower)


def _signed(found: Difference | None, unit: Unit) -> str:
    return "–" if found is None else found.text(unit.signed)


def _client_columns(results: Results) -> Iterator[Column]:
    """The worst client, or of many clients the deciles, as LEAF reports them."""
    unit, rows, higher = results.unit, results.ranked, results.facts.higher_is_better
    word = client_word(results)
    counts = [
        one.clients.groupby("seed")["metric"].size().max() for one in rows if len(one.clients)
    ]
    if not counts:
        return
    if max(counts) < MANY_CLIENTS:
        worst = [worst_client(one, higher) for one in rows]
        texts = [
            f"{unit.text(value)} ({name})" if name else unit.text(value) for name, value in worst
        ]
        yield Column(f"worst {word}", [value for _, value in worst], texts, lower=not higher)
        return
    for kind, first in (("worst", higher), ("best", not higher)):
        values = [
            one.clients.groupby("seed")["metric"].agg(lambda own, low=first: _decile(own, low))
            for one in rows
        ]
        yield _mean_column(
            f"{kind} decile of {word}s",
            values,
            unit.text,
            is_lower=not higher,
            is_secondary=kind == "best",
        )


def _decile(values: Any, from_the_lowest: bool) -> float:
    """The value that a tenth of the clients, rounded up, do not exceed; or reach."""
    ordered = values.sort_values(ascending=from_the_lowest)
    return float(ordered.iloc[math.ceil(len(ordered) / 10) - 1])


def worst_client(one: Method, higher_is_better: bool) -> tuple[str | None, float]:
    """The client with the worst mean over the seeds, and its metric.

    Without a name where every seed draws the clients anew: then the mean of each seed's worst.
    """
    means = one.by_client().mean(axis=1)
    if len(means):
        name = means.idxmin() if higher_is_better else means.idxmax()
        return str(name), float(means[name])
    by_seed = one.clients.groupby("seed")["metric"]
    return None, float((by_seed.min() if higher_is_better else by_seed.max()).mean())


def _target_columns(results: Results) -> Iterator[Column]:
    """Rounds, and where there is a clock time and bytes, to the target."""
    target = next((run.facts.target for run in results.runs if run.facts.target is not None), None)
    if target is None:
        return
    first = [
        first_rounds(one.metric, target, results.facts.higher_is_better).reindex(one.seeds)
        for one in results.ranked
    ]
    for name, use, text in scales(results):
        own = [use(one, rounds) for one, rounds in zip(results.ranked, first, strict=True)]
        yield reached_column(f"{name} to {results.unit.target(target)}", own, text)


def first_rounds(curves: Frame, target: float, higher_is_better: bool) -> Any:
    """By seed, the first round in which a curve reaches a target; NaN where it does not."""
    reached = curves >= target if higher_is_better else curves <= target
    return reached.idxmax().where(reached.any()) if len(curves) else pandas.Series(dtype=float)


Use = Callable[[Method, Any], Any]


def scales(results: Results) -> list[tuple[str, Use, Callable[[float], str]]]:
    """What is used up until a round: rounds and, where clients have a clock, time and bytes."""
    found: list[tuple[str, Use, Callable[[float], str]]] = [
        ("rounds", lambda _, rounds: rounds, "{:g}".format)
    ]
    if results.has_clock:
        found.append(("time", lambda one, rounds: _used(one.curve("ended"), rounds), in_time))
        found.append(("bytes", lambda one, rounds: _used(bytes_sent(one), rounds), in_bytes))
    return found


def _used(so_far: Frame, rounds: Any) -> Any:
    """By seed, what was used up at the end of a round; nothing is known of a control, which has no clock."""
    values = {
        seed: so_far[seed].get(number) if seed in so_far else None
        for seed, number in rounds.items()
    }
    return pandas.Series(values, dtype=float)


def bytes_sent(one: Method) -> Frame:
    """The bytes of models sent until every round ended, both ways together."""
    return (
        one.curve("models_moved").cumsum() * one.run.facts.model_bytes
        if "ended" in one.rounds
        else Frame()
    )


def reached_column(name: str, of_seeds: Sequence[Any], text: Callable[[float], str]) -> Column:
    """How many seeds reached a target, and the median of when; those that did not are slowest."""
    medians = [own.astype(float).fillna(math.inf).median() for own in of_seeds]
    counts = [int(own.notna().sum()) for own in of_seeds]
    texts = [
        reached_text(median, count, len(own), text)
        for median, count, own in zip(medians, counts, of_seeds, strict=True)
    ]
    known = [median if math.isfinite(median) else None for median in medians]
    missed = [len(own) - count for own, count in zip(of_seeds, counts, strict=True)]
    return Column(
        name,
        pandas.Series(known, dtype=float),
        texts,
        {"reached": counts, "not reached": missed},
        lower=True,
    )


def reached_text(median: float, reached: int, seeds: int, text: Callable[[float], str]) -> str:
    """How many of the seeds reached a target, and the median.

    >>> reached_text(4.0, 2, 3, "{:g}".format), reached_text(math.inf, 1, 2, str), reached_text(7.0, 1, 1, "{:g}".format)
    ('2/3: 4', '1/2: –', '7')
    """
    shown = text(median) if math.isfinite(median) else "–"
    if seeds > 1:
        return f"{reached}/{seeds}: {shown}"
    return shown if reached else "not reached"


def result_notes(results: Results) -> list[str]:
    """What the columns of the result mean, sentence by sentence."""
    facts, unit = results.facts, results.unit
    values = f"Values of the last round on {facts.reported_on}"
    if results.has_several_seeds:
        values += ", mean over the seeds; ± is the standard deviation over the seeds"
    sentences = [f"{values}."]
    if len(results.methods) > 1:
        sentences.append(
            "Differences are paired by seed on the same data, in the last round that both methods "
            f"have run{unit.in_points}."
        )
        sentences.append(
            "Their 95% confidence intervals stand in brackets. Intervals and p-values are corrected for all pairs "
            "(Holm): an interval excludes 0 if and only if p < 0.05."
            if results.has_several_seeds
            else "With one seed, no confidence interval can be given."
        )
    sentences += brief_notes(results)
    if results.has_hostile:
        sentences.append("The influence of hostile clients is the mean over all rounds.")
    if has_search(results):
        sentences.append("Testing rounds are counted over all rounds.")
    if any(run.facts.target is not None for run in results.runs):
        sentences.append(CENSORED)
    if results.has_clock:
        sentences.append("The last round of two methods may end at different times on the clock.")
    return sentences


def brief_notes(results: Results) -> list[str]:
    """What the terminal says, too: how many samples the values are about, and the marks of methods."""
    sentences = {
        _reporting_size(run.facts, results.unit): None
        for run in results.runs
        if run.facts.report_samples
    }
    if not any(len(one.clients) for one in results.methods):
        sentences["No client has results on test data of its own."] = None
    elif (
        max(one.clients.groupby("seed").size().max() for one in results.methods if len(one.clients))
        >= MANY_CLIENTS
    ):
        worse = f"this {results.facts.metric} or a worse one on their own test data"
        sentences[f"Worst decile: 10% of the {evaluated_clients(results)} have {worse}."] = None
    sentences |= dict.fromkeys(sampling_in_words(results))
    if not all(one.about.is_available for one in results.methods):
        sentences[NOT_AVAILABLE_MEANS] = None
    if any(one.about.trains_on_server for one in results.methods):
        sentences[TRAINS_ON_SERVER_MEANS] = None
    return [*sentences]


def _reporting_size(facts: Any, unit: Unit) -> str:
    """On how many samples results are reported, and what one of them is worth."""
    details = []
    if facts.report_rarest is not None:
        details.append(f"{facts.report_rarest:,} of the rarest class")
    worth = 1 / facts.report_samples
    if facts.is_share and facts.higher_is_better and worth >= NOTABLE:
        details.append(f"one sample is worth about {unit.size(worth)} points")
    said = f"Reported on {counted(facts.report_samples, 'sample')}"
    return f"{said} ({'; '.join(details)})." if details else f"{said}."


def has_search(results: Results) -> bool:
    """Whether a method tries several orders of priority."""
    return any(one.sum("testing_rounds") for one in results.methods)


# Curves -------------------------------------------------------------------------------------------


@section("Over the rounds")
def curves(results: Results) -> Iterator[Item]:
    """The curves of all methods; the metric over time and bytes too, where there is a clock."""
    if results.is_unmeasured:
        return
    facts = results.facts
    yield metric_chart(results)
    if results.has_clock:
        yield from over_used(
            results, "time", [one.curve("ended") for one in results.methods], TIME_UNITS
        )
        yield from over_used(
            results, "bytes", [bytes_sent(one) for one in results.methods], BYTE_UNITS
        )
    yield from lines(results, "macro_f1", f"macro F1 on {facts.reported_on}", "~g")
    yield from lines(results, "loss", f"loss on {facts.reported_on}", "~g")


TIME_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
BYTE_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def metric_chart(results: Results) -> Chart:
    """The metric over the rounds, with the target."""
    facts = results.facts
    frame = spread(results.methods, [one.metric for one in results.methods])
    return Chart(
        "metric",
        f"{facts.metric} on {facts.reported_on}",
        frame,
        "lines",
        x="round",
        y="value",
        colour="method",
        low="low",
        high="high",
        format=results.unit.axis,
        reference=facts.target,
        alt=ends_in_words(frame, results.unit.text),
    )


def lines(
    results: Results, column: str, title: str, format: str, methods: Iterable[Method] | None = None
) -> Iterator[Chart]:
    """A column of the rounds, one line per method; nothing where no round has it."""
    chosen = list(results.methods if methods is None else methods)
    yield from _line_chart(
        column, title, spread(chosen, [one.curve(column) for one in chosen]), format
    )


def _line_chart(id: str, title: str, frame: Frame, format: str) -> Iterator[Chart]:
    if len(frame):
        text = percent if "%" in format else "{:.3g}".format
        positive = frame["value"][frame["value"] > 0]
        is_wide = id == "loss" and len(positive) and positive.max() > WIDE * positive.min()
        yield Chart(
            id,
            title,
            frame,
            "lines",
            "round",
            "value",
            "method",
            "low",
            "high",
            format=format,
            logarithmic=bool(is_wide),  # a method that diverged presses the others flat
            alt=ends_in_words(frame, text),
        )


def spread(methods: Sequence[Method], curves: Sequence[Frame]) -> Frame:
    """Curves [rounds, seeds] as a tidy frame: method, round, mean over the seeds, lowest and highest.

    A seed that has only begun is left out: it must not shorten the line of the others.
    """
    parts = []
    for one, found in zip(methods, curves, strict=True):
        if found.empty:
            continue
        whole = found.loc[:, found.iloc[-1].notna()].astype(float)
        thin = whole.iloc[
            sorted({*range(0, len(whole), -(-len(whole) // MOST_POINTS)), len(whole) - 1})
        ]
        columns = {"value": thin.mean(axis=1), "low": thin.min(axis=1), "high": thin.max(axis=1)}
        parts.append(Frame(columns).assign(method=one.label).reset_index())
    frame = pandas.concat(parts, ignore_index=True) if parts else Frame()
    return frame.rename(columns={"index": "round"})


def ends_in_words(frame: Frame, text: Callable[[float], str]) -> str:
    """Where the lines of a chart begin and end."""
    if frame.empty:
        return "Nothing recorded yet."
    ends = frame.groupby("method", sort=False)["value"].agg(["first", "last"])
    return (
        "; ".join(
            f"{name} from {text(row['first'])} to {text(row['last'])}"
            for name, row in ends.iterrows()
        )
        + "."
    )


def over_used(
    results: Results, what: str, used: Sequence[Frame], units: dict[str, float]
) -> Iterator[Chart]:
    """The metric over time or bytes, each round at its end in the mean over the seeds."""
    frame = spread(results.methods, [one.metric for one in results.methods])
    ends = spread(results.methods, used).rename(columns={"value": what})
    if frame.empty or ends.empty:
        return
    both = frame.merge(ends[["method", "round", what]], on=["method", "round"])
    unit = [
        name
        for name, size in units.items()
        if both[what].max() >= 2 * size or size == min(units.values())
    ][-1]
    both[unit] = both.pop(what) / units[unit]
    title = f"{results.facts.metric} on {results.facts.reported_on}, over {what}"
    yield Chart(
        f"metric-{what}",
        title,
        both,
        "lines",
        unit,
        "value",
        "method",
        "low",
        "high",
        format=results.unit.axis,
        reference=results.facts.target,
    )


# Loops and privacy --------------------------------------------------------------------------------


@section("Privacy")
def privacy(results: Results) -> Iterator[Item]:
    """ε over the rounds, and the promise of each method."""
    rows = promises(results)
    if rows.empty:
        return
    yield from lines(results, "epsilon", "ε spent", "~g")
    yield Table(
        "privacy",
        "Privacy spent",
        rows,
        "ε at δ of all rounds so far, the largest over the seeds; each seed spends its own. It covers the "
        "models alone: the run folder and this report show single clients (docs/privacy.md).",
        formats={"ε so far": fixed(3)},
    )


def promises(results: Results) -> Frame:
    """What each method with differential privacy has spent, and promises."""
    rows = []
    for one in results.methods:
        spent = one.rounds.dropna(subset=["epsilon"]) if "epsilon" in one.rounds else Frame()
        if spent.empty:
            continue
        last = spent.loc[spent["epsilon"].idxmax()]
        settings = one.about.privacy
        by_clients = settings.get("local") is True
        sampling = one.run.config.get("federation", {}).get("sampling")
        rows.append(
            {
                "method": one.label,
                "ε so far": last["epsilon"],
                "δ": settings.get("delta"),
                "budget ε": settings.get("epsilon"),
                "clipping norm": last["clip"],
                "deviation of the noise": last["deviation"],
                "neighbours": "replace one client"
                if by_clients or sampling != "poisson"
                else "add or remove one client",
                "noise by": "clients" if by_clients else "server",
                "noise": "secret" if settings.get("secret") is True else SIMULATED,
            }
        )
    return Frame(rows)


def privacy_in_words(results: Results) -> Iterator[str]:
    """What each method has spent, as the table states it."""
    for row in promises(results).to_dict("records"):
        yield (
            f"{row['method']}: ε = {row['ε so far']:.3f} at δ = {row['δ']} after all rounds so far "
            f"({row['neighbours']}; noise: {row['noise']})."
        )


@section("Adapters")
def adapters(results: Results) -> Iterator[Item]:
    """What the rank of LoRA adapters leaves out of the mean of the clients' products."""
    charts = list(lines(results, "residual", "Residual of the mean adapter", ".0%"))
    if charts:
        yield (
            "The clients' products B·A have a mean of a higher rank than one adapter. The residual is the part of its "
            "Frobenius norm that the nearest matrix of the adapters' rank leaves out, over all adapted layers. If it "
            "is large, use a larger rank."
        )
        yield from charts


# Targets and best rounds --------------------------------------------------------------------------


@section("Rounds to target")
def targets(results: Results) -> Iterator[Item]:
    """P1's tables: the first round in which 10 ... 90% of the clients reach a target on their own test data."""
    for target in _targets(results):
        for name, use, text in scales(results):
            yield _target_table(results, target, name, use, text)


def _targets(results: Results) -> list[float]:
    """The config's targets; otherwise what half of the baseline's clients reached, rounded."""
    facts = results.facts
    given = facts.client_targets or ([facts.target] if facts.target else [])
    if given:
        return list(given)
    last = results.baseline.last("reached")
    if last.empty:
        return []
    target = rounded_target(
        float(numpy.mean([values[4] for values in last])), facts.is_share, facts.higher_is_better
    )
    return [] if target is None or (facts.is_share and target in (0, 1)) else [target]


def rounded_target(value: float, is_share: bool, is_down: bool) -> float | None:
    """A value as a target that is easy to read: in steps of 5%, or of two digits; None below the first step.

    >>> rounded_target(0.83, True, True), rounded_target(12.3, False, False)
    (0.8, 13.0)
    """
    if value <= 0 or not math.isfinite(value):
        return None
    step = 0.05 if is_share else 10.0 ** (math.floor(math.log10(value)) - 1)
    steps = int(value / step)
    return float(f"{(steps if is_down else steps + 1) * step:.6g}") if steps else None


def until_clients_reach(one: Method, target: float) -> Frame:
    """The first rounds in which 10 ... 90% of the clients reach a target [seeds, percentages]; NaN: never."""
    found = {}
    curves = one.curve("reached")
    for place, name in enumerate(PERCENTAGES):
        own = curves.map(
            lambda values, place=place: (
                values[place] if isinstance(values, list | tuple) else math.nan
            )
        )
        found[name] = (
            first_rounds(own, target, one.run.facts.higher_is_better)
            .reindex(list(one.seeds))
            .astype(float)
        )
    return Frame(found)


def _target_table(
    results: Results, target: float, name: str, use: Use, text: Callable[[float], str]
) -> Table:
    methods = [one for one in results.methods if name == "rounds" or "ended" in one.rounds]
    reached = {one.label: until_clients_reach(one, target) for one in results.methods}
    columns = [Column("method", [one.label for one in methods])]
    for share in PERCENTAGES:
        columns.append(
            reached_column(share, [use(one, reached[one.label][share]) for one in methods], text)
        )
        for row, one in enumerate(methods):
            if "reached" not in one.rounds:  # no client has been evaluated yet
                columns[-1].text[row] = "–"  # type: ignore[index]
    facts = results.facts
    title = f"{facts.metric} of at {'least' if facts.higher_is_better else 'most'} {results.unit.target(target)}"
    who = f"that percentage of the {evaluated_clients(results)} reaches the target"
    if name != "rounds":
        note = f"{name.capitalize()} until {who}; see the table above."
        return table(f"target-{target:g}-{name}", f"{name} to {title}", columns, note)
    theirs = reached[results.baseline.label]
    gains = [gain_against(one, results.baseline, reached[one.label], theirs) for one in methods]
    texts = [
        "baseline" if one is results.baseline else gain_text(gain)
        for one, gain in zip(methods, gains, strict=True)
    ]
    gains = [
        None if one is results.baseline else gain for one, gain in zip(methods, gains, strict=True)
    ]
    columns.append(difference_column("average gain", gains, texts))
    note = (
        f"Rounds until {who} on its own test data. {CENSORED} The gain is in rounds against the first method, mean "
        "over the nine percentages, with a 95% confidence interval over the seeds. A percentage that is not "
        "reached counts as reached in the last round that both methods have run (P1's rule): a "
        "loss is at least as large, and what neither reaches is no gain."
    )
    return table(f"target-{target:g}", title, columns, note)


def gain_text(gain: Difference | None) -> str:
    """A gain in rounds, with its interval."""
    if gain is None:
        return "–"
    text = gain.text(lambda value: f"{round(value, 1) + 0.0:+.1f}")
    return text if gain.interval else f"{text} (one seed)"


def gain_against(one: Method, baseline: Method, ours: Frame, theirs: Frame) -> Difference | None:
    """Rounds saved against the baseline, mean over the percentages (P1's Avg.), paired by seed.

    A percentage that is not reached counts as reached in the last round that both have run (P1's Table 6): running
    longer is no advantage. None where neither reaches any.
    """
    last = {seed: min(one.done[seed], baseline.done[seed]) for seed in shared_seeds(one, baseline)}
    return average_gain(theirs, ours, last)


def average_gain(baseline: Frame, ours: Frame, last: dict[int, int]) -> Difference | None:
    """See `gain_against`; frames are [seeds, percentages], and `last` is the last round by seed.

    >>> frames = [Frame([row], index=[1]) for row in ([1, 20, math.nan], [1, 10, 80])]
    >>> average_gain(*frames, {1: 100}).mean  # (0 + 10 + 20)/3
    10.0
    """
    ends = pandas.Series(last, dtype=float)
    both = [
        frame.reindex(ends.index).where(lambda own: own.le(ends, axis=0))
        for frame in (baseline, ours)
    ]
    if not any(bool(frame.notna().any(axis=None)) for frame in both):
        return None
    before, after = (frame.T.fillna(ends).T for frame in both)
    gains = (before - after).mean(axis=1)
    return paired_difference(gains, [0.0] * len(gains))


@section("Best rounds, sample by sample")
def best_rounds(results: Results) -> Iterator[Item]:
    """P1's Tables 3, 5 and 7: which samples a method and the baseline classified correctly."""
    baseline, unit = results.baseline, results.unit
    rows: list[dict[str, Any]] = []
    for one in results.methods[1:]:
        for seed in shared_seeds(one, baseline):
            ours, theirs = one.run.right(one.name, seed), baseline.run.right(baseline.name, seed)
            # Nothing was kept (regression); other clients were hostile, so samples differ; one has run longer
            if (
                ours is None
                or theirs is None
                or len(ours[1]) != len(theirs[1])
                or one.done[seed] != baseline.done[seed]
            ):
                continue
            counts, p_value = mcnemar(ours[1], theirs[1])
            rows.append(
                {
                    "method": one.label,
                    "seed": seed,
                    "best": f"{unit.text(one.metric[seed].get(ours[0]))} (round {ours[0]})",
                    "baseline's best": f"{unit.text(baseline.metric[seed].get(theirs[0]))} (round {theirs[0]})",
                    **counts,
                    "p (McNemar, Holm)": p_value,
                }
            )
    if not rows:
        return
    frame = Frame(rows)
    frame["p (McNemar, Holm)"] = holm_p_values(frame["p (McNemar, Holm)"].tolist())
    yield Table(
        "contingency",
        f"Right and wrong, against {baseline.label}",
        frame,
        f"Counts of {results.facts.reported_on}, every method at its own best round. That round "
        "was chosen on these same samples, so both values are optimistic. McNemar's exact test: "
        "whether the samples that only one of the two classifies correctly are divided by chance; "
        "p is corrected for all rows (Holm). Seeds in which the two have run different numbers of "
        "rounds are left out.",
        lower=("both wrong", "only the baseline", "p (McNemar, Holm)"),
        formats={"p (McNemar, Holm)": p_number},
    )


# Clients ------------------------------------------------------------------------------------------


@section("Clients")
def clients(results: Results) -> Iterator[Item]:
    """Fairness, every client under every method, and how they are spread."""
    known = [one for one in results.methods if len(one.clients)]
    if not known:
        return
    sampled = sampling_in_words(results)
    lead = " ".join(
        [f"{evaluated_clients(results).capitalize()}, each on its own test data.", *sampled]
    )
    by_client = client_table(results)
    if by_client is None and not sampled:
        lead += " Clients have no names and are drawn anew for every seed: none can be followed."
    yield lead
    fair = fairness_table(results)
    if fair is not None:
        yield fair
    if by_client is not None:
        yield by_client
    for place, words in ((4, "half"), (8, "nine of ten")):
        curves = [
            one.curve("reached").map(
                lambda own, place=place: own[place] if own is not None else math.nan
            )
            for one in known
        ]
        title = f"{results.facts.metric} that {words} of the clients reach on their own test data"
        yield from _line_chart(
            f"reached-{PERCENTAGES[place]}", title, spread(known, curves), results.unit.axis
        )
    yield _distribution(results, known)


def _distribution(results: Results, methods: Sequence[Method]) -> Chart:
    """The spread over the clients in the last round: every client is a dot."""
    unit = results.unit
    frames = [
        one.clients[["metric"]].assign(method=one.label, client=client_names(one.clients))
        for one in methods
    ]
    frame = pandas.concat(frames, ignore_index=True).rename(columns={"metric": "value"})
    ends = frame.groupby("method", sort=False)["value"].agg(["median", "min"])
    words = "; ".join(
        f"{name} median {unit.text(row['median'])}, lowest {unit.text(row['min'])}"
        for name, row in ends.iterrows()
    )
    alt = f"Spread over the clients in the last round: {words}."
    title = f"{results.facts.metric} of the clients in the last round"
    return Chart(
        "distribution", title, frame, "dots", "value", "method", "method", format=unit.axis, alt=alt
    )


def client_word(results: Results) -> str:
    """What the worst client is one of."""
    return "sampled client" if "sampled" in results.baseline.run.frame("rounds") else "client"


def evaluated_clients(results: Results) -> str:
    """The clients that results are about; which of them are honest is known in simulations alone."""
    word = f"{client_word(results)}s"
    return f"honest {word}" if results.has_hostile else word


def sampling_in_words(results: Results) -> list[str]:
    """Where a sample of the clients evaluates models: its size and standard error."""
    sentences = []
    for run in results.runs:
        rounds = run.frame("rounds")
        if "sampled" not in rounds:
            continue
        methods = [one for one in results.methods if one.run is run]
        every = int((run.frame("clients")["seed"] == methods[0].seeds[0]).sum())
        sentence = f"The clients' results are on a random sample, {rounds['sampled'].max():,.0f} of {every:,} clients in a round"
        errors = [error for one in methods for error in one.last("sampling_error")]
        if errors:
            largest = max(errors) * (100 if results.unit.percent else 1)
            most = " (the largest of all methods and seeds)" if len(errors) > 1 else ""
            sentence += (
                f"; the standard error of their mean {results.facts.metric} in the last round "
                f"is ± {largest:.2g}{results.unit.points}{most}"
            )
        sentences.append(f"{sentence}.")
    return sentences


def fairness_table(results: Results) -> Table | None:
    """How evenly each method serves the clients; None where fewer than two are evaluated."""
    higher, unit = results.facts.higher_is_better, results.unit
    by_seed = [[own["metric"] for _, own in one.clients.groupby("seed")] for one in results.methods]
    if not any(len(values) > 1 for own in by_seed for values in own):
        return None

    def column(
        name: str, measure: Callable[[Any], float], text: Callable[..., str], is_lower: bool = False
    ) -> Column:
        values = [
            numpy.mean([measure(values) for values in own]) if own else math.nan for own in by_seed
        ]
        return Column(name, values, text, lower=is_lower)

    def in_points(value: float) -> str:
        return "–" if value != value else f"{unit.size(value)}{unit.points}"

    columns = [
        Column("method", [one.label for one in results.methods]),
        column("mean", lambda own: own.mean(), unit.text, not higher),
        column("worst 10%", lambda own: worst_tenth(own, higher), unit.text, not higher),
        column("best 10%", lambda own: worst_tenth(own, not higher), unit.text, not higher),
        column("standard deviation", lambda own: own.std(ddof=0), in_points, True),
        column("variance", lambda own: own.var(ddof=0), "{:.4g}".format, True),
        column("Jain's index", jain_index, fixed(3)),
    ]
    note = (
        f"{results.facts.metric} of the {evaluated_clients(results)} on their own test data in the last round, "
        "each client with equal weight; mean over the seeds. "
        "Worst and best 10%: mean over a tenth of the clients, rounded up. "
        "Jain's index: (Σx)²/(n·Σx²), 1 if all clients have the same value."
    )
    gaps = list(_gap_columns(results, in_points))
    if gaps:
        note += (
            " Gap: difference between the groups of clients with the highest and the lowest mean; "
            f"attributes with more than {MOST_GROUPS} values are divided at their median."
        )
    return table("fairness", "Fairness among clients", [*columns, *gaps], note)


def worst_tenth(values: Any, higher_is_better: bool) -> float:
    """Mean over the worst tenth of the clients, rounded up.

    >>> worst_tenth(pandas.Series([0.5, 0.9, 0.7]), higher_is_better=True)
    0.5
    """
    worst_first = values.sort_values(ascending=higher_is_better)
    return float(worst_first.iloc[: math.ceil(len(worst_first) / 10)].mean())


def jain_index(values: Any) -> float:
    """(Σx)²/(n·Σx²) of values of zero or more; NaN for others, and where all are zero.

    >>> jain_index(pandas.Series([1.0, 1.0])), jain_index(pandas.Series([1.0, 0.0]))
    (1.0, 0.5)
    """
    squares = float((values**2).sum())
    return (
        float(values.sum() ** 2 / (len(values) * squares))
        if squares and values.min() >= 0
        else math.nan
    )


def _gap_columns(results: Results, text: Callable[[float], str]) -> Iterator[Column]:
    """For every attribute of the clients that the config states: the gap between its groups."""
    attributes = results.baseline.run.config.get("attributes")
    for name, values in attributes.items() if isinstance(attributes, dict) else ():
        groups = groups_of(values) if isinstance(values, list) else []
        if len({*groups}) < 2:
            continue
        gaps = []
        for one in results.methods:
            known = one.clients[one.clients["client"] < len(groups)]
            means = (
                known.groupby(known["client"].map(dict(enumerate(groups))))["metric"]
                .mean()
                .sort_values()
            )
            worst = (
                means.index[0 if results.facts.higher_is_better else -1] if len(means) > 1 else ""
            )
            gaps.append((means.iloc[-1] - means.iloc[0] if len(means) > 1 else math.nan, worst))
        texts = [f"{text(gap)} (worst: {worst})" if worst else "–" for gap, worst in gaps]
        yield Column(
            f"gap by {name}",
            [gap for gap, _ in gaps],
            texts,
            {"worst": [worst for _, worst in gaps]},
            lower=True,
        )


def groups_of(values: Sequence[object]) -> list[str]:
    """The group of every client by an attribute: its value or, of many numbers, a half; none of many words.

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
        return []
    middle = numpy.median(numbers)
    return [f"below {middle:g}" if number < middle else f"from {middle:g}" for number in numbers]


def client_table(results: Results) -> Table | None:
    """Every client under every method, the worst under the first method on top; None where none can be followed."""
    facts, unit, label = results.facts, results.unit, results.baseline.label
    found = {one.label: one.by_client() for one in results.methods}
    means = Frame({name: own.mean(axis=1) for name, own in found.items() if len(own)})
    if means.empty:
        return None
    if label in means:
        means = means.sort_values(label, ascending=facts.higher_is_better, kind="stable")
    shown = means.head(MOST_LISTED)
    columns = [Column("client", shown.index.tolist())]
    for name in shown:
        differences = (
            found[name].sub(found[label]).mean(axis=1)
            if label in means and name != label
            else Frame()
        )
        texts = []
        for client, value in shown[name].items():
            change = differences.get(client, math.nan)
            texts.append(
                unit.text(value) + (f" ({unit.signed(change)})" if change == change else "")
            )
        columns.append(Column(name, shown[name].tolist(), texts, lower=not facts.higher_is_better))
    title = (
        "Client by client"
        if len(shown) == len(means)
        else f"The {len(shown)} worst of {len(means)} clients"
    )
    note = (
        f"{facts.metric} on the client's own test data in the last round, mean over the seeds; in "
        f"parentheses the difference to {label}, paired by seed{unit.in_points}."
    )
    return table("by-client", f"{title}, the worst under {label} first", columns, note)


@section("Who gains")
def gains(results: Results) -> Iterator[Item]:
    """Every client with the federation, alone and pooled; where a method is the control "alone"."""
    alone, pooled = results.control("alone"), results.control("pooled")
    federated = [one for one in results.methods if one.about.control is None]
    found = {one.label: gains_of(one, alone) for one in federated} if alone else {}
    compared = [one for one in federated if found.get(one.label)]
    if alone is None or not compared:
        return
    unit = results.unit
    lead = [
        f"{evaluated_clients(results).capitalize()}, each on its own test data: with the federation's model, with a "
        "model that it trained alone, and with one trained on all clients' samples in one place."
    ]
    for one in compared:
        for name, gain in found[one.label].items():
            if gain.is_significant and gain.mean < 0:
                lead.append(
                    f"{name} would be better off alone than with {one.label}: {gain.text(unit.signed)}{unit.points}."
                )
    worst = []
    for one in compared:
        name, value = worst_client(one, results.facts.higher_is_better)
        deviation = one.by_client().mean(axis=1).std(ddof=0)
        worst.append(
            f"{one.label}: {name} ({unit.text(value)}; SD {unit.size(deviation)}{unit.points})"
        )
    word = client_word(results)
    lead.append(f"Worst {word}, with the standard deviation over all {word}s: {', '.join(worst)}.")
    yield " ".join(lead)
    for one in compared:
        yield _gains_table(one, alone, pooled, found[one.label], unit)


def gains_of(one: Method, alone: Method) -> dict[str, Difference]:
    """By client: the federation minus alone, positive if the federation is better; Holm's correction."""
    sign = 1 if one.run.facts.higher_is_better else -1
    return client_differences(sign * one.by_client(), sign * alone.by_client())


def client_differences(ours: Frame, theirs: Frame) -> dict[str, Difference]:
    """By client, ours minus theirs [names, seeds], with Holm's correction for the number of clients."""
    both = ours.sub(theirs).loc[ours.index.intersection(theirs.index, sort=False)]
    found = {
        name: paired_difference(row, [0.0] * len(row))
        for name, row in zip(both.index, both.to_numpy(), strict=True)
    }
    known = {name: one for name, one in found.items() if one is not None}
    return dict(zip(known, holm([*known.values()]), strict=True))


def _gains_table(
    one: Method, alone: Method, pooled: Method | None, found: dict[str, Difference], unit: Unit
) -> Table:
    columns = [Column("client", [*found])]
    for other in (one, alone, pooled):
        if other is not None:
            columns.append(
                Column(
                    other.label,
                    other.by_client().mean(axis=1).reindex([*found]).tolist(),
                    unit.text,
                )
            )
    columns.append(
        difference_column(
            "gain", [*found.values()], [gain.text(unit.signed) for gain in found.values()]
        )
    )
    columns.append(Column("remark", [_remark(gain) for gain in found.values()]))
    note = (
        "Means over the seeds. The difference is the federation minus alone, paired by seed, "
        "with its 95% interval. Interval and significance are corrected for the number of clients (Holm)."
    )
    return table(
        f"gains-{one.label}", f"{one.label} against {alone.label}{unit.in_points}", columns, note
    )


def _remark(gain: Difference) -> str:
    if not gain.is_significant:
        return ""
    return "gains" if gain.mean > 0 else "better off alone"


# Weights ------------------------------------------------------------------------------------------


@section("Weights")
def weights(results: Results) -> Iterator[Item]:
    """The influence of hostile clients, and the weight of every client in every round; controls have none."""
    weighed = [one for one in results.methods if one.about.control is None]
    if any(has_hostile(one.run) for one in weighed):
        yield from lines(
            results,
            "hostile_influence",
            "influence of all hostile clients together",
            ".0%",
            methods=weighed,
        )
    for one in weighed:
        seed = one.seeds[0]
        own = one.frame("weights")
        own = own[(own["seed"] == seed) & own["weight"].notna()]
        if len(own):
            hostile = own["hostile"].notna().map({True: " hostile", False: ""})
            named = (
                own["client"]
                .astype(str)
                .str.cat([own["name"].fillna("").map(lambda name: name and f" {name}"), hostile])
            )
            title = f"{one.label}: weight of every client, seed {seed}"
            yield cells(
                f"map-{one.label}",
                title,
                own.assign(client=named, number=own["client"]),
                "client",
                "weight",
                ".2%",
            )


def cells(id: str, title: str, frame: Frame, rows: str, value: str, format: str) -> Chart:
    """A heat map over the rounds: a row for each `rows`, or for several with neighbouring numbers."""
    rounds = sorted(frame["round"].unique())
    kept = frame[frame["round"].isin(rounds[:: -(-len(rounds) // MOST_CELLS)])]
    count = kept["number"].max() + 1
    if count > MOST_CELLS:
        size = -(-count // MOST_CELLS)
        first = kept["number"] // size * size
        kept = kept.assign(number=first, **{rows: "from " + first.astype(str)})
    order = ["number", rows, "round"]
    found = kept.groupby(order, as_index=False)[value].mean().drop(columns="number")
    heaviest = found.groupby(rows)[value].mean().nlargest(3)
    alt = f"{title}. Highest on average: {', '.join(heaviest.index)}."
    return Chart(id, title, found, "cells", "round", rows, value, format=format, alt=alt)


@section("Other weights")
def other_weights(results: Results) -> Iterator[Item]:
    """What the updates of every round would have given with other weights, for methods that evaluated them."""
    for one in results.methods:
        rows = one.frame("other_weights")
        rows = rows[(rows["tested"] == -1) & (rows["seed"] == one.seeds[0])]
        if rows.empty:
            continue
        last = int(rows["round"].max())
        named = rows.assign(weights=_other_names(rows, one))
        values = named.pivot_table(index="weights", columns="round", values="metric", sort=False)
        chosen = values.loc[OTHER_WEIGHTS["chosen"]]
        differences = values - chosen
        now = differences.get(last, differences.iloc[:, -1] * math.nan)
        signed = results.unit.signed
        yield table(
            f"counterfactuals-{one.label}",
            f"{one.label}, round {last}: what other weights would have given",
            [
                Column("weights", values.index.tolist()),
                Column(results.facts.metric, values[last].tolist(), results.unit.text),
                Column("difference", now.tolist(), signed),
                Column("mean difference", differences.mean(axis=1).tolist(), signed),
                Column("rounds", differences.count(axis=1).tolist()),
            ],
            "The same updates with other weights, evaluated in the same pass as the model of the round. “Without” "
            "leaves one client out and brings the other weights within the same bounds. Differences are to the chosen "
            f"weights{results.unit.in_points}. The mean is over all rounds in which the candidate could be computed. "
            "Every round starts from the model of the run itself: these are effects of single rounds, which do not add "
            "up to a run with other weights (`clientwise counterfactual`).",
        )


def _other_names(rows: Frame, one: Method) -> list[str]:
    """What each candidate is called."""
    who = one.run.frame("clients")
    who = who[who["seed"] == one.seeds[0]]
    names = dict(zip(who["client"], client_names(who), strict=True))
    kinds = zip(rows["kind"], rows["without"], strict=True)
    return [
        f"without {names.get(gone, gone)}" if kind == "without" else OTHER_WEIGHTS.get(kind, kind)
        for kind, gone in kinds
    ]


@section("Contributions")
def contributions(results: Results) -> Iterator[Item]:
    """Leave-one-out and Shapley values of every method that has them, for its first seed."""
    found = [
        own
        for one in results.methods
        if (own := _contributions_table(one, results.unit)) is not None
    ]
    if found:
        yield (
            "A contribution is what a client's updates did to the metric of the model. Clients with the same data "
            "share one value, and a client whose data others have, too, seems to contribute little. The values depend "
            "on the server's samples and on the other members. They are not payments."
        )
        yield from found


def _contributions_table(one: Method, unit: Unit) -> Table | None:
    seed = one.seeds[0]
    columns: list[Column] = []
    notes = []
    left_out, shapley, errors = _leave_one_out(one, seed), Frame(), Frame()
    own = one.frame("weights")
    own = own[(own["seed"] == seed) & own["shapley"].notna()] if "shapley" in own else Frame()
    if len(own):
        shapley, errors = (
            own.pivot_table(index="client", columns="round", values=value, dropna=False)
            for value in ("shapley", "shapley_error")
        )
    every = left_out.index.union(shapley.index)
    last = one.done[seed]
    for name, values in (("leave-one-out", left_out), ("Shapley", shapley)):
        if values.empty:
            continue
        known = values.reindex(every)
        error = errors.reindex(every) if name == "Shapley" else known * 0.0
        columns += [
            _with_error(
                f"{name}, round {last}",
                known.get(last, known.iloc[:, 0] * math.nan),
                error.get(last),
                unit,
            ),
            _with_error(
                f"{name}, all rounds",
                known.sum(axis=1, min_count=1),
                (error**2).sum(axis=1) ** 0.5,
                unit,
            ),
        ]
        notes.append(CONTRIBUTION_NOTES[name])
    if not columns:
        return None
    if errors.gt(0).any(axis=None):
        notes.append("± is the standard error of sampling.")
    who = one.run.frame("clients")
    who = who[who["seed"] == seed]
    names = dict(zip(who["client"], client_names(who), strict=True))
    called = Column("client", [names.get(client, client) for client in every])
    title = f"{one.label}: contributions to {one.run.facts.metric}{unit.in_points}"
    return table(f"contributions-{one.label}", title, [called, *columns], " ".join(notes))


CONTRIBUTION_NOTES = {
    "leave-one-out": "Leave-one-out: the chosen weights minus without the client.",
    "Shapley": "Shapley: the mean gain over all orders in which clients can join; the values of a round sum to the gain "
    "of the round, before any fine-tuning.",
}


def _with_error(name: str, values: Any, errors: Any, unit: Unit) -> Column:
    known = [0.0] * len(values) if errors is None else errors.fillna(0.0).tolist()
    texts = [
        f"{unit.signed(value)} ± {unit.size(error)}" if error else unit.signed(value)
        for value, error in zip(values, known, strict=True)
    ]
    return Column(name, values.tolist(), texts, {"error": known} if any(known) else {})


def _leave_one_out(one: Method, seed: int) -> Frame:
    """[clients, rounds]; positive is a gain, also of a metric for which lower is better."""
    rows = one.frame("other_weights")
    rows = rows[(rows["tested"] == -1) & (rows["seed"] == seed)]
    if rows.empty:
        return Frame()
    chosen = rows[rows["kind"] == "chosen"].set_index("round")["metric"]
    gone = rows[rows["kind"] == "without"].pivot(index="without", columns="round", values="metric")
    sign = 1 if one.run.facts.higher_is_better else -1
    return sign * (chosen - gone.astype(float)).dropna(how="all")


# Loops, refusals, cost ----------------------------------------------------------------------------


@section("Order of priority")
def priority(results: Results) -> Iterator[Item]:
    """P2's loop: the order of priority over time, with its testing rounds."""
    for one in results.methods:
        own = one.rounds[one.rounds["seed"] == one.seeds[0]]
        own = (
            own.dropna(subset=["priority"])
            if "priority" in own and own["testing_rounds"].any()
            else Frame()
        )
        if own.empty:
            continue
        orders = own["priority"].map(" > ".join)
        ((common, times),) = Counter(orders).most_common(1)
        changes = sum(before != after for before, after in pairwise(orders))
        alt = (
            f"Order of priority by round under {one.label}, seed {one.seeds[0]}: most often {common} "
            f"({times} of {len(orders)} rounds), changed {changes} times, {int(own['testing_rounds'].sum())} testing rounds."
        )
        title = f"{one.label}: order of priority, seed {one.seeds[0]}"
        frame = Frame(
            {"round": own["round"], "order": orders, "testing rounds": own["testing_rounds"]}
        )
        frame = frame.iloc[:: -(-len(frame) // MOST_POINTS)]
        yield Chart(
            f"priority-{one.label}",
            title,
            frame,
            "cells",
            "round",
            "order",
            "testing rounds",
            format="~g",
            alt=alt,
        )
        yield alt


@section("Classes")
def classes(results: Results) -> Iterator[Item]:
    """P3's loop: F1 and weight of every class over time."""
    for column, words in (
        ("per_class_f1", "F1 of every class"),
        ("class_weights", "class weights κ sent to the clients"),
    ):
        for one in results.methods:
            own = one.rounds[one.rounds["seed"] == one.seeds[0]].copy()
            own["class_weights"] = [
                (state or {}).get("class_weights") for state in own["loss_state"]
            ]
            own = own.dropna(subset=[column]) if column in own else Frame()
            if own.empty:
                continue
            long = own[["round", column]].explode(column)
            long["number"] = long.groupby("round").cumcount()
            names = one.run.class_names(int(long["number"].max()) + 1)
            frame = long.assign(
                value=long[column].astype(float),
                **{"class": [names[place] for place in long["number"]]},
            )
            title = f"{one.label}: {words}, seed {one.seeds[0]}"
            yield cells(f"{column}-{one.label}", title, frame, "class", "value", ".2f")


@section("Refusals")
def refusals(results: Results) -> Iterator[Item]:
    """One row per client and reason, and one per note on a round."""
    rows: list[dict[str, Any]] = []
    for one in results.methods:
        own = one.run.frame("refusals")
        own = own[own["method"] == one.name]
        called = (
            own["client"]
            .astype(str)
            .str.cat(own["name"].fillna("").map(lambda name: name and f" {name}"))
        )
        found = (
            own.assign(client=called)
            .groupby(["client", "seed", "reason"], sort=False)["round"]
            .agg(["size", "min"])
        )
        for (client, seed, reason), row in found.nlargest(MOST_LISTED, "size").iterrows():
            times, first = int(row["size"]), int(row["min"])
            rows.append(
                {
                    "client": client,
                    "seed": seed,
                    "reason": reason,
                    "times": times,
                    "first in round": first,
                }
            )
            rows[-1] = {"method": one.label, **rows[-1]}
        noted = one.run.frame("rounds")
        noted = noted[noted["method"] == one.name]
        notes = Counter(
            note for notes in noted.get("notes", ()) if isinstance(notes, list) for note in notes
        )
        rows += [
            {"method": one.label, "reason": note, "times": times} for note, times in notes.items()
        ]
    if rows:
        yield "An invalid update never ends a run. Refused updates are not part of the aggregate."
        yield Table("refused", "Refused updates, and rounds that changed nothing", Frame(rows))


@section("Cost")
def cost(results: Results) -> Iterator[Item]:
    """Costs per round, and the seconds of all rounds."""
    known = [one for one in results.methods if len(one.rounds)]
    if not known:
        return

    def mean(column: str, scale: Callable[[Method], float] = lambda _: 1.0) -> list[float]:
        return [one.sum(column) * scale(one) / len(one.rounds) for one in known]

    clock = [
        one.curve("ended").max().sum() / len(one.rounds) if "ended" in one.rounds else math.nan
        for one in known
    ]
    yield table(
        "costs",
        "Cost of each method",
        [
            Column("method", [one.label for one in known]),
            Column("time on the clients' clock per round", clock, in_time, lower=True),
            Column("seconds per round", mean("seconds"), fixed(3), lower=True),
            Column(
                "bytes over the wire per round",
                mean("models_moved", lambda one: one.run.facts.model_bytes),
                in_bytes,
                lower=True,
            ),
            Column("evaluations per round", mean("evaluations"), fixed(1), lower=True),
            Column("testing rounds per round", mean("testing_rounds"), fixed(2), lower=True),
            Column("seconds in total", [one.sum("seconds") for one in known], fixed(1), lower=True),
        ],
        "Bytes are models of four bytes a parameter, both ways, as a real federation would send "
        "them. Evaluations are those the method needs, by a client or by the server; evaluations "
        "for the report are not counted.",
    )
