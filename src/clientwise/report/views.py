"""What the report and the live page show: a run or several, and the list of runs, as documents (`document.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiment.store import RunError, is_locked
from . import sections
from .document import Json, cell, counted, percent_of, section, table
from .series import Series, difference_between, in_words, mean_of, ranked, series_of
from .summary import Run
from .weights import audit_client, audit_round, hostile_chart, weights

__all__ = ["audit_client", "audit_round", "headline", "list_runs", "overview", "result_charts", "run_state"]


def overview(runs: Sequence[Run]) -> Json:
    """All about one run, or several compared."""
    if not runs:
        raise RunError("no run to report on")
    if len({run.metric for run in runs}) > 1:
        raise RunError("these runs measure different things (accuracy and mape): report on them one by one")
    series = series_of(runs)
    shown = [
        sections.result(series),
        sections.curves_section(series),
        sections.targets(series),
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
    return {
        "id": first.folder.name,
        "title": " and ".join(run.name if len(runs) == 1 else run.folder.name for run in runs),
        "subtitle": f"{methods}; {counted(len(seeds), 'seed')}, {first.rounds} rounds",
        "state": run_state(first),
        "rounds": sum(sum(one.summary.rounds) for one in series),
        "lead": headline(series),
        "sections": [one for one in shown if one["items"]],
    }


def headline(series: Sequence[Series]) -> list[str]:
    """Which method won, by how much and how surely; what happened to the hostile."""
    known = [one for one in ranked(series) if mean_of(one.summary.metric) is not None]
    if not known:
        return ["No round has been recorded yet."]
    run, best, baseline = known[0].run, known[0], series[0]
    lines = [f"{best.label} is best: {run.metric} {percent_of(mean_of(best.summary.metric))} at the last round."]
    for other, relation in (
        (baseline, "the baseline"),
        (known[1] if len(known) > 1 else baseline, "the second best"),
    ):
        if other is best or (other is baseline and relation == "the second best"):
            continue
        difference = difference_between(best, other)
        if difference:
            lines.append(f"Against {other.label} ({relation}): {in_words(difference)}.")
    heavy = mean_of(baseline.summary.hostile_weight)
    if heavy is not None and best is not baseline:
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


def list_runs(folders: Sequence[Path]) -> Json:
    """One line per run folder; a folder that cannot be read says why."""
    rows: list[list[Any]] = []
    for folder in sorted(folders, key=_modified, reverse=True):
        try:
            run = Run(folder)
            done = run.query("SELECT COUNT(*) FROM rounds")[0][0]
            best = next((one for one in ranked(series_of([run])) if mean_of(one.summary.metric) is not None), None)
            result = f"{best.label}: {run.metric} {percent_of(mean_of(best.summary.metric))}" if best else "–"
            total = run.num_lanes * run.rounds
            rows.append(
                [
                    {"value": folder.name, "text": folder.name, "href": f"/runs/{folder.name}"},
                    run_state(run),
                    cell(done / total, f"{done} of {total}"),
                    ", ".join(run.methods),
                    result,
                ]
            )
        except RunError as error:
            rows.append([folder.name, "unreadable", None, "", str(error)])
    runs = table(
        "runs",
        "Runs",
        ["run", "state", "rounds", "methods", "best so far"],
        rows,
        "",
        [False, False, True, False, False],
    )
    return {
        "title": "Runs",
        "lead": [] if rows else ["No run here yet; `clientwise demo` makes one."],
        "sections": [section("runs", "Runs", "", [runs] if rows else [])],
    }


def _modified(folder: Path) -> float:
    database = folder / "run.sqlite"
    return database.stat().st_mtime if database.exists() else 0.0
