"""The sections of a report: each is a function of `Results` that yields texts, tables and charts.

A new section is a function here: the page and the files show what it yields.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy
import pandas
from pandas import DataFrame as Frame
from pandas import Series

from .items import (
    Chart,
    Column,
    Item,
    Table,
    counted,
    fixed,
    in_bytes,
    in_time,
    percent,
    section,
    table,
)
from .results import (
    NOT_AVAILABLE_MEANS,
    SHARES,
    TRAINS_ON_SERVER_MEANS,
    Method,
    Results,
    class_names,
    client_names,
    shared_seeds,
    stated,
)
from .statistics import Difference, holm, holm_p_values, mcnemar, p_number, paired_difference

NOTABLE = 0.002  # of the metric: what one sample is worth is said from here on
MOST_POINTS = 200  # of a line
MOST_CELLS = 100  # of a heat map, in either direction
MOST_LISTED = 100  # clients or refusals in a table
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
}


# Result -------------------------------------------------------------------------------------------


@section("Result")
def result(results: Results) -> Iterator[Item]:
    """Every method with its metric, its difference to the baseline and what else was measured."""
    yield result_table(results)


def result_table(results: Results) -> Table:
    """The main table: one row per method, the best first."""
    rows, unit, higher = results.ranked, results.unit, results.facts.higher_is_better
    leads = [results.differences.get((results.best.label, one.label)) for one in results.rivals[1:]]
    is_ahead = bool(leads) and all(one is not None and one.is_significant for one in leads)
    is_marked = is_ahead and len(results.comparable) == len(results.methods)
    values = [one.last("metric") for one in rows]
    against = [results.differences.get((one.label, results.baseline.label)) for one in rows]
    signed = [one.text(unit.signed) if one else "–" for one in against]
    columns = [
        Column("method", [one.label for one in rows], [one.marked for one in rows]),
        Column(
            results.facts.metric,
            [own.mean() for own in values],
            [_metric_text(one, results) for one in rows],
            {"deviation": [own.std() for own in values], "seeds": [len(own) for own in values]},
            lower=not higher,
        ),
        difference_column(
            "against the baseline",
            against,
            [
                "baseline" if one is results.baseline else text
                for one, text in zip(rows, signed, strict=True)
            ],
            lower=not higher,
        ),
        Column("macro F1", [one.last("macro_f1").mean() for one in rows], fixed(3), secondary=True),
        Column(
            "worst 10%",
            [_over_seeds(one, lambda own: worst_tenth(own, higher)) for one in rows],
            unit.text,
        ),
        *_to_target(results),
        Column(
            "hostile influence",
            [one.mean("hostile_influence") for one in rows],
            percent,
            lower=True,
        ),
        Column(
            "backdoor success",
            [one.last("attack_success").mean() for one in rows],
            percent,
            lower=True,
        ),
    ]
    if has_search(results):
        tests = [one.sum("testing_rounds") / len(one.seeds) for one in rows]
        columns.append(Column("testing rounds", tests, fixed(0), lower=True))
    note = result_notes(results)
    if is_marked:
        note.append("Bold: the lead over every other method is statistically significant.")
    title = "Methods, best first" if results.comparable else "Methods, not ranked"
    return table(
        "summary",
        title,
        columns,
        " ".join(note),
        bold=(rows.index(results.best),) if is_marked else (),
    )


def _metric_text(one: Method, results: Results) -> str:
    own = one.last("metric")
    text = results.unit.spread(own.mean(), own.std())
    return (
        f"{text} (round {one.last_round})"
        if results.comparable and one not in results.comparable
        else text
    )


def difference_column(
    name: str, found: Sequence[Difference | None], texts: Sequence[str], lower: bool = False
) -> Column:
    """Differences; in a CSV also interval, p and number of pairs."""
    means = numpy.array([one and one.mean for one in found], dtype=float)
    intervals = [(one and one.interval) or (None, None) for one in found]
    inner = {
        "low": [low for low, _ in intervals],
        "high": [high for _, high in intervals],
        "p": [one and one.p_value for one in found],
        "pairs": [one and one.pairs for one in found],
    }
    return Column(name, means, texts, inner, lower=lower)


def _over_seeds(one: Method, measure: Callable[[Series], float]) -> float:
    """Something of the clients' metrics, mean over the seeds."""
    return (
        float(one.clients.groupby("seed")["metric"].agg(measure).mean())
        if len(one.clients)
        else math.nan
    )


def worst_tenth(values: Series, higher_is_better: bool) -> float:
    """Mean over the worst tenth of the clients, rounded up.

    >>> worst_tenth(pandas.Series([0.5, 0.9, 0.7]), higher_is_better=True)
    0.5
    """
    worst_first = values.sort_values(ascending=higher_is_better)
    return float(worst_first.iloc[: math.ceil(len(worst_first) / 10)].mean())


