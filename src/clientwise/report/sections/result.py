"""The result: one row per method, the best first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..differences import Differences, all_differences, signed
from ..document import (
    Cell,
    Content,
    Section,
    number_cell,
    percent_cell,
    table,
)
from ..scales import Scale, scales
from ..series import (
    TRAINS_ON_SERVER_MEANS,
    Series,
    comparable,
    ranked,
)
from ..statistics import deviation_of, mean_of
from .clients import client_word, sampling_in_words, worst_client
from .targets import CENSORED, difference_numbers, rounds_cell


@dataclass(frozen=True)
class _ResultColumn:
    """A column of the table of results."""

    label: str
    content: Callable[[Series], Content]
    lower_is_better: bool = False
    csv_name: str = ""
    is_tested: bool = False  # whether the best value is marked where the lead is significant


def result_section(series: Sequence[Series]) -> Section:
    """Every method with its metric, its difference to the baseline and what else was measured."""
    differences = all_differences(series)
    columns = [
        _ResultColumn("method", _method_cell),
        *_metric_columns(series, differences),
        *_client_columns(series),
        *_target_columns(series),
        *_attack_columns(series),
    ]
    marked: list[str] = []
    if _leads_significantly(series, differences):
        marked = [column.label for column in columns if column.is_tested]
    shown = table(
        "summary",
        "Methods, best first" if comparable(series) else "Methods, not ranked",
        [column.label for column in columns],
        [[column.content(one) for column in columns] for one in ranked(series)],
        _note(series, is_marked=bool(marked)),
        lower=[column.label for column in columns if column.lower_is_better],
        names={column.label: column.csv_name for column in columns if column.csv_name},
        marked=marked,
    )
    return Section("result", "Result", "", [shown])


def _leads_significantly(series: Sequence[Series], differences: Differences) -> bool:
    """Whether all are ranked and the best is significantly better than every other."""
    if len(comparable(series)) < len(series):
        return False
    best, *others = ranked(series)
    found = [differences.get((best.label, other.label)) for other in others]
    return bool(found) and all(one is not None and one.is_significant for one in found)


def _note(series: Sequence[Series], *, is_marked: bool) -> str:
    run = series[0].run
    sentences = [
        f"Values of the last round on {run.reported_on}, mean over the seeds; ± is the standard "
        "deviation over the seeds.",
        "Differences are paired by seed on the same data, in the last round that both methods have "
        f"run{series[0].unit.of_differences}; their 95% confidence intervals stand in brackets.",
        "With one seed, no confidence interval can be given.",
        "Each interval is of one difference; p-values are corrected for all pairs (Holm).",
    ]
    sentences += sampling_in_words(series)
    if is_marked:
        sentences.append("Bold: the lead over every other method is statistically significant.")
    if any(one.trains_on_server for one in series):
        sentences.append(TRAINS_ON_SERVER_MEANS)
    if any(one.run.target is not None for one in series):
        sentences.append(CENSORED)
    if scales(series):
        sentences.append("The last round of two methods may end at different times on the clock.")
    return " ".join(sentences)


def _method_cell(one: Series) -> Content:
    return Cell(one.label, one.marked_label) if one.trains_on_server else one.label


def _metric_columns(series: Sequence[Series], differences: Differences) -> list[_ResultColumn]:
    run = series[0].run
    baseline = series[0]
    best_first = comparable(series)
    metric = run.metric
    against = "against the baseline"
    if _has_several_seeds(series):
        metric = f"{run.metric} ± deviation"
        against = "against the baseline [95% interval]"

    def metric_cell(one: Series) -> Cell:
        return _metric_cell(one, not best_first or one in best_first)

    def against_cell(one: Series) -> Cell:
        return _against_cell(one, baseline, differences)

    lower = not run.higher_is_better
    columns = [
        _ResultColumn(metric, metric_cell, lower, run.metric, is_tested=True),
        _ResultColumn(against, against_cell, lower, "against the baseline", is_tested=True),
    ]
    if run.shows("macro_f1"):
        columns.append(_ResultColumn("macro F1", _macro_f1_cell))
    return columns


def _has_several_seeds(series: Sequence[Series]) -> bool:
    return any(len(one.summary.seeds) > 1 for one in series)


def _metric_cell(one: Series, is_ranked: bool) -> Cell:
    values = one.summary.metric
    text = one.unit.spread(values)
    if not is_ranked:
        text += f" (round {one.last_round})"
    mean = mean_of(values)
    known = sum(value is not None for value in values)
    numbers = {"mean": mean, "deviation": deviation_of(values), "seeds": known}
    return Cell(mean, text, numbers=numbers)


def _macro_f1_cell(one: Series) -> Cell:
    return number_cell(mean_of(one.summary.macro_f1), 3)


def _against_cell(one: Series, baseline: Series, differences: Differences) -> Cell:
    if one is baseline:
        return Cell(None, "baseline")
    difference = differences.get((one.label, baseline.label))
    if difference is None:
        return Cell(None, "–")
    numbers = {**difference_numbers(difference), "p by Holm": difference.p_value}
    return Cell(difference.mean, signed(difference, one.unit), numbers=numbers)


def _client_columns(series: Sequence[Series]) -> list[_ResultColumn]:
    """The worst client, or the deciles of many; with both deciles as LEAF reports them."""
    lower = not series[0].run.higher_is_better
    word = client_word(series[0].run)
    if not any(_known(one.summary.worst_decile) for one in series):
        return [_ResultColumn(f"worst {word}", _worst_client_cell, lower)]
    return [
        _ResultColumn(
            f"worst decile of {word}s",
            lambda one: one.unit.cell(mean_of(one.summary.worst_decile)),
            lower,
        ),
        _ResultColumn(
            f"best decile of {word}s",
            lambda one: one.unit.cell(mean_of(one.summary.best_decile)),
            lower,
        ),
    ]


def _known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _worst_client_cell(one: Series) -> Cell:
    name, value = worst_client(one)
    text = one.unit.text(value)
    if name:
        text += f" ({name})"
    return Cell(value, text, numbers={"": value, "name": name})


def _target_columns(series: Sequence[Series]) -> list[_ResultColumn]:
    """Rounds, time and bytes to the target: the first one, where compared runs have several."""
    target = next((one.run.target for one in series if one.run.target is not None), None)
    if target is None:
        return []
    suffix = " (reached: median)" if _has_several_seeds(series) else ""

    def column(name: str, content: Callable[[Series], Content]) -> _ResultColumn:
        label = f"{name} to {series[0].unit.target(target)}"
        return _ResultColumn(label + suffix, content, lower_is_better=True, csv_name=label)

    def used(scale: Scale) -> Callable[[Series], Content]:
        return lambda one: _used_to(one, target, scale)

    columns = [column("rounds", lambda one: rounds_cell([*_rounds_to(one, target).values()]))]
    return columns + [column(scale.name, used(scale)) for scale in scales(series)]


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


def _attack_columns(series: Sequence[Series]) -> list[_ResultColumn]:
    columns = []
    if any(one.run.has_hostile for one in series):
        columns.append(
            _ResultColumn(
                "weight of hostile clients",
                lambda one: percent_cell(mean_of(one.summary.hostile_weight)),
                lower_is_better=True,
            )
        )
    if any(_known(one.summary.attack_success) for one in series):
        columns.append(
            _ResultColumn(
                "backdoor success rate",
                lambda one: percent_cell(mean_of(one.summary.attack_success)),
                lower_is_better=True,
            )
        )
    return columns
