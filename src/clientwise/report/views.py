"""What the report and the live page show: a run or several, and the list of runs, as documents (`document.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..experiment.store import RunError, is_locked
from . import sections
from .document import Json, cell, counted, percent_of, section, table
from .series import Series, difference_between, in_words, mean_of, ranked, series_of
from .summary import UNREADABLE, Run, what_is_wrong
from .weights import audit_client, audit_round, hostile_chart, weights

__all__ = [
    "audit_client",
    "audit_round",
    "headline",
    "overview",
    "result_charts",
    "run_row",
    "run_state",
    "runs_document",
]


def overview(runs: Sequence[Run]) -> Json:
    """All about one run, or several compared."""
    if not runs:
        raise RunError("no run to report on")
    if len({run.metric for run in runs}) > 1:
        measured = " and ".join(sorted({run.metric for run in runs}))
        raise RunError(f"these runs measure different things ({measured}): report on them one by one")
    series = series_of(runs)
    if not series:
        return {
            "id": runs[0].id,
            "title": runs[0].name,
            "lead": ["No round has been recorded yet."],
            "sections": [],
            "state": run_state(runs[0]),
            "rounds": 0,
        }
    shown = [
        sections.result(series),
        sections.curves_section(series),
        sections.targets(series),
        sections.best_rounds(series),
        sections.clients_section(series),
        weights(series),
        sections.priority_section(series),
        sections.classes(series),
        sections.refusals(series),
        sections.cost(series),
    ]
    first = runs[0]
    methods = ", ".join(dict.fromkeys(one.method for one in series))
    seeds = sorted({seed for one in series for seed in one.summary.seeds})
    rounds = " or ".join(counted(number, "round") for number in sorted({run.rounds for run in runs}))
    return {
        "id": first.id,
        "title": " and ".join(run.name if len(runs) == 1 else run.id for run in runs),
        "subtitle": f"{methods}; {counted(len(seeds), 'seed')}, {rounds}",
        "isComparison": len(runs) > 1,
        "state": "running" if any(run_state(run) == "running" for run in runs) else run_state(first),
        "rounds": sum(sum(one.summary.rounds) for one in series),
        "lead": [*_warnings(runs), *headline(series)],
        "sections": [one for one in shown if one["items"]],
    }


def _warnings(runs: Sequence[Run]) -> list[str]:
    """What a comparison of these runs must be read with."""
    first, *others = (dict(run.query("SELECT key, value FROM facts WHERE key LIKE 'data of seed %'")) for run in runs)
    lines = []
    if any(first[seed] != other[seed] for other in others for seed in first.keys() & other.keys()):
        lines.append("These runs are not on the same data: a difference between them may be due to that.")
    if len(reported := sorted({run.reported_on for run in runs})) > 1:
        lines.append(f"They report on different samples: {' and '.join(reported)}.")
    return lines


def headline(series: Sequence[Series]) -> list[str]:
    """Which method won, by how much and how surely; what happened to the hostile."""
    known = [one for one in ranked(series) if mean_of(one.summary.metric) is not None]
    if not known:
        return ["No round has been recorded yet."]
    run, best, baseline = known[0].run, known[0], series[0]
    value = percent_of(mean_of(best.summary.metric))
    level = [one.label for one in known if mean_of(one.summary.metric) == mean_of(best.summary.metric)]
    lines = [f"{best.label} is best: {run.metric} {value} at the last round."]
    if len(level) > 1:
        lines = [f"{', '.join(level[:-1])} and {level[-1]} are level: {run.metric} {value} at the last round."]
    for other, relation in (
        (baseline, "the baseline"),
        (known[1] if len(known) > 1 else baseline, "the second best"),
    ):
        if other.label in level or (other is baseline and relation == "the second best"):
            continue
        difference = difference_between(best, other)
        if difference:
            lines.append(f"Against {other.label} ({relation}): {in_words(difference, run.higher_is_better)}.")
    heavy = mean_of(baseline.summary.hostile_weight)
    if heavy is not None and baseline.label not in level:
        light = percent_of(mean_of(best.summary.hostile_weight))
        lines.append(
            f"Hostile clients had {percent_of(heavy)} of the weight under {baseline.label}, {light} under {best.label}."
        )
    return lines


def result_charts(run: Run) -> list[Json]:
    """A run in one picture: the metric over the rounds, and the weight of the hostile if there are any."""
    series = series_of([run])
    return [sections.metric_chart(series), *([hostile_chart(series)] if run.has_hostile else [])]


def run_state(run: Run) -> str:
    """Whether a run is finished, running right now, or stopped before its end."""
    if run.finished:
        return "finished"
    return "running" if is_locked(run.folder) else "stopped"


def run_row(folder: Path, name: str) -> list[Any]:
    """A line of the list of runs; a folder that cannot be read says why."""
    try:
        run = Run(folder, name)
        done, total = run.query("SELECT COUNT(*) FROM rounds")[0][0], run.num_lanes * run.rounds
        best = next((one for one in ranked(series_of([run])) if mean_of(one.summary.metric) is not None), None)
        return [
            {"value": name, "text": name, "href": f"/runs/{quote(name, safe='')}"},
            run_state(run),
            cell(done / total, f"{done} of {total}"),
            ", ".join(run.methods),
            f"{best.label}: {run.metric} {percent_of(mean_of(best.summary.metric))}" if best else "–",
        ]
    except UNREADABLE as error:
        return [name, "unreadable", None, "", what_is_wrong(error, folder)]


def runs_document(rows: Sequence[Sequence[Any]]) -> Json:
    """The list of runs."""
    columns = ["run", "state", "rounds", "methods", "best so far"]
    runs = table("runs", "Runs", columns, rows, "", [False, False, True, False, False])
    return {
        "title": "Runs",
        "lead": [] if rows else ["No run here yet; `clientwise demo` makes one."],
        "sections": [section("runs", "Runs", "", [runs] if rows else [])],
    }