def result_notes(results: Results) -> list[str]:
    """What the columns of the result mean, sentence by sentence."""
    spread = (
        ", mean over the seeds; ± is the standard deviation over the seeds"
        if results.has_several_seeds
        else ""
    )
    sentences = [f"Values of the last round on {results.facts.reported_on}{spread}."]
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
    sentences = [
        _reporting_size(run.facts, results) for run in results.runs if run.facts.report_samples
    ]
    if any(len(one.clients) for one in results.methods):
        who = (
            f"over a tenth of the {evaluated_clients(results)}, rounded up, on their own test data"
        )
        sentences.append(f"Worst 10%: mean {results.facts.metric} {who}.")
    else:
        sentences.append("No client has results on test data of its own.")
    if not all(one.about.is_available for one in results.methods):
        sentences.append(NOT_AVAILABLE_MEANS)
    if any(one.about.trains_on_server for one in results.methods):
        sentences.append(TRAINS_ON_SERVER_MEANS)
    return list(dict.fromkeys(sentences))


def _reporting_size(facts: Any, results: Results) -> str:
    """On how many samples results are reported, and what one of them is worth."""
    details = (
        [] if facts.report_rarest is None else [f"{facts.report_rarest:,} of the rarest class"]
    )
    worth = 1 / facts.report_samples
    if facts.is_share and facts.higher_is_better and worth >= NOTABLE:
        details.append(f"one sample is worth about {results.unit.size(worth)} points")
    said = f"Reported on {counted(facts.report_samples, 'sample')}"
    return f"{said} ({'; '.join(details)})." if details else f"{said}."


def evaluated_clients(results: Results) -> str:
    """The clients that results are about; which of them are honest is known in simulations alone."""
    return "honest clients" if results.has_hostile else "clients"


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
    metric = metric_chart(results)
    yield metric
    for name, _, so_far, units in scales(results)[1:]:
        ends = spread(results.methods, [so_far(one) for one in results.methods]).rename(
            columns={"value": name}
        )
        both = metric.frame.merge(ends[["method", "round", name]], on=["method", "round"])
        unit, size = [
            pair
            for place, pair in enumerate(units.items())
            if not place or both[name].max() >= 2 * pair[1]
        ][-1]
        both[unit] = both.pop(name) / size
        yield Chart(
            f"metric-{name}",
            f"{metric.title}, over {name}",
            both,
            "lines",
            unit,
            "value",
            "method",
            "low",
            "high",
            format=metric.format,
            reference=metric.reference,
        )
    yield from lines(results, "macro_f1", f"macro F1 on {facts.reported_on}", "~g")
    yield from lines(results, "loss", f"loss on {facts.reported_on}", "~g")


def metric_chart(results: Results) -> Chart:
    """The metric over the rounds, with the target."""
    facts = results.facts
    frame = spread(results.methods, [one.metric for one in results.methods])
    alt = ends_in_words(frame, results.unit.text)
    title = f"{facts.metric} on {facts.reported_on}"
    return Chart(
        "metric",
        title,
        frame,
        "lines",
        "round",
        "value",
        "method",
        "low",
        "high",
        format=results.unit.axis,
        reference=facts.target,
        alt=alt,
    )


def lines(
    results: Results, column: str, title: str, format: str, place: int | None = None
) -> Iterator[Chart]:
    """A column of the rounds, or a place in its lists, one line per method; nothing where no round has it."""
    found = [one.curve(column, place) for one in results.methods]
    frame = spread(results.methods, found)
    if len(frame):
        positive = frame["value"][frame["value"] > 0]
        is_wide = column == "loss" and len(positive) > 0 and positive.max() > WIDE * positive.min()
        alt = ends_in_words(frame, percent if "%" in format else "{:.3g}".format)
        name = column if place is None else f"{column}-{SHARES[place]}"
        # A method that diverged presses the others flat
        yield Chart(
            name,
            title,
            frame,
            "lines",
            "round",
            "value",
            "method",
            "low",
            "high",
            format=format,
            logarithmic=bool(is_wide),
            alt=alt,
        )


