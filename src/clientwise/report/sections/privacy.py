"""What methods with differential privacy have spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...record.reading.config_view import recorded_config
from ...record.reading.rows import PrivacyRow
from ..document import (
    Content,
    Section,
    number_cell,
    table,
    text_of,
)
from ..lines import line_chart
from ..series import Series

COLUMNS = ["ε so far", "δ", "budget ε", "clipping norm", "deviation of the noise"]
SIMULATED = "simulated: known from the seed, protects nobody"
NOTE = (
    "ε at δ of all rounds so far, the largest over the seeds; each seed spends its own. It covers the "
    "models alone: the run folder and this report show single clients (docs/privacy.md)."
)


def privacy_section(series: Sequence[Series]) -> Section:
    """ε over the rounds, and the promise of each method."""
    curves = []
    rows: list[list[Content]] = []
    for one in series:
        of_seeds = _spent(one)
        if not of_seeds:
            continue
        curve = [[(row.round_num, row.epsilon) for row in rounds] for rounds in of_seeds]
        curves.append((one, curve))
        rows.append([one.label, *_promise(one, _most_spent(of_seeds))])
    if not rows:
        return Section("privacy", "Privacy", "", [])
    chart = line_chart("epsilon", "ε spent", curves, percent=False)
    words = [*COLUMNS, "neighbours", "noise by", "noise"]
    numeric = [False, *[True] * len(COLUMNS), False, False, False]
    promises = table("privacy", "Privacy spent", ["method", *words], rows, NOTE, numeric)
    return Section("privacy", "Privacy", "", [chart, promises])


def privacy_in_words(series: Sequence[Series]) -> Iterator[str]:
    """What each method has spent, as the table states it."""
    for one in series:
        of_seeds = _spent(one)
        if of_seeds:
            promise = _promise(one, _most_spent(of_seeds))
            spent = f"ε = {text_of(promise.epsilon)} at δ = {text_of(promise.delta)}"
            kind = f"{promise.neighbours}; noise: {promise.noise}"
            yield f"{one.label}: {spent} after all rounds so far ({kind})."


def _spent(one: Series) -> list[list[PrivacyRow]]:
    """The rounds of every seed that spent something."""
    spent = [one.run.spent(one.method, seed) for seed in one.summary.seeds]
    return [rounds for rounds in spent if rounds]


def _most_spent(of_seeds: Sequence[Sequence[PrivacyRow]]) -> PrivacyRow:
    """The last round of the seed with the largest ε."""
    return max((rounds[-1] for rounds in of_seeds), key=lambda row: row.epsilon)


class _Promise(NamedTuple):
    """The cells of a method in the table."""

    epsilon: Content
    delta: Content
    budget: Content
    clip: Content
    deviation: Content
    neighbours: str
    noise_by: str
    noise: str


def _promise(one: Series, last: PrivacyRow) -> _Promise:
    config = recorded_config(one.run.folder)
    method = config.method(one.method)
    settings = method.privacy if method else {}
    by_clients = settings.get("local") is True
    replaced = by_clients or config.sampling != "poisson"
    return _Promise(
        epsilon=number_cell(last.epsilon, 3),
        delta=_number_cell(settings.get("delta")),
        budget=_number_cell(settings.get("epsilon")),
        clip=number_cell(last.clip, 4),
        deviation=number_cell(last.deviation, 4),
        neighbours="replace one client" if replaced else "add or remove one client",
        noise_by="clients" if by_clients else "server",
        noise="secret" if settings.get("secret") is True else SIMULATED,
    )


def _number_cell(value: object) -> Content:
    return float(value) if isinstance(value, int | float) else "–"
