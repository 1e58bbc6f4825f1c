"""The headline of a report: which method leads, by how much, whether that is significant, and what is wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from pandas import DataFrame as Frame
from pandas import Series

from ..core.reasons import Kept, likely_cause
from ..record.facts import unequal_steps
from .items import counted, percent
from .results import Method, Results, at_rounds, client_names, has_hostile
from .statistics import MIN_SEEDS, Difference

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
LEAST_QUARTER = 2  # rounds: with fewer, nothing is said about the end of a curve
MOST_LOWERED = 5  # names of clients that evidence took weight from
NOT_RANKED = "Not ranked: the methods share no seed on the same data at the same round."
NOT_COMPARED = "not compared: they share no round of the same seed on the same data"


def headline(results: Results) -> list[str]:
    """Warnings; which method leads and the differences to the baseline; what evidence did."""
    if not results.methods:
        return [NOTHING_YET]
    warnings = [line for warn in WARNINGS for line in warn(results)]
    lowered = list(_lowered(results))
    if results.rivals:
        return [*warnings, *_comparisons(results), *_hostile(results), *lowered]
    if any(one.learned and one.mean_metric is not None for one in results.methods):
        return [*warnings, NOT_RANKED, *lowered]
    if results.is_unmeasured:
        return [*warnings, NOT_MEASURED, *lowered]
    return [*(warnings or [NOTHING_YET]), *lowered]


# What is wrong ------------------------------------------------------------------------------------


def _different_runs(results: Results) -> Iterator[str]:
    """What limits a comparison of several runs."""
    prints = Frame([run.facts.data for run in results.runs])  # [runs, seeds]
    if (prints.nunique() > 1).any():
        yield "These runs are not on the same data, which may explain their differences."
    reported = sorted({run.facts.reported_on for run in results.runs})
    if len(reported) > 1:
        yield f"These runs report on different samples: {' and '.join(reported)}."


def _stayed(results: Results) -> Iterator[str]:
    """Methods whose model stayed in most rounds, or because of the bounds; the usual reason."""
    for one in results.methods:
        found = [Kept(*kept) for kept in one.rounds["kept"].dropna()]
        is_most = one.learned and 2 * len(found) > len(one.rounds)
        told = [kept.sentence for kept in found if is_most or kept.cause == "bounds"]
        for reason, times in Counter(told).most_common(1):
            often = f"in {times} of them: " if times < len(told) else ""
            rounds = f"{len(told)} of {len(one.rounds)} rounds"
            text = f"{one.label}: the model did not change in {rounds} ({often}{reason})."
            yield f"{text} Its metric is not that of a trained model." if is_most else text


def _changes(results: Results) -> Iterator[str]:
    """What changed when a run was resumed."""
    for run in results.runs:
        for change in run.facts.changes:
            if change.rounds < run.lanes["rounds"].sum():  # otherwise no round followed
                yield (
                    f"{run.id} was resumed with changes on {change.date}, after "
                    f"{counted(change.rounds, 'round')} in total: {'; '.join(change.what)}. The "
                    "rounds before and after may not be of one experiment."
                )


def _refused(results: Results) -> Iterator[str]:
    """Where updates of honest clients were refused, and the likely cause."""
    causes: dict[str, None] = {}
    for one in results.methods:
        honest = one.refusals[one.refusals["hostile"].isna()]
        if honest.empty:
            continue
        reasons = honest[["reason", "kind"]].value_counts(dropna=False)
        reason, kind = reasons.index[0]
        count = len(one.refusals)
        refused = f"{count:,} of {one.arrived:,} updates were refused"
        if not one.learned:
            refused = f"no update was accepted ({count:,} refused); its model is the initial one"
        elif has_hostile(one.run):  # otherwise which clients are honest is not known
            refused += f", {len(honest):,} of them from honest clients"
        if len(reasons) > 1:
            refused += f", most often ({counted(reasons.iloc[0], 'time')})"
        yield f"{one.label}: {refused}: {reason}."
        if one.is_by_config:
            causes[likely_cause(kind)] = None
    yield from filter(None, causes)


def _diverged(results: Results) -> Iterator[str]:
    """Where training diverged: the score of such a method is chance."""
    found = [one for one in results.methods if len(one.diverged)]
    for one in found:
        seeds = ", ".join(map(str, one.diverged.index))
        yield (
            f"{one.label} diverged (seed {seeds}): the loss in the last round is {one.diverged.max():.2g}. "
            "Its metric says nothing else."
        )
    if any(one.is_by_config for one in found):
        yield "Try a smaller training.learning_rate."


def _like_a_constant(results: Results) -> Iterator[str]:
    """Methods that end little better than a model that predicts the same for all samples, or worse."""
    found: dict[str, list[str]] = {}
    for one in results.methods:
        if words := _against_a_constant(one, results):
            found.setdefault(words, []).append(
                f"{one.label} ({results.unit.text(one.mean_metric)})"
            )
    if found:
        said = " ".join(f"{words}: {', '.join(labels)}." for words, labels in found.items())
        yield f"{said} Try another training.learning_rate, more rounds, or another evaluation.metric."


def _against_a_constant(one: Method, results: Results) -> str | None:
    """A trained method against a constant prediction; None where it is more than a standard error better."""
    facts = one.run.facts
    guessed, metric = facts.constant_metric, one.mean_metric
    has_ended = one.last_ended == facts.rounds and one.last_round >= LEAST_ROUNDS
    if guessed is None or metric is None or not has_ended or not one.learned or len(one.diverged):
        return None
    gain = metric - guessed if facts.higher_is_better else guessed - metric
    error = 0.0
    if facts.is_share and facts.higher_is_better and facts.report_samples:
        error = math.sqrt(max(0.0, guessed * (1 - guessed)) / facts.report_samples)
    if gain > error:
        return None
    text, constant = map(results.unit.text, (metric, guessed))
    how = "No better" if text == constant else "Worse" if gain < 0 else "Little better"
    return f"{how} than a constant prediction ({constant})"


def _best_models(results: Results) -> Iterator[str]:
    """Methods whose model is not that of the last round."""
    for one in results.methods:
        if one.run.config.get("keep") != "best" or one.about.control == "alone":
            continue
        losses = one.curve("held_out_loss").astype(float).replace(math.inf, math.nan)
        best: Series = losses.dropna(axis="columns", how="all").idxmin()
        kept = best[best != best.index.map(one.done)]
        if len(kept):
            value = results.unit.text(at_rounds(one.metric, kept).mean())
            yield (
                f"{one.label}: predictions and exports use the model of round {_by_seed(kept)}, which has the lowest "
                f"held-out loss ({results.facts.metric} {value}). Reported results are of the last round."
            )


def _by_seed(rounds: Series) -> str:
    return ", ".join(f"{number} (seed {seed})" for seed, number in rounds.items())


def _unequal_steps(results: Results) -> Iterator[str]:
    """Where the server trains much more than the clients."""
    for run in results.runs:
        yield from unequal_steps(run.facts.steps)


def _unequal_tuning(results: Results) -> Iterator[str]:
    """Where some methods were tuned with more trials than others, or alone."""
    budgets: dict[str, list[str]] = {}
    for one in results.methods:
        trials = one.about.tuned.get("trials")
        text = counted(trials, "trial") if isinstance(trials, int) else "not tuned"
        budgets.setdefault(text, []).append(one.label)
    if len(budgets) > 1:
        said = "; ".join(f"{text}: {', '.join(labels)}" for text, labels in budgets.items())
        yield f"Methods were not tuned alike ({said}), which favours those with more trials."


def _same_start(results: Results) -> Iterator[str]:
    """Where seeds do not differ in their initial parameters."""
    if any(one.run.facts.same_start and len(one.seeds) > 1 for one in results.methods):
        yield (
            "All seeds begin with the parameters of the given network: intervals and p-values do not cover other "
            "initial parameters. To draw them by the seed, pass a function that makes the network."
        )


WARNINGS = (
    _different_runs,
    _stayed,
    _changes,
    _refused,
    _diverged,
    _like_a_constant,
    _best_models,
    _unequal_steps,
    _unequal_tuning,
    _same_start,
)


# Which method leads ------------------------------------------------------------------------------


def _comparisons(results: Results) -> Iterator[str]:
    """Which method leads, and the differences to the baseline."""
    if min(run.facts.report_samples or math.inf for run in results.runs) < FEWEST_SAMPLES:
        yield TOO_FEW
        return
    yield _verdict(results)
    yield from _left_out(results)
    yield from _compared(results)
    yield from _undertrained(results)


def _verdict(results: Results) -> str:
    """Which method leads, and whether significantly."""
    best, *others = results.rivals
    facts = best.run.facts
    value = results.unit.text(best.mean_metric)
    if not others:
        return f"{best.label}: {facts.metric} {value} in {_last_round(best)}."
    level = [one.label for one in results.rivals if one.mean_metric == best.mean_metric]
    result = f"{facts.metric} ({value} in {_last_round(best)})"
    if len(level) > 1:
        return f"{', '.join(level[:-1])} and {level[-1]} have the same {result}."
    extreme = "highest" if facts.higher_is_better else "lowest"
    leads = [results.differences.get((best.label, one.label)) for one in others]
    return f"{best.label} has the {extreme} {result}. {_lead_in_words(leads)}"


def _last_round(one: Method) -> str:
    """The round that a result is of; while a run goes on, also how many there will be."""
    if len(one.stopped):  # of each seed another one
        return "its last round"
    if one.last_round < one.run.facts.rounds:
        return f"round {one.last_round:,} of {one.run.facts.rounds:,}"
    return f"round {one.last_round}"


def _lead_in_words(leads: Sequence[Difference | None]) -> str:
    """Whether a lead over all others is significant: as the largest p-value says."""
    tested = [one for one in leads if one is not None and one.p_value is not None]
    if len(tested) < len(leads):
        return "With one seed, no confidence interval can be given."
    seeds = min(one.pairs for one in tested)
    if seeds < MIN_SEEDS:
        return f"With {seeds} seeds, no significance is claimed: at least {MIN_SEEDS} are needed."
    weakest = max(tested, key=lambda one: one.p_value or 0.0)
    return f"The lead is {weakest.significance()}."


def _left_out(results: Results) -> Iterator[str]:
    """Which methods are not ranked because they have run fewer rounds, and which seeds are left out."""
    most = max(one.last_ended for one in results.methods)
    behind = [f"{one.label} {one.last_round}" for one in results.methods if one.last_ended < most]
    if behind:
        yield (
            f"Not all methods have run {most} rounds: {', '.join(behind)}. These are not ranked; "
            "differences are taken in the last round that both have run."
        )
    compared = results.comparable[0].seeds
    of_all = {seed for one in results.comparable for seed in one.run.seeds(one.name)}
    if of_all - {*compared}:
        seeds = ", ".join(map(str, compared))
        yield f"Compared on the seeds that all methods have run as far, on the same data: {seeds}."


def _compared(results: Results) -> Iterator[str]:
    """The best against the baseline and against the second best."""
    best, *others = results.rivals
    relations = {results.baseline.label: (results.baseline, "baseline")}
    if others and others[0] is not results.baseline:
        relations[others[0].label] = (others[0], "second best")
    for label, (other, relation) in relations.items():
        if other.mean_metric == best.mean_metric:
            continue
        found = results.differences.get((best.label, label))
        words = NOT_COMPARED if found is None else in_words(found, results)
        yield f"{best.label} against {label} ({relation}): {words}."


def in_words(difference: Difference, results: Results) -> str:
    """A difference with its interval and, with enough seeds, whether it is significant; of one seed, alone."""
    text = "no difference"
    if difference.mean:
        is_better = (difference.mean > 0) == results.facts.higher_is_better
        size = results.unit.size(abs(difference.mean))
        text = f"{size}{results.unit.points} {'better' if is_better else 'worse'}"
    if difference.interval is None:
        return text
    if difference.round_num is not None:
        text += f" in round {difference.round_num}, the last that both have run"
    low, high = map(results.unit.signed, difference.interval)
    corrected = ", Holm" if difference.tests > 1 else ""
    interval = f"95% confidence interval {low} to {high}{corrected}, {difference.pairs} seeds"
    text += f" ({interval})"
    return text if difference.is_of_too_few else f"{text}, {difference.significance()}"


def _undertrained(results: Results) -> Iterator[str]:
    """Whether the baseline, where another method leads, was still improving at the end."""
    one, unit = results.baseline, results.unit
    gain = _late_gain(one)
    least = STILL_IMPROVES * (1.0 if unit.percent else abs(one.mean_metric or 0.0))
    if one in results.rivals[1:] and one.last_round == one.run.facts.rounds and gain >= least:
        yield (
            f"{one.label} (baseline) is still improving: {unit.size(gain)}{unit.points} in the last "
            "quarter of its rounds. It may be undertrained: compare after more rounds (--rounds), or "
            "with more local steps."
        )


def _late_gain(one: Method) -> float:
    """How much better the last quarter of the rounds is than the quarter before, mean over the seeds."""
    values = one.metric.mean(axis=1)
    quarter = len(values) // 4
    if quarter < LEAST_QUARTER:
        return 0.0
    gain = float(values.iloc[-quarter:].mean() - values.iloc[-2 * quarter : -quarter].mean())
    return gain if one.run.facts.higher_is_better else -gain


# What happened to clients ------------------------------------------------------------------------


def _hostile(results: Results) -> Iterator[str]:
    """The influence of hostile clients under the best method and the baseline."""
    best, baseline = results.rivals[0], results.baseline
    if results.has_hostile and best is not baseline:
        yield (
            f"Hostile clients had {percent(baseline.mean('hostile_influence'))} of the influence on the model "
            f"under {baseline.label} and {percent(best.mean('hostile_influence'))} under {best.label}."
        )


def _lowered(results: Results) -> Iterator[str]:
    """How many clients have less than half of their weight left after evidence, and some names."""
    found = [text for one in results.methods if (text := _lowered_clients(one))]
    if found:
        when = (
            "in the last round of at least one seed"
            if results.has_several_seeds
            else "in the last round"
        )
        yield (
            f"Evidence took more than half of their weight from clients {when}: "
            f"{'; '.join(found)}. A lowered weight proves nothing."
        )


def _lowered_clients(one: Method) -> str | None:
    if one.about.evidence is None:
        return None
    weights = one.frame("weights")
    is_last = weights["round"] == weights["seed"].map(one.done)
    judged = weights[is_last & weights["posterior"].notna()]
    # Updates that share the weight of one: that is no loss
    copies = judged["copies"].astype(float).fillna(1.0).round()
    is_lowered = (judged["prior"] > 0) & (judged["posterior"] * copies < 0.5 * judged["prior"])
    lowered = judged[is_lowered].drop_duplicates("client", keep="last").sort_values("client")
    if lowered.empty:
        return None
    # Honest ones first: they are what a reader should look at
    honest, hostile = lowered[lowered["hostile"].isna()], lowered[lowered["hostile"].notna()]
    names = [*client_names(honest), *client_names(hostile)]
    shown = ", ".join(names[:MOST_LOWERED]) + " …" * (len(names) > MOST_LOWERED)
    text = f"{one.label} from {len(names)} of {judged['client'].nunique()} ({shown})"
    if not has_hostile(one.run):  # outside of simulations, which clients are hostile is not known
        return text
    were = "was" if len(hostile) == 1 else "were"
    lost = counted(len(names), "client")
    return f"{text}; {len(hostile)} of the {lost} that lost weight {were} hostile"