def spread(methods: Sequence[Method], curves: Sequence[Frame]) -> Frame:
    """Curves [rounds, seeds] as a tidy frame: method, round, mean over the seeds, lowest and highest.

    A seed that has only begun is left out: it must not shorten the line of the others.
    """
    parts = []
    for one, found in zip(methods, curves, strict=True):
        if len(found):
            whole = found.loc[:, found.iloc[-1].notna()].astype(float)
            thin = whole.iloc[
                sorted({*range(0, len(whole), -(-len(whole) // MOST_POINTS)), len(whole) - 1})
            ]
            values = {"value": thin.mean(axis=1), "low": thin.min(axis=1), "high": thin.max(axis=1)}
            parts.append(Frame({"round": thin.index, "method": one.label, **values}))
    return (
        pandas.concat(parts, ignore_index=True)
        if parts
        else Frame(columns=["round", "method", "value"])
    )


def ends_in_words(frame: Frame, text: Callable[[float], str]) -> str:
    """Where the lines of a chart begin and end."""
    ends = frame.groupby("method", sort=False)["value"].agg(["first", "last"])
    said = [
        f"{name} from {text(row['first'])} to {text(row['last'])}" for name, row in ends.iterrows()
    ]
    return f"{'; '.join(said) or 'Nothing recorded yet'}."


@section("Privacy")
def privacy(results: Results) -> Iterator[Item]:
    """ε over the rounds, and the promise of each method."""
    rows = promises(results)
    if rows.empty:
        return
    yield from lines(results, "epsilon", "ε spent", "~g")
    note = (
        "ε at δ of all rounds so far, the largest over the seeds; each seed spends its own. It covers the "
        "models alone: the run folder and this report show single clients (docs/privacy.md)."
    )
    yield Table("privacy", "Privacy spent", rows, note, formats={"ε so far": fixed(3)})


def promises(results: Results) -> Frame:
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
                "clipping norm": spent["clip"],
                "deviation of the noise": spent["deviation"],
                "neighbours": "replace one client" if replaced else "add or remove one client",
                "noise by": "clients" if by_clients else "server",
                "noise": "secret" if settings.get("secret") is True else SIMULATED,
            }
        )
    return Frame(rows)


def privacy_in_words(results: Results) -> Iterator[str]:
    """What each method has spent, as the table states it."""
    for row in promises(results).to_dict("records"):
        spent = f"ε = {row['ε so far']:.3f} at δ = {row['δ']} after all rounds so far"
        yield f"{row['method']}: {spent} ({row['neighbours']}; noise: {row['noise']})."


@section("Adapters")
def adapters(results: Results) -> Iterator[Item]:
    """What the rank of LoRA adapters leaves out of the mean of the clients' products."""
    for chart in lines(results, "residual", "Residual of the mean adapter", ".0%"):
        yield (
            "The clients' products B·A have a mean of a higher rank than one adapter. The residual is the part of its "
            "Frobenius norm that the nearest matrix of the adapters' rank leaves out, over all adapted layers. If it "
            "is large, use a larger rank."
        )
        yield chart


# Targets and best rounds --------------------------------------------------------------------------

Scale = tuple[str, Callable[[float], str], Callable[[Method], Frame], dict[str, float]]
TIME_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
BYTE_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def scales(results: Results) -> list[Scale]:
    """What is used up until a round [rounds, seeds]: rounds and, where clients have a clock, time and bytes."""

    def rounds_so_far(one: Method) -> Frame:
        found = one.curve("models_moved")
        return found.mul(0).add(found.index, axis=0) if len(found) else found

    found: list[Scale] = [("rounds", "{:g}".format, rounds_so_far, {})]
    if results.has_clock:
        found.append(("time", in_time, lambda one: one.curve("ended"), TIME_UNITS))
        found.append(("bytes", in_bytes, bytes_sent, BYTE_UNITS))
    return found


def bytes_sent(one: Method) -> Frame:
    """The bytes of models sent until every round ended, both ways together; of a control nothing is known."""
    return (
        one.curve("models_moved").cumsum() * one.run.facts.model_bytes
        if "ended" in one.rounds
        else Frame()
    )


def first_rounds(one: Method, curves: Frame, target: float) -> Series:
    """By seed, the first round in which a curve reaches a target; NaN where it does not."""
    reached = curves >= target if one.run.facts.higher_is_better else curves <= target
    return reached.idxmax().where(reached.any()).reindex(one.seeds).astype(float)


def used(so_far: Frame, rounds: Series) -> Series:
    """By seed, what was used up at the end of these rounds."""
    known = {
        seed: so_far[seed].get(number) if seed in so_far else None
        for seed, number in rounds.items()
    }
    return Series(known, dtype=float)


def _to_target(results: Results) -> Iterator[Column]:
    """Rounds, time and bytes until the reported metric reaches the target."""
    target: Any = next(
        (run.facts.target for run in results.runs if run.facts.target is not None), None
    )
    for name, text, so_far, _ in scales(results) if target is not None else ():
        by_seed = [
            used(so_far(one), first_rounds(one, one.metric, target)) for one in results.ranked
        ]
        yield reached_column(f"{name} to {results.unit.target(target)}", by_seed, text)


def reached_column(name: str, by_seed: Sequence[Series], text: Callable[[float], str]) -> Column:
    """How many seeds reached a target, and the median of when; those that did not are slowest."""
    medians = numpy.array([own.fillna(math.inf).median() for own in by_seed])
    reached = [int(own.notna().sum()) for own in by_seed]
    texts = [
        reached_text(*row, text) for row in zip(medians, reached, map(len, by_seed), strict=True)
    ]
    missed = [len(own) - count for own, count in zip(by_seed, reached, strict=True)]
    inner = {"reached": reached, "not reached": missed}
    return Column(
        name, numpy.where(numpy.isfinite(medians), medians, math.nan), texts, inner, lower=True
    )


def reached_text(median: float, reached: int, seeds: int, text: Callable[[float], str]) -> str:
    """How many of the seeds reached a target, and the median.

    >>> reached_text(4.0, 2, 3, str), reached_text(math.inf, 1, 2, str), reached_text(7.0, 1, 1, str)
    ('2/3: 4.0', '1/2: –', '7.0')
    """
    shown = text(median) if math.isfinite(median) else "–"
    if seeds > 1:
        return f"{reached}/{seeds}: {shown}"
    return shown if reached else "not reached"


@section("Rounds to target")
def targets(results: Results) -> Iterator[Item]:
    """P1's tables: the first round in which 10 ... 90% of the clients reach a target on their own test data."""
    facts = results.facts
    chosen = facts.client_targets or ([facts.target] if facts.target else _own_target(results))
    known = [one for one in results.methods if "reached" in one.rounds]
    if not known:
        return
    for target in chosen:
        reached = {one.label: until_clients_reach(one, target) for one in known}
        title = f"{facts.metric} of at {'least' if facts.higher_is_better else 'most'} {results.unit.target(target)}"
        who = f"that percentage of the {evaluated_clients(results)} reaches the target on its own test data"
        for name, text, so_far, _ in scales(results):
            progress = [so_far(one) for one in known]
            columns = [Column("method", [one.label for one in known])]
            for share in PERCENTAGES:
                own = [
                    used(frame, reached[one.label][share])
                    for one, frame in zip(known, progress, strict=True)
                ]
                columns.append(reached_column(share, own, text))
            if name == "rounds":
                columns.append(_gain_column(results, known, reached))
                yield table(
                    f"target-{target:g}",
                    title,
                    columns,
                    f"Rounds until {who}. {CENSORED} {P1_RULE}",
                )
            else:
                yield table(
                    f"target-{target:g}-{name}",
                    f"{name} to {title}",
                    columns,
                    f"{name.capitalize()} until {who}.",
                )


P1_RULE = (
    "The gain is in rounds against the first method, mean over the nine percentages, with a 95% confidence "
    "interval over the seeds. A percentage that is not reached counts as reached in the last round that both methods "
    "have run (P1's rule): a loss is at least as large, and what neither reaches is no gain."
)


def _own_target(results: Results) -> list[float]:
    """What half of the baseline's clients reached, rounded to 5% or two digits."""
    facts, last = results.facts, results.baseline.last("reached")
    value = float(numpy.mean([values[4] for values in last])) if len(last) else 0.0
    if value <= 0 or not math.isfinite(value):
        return []
    step = 0.05 if facts.is_share else 10.0 ** (math.floor(math.log10(value)) - 1)
    target = (int(value / step) + (not facts.higher_is_better)) * step
    return [] if not target or (facts.is_share and target > 0.999) else [float(f"{target:.6g}")]


def until_clients_reach(one: Method, target: float) -> Frame:
    """The first rounds in which 10 ... 90% of the clients reach a target [seeds, percentages]; NaN: never."""
    return Frame(
        {
            name: first_rounds(one, one.curve("reached", place), target)
            for place, name in enumerate(PERCENTAGES)
        }
    )


def _gain_column(results: Results, methods: Sequence[Method], reached: dict[str, Frame]) -> Column:
    baseline = results.baseline
    found = [
        gain_against(one, baseline, reached[one.label], reached[baseline.label])
        if one is not baseline and baseline.label in reached
        else None
        for one in methods
    ]
    texts = [
        one.text(_signed_rounds) + ("" if one.interval else " (one seed)") if one else "–"
        for one in found
    ]
    return difference_column(
        "average gain",
        found,
        ["baseline" if one is baseline else text for one, text in zip(methods, texts, strict=True)],
    )


def _signed_rounds(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"


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
    >>> round(average_gain(*frames, {1: 100}).mean, 6)  # (0 + 10 + 20)/3
    10.0
    """
    ends = Series(last, dtype=float)
    before, after = (
        frame.reindex(ends.index).where(lambda own: own.le(ends, axis=0))
        for frame in (baseline, ours)
    )
    if before.isna().all(axis=None) and after.isna().all(axis=None):
        return None
    return paired_difference(before.T.fillna(ends).mean(), after.T.fillna(ends).mean())


@section("Best rounds, sample by sample")
def best_rounds(results: Results) -> Iterator[Item]:
    """P1's Tables 3, 5 and 7: which samples a method and the baseline classified correctly."""
    baseline, text = results.baseline, results.unit.text
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
            best = f"{text(one.metric[seed].get(ours[0]))} (round {ours[0]})"
            other = f"{text(baseline.metric[seed].get(theirs[0]))} (round {theirs[0]})"
            counts, p_value = mcnemar(ours[1], theirs[1])
            rows.append(
                {
                    "method": one.label,
                    "seed": seed,
                    "best": best,
                    "baseline's best": other,
                    **counts,
                    "p": p_value,
                }
            )
    if rows:
        frame = Frame(rows)
        frame["p"] = holm_p_values(frame["p"].tolist())
        note = (
            f"Counts of {results.facts.reported_on}, every method at its own best round. That round "
            "was chosen on these same samples, so both values are optimistic. p: McNemar's exact test, "
            "whether the samples that only one of the two classifies correctly are divided by chance; "
            "corrected for all rows (Holm). Seeds in which the two have run different numbers of rounds are left out."
        )
        title = f"Right and wrong, against {baseline.label}"
        yield Table(
            "contingency",
            title,
            frame,
            note,
            lower=("both wrong", "only the baseline", "p"),
            formats={"p": p_number},
        )


# Clients ------------------------------------------------------------------------------------------


@section("Clients")
def clients(results: Results) -> Iterator[Item]:
    """Fairness, every client under every method, and how they are spread."""
    known = [one for one in results.methods if len(one.clients)]
    if not known:
        return
    means = Frame(
        {one.label: one.by_client().mean(axis=1) for one in known if len(one.by_client())}
    )
    lead = f"{evaluated_clients(results).capitalize()}, each on its own test data."
    if means.empty:
        lead += " Clients have no names and are drawn anew for every seed: none can be followed."
    yield lead
    fairness = fairness_table(results)
    if fairness is not None:
        yield fairness
    facts, text = results.facts, results.unit.text
    if len(means):
        first = means.columns[0]
        shown = means.sort_values(first, ascending=facts.higher_is_better, kind="stable").head(
            MOST_LISTED
        )
        yield Table(
            "by-client",
            f"Client by client, the worst under {first} first",
            shown.rename_axis("client").reset_index(),
            f"{facts.metric} on the client's own test data in the last round, mean over the seeds"
            + ("." if len(shown) == len(means) else f"; {len(shown)} of {len(means)} clients."),
            lower=() if facts.higher_is_better else tuple(shown.columns),
            formats=dict.fromkeys(shown.columns, text),
        )
    for place, words in ((4, "half"), (8, "nine of ten")):
        title = f"{facts.metric} that {words} of the clients reach on their own test data"
        yield from lines(results, "reached", title, results.unit.axis, place)
    frame = pandas.concat(
        [one.clients[["seed", "client", "metric"]].assign(method=one.label) for one in known]
    )
    ends = frame.groupby("method", sort=False)["metric"].agg(["median", "min"])
    said = [
        f"{name} median {text(row['median'])}, lowest {text(row['min'])}"
        for name, row in ends.iterrows()
    ]
    title = f"{facts.metric} of the clients in the last round"
    yield Chart(
        "distribution",
        title,
        frame,
        "dots",
        "metric",
        "method",
        "method",
        format=results.unit.axis,
        alt=f"{'; '.join(said)}.",
    )


def fairness_table(results: Results) -> Table | None:
    """How evenly each method serves the clients; None where fewer than two are evaluated."""
    if not any(
        one.clients.groupby("seed").size().max() > 1 for one in results.methods if len(one.clients)
    ):
        return None
    higher, unit = results.facts.higher_is_better, results.unit
    measures: dict[str, tuple[Callable[[Series], float], Callable[[float], str], bool]] = {
        "mean": (Series.mean, unit.text, not higher),
        "worst 10%": (lambda own: worst_tenth(own, higher), unit.text, not higher),
        "best 10%": (lambda own: worst_tenth(own, not higher), unit.text, not higher),
        "standard deviation": (lambda own: own.std(ddof=0), unit.size, True),
        "variance": (lambda own: own.var(ddof=0), "{:.4g}".format, True),
        "Jain's index": (jain_index, fixed(3), False),
    }
    columns = [Column("method", [one.label for one in results.methods])]
    for name, (measure, text, is_lower) in measures.items():
        columns.append(
            Column(
                name, [_over_seeds(one, measure) for one in results.methods], text, lower=is_lower
            )
        )
    for name, groups in _groups(results).items():
        gaps = [_gap(one.clients, groups) for one in results.methods]
        columns.append(Column(f"gap by {name}", gaps, unit.size, lower=True))
    note = (
        f"{results.facts.metric} of the {evaluated_clients(results)} on their own test data in the last round, "
        f"each client with equal weight; mean over the seeds{unit.in_points and '; deviations and gaps in points'}. "
        "Worst and best 10%: mean over a tenth of the clients, rounded up. "
        "Jain's index: (Σx)²/(n·Σx²), 1 if all clients have the same value. Gap: difference between the groups of "
        "clients with the highest and the lowest mean, where the config states attributes; numbers are "
        "divided at their median."
    )
    return table("fairness", "Fairness among clients", columns, note)


def jain_index(values: Series) -> float:
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


def _groups(results: Results) -> dict[str, Series]:
    """By attribute of the config, the group of every client: its value or, of numbers, its half."""
    found = {}
    for name, listed in stated(results.baseline.run, "attributes").items():
        values = Series(listed)
        if values.dtype.kind == "f" and values.nunique() > 2:
            values = values >= values.median()
        found[name] = values
    return found


def _gap(clients: Frame, groups: Series) -> float:
    """Between the groups of clients with the highest and the lowest mean."""
    means = clients.groupby(clients["client"].map(groups))["metric"].mean()
    return float(means.max() - means.min()) if len(means) > 1 else math.nan


@section("Who gains")
def gains(results: Results) -> Iterator[Item]:
    """Every client with the federation, alone and pooled; where a method is the control "alone"."""
    alone, pooled = results.control("alone"), results.control("pooled")
    sign = 1 if results.facts.higher_is_better else -1
    tables = []
    for one in results.methods if alone is not None else ():
        found = (
            client_differences(sign * one.by_client(), sign * alone.by_client()) if alone else {}
        )
        if one.about.control is None and found:
            shown = [other for other in (one, alone, pooled) if other is not None]
            title = f"{one.label} against {alone.label if alone else ''}{results.unit.in_points}"
            tables.append(_paired_table(f"gains-{one.label}", title, shown, found, results))
    if tables:
        yield (
            f"{evaluated_clients(results).capitalize()}, each on its own test data: with the federation's model, with "
            "a model that it trained alone, and with one trained on all clients' samples in one place. "
            "The difference is the federation minus alone, paired by seed; below zero, the client is better off alone."
        )
        yield from tables


def client_differences(ours: Frame, theirs: Frame) -> dict[str, Difference]:
    """By client, ours minus theirs [names, seeds], with Holm's correction for the number of clients."""
    both = ours.sub(theirs).loc[ours.index.intersection(theirs.index, sort=False)]
    found = {
        str(name): paired_difference(row, [0.0] * len(row))
        for name, row in zip(both.index, both.to_numpy(), strict=True)
    }
    known = {name: one for name, one in found.items() if one is not None}
    return dict(zip(known, holm([*known.values()]), strict=True))


def _remark(gain: Difference) -> str:
    if not gain.is_significant:
        return ""
    return "gains" if gain.mean > 0 else "better off alone"


def _paired_table(
    id: str, title: str, shown: Sequence[Method], found: dict[str, Difference], results: Results
) -> Table:
    unit = results.unit
    columns = [Column("client", [*found])]
    for one in shown:
        columns.append(Column(one.label, one.by_client().mean(axis=1).reindex([*found]), unit.text))
    texts = [one.text(unit.signed) for one in found.values()]
    columns.append(difference_column("difference", [*found.values()], texts))
    columns.append(Column("remark", [_remark(one) for one in found.values()]))
    note = (
        "Means over the seeds. Differences are paired by seed, with their 95% interval where there are several. "
        "Intervals and significance are corrected for the number of clients (Holm)."
    )
    return table(id, title, columns, note)


# Weights ------------------------------------------------------------------------------------------


@section("Weights")
def weights(results: Results) -> Iterator[Item]:
    """The influence of hostile clients, and the weight of every client in every round; controls have none."""
    if results.has_hostile:
        yield from lines(
            results, "hostile_influence", "influence of all hostile clients together", ".0%"
        )
    grids = {}
    for one in results.methods:
        own = one.of_first_seed("weights")
        own = own[own["weight"].notna()]
        if len(own) and one.about.control is None:
            named = client_names(own) + own["hostile"].notna().map({True: " (hostile)", False: ""})
            grids[one] = cells(own.assign(client=named, number=own["client"]), "client", "weight")
    highest = max((float(grid["weight"].max()) for grid in grids.values()), default=1.0)
    for one, grid in grids.items():
        title = f"{one.label}: weight of every client, seed {one.seeds[0]}"
        yield _heat_map(f"map-{one.label}", title, grid, ".2%", (0.0, highest))


def cells(frame: Frame, rows: str, value: str) -> Frame:
    """A heat map over the rounds: a row for each `rows`, or for several with neighbouring numbers."""
    rounds = sorted(frame["round"].unique())
    kept = frame[frame["round"].isin(rounds[:: -(-len(rounds) // MOST_CELLS)])]
    size = -(-int(kept["number"].max() + 1) // MOST_CELLS)
    if size > 1:
        first = kept["number"] // size * size
        kept = kept.assign(number=first, **{rows: "from " + first.astype(str)})
    return (
        kept.groupby(["number", rows, "round"], as_index=False)[value].mean().drop(columns="number")
    )


def _heat_map(id: str, title: str, frame: Frame, format: str, limits: tuple[float, float]) -> Chart:
    rows, x, value = frame.columns
    highest = frame.groupby(rows)[value].mean().nlargest(3)
    alt = f"{title}. Highest on average: {', '.join(highest.index)}."
    return Chart(id, title, frame, "cells", x, rows, value, format=format, limits=limits, alt=alt)


@section("Other weights")
def other_weights(results: Results) -> Iterator[Item]:
    """What the updates of every round would have given with other weights, for methods that evaluated them."""
    text, signed = results.unit.text, results.unit.signed
    for one in results.methods:
        values = _candidates(one)
        if values.empty:
            continue
        last = values.columns[-1]
        differences = values - values.loc[OTHER_WEIGHTS["chosen"]]
        columns = [
            Column("weights", values.index),
            Column(results.facts.metric, values[last], text),
            Column("difference", differences[last], signed),
            Column("mean difference", differences.mean(axis=1), signed),
            Column("rounds", differences.count(axis=1)),
        ]
        title = f"{one.label}, round {last}: what other weights would have given"
        yield table(f"counterfactuals-{one.label}", title, columns, OTHER_WEIGHTS_NOTE)


OTHER_WEIGHTS_NOTE = (
    "The same updates with other weights, evaluated in the same pass as the model of the round. “Without” "
    "leaves one client out and brings the other weights within the same bounds. Differences are to the chosen "
    "weights. The mean is over all rounds in which the candidate could be computed. "
    "Every round starts from the model of the run itself: these are effects of single rounds, which do not add "
    "up to a run with other weights (`clientwise run RUN --without CLIENT`)."
)


def _candidates(one: Method) -> Frame:
    """What the updates of the first seed give on the reported samples with other weights [weights, rounds]."""
    rows = one.of_first_seed("other_weights")
    rows = rows[rows["tested"] == -1]
    gone = "without " + rows["without"].map(one.names)
    named = rows.assign(
        weights=gone.where(rows["kind"] == "without", rows["kind"].replace(OTHER_WEIGHTS))
    )
    values = named.astype({"metric": float}).pivot_table(
        "metric", "weights", "round", sort=False, dropna=False
    )
    return values.sort_index(key=lambda index: index != OTHER_WEIGHTS["chosen"], kind="stable")


@section("Contributions")
def contributions(results: Results) -> Iterator[Item]:
    """Leave-one-out and Shapley values of every method that has them, for its first seed."""
    signed = results.unit.signed
    sign = 1 if results.facts.higher_is_better else -1
    tables = []
    for one in results.methods:
        others, own = _candidates(one), one.of_first_seed("weights")
        gone = others[others.index.str.startswith("without ")].rename(
            lambda name: name.removeprefix("without ")
        )
        found = {"leave-one-out": sign * (others.iloc[0] - gone) if len(gone) else Frame()}
        for name, column in (("Shapley", "shapley"), ("± error of Shapley", "shapley_error")):
            known = own.assign(
                name=client_names(own), **{column: own.get(column, math.nan)}
            ).astype({column: float})
            found[name] = known.pivot_table(column, "name", "round", sort=False)
        if len(gone) or len(found["Shapley"]):
            tables.append(_contributions_table(one, found, signed))
    if tables:
        yield (
            "A contribution is what a client's updates did to the metric of the model. Clients with the same data "
            "share one value, and a client whose data others have, too, seems to contribute little. The values depend "
            "on the server's samples and on the other members. They are not payments."
        )
        yield from tables


def _contributions_table(
    one: Method, found: dict[str, Frame], signed: Callable[[float], str]
) -> Table:
    every = list(dict.fromkeys(name for frame in found.values() for name in frame.index))
    columns = [Column("client", every)]
    for name, frame in found.items():
        values = frame.reindex(every)
        last = values.get(one.done[one.seeds[0]], Series(math.nan, index=every))
        total = (
            values.pow(2).sum(axis=1).pow(0.5)
            if name.startswith("±")
            else values.sum(axis=1, min_count=1)
        )
        if not name.startswith("±") or total.any():  # 0: all coalitions were evaluated
            columns += [
                Column(f"{name}, last round", last, signed),
                Column(f"{name}, all rounds", total, signed),
            ]
    note = (
        "Leave-one-out: the chosen weights minus without the client. Shapley: the mean gain over all orders in which "
        "clients can join; the values of a round sum to the gain of the round, before any fine-tuning; ± is the "
        "standard error of sampling."
    )
    return table(
        f"contributions-{one.label}",
        f"{one.label}: contributions to {one.run.facts.metric}",
        columns,
        note,
    )


# Loops, refusals, cost ----------------------------------------------------------------------------


@section("Order of priority")
def priority(results: Results) -> Iterator[Item]:
    """P2's loop: the order of priority over time, with its testing rounds."""
    for one in results.methods:
        own = one.of_first_seed("rounds")
        if "priority" not in own or not own["testing_rounds"].any():
            continue
        own = own.dropna(subset=["priority"])
        frame = Frame(
            {
                "order": own["priority"].map(" > ".join),
                "round": own["round"],
                "tests": own["testing_rounds"],
            }
        )
        orders = frame["order"].tolist()
        ((common, times),) = Counter(orders).most_common(1)
        changes = sum(before != after for before, after in pairwise(orders))
        title = f"{one.label}: order of priority, seed {one.seeds[0]}"
        alt = (
            f"Order of priority by round under {one.label}, seed {one.seeds[0]}: most often {common} "
            f"({times} of {len(orders)} rounds), changed {changes} times, {frame['tests'].sum()} testing rounds."
        )
        thin = frame.iloc[:: -(-len(frame) // MOST_POINTS)]
        yield Chart(
            f"priority-{one.label}",
            title,
            thin,
            "cells",
            "round",
            "order",
            "tests",
            format="~g",
            alt=alt,
        )


@section("Classes")
def classes(results: Results) -> Iterator[Item]:
    """P3's loop: F1 and weight of every class over time."""
    titles = {
        "per_class_f1": "F1 of every class",
        "class_weights": "class weights κ sent to the clients",
    }
    for column, words in titles.items():
        for one in results.methods:
            own = one.of_first_seed("rounds")
            states = own.get("loss_state", pandas.Series(index=own.index, dtype=object))
            own = own.assign(
                class_weights=[
                    one.get("class_weights") if isinstance(one, dict) else None for one in states
                ]
            )
            long = own[["round", column]].dropna().explode(column) if column in own else Frame()
            if long.empty:
                continue
            long["number"] = long.groupby("round").cumcount()
            names = class_names(one.run, int(long["number"].max()) + 1)
            long["class"], long["value"] = (
                long["number"].map(dict(enumerate(names))),
                long[column].astype(float),
            )
            title = f"{one.label}: {words}, seed {one.seeds[0]}"
            highest = max(1.0, float(long["value"].max()))
            yield _heat_map(
                f"{column}-{one.label}", title, cells(long, "class", "value"), ".2f", (0.0, highest)
            )


@section("Refusals")
def refusals(results: Results) -> Iterator[Item]:
    """One row per client and reason, and one per note on a round."""
    parts = []
    for one in results.methods:
        own = one.run.frame("refusals")
        own = own[own["method"] == one.name]
        found = own.assign(client=client_names(own)).groupby(
            ["client", "seed", "reason"], sort=False
        )["round"]
        rows = (
            found.agg(**{"times": "size", "first in round": "min"})
            .nlargest(MOST_LISTED, "times")
            .reset_index()
        )
        notes = (
            Series(one.notes, dtype=object)
            .value_counts(sort=False)
            .rename_axis("reason")
            .reset_index(name="times")
        )
        parts += [part.assign(method=one.label) for part in (rows, notes) if len(part)]
    if parts:
        yield "An invalid update never ends a run. Refused updates are not part of the aggregate."
        frame = pandas.concat(parts, ignore_index=True)
        order = [
            name
            for name in ("method", "client", "seed", "reason", "times", "first in round")
            if name in frame
        ]
        yield Table("refused", "Refused updates, and rounds that changed nothing", frame[order])


COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "clock": ("time on the clients' clock per round", in_time),
    "seconds": ("seconds per round", fixed(3)),
    "bytes": ("bytes over the wire per round", in_bytes),
    "evaluations": ("evaluations per round", fixed(1)),
    "testing_rounds": ("testing rounds per round", fixed(2)),
    "total": ("seconds in total", fixed(1)),
}


@section("Cost")
def cost(results: Results) -> Iterator[Item]:
    """Costs per round, and the seconds of all rounds."""
    known = [one for one in results.methods if len(one.rounds)]
    rows = []
    for one in known:
        means = one.rounds.mean(numeric_only=True)
        ends = float(one.curve("ended").max().sum()) / len(one.rounds)
        bytes_moved = means.get("models_moved", math.nan) * one.run.facts.model_bytes
        rows.append(
            {**means, "clock": ends or math.nan, "bytes": bytes_moved, "total": one.sum("seconds")}
        )
    columns = [
        Column(name, [row.get(key, math.nan) for row in rows], text, lower=True)
        for key, (name, text) in COSTS.items()
    ]
    note = (
        "Bytes are models of four bytes a parameter, both ways, as a real federation would send "
        "them. Evaluations are those the method needs, by a client or by the server; evaluations "
        "for the report are not counted."
    )
    if known:
        yield table(
            "costs",
            "Cost of each method",
            [Column("method", [one.label for one in known]), *columns],
            note,
        )
