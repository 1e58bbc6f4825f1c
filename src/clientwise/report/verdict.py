"""The headline of a report: which method leads, by how much, and whether that is significant."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy

from ..core.reasons import likely_cause
from ..experiment.checks.steps_in_words import unequal_steps
from ..record.reading.config_view import recorded_config
from ..record.reading.rows import changed_facts
from .audit.explanation_today import Explanation, explain
from .differences import (
    Differences,
    all_differences,
    in_words,
    p_text,
    points,
)
from .document import counted, percent_of
from .series import (
    Series,
    comparable,
    is_unmeasured,
    rivals,
)
from .statistics import MIN_SEEDS, Difference, mean_of

NOTHING_YET = "No round has been recorded yet."
NOT_MEASURED = (
    "No metric was measured: the server has no samples. Weights and refusals are recorded."
)
FEWEST_SAMPLES = 20  # to report on: with fewer, no method is called the best
TOO_FEW = (
    f"No method is called the best: results are reported on fewer than {FEWEST_SAMPLES} samples. "
    "Enlarge server_set.fraction, or give more test samples."
)
STILL_IMPROVES = 0.01  # of the metric
LEAST_ROUNDS = 3  # with fewer, nothing is said about a method that has not learned anything
FLAT = 1e-4  # of the metric
LEAST_QUARTER = 2  # rounds: with fewer, nothing is said about the end of a curve
MOST_LOWERED = 5  # names of clients that evidence took weight from
MOST_READ = 2_000  # clients times seeds: with more, nothing is said about their weights
NOT_RANKED = "Not ranked: the methods share no seed on the same data at the same round."
NOT_COMPARED = "not compared: they share no round of the same seed on the same data"


def headline(series: Sequence[Series]) -> list[str]:
    """Warnings; which method leads and the differences to the baseline; what evidence did."""
    return [*_conclusion(series), *_lowered(series)]


def _conclusion(series: Sequence[Series]) -> list[str]:
    warnings = [
        *_stayed(series),
        *_changes(series),
        *_refused(series),
        *_diverged(series),
        *_like_a_constant(series),
        *_unchanged(series),
        *_best_models(series),
        *_unequal_steps(series),
        *_unequal_tuning(series),
        *_same_start(series),
    ]
    known = rivals(series)
    if not known:
        has_begun = any(one.learned and one.mean_metric is not None for one in series)
        if has_begun:
            return [*warnings, NOT_RANKED]
        if is_unmeasured(series):
            return [*warnings, NOT_MEASURED]
        return warnings or [NOTHING_YET]
    baseline = series[0]
    return [
        *warnings,
        *_comparisons(series, known, baseline),
        *_hostile(known[0], baseline, series),
    ]


def _comparisons(
    series: Sequence[Series], known: Sequence[Series], baseline: Series
) -> Iterator[str]:
    """Which method leads, and the differences to the baseline."""
    if _least_reported(series) < FEWEST_SAMPLES:
        yield TOO_FEW
        return
    differences = all_differences(series)
    yield _verdict(known, differences)
    yield from _unequal_rounds(series)
    yield from _left_out_seeds(series)
    yield from _compared(known, baseline, differences)
    yield from _same_predictions(series, baseline)
    yield from _undertrained(known, baseline)
    yield from _significantly_worse(series, baseline, differences)


def _least_reported(series: Sequence[Series]) -> float:
    return min(one.run.report_samples or math.inf for one in series)


def _stayed(series: Sequence[Series]) -> Iterator[str]:
    """Methods whose model stayed in most rounds, or because of the policy; the usual reason."""
    for one in series:
        found = one.run.kept(one.method)
        stayed = len(found)
        seeds = one.run.seeds(one.method)
        rounds = sum(len(one.run.round_nums(one.method, seed)) for seed in seeds)
        if one.learned and 2 * stayed > rounds:
            ((reason, times),) = Counter(kept.sentence for kept in found).most_common(1)
            often = f"in {times} of them: " if times < stayed else ""
            yield (
                f"{one.label}: the model did not change in {stayed} of {rounds} rounds ({often}{reason}). "
                "Its metric is not that of a trained model."
            )
            continue
        unmet = [kept.sentence for kept in found if kept.cause == "bounds"]
        if unmet:
            ((reason, _),) = Counter(unmet).most_common(1)
            yield (
                f"{one.label}: {len(unmet)} of {rounds} rounds could not meet the policy and "
                f"kept the model ({reason})."
            )


def _changes(series: Sequence[Series]) -> Iterator[str]:
    """What changed when a run was resumed."""
    runs = {one.run.id: one.run for one in series}
    for run in runs.values():
        for change in run.changes:
            if change.rounds < run.rounds_done():  # otherwise no round followed
                yield (
                    f"{run.id} was resumed with changes on {change.date}, after "
                    f"{counted(change.rounds, 'round')} in total: {'; '.join(change.what)}. The "
                    "rounds before and after may not be of one experiment."
                )
        for before, now in pairwise(run.machines):
            changes = changed_facts(before.facts, now.facts)
            if changes and now.rounds < run.rounds_done():
                yield (
                    f"{run.id} was resumed under other conditions on {now.date}, after "
                    f"{counted(now.rounds, 'round')} in total: {'; '.join(changes)}. Later rounds may differ in "
                    "their last bits from those of an uninterrupted run; metrics stay comparable."
                )


def _refused(series: Sequence[Series]) -> list[str]:
    """Where updates of honest clients were refused, and the likely cause."""
    found = [one for one in series if any(one.summary.refused) and one.arrived.refused_honest]
    lines = []
    causes: dict[str, None] = {}
    for one in found:
        usual = one.arrived.usual
        assert usual is not None, "honest clients were refused"
        lines.append(f"{one.label}: {_refused_updates(one)}: {usual.reason}.")
        causes[likely_cause(usual.kind)] = None
    return lines + [cause for cause in causes if cause]


def _refused_updates(one: Series) -> str:
    count = one.arrived
    if not one.learned:
        return f"no update was accepted ({count.refused:,} refused); its model is the initial one"
    refused = f"{count.refused:,} of {count.arrived:,} updates were refused"
    if not one.run.has_hostile:  # not simulated: which clients are honest is not known
        return refused
    return f"{refused}, {count.refused_honest:,} of them from honest clients"


def _diverged(series: Sequence[Series]) -> list[str]:
    """Where training diverged: the score of such a method is chance."""
    lines = []
    for one in series:
        if one.diverged:
            seeds = ", ".join(map(str, one.diverged))
            loss = max(one.diverged.values())
            lines.append(
                f"{one.label} diverged (seed {seeds}): the loss in the last round is {loss:.2g}. "
                "Its metric says nothing else."
            )
    if lines:
        lines.append("Try a smaller training.learning_rate.")
    return lines


def _like_a_constant(series: Sequence[Series]) -> Iterator[str]:
    """Methods that end little better than a model that predicts the same for all samples, or worse."""
    found: dict[str, list[str]] = {}
    for one in series:
        if words := _against_a_constant(one):
            found.setdefault(words, []).append(f"{one.label} ({one.unit.text(one.mean_metric)})")
    if found:
        said = " ".join(f"{words}: {', '.join(labels)}." for words, labels in found.items())
        yield (
            f"{said} Try another training.learning_rate, more rounds, or another evaluation.metric."
        )


def _against_a_constant(one: Series) -> str | None:
    """A trained method against a constant prediction; None where it is more than a standard error better."""
    run = one.run
    guessed = run.constant_metric
    metric = one.mean_metric
    has_ended = one.ended == run.rounds and one.last_round >= LEAST_ROUNDS
    is_trained = one.learned and not one.diverged
    if not (has_ended and is_trained) or guessed is None or metric is None:
        return None
    gain = metric - guessed if run.higher_is_better else guessed - metric
    error = 0.0
    if run.is_share and run.higher_is_better and run.report_samples and 0 < guessed < 1:
        error = math.sqrt(guessed * (1 - guessed) / run.report_samples)
    if gain > error:
        return None
    text = one.unit.text(guessed)
    if one.unit.text(metric) == text:
        return f"No better than a constant prediction ({text})"
    return f"{'Worse' if gain < 0 else 'Little better'} than a constant prediction ({text})"


def _unchanged(series: Sequence[Series]) -> Iterator[str]:
    """Methods whose metric is the same in every round of every seed, though their model changed."""
    found = [
        f"{one.label} ({one.unit.text(one.mean_metric)})"
        for one in series
        if one.learned
        and not one.run.initial_model
        and not _has_failed(one)
        and all(map(_is_flat, one.metric.values()))
    ]
    if found:
        yield (
            f"{series[0].run.metric} is the same in all rounds: {', '.join(found)}. Try a larger "
            "training.learning_rate, more rounds, or another evaluation.metric."
        )


def _has_failed(one: Series) -> bool:
    """Whether training diverged, updates were refused or the model stayed: other lines have the cause."""
    return bool(one.diverged) or any(one.summary.refused) or bool(one.run.kept(one.method))


def _best_models(series: Sequence[Series]) -> Iterator[str]:
    """Methods that stopped early, and those whose model is not that of the last round."""
    for one in series:
        found = one.run.best_of_lanes
        if not found:
            continue
        lanes = {seed: found.get(one.run.lane(one.method, seed)) for seed in one.metric}
        best = {seed: row for seed, row in lanes.items() if row is not None}
        stopped = {seed: row for seed, row in best.items() if row.stopped}
        if stopped:
            last = ", ".join(f"{row.last} (seed {seed})" for seed, row in stopped.items())
            lowest = [f"{row.round} (seed {seed})" for seed, row in stopped.items() if row.round]
            loss = f"was lowest in round {', '.join(lowest)}" if lowest else "was not finite"
            yield (
                f"{one.label} stopped early, after round {last} of {one.run.rounds}: the held-out loss "
                f"{loss}."
            )
        kept = {
            seed: row.round
            for seed, row in best.items()
            if row.kept and row.round is not None and row.round != row.last
        }
        curves = one.metric
        values = [curves[seed][number] for seed, number in kept.items() if number in curves[seed]]
        if values:
            rounds = ", ".join(f"{number} (seed {seed})" for seed, number in kept.items())
            value = one.unit.text(statistics.fmean(values))
            yield (
                f"{one.label}: predictions and exports use the model of round {rounds}, which has the lowest "
                f"held-out loss ({one.run.metric} {value}). Reported results are of the last round."
            )


def _is_flat(curve: Mapping[int, float]) -> bool:
    """Whether a curve of several rounds is a level line below the best that there is."""
    if len(curve) < LEAST_ROUNDS:
        return False
    low, high = min(curve.values()), max(curve.values())
    return high - low <= FLAT * abs(high) and high != 1.0


def _same_predictions(series: Sequence[Series], baseline: Series) -> Iterator[str]:
    """Methods that decide on every sample as the baseline does, as far as the record shows."""
    same = [one.label for one in series if one is not baseline and _decides_alike(one, baseline)]
    if same:
        yield (
            f"{', '.join(same)}: same predictions as {baseline.label} (equal {baseline.run.metric} in every "
            "round, and right on the same samples in the best one)."
        )


def _decides_alike(one: Series, other: Series) -> bool:
    if one.run is not other.run or one.metric != other.metric:
        return False
    for seed in one.metric:
        ours = one.run.best_round(one.method, seed)
        theirs = other.run.best_round(other.method, seed)
        if ours is None or theirs is None or not numpy.array_equal(ours.right, theirs.right):
            return False
    return bool(one.metric)


def _unequal_steps(series: Sequence[Series]) -> list[str]:
    """Where the server trains much more than the clients, of the methods that are shown."""
    runs = {one.run.id: one.run for one in series}
    shown = {(one.run.id, one.method) for one in series}
    lines: list[str] = []
    for run in runs.values():
        lines += unequal_steps([row for row in run.steps if (run.id, row.method) in shown])
    return list(dict.fromkeys(lines))


def _unequal_tuning(series: Sequence[Series]) -> Iterator[str]:
    """Where some methods were tuned with more trials than others, or alone."""
    budgets: dict[str, list[str]] = {}
    for one in series:
        recorded = recorded_config(one.run.folder).method(one.method)
        trials = recorded.tuned.get("trials") if recorded else None
        text = counted(trials, "trial") if isinstance(trials, int) else "not tuned"
        budgets.setdefault(text, []).append(one.label)
    if len(budgets) > 1:
        said = "; ".join(f"{text}: {', '.join(labels)}" for text, labels in budgets.items())
        yield f"Methods were not tuned alike ({said}), which favours those with more trials."


def _same_start(series: Sequence[Series]) -> Iterator[str]:
    """Where seeds do not differ in their initial parameters."""
    if any(one.run.same_start and len(one.metric) > 1 for one in series):
        yield (
            "All seeds begin with the parameters of the given network: intervals and p-values do not cover other "
            "initial parameters. To draw them by the seed, pass a function that makes the network."
        )


def _verdict(known: Sequence[Series], differences: Differences) -> str:
    """Which method leads, and whether significantly; `known` are ranked, the best first."""
    best = known[0]
    run = best.run
    value = best.unit.text(best.mean_metric)
    if len(known) == 1:
        return f"{best.label}: {run.metric} {value} in {_last_round(best)}."
    level = [one.label for one in known if one.mean_metric == best.mean_metric]
    result = f"{run.metric} ({value} in {_last_round(best)})"
    if len(level) > 1:
        return f"{', '.join(level[:-1])} and {level[-1]} have the same {result}."
    extreme = "highest" if run.higher_is_better else "lowest"
    others = [differences.get((best.label, one.label)) for one in known[1:]]
    return f"{best.label} has the {extreme} {result}. {_lead_in_words(others)}"


def _last_round(one: Series) -> str:
    """The round that a result is of; while a run goes on, also how many there will be."""
    if one.summary.ended != one.summary.rounds:  # of each seed another one
        return "its last round"
    if one.last_round < one.run.rounds:
        return f"round {one.last_round:,} of {one.run.rounds:,}"
    return f"round {one.last_round}"


def _lead_in_words(others: Sequence[Difference | None]) -> str:
    """Whether a lead over all others is significant: as the largest p-value says."""
    tested = [one for one in others if one is not None and one.p_value is not None]
    if not tested or len(tested) < len(others):
        return "With one seed, no confidence interval can be given."
    seeds = min(one.pairs for one in tested)
    if seeds < MIN_SEEDS:
        return f"With {seeds} seeds, no significance is claimed: at least {MIN_SEEDS} are needed."
    weakest = max(tested, key=lambda one: one.p_value or 0.0)
    negation = "" if weakest.is_significant else "not "
    return f"The lead is {negation}statistically significant ({p_text(weakest)})."


def _compared(known: Sequence[Series], baseline: Series, differences: Differences) -> Iterator[str]:
    """The best against the baseline and against the second best."""
    best = known[0]
    others = {baseline.label: (baseline, "baseline")}
    if len(known) > 1 and known[1] is not baseline:
        others[known[1].label] = (known[1], "second best")
    for label, (other, relation) in others.items():
        if other.mean_metric == best.mean_metric:
            continue
        difference = differences.get((best.label, label))
        words = NOT_COMPARED
        if difference is not None:
            in_full = points if difference.interval is None else in_words
            words = in_full(difference, best.run.higher_is_better, best.unit)
        yield f"{best.label} against {label} ({relation}): {words}."


def _undertrained(known: Sequence[Series], baseline: Series) -> Iterator[str]:
    """Whether the baseline, where another method leads, was still improving at the end."""
    is_behind = baseline in known[1:] and baseline.last_round == baseline.run.rounds
    gain = _late_gain(baseline)
    if not is_behind or gain < _least_gain(baseline):
        return
    unit = baseline.unit
    yield (
        f"{baseline.label} (baseline) is still improving: {unit.size(gain)}{unit.points} in the last "
        "quarter of its rounds. It may be undertrained: compare after more rounds (--rounds), or "
        "with more local steps."
    )


def _least_gain(one: Series) -> float:
    """The least gain that is noted: one point, or 1% of a metric that is no share."""
    return STILL_IMPROVES * (1.0 if one.unit.percent else abs(one.mean_metric or 0.0))


def _late_gain(one: Series) -> float:
    """How much better the last quarter of the rounds is than the quarter before, over the seeds."""
    gains = []
    for curve in one.metric.values():
        values = [curve[number] for number in sorted(curve)]
        quarter = len(values) // 4
        if quarter >= LEAST_QUARTER:
            before = statistics.fmean(values[-2 * quarter : -quarter])
            gains.append(statistics.fmean(values[-quarter:]) - before)
    gain = statistics.fmean(gains) if gains else 0.0
    return gain if one.run.higher_is_better else -gain


def _significantly_worse(
    series: Sequence[Series],
    baseline: Series,
    differences: Differences,
) -> Iterator[str]:
    """The methods that are significantly worse than the baseline."""
    sign = 1 if baseline.run.higher_is_better else -1
    worse = []
    for one in series:
        difference = differences.get((one.label, baseline.label))
        if difference and difference.is_significant and sign * difference.mean < 0:
            unit = one.unit
            worse.append(f"{one.label} ({unit.signed(difference.mean)}{unit.points})")
    if worse:
        yield f"Significantly worse than {baseline.label} (baseline): {', '.join(worse)}."


def _hostile(best: Series, baseline: Series, series: Sequence[Series]) -> Iterator[str]:
    """The influence of hostile clients, and which of their updates were refused."""
    under_baseline = mean_of(baseline.summary.hostile_influence)
    if under_baseline is not None and best is not baseline:
        under_best = mean_of(best.summary.hostile_influence)
        yield (
            f"Hostile clients had {percent_of(under_baseline)} of the influence on the model under "
            f"{baseline.label} and {percent_of(under_best)} under {best.label}."
        )
    refused = [
        f"{one.label} ({one.arrived.refused:,} of {one.arrived.arrived:,})"
        for one in series
        if any(one.summary.refused) and _refused_only_hostile(one)
    ]
    if refused:
        yield f"Updates were refused only from hostile clients: {', '.join(refused)}."


def _refused_only_hostile(one: Series) -> bool:
    return bool(one.arrived.refused) and not one.arrived.refused_honest


def _lowered(series: Sequence[Series]) -> Iterator[str]:
    """How many clients have less than half of their weight left after evidence, and some names."""
    found = [text for one in series if (text := _lowered_clients(one))]
    if found:
        several = any(len(one.summary.seeds) > 1 for one in series)
        when = "in the last round of at least one seed" if several else "in the last round"
        yield (
            f"Evidence took more than half of their weight from clients {when}: "
            f"{'; '.join(found)}. A lowered weight proves nothing."
        )


def _lowered_clients(one: Series) -> str | None:
    run = one.run
    seeds = one.summary.seeds
    recorded = recorded_config(run.folder).method(one.method)
    has_evidence = recorded is None or recorded.evidence is not None
    if not has_evidence or len(seeds) * run.client_sizes(one.seed).clients > MOST_READ:
        return None
    judged: set[int] = set()
    lowered: dict[int, Explanation] = {}
    for seed in seeds:
        for found in explain(run, one.method, seed, one.rounds(seed)):
            if found.evidence is not None:
                judged.add(found.client)
            if found.lost > 0.5:
                lowered[found.client] = found
    if not lowered:
        return None
    # Honest ones first: they are what a reader should look at
    named = sorted(lowered.values(), key=lambda found: (found.is_hostile, found.client))
    names = ", ".join(found.called for found in named[:MOST_LOWERED])
    names += " …" if len(named) > MOST_LOWERED else ""
    text = f"{one.label} from {len(lowered)} of {len(judged)} ({names})"
    if not run.has_hostile:  # outside of simulations, which clients are hostile is not known
        return text
    hostile = sum(found.is_hostile for found in named)
    were = "was" if hostile == 1 else "were"
    return f"{text}; {hostile} of the {counted(len(lowered), 'client')} that lost weight {were} hostile"


def _unequal_rounds(series: Sequence[Series]) -> Iterator[str]:
    """Which methods are not ranked because they have run fewer rounds."""
    most = max(one.ended for one in series)
    behind = [f"{one.label} {one.last_round}" for one in series if one.ended < most]
    if behind:
        yield (
            f"Not all methods have run {most} rounds: {', '.join(behind)}. These are not ranked; "
            "differences are taken in the last round that both have run."
        )


def _left_out_seeds(series: Sequence[Series]) -> Iterator[str]:
    """Which seeds are compared, where some methods have more."""
    ranked_ones = comparable(series)
    compared = ranked_ones[0].summary.seeds
    of_all = {seed for one in ranked_ones for seed in one.run.seeds(one.method)}
    if of_all - {*compared}:
        seeds = ", ".join(map(str, compared))
        yield f"Compared on the seeds that all methods have run as far, on the same data: {seeds}."
