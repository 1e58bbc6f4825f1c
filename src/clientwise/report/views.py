"""What the report and the live page show: a run or several, and the list of runs, as documents (`document.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from ..core.guard import likely_cause
from ..errors import RunError
from ..runs.database import reading
from ..runs.folder import RunFolder
from ..runs.lock import is_locked
from . import sections
from .about import about_section, config_section, data_name, labels
from .document import Cell, Chart, Content, Document, Section, Table, counted, percent_of, table
from .series import Series, all_differences, comparable, in_words, mean_of, ranked, series_of
from .statistics import Difference
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
NOT_RANKED = "Not ranked: they have no seed on the same data in common, at the same round."
NOT_COMPARED = "not compared, for they have no round of the same seed on the same data in common"


def overview(runs: Sequence[RunFolder]) -> Document:
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


def _overview(runs: Sequence[RunFolder]) -> Document:
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


def one_seed(runs: Sequence[RunFolder], seed: int) -> Document:
    """The sections of an overview that show only one seed, with this one."""
    shown = _of_one_seed(series_of(runs, seed))
    return Document(f"Seed {seed}", [], [one for one in shown if one.items])


def not_begun(title: str, run_id: str | None = None, state: str | None = None) -> Document:
    """A run without rounds."""
    return Document(title, [NOTHING_YET], [], id=run_id, state=state, rounds=0)


def _warnings(runs: Sequence[RunFolder]) -> list[str]:
    """What a comparison of these runs must be read with."""
    first, *others = (run.data for run in runs)
    lines = []
    if any(first[seed] != other[seed] for other in others for seed in first.keys() & other.keys()):
        lines.append("These runs are not on the same data: a difference between them may be due to that.")
    if len(reported := sorted({run.reported_on for run in runs})) > 1:
        lines.append(f"They report on different samples: {' and '.join(reported)}.")
    return lines


def headline(series: Sequence[Series]) -> list[str]:
    """What must be known before any number is read; which method won, by how much and how surely; who is worse."""
    first = [*_changes(series), *_refused(series), *_diverged(series)]
    known = [one for one in ranked(series) if one in comparable(series)]
    if not known:
        begun = any(one.learned and mean_of(one.summary.metric) is not None for one in series)
        return [*first, NOT_RANKED] if begun else first or [NOTHING_YET]
    differences = all_differences(series)
    best, baseline = known[0], series[0]
    return [
        *first,
        _verdict(known, differences),
        *_unequal_rounds(series),
        *_left_out_seeds(series),
        *_compared(known, baseline, differences),
        *_clearly_worse(series, baseline, differences),
        *_hostile(best, baseline, series),
    ]


def _changes(series: Sequence[Series]) -> list[str]:
    """What a run was resumed with that it did not begin with."""
    runs = {one.run.id: one.run for one in series}.values()
    return [
        f"{run.id} was resumed with changes on {change.date}, after {counted(change.rounds, 'round')} in all: "
        f"{'; '.join(change.what)}. Its rounds before and after are not of one experiment."
        for run in runs
        for change in run.changes
        if change.rounds < run.rounds_done()  # or it came to nothing
    ]


def _refused(series: Sequence[Series]) -> list[str]:
    """Where updates of honest clients were refused, and the likely cause; of hostile ones they should be."""
    found = [one for one in series if any(one.summary.refused) and one.arrived.refused_honest]
    lines = []
    for one in found:
        reason, count = one.arrived.reason, one.arrived
        what = (
            f"{count.refused:,} of {count.arrived:,} updates were refused, {count.refused_honest:,} of honest clients"
        )
        if not one.learned:
            what = f"no update was ever accepted ({count.refused:,} refused), so its model is the initial one"
        lines.append(f"{one.label}: {what}: {reason}.")
    causes = dict.fromkeys(likely_cause(one.arrived.reason or "") for one in found)
    return [*lines, *filter(None, causes)]


def _diverged(series: Sequence[Series]) -> list[str]:
    """Where training diverged: what such a method scores is chance."""
    lines = [
        f"{one.label} diverged (seed {', '.join(map(str, one.diverged))}): a loss of {max(one.diverged.values()):.2g} "
        "in the last round; what it scores says nothing else."
        for one in series
        if one.diverged
    ]
    return [*lines, "Try a smaller training.learning_rate."] if lines else []


def _verdict(known: Sequence[Series], differences: Mapping[tuple[str, str], Difference]) -> str:
    """Who is best, of those best first; or merely ahead, where that is not sure."""
    best, run = known[0], known[0].run
    result = f"{run.metric} {percent_of(mean_of(best.summary.metric))} at the last round"
    level = [one.label for one in known if mean_of(one.summary.metric) == mean_of(best.summary.metric)]
    if len(known) == 1:
        return f"{best.label}: {result}."
    if len(level) > 1:
        return f"{', '.join(level[:-1])} and {level[-1]} are level: {result}."
    others = [differences.get((best.label, one.label)) for one in known[1:]]
    is_best = all(difference and difference.is_sure for difference in others)
    return f"{best.label} is best: {result}." if is_best else f"{best.label} is ahead, not surely: {result}."


def _compared(
    known: Sequence[Series], baseline: Series, differences: Mapping[tuple[str, str], Difference]
) -> Iterator[str]:
    """The best against the baseline and against the second best."""
    best, others = known[0], {baseline.label: (baseline, "the baseline")}
    if len(known) > 1 and known[1] is not baseline:
        others[known[1].label] = (known[1], "the second best")
    for label, (other, relation) in others.items():
        if mean_of(other.summary.metric) != mean_of(best.summary.metric):
            difference = differences.get((best.label, label))
            compared = in_words(difference, best.run.higher_is_better) if difference else NOT_COMPARED
            yield f"Against {label} ({relation}): {compared}."


def _clearly_worse(
    series: Sequence[Series], baseline: Series, differences: Mapping[tuple[str, str], Difference]
) -> Iterator[str]:
    """Who does surely worse than the baseline."""
    sign = 1 if baseline.run.higher_is_better else -1
    found = {one.label: differences.get((one.label, baseline.label)) for one in series}
    worse = [
        f"{label} ({100 * difference.mean:+.1f} points)"
        for label, difference in found.items()
        if difference and difference.is_sure and sign * difference.mean < 0
    ]
    if worse:
        yield f"Surely worse than {baseline.label} (the baseline): {', '.join(worse)}."


def _hostile(best: Series, baseline: Series, series: Sequence[Series]) -> Iterator[str]:
    """What happened to the hostile."""
    heavy = mean_of(baseline.summary.hostile_weight)
    if heavy is not None and best is not baseline:
        under = f"under {baseline.label}, {percent_of(mean_of(best.summary.hostile_weight))} under {best.label}"
        yield f"Hostile clients had {percent_of(heavy)} of the weight {under}."
    refused = [
        f"{one.label} ({one.arrived.refused:,} of {one.arrived.arrived:,})"
        for one in series
        if any(one.summary.refused) and one.arrived.refused and not one.arrived.refused_honest
    ]
    if refused:
        yield f"Updates were refused, of hostile clients alone: {', '.join(refused)}."


def _unequal_rounds(series: Sequence[Series]) -> Iterator[str]:
    """Who is not ranked, for the last round of one is not that of another."""
    rounds = {one.label: max(one.summary.rounds) for one in series}
    behind = [f"{label} {number}" for label, number in rounds.items() if number < max(rounds.values())]
    if behind:
        yield (
            f"Not all have run {max(rounds.values())} rounds: {', '.join(behind)}. These are not ranked; differences "
            "are taken at the last round that both have."
        )


def _left_out_seeds(series: Sequence[Series]) -> Iterator[str]:
    """Which seeds are compared, where some have more."""
    seeds = {one.label: one.summary.seeds for one in comparable(series)}
    left_out = {seed for one in comparable(series) for seed in one.run.seeds(one.method)} - {
        *next(iter(seeds.values()))
    }
    if left_out:
        shared = ", ".join(map(str, next(iter(seeds.values()))))
        yield f"Compared on the seeds that all have run as far, on the same data: {shared}."


def result_charts(run: RunFolder) -> list[Chart]:
    """A run in one picture: the metric over the rounds, and the weight of the hostile if there are any."""
    series = series_of([run])
    return [sections.metric_chart(series), *([hostile_chart(series)] if run.has_hostile else [])]


def run_state(run: RunFolder) -> str:
    """Whether a run is finished, running right now, or stopped before its end."""
    if run.finished:
        return "finished"
    return "running" if is_locked(run.folder) else "stopped"


def run_row(folder: Path, name: str) -> list[Content]:
    """A line of the list of runs; a folder that cannot be read says why."""
    try:
        run = RunFolder(folder, name)
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
