"""The result: one row per method, the best first.

`COLUMNS` is the one place that states its columns. The terminal, the page, notebooks and the files
(CSV, Markdown, LaTeX) show what they find there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..differences import Differences, all_differences, signed
from ..document import (
    Cell,
    Column,
    Content,
    Section,
    Table,
    counted,
    number_cell,
    percent_cell,
    tabulate,
)
from ..scales import Scale, scales
from ..series import (
    NOT_AVAILABLE_MEANS,
    TRAINS_ON_SERVER_MEANS,
    Series,
    comparable,
    ranked,
    rivals,
)
from ..statistics import deviation_of, mean_of
from .clients import client_word, evaluated_clients, sampling_in_words, worst_client
from .targets import CENSORED, difference_numbers, rounds_cell

Columns = Iterator[Column[Series]]
NOTABLE = 0.002  # of the metric: what one sample is worth is said from here on


def result_section(series: Sequence[Series]) -> Section:
    """Every method with its metric, its difference to the baseline and what else was measured."""
    return Section("result", "Result", "", [result_table(series)])


def result_table(series: Sequence[Series], *more: Column[Series]) -> Table:
    """The main table of a report, with columns that only one output can show."""
    columns = [column for columns_of in COLUMNS for column in columns_of(series)]
    columns += more
    sentences = result_notes(series)
    if any(column.marks_best for column in columns):
        sentences.append("Bold: the lead over every other method is statistically significant.")
    title = "Methods, best first" if comparable(series) else "Methods, not ranked"
    rows = ranked(series)
    unavailable = [index for index, one in enumerate(rows) if not one.is_available]
    return tabulate("summary", title, columns, rows, " ".join(sentences), unavailable)


def result_notes(series: Sequence[Series]) -> list[str]:
    """What the columns mean, sentence by sentence."""
    run = series[0].run
    has_several_seeds = _has_several_seeds(series)
    values = f"Values of the last round on {run.reported_on}"
    if has_several_seeds:
        values += ", mean over the seeds; ± is the standard deviation over the seeds"
    sentences = [f"{values}."]
    if len(series) > 1:
        sentences.append(
            "Differences are paired by seed on the same data, in the last round that both methods "
            f"have run{series[0].unit.of_differences}."
        )
        if has_several_seeds:
            sentences += [
                "Their 95% confidence intervals stand in brackets.",
                "Intervals and p-values are corrected for all pairs (Holm): an interval excludes 0 "
                "if and only if p < 0.05.",
            ]
        else:
            sentences.append("With one seed, no confidence interval can be given.")
    sentences += brief_notes(series)
    if any(one.run.has_hostile for one in series):
        sentences.append("The influence of hostile clients is the mean over all rounds.")
    if _has_search(series):
        sentences.append("Testing rounds are counted over all rounds.")
    if any(one.run.target is not None for one in series):
        sentences.append(CENSORED)
    if scales(series):
        sentences.append("The last round of two methods may end at different times on the clock.")
    return sentences


def brief_notes(series: Sequence[Series]) -> list[str]:
    """What the terminal says, too: how many samples the values are about, and the marks of methods."""
    run = series[0].run
    sentences = _reporting_sizes(series)
    if not _has_results_of_clients(series):
        sentences.append("No client has results on test data of its own.")
    if _has_deciles(series):
        worse = f"this {run.metric} or a worse one on their own test data"
        sentences.append(f"Worst decile: 10% of the {evaluated_clients(run)} have {worse}.")
    sentences += sampling_in_words(series)
    if not all(one.is_available for one in series):
        sentences.append(NOT_AVAILABLE_MEANS)
    if any(one.trains_on_server for one in series):
        sentences.append(TRAINS_ON_SERVER_MEANS)
    return sentences


def _reporting_sizes(series: Sequence[Series]) -> list[str]:
    """On how many samples results are reported, and what one of them is worth."""
    runs = {one.run.id: one.run for one in series}
    lines = []
    for run in runs.values():
        if not run.report_samples:
            continue
        details = []
        if run.report_rarest is not None:
            details.append(f"{run.report_rarest:,} of the rarest class")
        worth = 1 / run.report_samples
        if run.is_share and run.higher_is_better and worth >= NOTABLE:
            details.append(f"one sample is worth about {series[0].unit.size(worth)} points")
        said = f"Reported on {counted(run.report_samples, 'sample')}"
        lines.append(f"{said} ({'; '.join(details)})." if details else f"{said}.")
    return list(dict.fromkeys(lines))


def _method_column(_: Sequence[Series]) -> Columns:
    def cell(one: Series) -> Content:
        is_marked = one.marked_label != one.label
        return Cell(one.label, one.marked_label) if is_marked else one.label

    yield Column("method", cell, numeric=False)


def _metric_columns(series: Sequence[Series]) -> Columns:
    run = series[0].run
    differences = all_differences(series)
    best_first = comparable(series)
    metric = run.metric
    against = "against the baseline"
    if _has_several_seeds(series):
        metric = f"{run.metric} ± deviation"
        corrected = ", Holm" if len(series) > 2 else ""
        against = f"against the baseline [95% CI{corrected}]"
    lower = not run.higher_is_better
    is_marked = _leads_significantly(series, differences)
    yield Column(
        metric,
        lambda one: _metric_cell(one, not best_first or one in best_first),
        lower_is_better=lower,
        name=run.metric,
        marks_best=is_marked,
    )
    yield Column(
        against,
        lambda one: _against_cell(one, series[0], differences),
        lower_is_better=lower,
        name="against the baseline",
        marks_best=is_marked,
    )
    if run.shows("macro_f1"):
        yield Column(
            "macro F1",
            lambda one: number_cell(mean_of(one.summary.macro_f1), 3),
            is_secondary=True,
        )


def _has_several_seeds(series: Sequence[Series]) -> bool:
    return any(len(one.summary.seeds) > 1 for one in series)


def _leads_significantly(series: Sequence[Series], differences: Differences) -> bool:
    """Whether all are ranked and the best is significantly better than every other."""
    if len(comparable(series)) < len(series):
        return False
    best, *others = rivals(series)
    found = [differences.get((best.label, other.label)) for other in others]
    return bool(found) and all(one is not None and one.is_significant for one in found)


def _metric_cell(one: Series, is_ranked: bool) -> Cell:
    values = one.summary.metric
    text = one.unit.spread(values)
    if not is_ranked:
        text += f" (round {one.last_round})"
    mean = mean_of(values)
    known = sum(value is not None for value in values)
    numbers = {"mean": mean, "deviation": deviation_of(values), "seeds": known}
    return Cell(mean, text, numbers=numbers)


def _against_cell(one: Series, baseline: Series, differences: Differences) -> Cell:
    if one is baseline:
        return Cell(None, "baseline")
    difference = differences.get((one.label, baseline.label))
    if difference is None:
        return Cell(None, "–")
    numbers = {**difference_numbers(difference), "p by Holm": difference.p_value}
    return Cell(difference.mean, signed(difference, one.unit), numbers=numbers)


def _client_columns(series: Sequence[Series]) -> Columns:
    """The worst client, or the deciles of many; with both deciles as LEAF reports them."""
    if not _has_results_of_clients(series):
        return
    lower = not series[0].run.higher_is_better
    word = client_word(series[0].run)
    if not _has_deciles(series):
        yield Column(f"worst {word}", _worst_client_cell, lower_is_better=lower)
        return
    yield Column(
        f"worst decile of {word}s",
        lambda one: one.unit.cell(mean_of(one.summary.worst_decile)),
        lower_is_better=lower,
    )
    yield Column(
        f"best decile of {word}s",
        lambda one: one.unit.cell(mean_of(one.summary.best_decile)),
        lower_is_better=lower,
        is_secondary=True,
    )


def _has_results_of_clients(series: Sequence[Series]) -> bool:
    return any(
        _known(one.summary.worst_client) or _known(one.summary.worst_decile) for one in series
    )


def _has_deciles(series: Sequence[Series]) -> bool:
    return any(_known(one.summary.worst_decile) for one in series)


def _known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _worst_client_cell(one: Series) -> Cell:
    name, value = worst_client(one)
    text = one.unit.text(value)
    if name:
        text += f" ({name})"
    return Cell(value, text, numbers={"": value, "name": name})


def _target_columns(series: Sequence[Series]) -> Columns:
    """Rounds, time and bytes to the target: the first one, where compared runs have several."""
    target = next((one.run.target for one in series if one.run.target is not None), None)
    if target is None:
        return
    suffix = f"to {series[0].unit.target(target)}"

    def rounds(one: Series) -> Cell:
        return rounds_cell([*_rounds_to(one, target).values()])

    def used(scale: Scale) -> Callable[[Series], Cell]:
        return lambda one: _used_to(one, target, scale)

    yield Column(f"rounds {suffix}", rounds, lower_is_better=True)
    for scale in scales(series):
        yield Column(f"{scale.name} {suffix}", used(scale), lower_is_better=True)


def _rounds_to(one: Series, target: float) -> dict[int, int | None]:
    """By seed, the first round in which the metric reaches the target."""
    return {seed: one.run.rounds_to(target, one.method, seed) for seed in one.summary.seeds}


def _used_to(one: Series, target: float, scale: Scale) -> Cell:
    """Time or bytes until the target was reached; a control has no clock."""
    so_far = {seed: scale.of(one, seed) for seed in one.summary.seeds}
    if not any(so_far.values()):
        return Cell(None, "–")
    rounds = _rounds_to(one, target)
    return rounds_cell([so_far[seed].get(rounds[seed] or 0) for seed in so_far], scale.text)


def _attack_columns(series: Sequence[Series]) -> Columns:
    if any(one.run.has_hostile for one in series):
        yield Column(
            "influence of hostile clients",
            lambda one: percent_cell(mean_of(one.summary.hostile_influence)),
            lower_is_better=True,
        )
    if any(_known(one.summary.attack_success) for one in series):
        yield Column(
            "backdoor success rate",
            lambda one: percent_cell(mean_of(one.summary.attack_success)),
            lower_is_better=True,
        )


def _search_columns(series: Sequence[Series]) -> Columns:
    if _has_search(series):
        yield Column(
            "testing rounds",
            lambda one: number_cell(mean_of(one.summary.testing_rounds), 0),
            lower_is_better=True,
        )


def _has_search(series: Sequence[Series]) -> bool:
    return any(any(one.summary.testing_rounds) for one in series)


# A new column is a function here: it yields nothing for methods that have no such value.
COLUMNS: tuple[Callable[[Sequence[Series]], Columns], ...] = (
    _method_column,
    _metric_columns,
    _client_columns,
    _target_columns,
    _attack_columns,
    _search_columns,
)
