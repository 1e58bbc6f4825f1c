"""What the report and the live page show: a run or several, and the list of runs, as documents (`document.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from ..errors import RunError
from ..runs.database import reading
from ..runs.lock import is_locked
from ..runs.reader import Run
from . import sections
from .about import about_section, config_section, data_name, labels
from .document import Cell, Chart, Content, Document, Section, Table, counted, percent_of, table
from .series import Series, difference_between, in_words, mean_of, ranked, series_of
from .weights import audit_client, audit_round, hostile_chart, weights

__all__ = [
    "audit_client",
    "audit_round",
    "headline",
    "not_begun",
    "one_seed",
    "overview",
    "result_charts",
    "run_row",
    "run_state",
    "runs_document",
]

NOTHING_YET = "No round has been recorded yet."
NOT_COMPARED = "not compared, for they have no round of the same seed on the same data in common"


def overview(runs: Sequence[Run]) -> Document:
    """All about one run, or several compared."""
    if not runs:
        raise RunError("no run to report on")
    if len({run.metric for run in runs}) > 1:
        measured = " and ".join(sorted({run.metric for run in runs}))
        raise RunError(f"these runs measure different things ({measured}): report on them one by one")
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(reading(run.folder))
        return _overview(runs)


def _overview(runs: Sequence[Run]) -> Document:
    first, series = runs[0], series_of(runs)
    if not series:
        return not_begun(first.name, first.id, run_state(first))
    shown = [
        sections.result(series),
        about_section(runs),
        sections.curves_section(series),
        sections.targets(series),
        sections.best_rounds(series),
        sections.clients_section(series),
        *_of_one_seed(series),
        sections.refusals(series),
        sections.cost(series),
        config_section(runs),
    ]
    methods = ", ".join(dict.fromkeys(one.method for one in series))
    seeds = sorted({seed for one in series for seed in one.summary.seeds})
    rounds = " or ".join(counted(number, "round") for number in sorted({run.rounds for run in runs}))
    config = f"{first.name}: " if len(runs) == 1 and first.name != first.id else ""
    return Document(
        id=first.id,
        title=" and ".join(run.id for run in runs),
        subtitle=f"{config}{methods}; {counted(len(seeds), 'seed')}, {rounds}",
        is_comparison=len(runs) > 1,
        state="running" if any(run_state(run) == "running" for run in runs) else run_state(first),
        seeds=seeds,
        rounds=max(count for one in series for count in one.summary.rounds),
        lead=[*_warnings(runs), *headline(series)],
        sections=[one for one in shown if one.items],
    )


def _of_one_seed(series: Sequence[Series]) -> list[Section]:
    """What cannot show all seeds at once."""
    return [weights(series), sections.priority_section(series), sections.classes(series)]


def one_seed(runs: Sequence[Run], seed: int) -> Document:
    """The sections of an overview that show only one seed, with this one."""
    shown = _of_one_seed(series_of(runs, seed))
    return Document(f"Seed {seed}", [], [one for one in shown if one.items])


def not_begun(title: str, run_id: str | None = None, state: str | None = None) -> Document:
    """A run without rounds."""
    return Document(title, [NOTHING_YET], [], id=run_id, state=state, rounds=0)


def _warnings(runs: Sequence[Run]) -> list[str]:
    """What a comparison of these runs must be read with."""
    first, *others = (run.data for run in runs)
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
        return [NOTHING_YET]
    run, best, baseline = known[0].run, known[0], series[0]
    value = percent_of(mean_of(best.summary.metric))
    level = [one.label for one in known if mean_of(one.summary.metric) == mean_of(best.summary.metric)]
    lines = [f"{best.label} is best: {run.metric} {value} at the last round."]
    if len(level) > 1:
        lines = [f"{', '.join(level[:-1])} and {level[-1]} are level: {run.metric} {value} at the last round."]
    lines += _unequal_rounds(known)
    for other, relation in (
        (baseline, "the baseline"),
        (known[1] if len(known) > 1 else baseline, "the second best"),
    ):
        if other.label in level or (other is baseline and relation == "the second best"):
            continue
        difference = difference_between(best, other)
        compared = in_words(difference, run.higher_is_better) if difference else NOT_COMPARED
        lines.append(f"Against {other.label} ({relation}): {compared}.")
    heavy = mean_of(baseline.summary.hostile_weight)
    if heavy is not None and baseline.label not in level:
        light = percent_of(mean_of(best.summary.hostile_weight))
        lines.append(
            f"Hostile clients had {percent_of(heavy)} of the weight under {baseline.label}, {light} under {best.label}."
        )
    return lines


def _unequal_rounds(series: Sequence[Series]) -> list[str]:
    """A warning where the last round of one is not that of another."""
    rounds = {one.label: max(one.summary.rounds) for one in series}
    if len({*rounds.values()}) < 2:
        return []
    least, most = min(rounds, key=lambda label: rounds[label]), max(rounds, key=lambda label: rounds[label])
    return [
        f"Not all have run as many rounds: {least} {rounds[least]}, {most} {rounds[most]}. "
        "Differences are taken at the last round that both have."
    ]


def result_charts(run: Run) -> list[Chart]:
    """A run in one picture: the metric over the rounds, and the weight of the hostile if there are any."""
    series = series_of([run])
    return [sections.metric_chart(series), *([hostile_chart(series)] if run.has_hostile else [])]


def run_state(run: Run) -> str:
    """Whether a run is finished, running right now, or stopped before its end."""
    if run.finished:
        return "finished"
    return "running" if is_locked(run.folder) else "stopped"


def run_row(folder: Path, name: str) -> list[Content]:
    """A line of the list of runs; a folder that cannot be read says why."""
    try:
        run = Run(folder, name)
        done, total = run.rounds_done(), run.num_lanes * run.rounds
        best = next((one for one in ranked(series_of([run])) if mean_of(one.summary.metric) is not None), None)
        value = mean_of(best.summary.metric) if best else None
        note, tags = labels(run)
        return [
            Cell(name, name, href=f"/runs/{quote(name, safe='')}"),
            run_state(run),
            run.begun,
            data_name(run),
            ", ".join(run.methods),
            len({lane.seed for lane in run.lanes}),
            Cell(done / total, f"{done} of {total}"),
            Cell(value, f"{best.label}: {run.metric} {percent_of(value)}" if best else "–"),
            tags,
            note,
        ]
    except RunError as error:
        return [name, "unreadable", *[None] * (len(RUNS) - 3), str(error).replace(f"{folder}: ", "")]


# The columns of the list of runs, and whether they are numbers.
RUNS = {"run": False, "state": False, "begun": False, "data": False, "methods": False, "seeds": True, "rounds": True}
RUNS |= {"best so far": False, "tags": False, "note": False}


def runs_table(rows: Sequence[Sequence[Content]]) -> Table:
    """The list of runs as a table."""
    return table("runs", "Runs", [*RUNS], rows, "", [*RUNS.values()])


def runs_document(rows: Sequence[Sequence[Content]]) -> Document:
    """The list of runs."""
    runs = runs_table(rows)
    lead = [] if rows else ["No run here yet; `clientwise demo` makes one."]
    return Document("Runs", lead, [Section("runs", "Runs", "", [runs] if rows else [])])
