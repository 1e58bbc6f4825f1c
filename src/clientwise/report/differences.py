"""Differences between methods: paired over the seeds they share, and their wording."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from .series import Series
from .statistics import (
    MIN_SEEDS,
    Difference,
    holm,
    paired_difference,
)
from .units import Unit

SMALLEST_P = 0.001  # a smaller p-value is not spelt out
Differences = Mapping[tuple[str, str], Difference]  # by the labels of two series


def shared_seeds(one: Series, other: Series) -> list[int]:
    """The seeds that both have, on the same data."""
    seeds = {*one.summary.seeds} & {*other.summary.seeds}
    return sorted(seed for seed in seeds if one.run.data.get(seed) == other.run.data.get(seed))


def difference_between(one: Series, other: Series) -> Difference | None:
    """One minus the other in the last round both have; None where they share no seed."""
    seeds = shared_seeds(one, other)
    ours = one.metric
    theirs = other.metric
    both = [_last(ours[seed].keys() & theirs[seed].keys()) for seed in seeds]
    round_num = max(both, default=0)
    difference = paired_difference(
        [ours[seed].get(round_num) for seed in seeds],
        [theirs[seed].get(round_num) for seed in seeds],
    )
    curves = [*ours.values(), *theirs.values()]
    if difference is None or all(_last(curve) <= round_num for curve in curves):
        return difference
    return replace(difference, round_num=round_num)


def _last(rounds: Iterable[int]) -> int:
    return max(rounds, default=0)


def all_differences(series: Sequence[Series]) -> dict[tuple[str, str], Difference]:
    """One minus the other for all pairs, by label, with Holm's correction for all of them."""
    labels: list[tuple[str, str]] = []
    found: list[Difference] = []
    for one, other in itertools.combinations(series, 2):
        difference = difference_between(one, other)
        if difference is not None:
            labels.append((one.label, other.label))
            found.append(difference)
    both_ways = {}
    for (one_label, other_label), difference in zip(labels, holm(found), strict=True):
        negated = 0.0 - difference.mean  # not −0
        both_ways[one_label, other_label] = difference
        both_ways[other_label, one_label] = replace(difference, mean=negated)
    return both_ways


def in_words(difference: Difference, higher_is_better: bool, unit: Unit) -> str:
    """A difference with its interval and whether it is significant."""
    text = points(difference, higher_is_better, unit)
    if difference.round_num is not None:
        text += f" in round {difference.round_num}, the last that both have run"
    if difference.interval is None:
        return f"{text}. With one seed, no confidence interval can be given"
    low, high = map(unit.signed, difference.interval)
    corrected = ", Holm" if difference.tests > 1 else ""
    interval = f"95% confidence interval {low} to {high}{corrected}, {difference.pairs} seeds"
    return f"{text} ({interval}), {significance(difference)}"


def points(difference: Difference, higher_is_better: bool, unit: Unit) -> str:
    """A difference without its interval."""
    if not difference.mean:
        return "no difference"
    is_better = (difference.mean > 0) == higher_is_better
    size = unit.size(abs(difference.mean))
    return f"{size}{unit.points} {'better' if is_better else 'worse'}"


def significance(difference: Difference, unit: str = "seeds") -> str:
    """Whether a difference is significant, with its p; it must have one."""
    chance = p_text(difference)
    if difference.lacks_seeds:
        return f"{chance}; no significance is claimed with fewer than {MIN_SEEDS} {unit}"
    if difference.is_significant:
        return f"statistically significant ({chance})"
    return f"not statistically significant ({chance})"


def p_text(difference: Difference) -> str:
    """The p-value: `p = 0.08, Holm` where it is corrected.

    >>> p_text(Difference(0.1, 0.1, 5, p_value=0.0812, tests=3))
    'p = 0.081, Holm'
    """
    value = difference.p_value
    if value is None:
        return "no p-value"
    text = f"p {p_number(value)}" if value < SMALLEST_P else f"p = {p_number(value)}"
    return f"{text}, Holm" if difference.tests > 1 else text


def p_number(value: float) -> str:
    """A p-value as a number of two digits.

    >>> p_number(0.0812), p_number(0.00001)
    ('0.081', '< 0.001')
    """
    return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.2g}"


def signed(difference: Difference, unit: Unit) -> str:
    """A difference of a metric, with its interval."""
    text = f"{unit.signed(difference.mean)}{_in_brackets(difference, unit.signed)}"
    return text if difference.round_num is None else f"{text} (round {difference.round_num})"


def signed_rounds(difference: Difference) -> str:
    """A difference in rounds, with its interval."""
    return f"{_plus(difference.mean)}{_in_brackets(difference, _plus) or ' (one seed)'}"


def _in_brackets(difference: Difference, text: Callable[[float], str]) -> str:
    """The interval; not with ±, which is a standard deviation in the same tables."""
    if difference.interval is None:
        return ""
    low, high = difference.interval
    return f" [{text(low)}, {text(high)}]"


def _plus(value: float) -> str:
    """With its sign, and without −0.0.

    >>> _plus(1.26), _plus(-0.01)
    ('+1.3', '+0.0')
    """
    return f"{round(value, 1) + 0.0:+.1f}"
