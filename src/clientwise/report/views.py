"""What the report shows of a run, or of several, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from ..errors import RunError
from ..record.database import reading
from ..record.files import is_locked
from ..record.run import RunFolder
from ..registry import listed
from . import sections
from .about import about_section, config_section, data_line
from .audit.pages import audit_client, audit_round
from .document import (
    Chart,
    Document,
    Section,
    counted,
)
from .sections.curves import head_chart, metric_chart
from .sections.weights import hostile_chart
from .series import Series, is_unmeasured, series_of
from .verdict import NOTHING_YET, headline

__all__ = [
    "audit_client",
    "audit_round",
    "headline",
    "one_seed",
    "overview",
    "result_charts",
    "run_state",
]


def overview(runs: Sequence[RunFolder]) -> Document:
    """The report on one run, or on several compared."""
    if not runs:
        raise RunError("no run to report on")
    metrics = sorted({run.metric for run in runs})
    if len(metrics) > 1:
        names = " and ".join(metrics)
        raise RunError(f"these runs measure different metrics ({names}): report on each alone")
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(reading(run.folder))
        return _overview(runs)


def _overview(runs: Sequence[RunFolder]) -> Document:
    first = runs[0]
    series = series_of(runs)
    if not series:
        return Document(first.name, [NOTHING_YET], [], state=run_state(first), rounds=0)
    shown = [
        sections.result_section(series),
        about_section(runs),
        sections.curves_section(series),
        sections.privacy_section(series),
        sections.adapters_section(series),
        sections.targets_section(series),
        sections.best_rounds_section(series),
        sections.clients_section(series),
        sections.gains_section(series),
        *_sections_of_one_seed(series),
        sections.refusals_section(series),
        sections.cost_section(series),
        config_section(runs),
    ]
    is_running = any(run_state(run) == "running" for run in runs)
    return Document(
        title=" and ".join(run.id for run in runs),
        subtitle=_subtitle(runs, series),
        is_comparison=len(runs) > 1,
        state="running" if is_running else run_state(first),
        seeds=_seeds(series),
        rounds=max(one.last_round for one in series),
        data=data_line(first) if len(runs) == 1 else None,
        curve=None if is_unmeasured(series) else head_chart(series),
        lead=[*_warnings(runs), *headline(series)],
        sections=[section for section in shown if section.items],
    )


def _subtitle(runs: Sequence[RunFolder], series: Sequence[Series]) -> str:
    methods = listed(dict.fromkeys(one.method for one in series))
    rounds = " or ".join(counted(number, "round") for number in sorted({r.rounds for r in runs}))
    text = f"{methods}; {counted(len(_seeds(series)), 'seed')}, {rounds}"
    if len(runs) == 1 and runs[0].name != runs[0].id:
        return f"{runs[0].name}: {text}"
    return text


def _seeds(series: Sequence[Series]) -> list[int]:
    return sorted({seed for one in series for seed in one.summary.seeds})


def _sections_of_one_seed(series: Sequence[Series]) -> list[Section]:
    """Those that cannot show all seeds at once."""
    return [
        sections.weights_section(series),
        sections.counterfactuals_section(series),
        sections.contributions_section(series),
        sections.priority_section(series),
        sections.classes_section(series),
    ]


def one_seed(runs: Sequence[RunFolder], seed: int) -> Document:
    """The sections of an overview that show only one seed, with this one."""
    shown = _sections_of_one_seed(series_of(runs, seed))
    return Document(f"Seed {seed}", [], [section for section in shown if section.items])


def _warnings(runs: Sequence[RunFolder]) -> list[str]:
    """What limits a comparison of these runs."""
    lines = []
    if not all(_has_same_data(runs[0], run) for run in runs[1:]):
        lines.append("These runs are not on the same data, which may explain their differences.")
    reported = sorted({run.reported_on for run in runs})
    if len(reported) > 1:
        lines.append(f"These runs report on different samples: {' and '.join(reported)}.")
    return lines


def _has_same_data(one: RunFolder, other: RunFolder) -> bool:
    shared = one.data.keys() & other.data.keys()
    return all(one.data[seed] == other.data[seed] for seed in shared)


def result_charts(run: RunFolder) -> list[Chart]:
    """A run in one picture: the metric over the rounds, and the influence of hostile clients."""
    series = series_of([run])
    charts = [metric_chart(series)]
    if run.has_hostile:
        charts.append(hostile_chart(series))
    return charts


def run_state(run: RunFolder) -> str:
    """Whether a run is finished, running now, or stopped before its end."""
    if run.finished:
        return "finished"
    return "running" if is_locked(run.folder) else "stopped"
