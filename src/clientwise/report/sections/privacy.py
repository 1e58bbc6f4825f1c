"""What methods with differential privacy have spent."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.recorded import recorded_config
from ..document import Content, Section, number_cell, table
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
        spent = [one.run.spent(one.method, seed) for seed in one.summary.seeds]
        of_seeds = [rounds for rounds in spent if rounds]
        if not of_seeds:
            continue
        curve = [[(row.round_num, row.epsilon) for row in rounds] for rounds in of_seeds]
        curves.append((one, curve))
        last = max((rounds[-1] for rounds in of_seeds), key=lambda row: row.epsilon)
        rows.append([one.label, *_promise(one, last.epsilon, last.clip, last.deviation)])
    if not rows:
        return Section("privacy", "Privacy", "", [])
    chart = line_chart("epsilon", "ε spent", curves, percent=False)
    words = [*COLUMNS, "neighbours", "noise by", "noise"]
    numeric = [False, *[True] * len(COLUMNS), False, False, False]
    promises = table("privacy", "Privacy spent", ["method", *words], rows, NOTE, numeric)
    return Section("privacy", "Privacy", "", [chart, promises])


def _promise(one: Series, epsilon: float, clip: float, deviation: float) -> list[Content]:
    config = recorded_config(one.run.folder)
    method = config.method(one.method)
    settings = method.privacy if method else {}
    by_clients = settings.get("local") is True
    replaced = by_clients or config.sampling != "poisson"
    return [
        number_cell(epsilon, 3),
        _number_cell(settings.get("delta")),
        _number_cell(settings.get("epsilon")),
        number_cell(clip, 4),
        number_cell(deviation, 4),
        "replace one client" if replaced else "add or remove one client",
        "clients" if by_clients else "server",
        "secret" if settings.get("secret") is True else SIMULATED,
    ]


def _number_cell(value: object) -> Content:
    return float(value) if isinstance(value, int | float) else "–"
