"""Tables for the terminal."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from ..errors import RunError
from ..runs.folder import RunFolder
from .audit import Audit, audit
from .document import Cell, Chart, Document, client_cell, in_bytes, in_time, percent_of
from .document import Table as DocumentTable
from .sections import median_rounds, rounds_cell, worst_client
from .series import Series, series_of, spread_of

if TYPE_CHECKING:
    from ..experiment.tune import Trial

MOST_LINES = 1_000  # of a table: the terminal takes a millisecond for each
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 10


def summary_table(run: RunFolder) -> Table:
    """One line per method: means over the seeds, with several the standard deviation of the metric beside it."""
    series = series_of([run])
    seeds = max((len(one.summary.seeds) for one in series), default=1)
    rounds = max((count for one in series for count in one.summary.rounds), default=0)
    title = f"{run.id}: {rounds} rounds" + (f", mean ± deviation of {seeds} seeds" if seeds > 1 else "")
    table = _table(title)
    table.add_column("method", overflow="fold", max_width=24)
    columns = _columns(run, series)
    for heading, _ in columns:
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split("\n"))))
    table.add_column("curve", no_wrap=True)
    for one in series:
        curve = [value for _, value in run.curve("metric", one.method, one.seed)]
        table.add_row(escape(one.method), *(cell(one) for _, cell in columns), sparkline(curve))
    return table


def _columns(run: RunFolder, series: Sequence[Series]) -> list[tuple[str, Callable[[Series], str]]]:
    """Heading and cell of every column that has something to say about this run."""
    columns: list[tuple[str, Callable[[Series], str]]] = [(run.metric, lambda one: spread_of(one.summary.metric))]
    if run.shows("macro_f1"):
        columns.append(("macro\nF1", lambda one: _mean(one.summary.macro_f1, "{:.3f}")))
    if any(value is not None for one in series for value in one.summary.worst_decile):
        columns.append(("worst\ndecile", lambda one: _mean(one.summary.worst_decile)))
    elif any(value is not None for one in series for value in one.summary.worst_client):
        columns.append(("worst\nclient", lambda one: percent_of(worst_client(one)[1])))
    if run.target is not None:
        columns.append((f"rounds\nto {run.target:.0%}", lambda one: rounds_cell(one.summary.rounds_to_target).text))
        if run.has_clock:
            columns.append((f"time\nto {run.target:.0%}", lambda one: _median(one.summary.time_to_target, in_time)))
            columns.append((f"bytes\nto {run.target:.0%}", lambda one: _median(one.summary.bytes_to_target, in_bytes)))
    if run.has_hostile:
        columns.append(("hostile\nweight", lambda one: _mean(one.summary.hostile_weight)))
    if any(value is not None for one in series for value in one.summary.attack_success):
        columns.append(("backdoor\nsuccess", lambda one: _mean(one.summary.attack_success)))
    if any(any(one.summary.testing_rounds) for one in series):
        columns.append(("tests", lambda one: _mean(one.summary.testing_rounds, "{:.0f}")))
    return columns


def matrix_table(document: Document) -> Table:
    """The standings of all methods in a matrix."""
    found = document.sections[0].items[0]
    assert not isinstance(found, Chart)
    return plain_table(found, f"{document.title}: {document.subtitle}")


def plain_table(found: DocumentTable, title: str) -> Table:
    """A table of a document, without the columns in which nothing stands."""
    table = _table(title)
    rows = [
        [cell.text if isinstance(cell, Cell) else "" if cell is None else str(cell) for cell in row]
        for row in found.rows
    ]
    kept = [place for place in range(len(found.columns)) if any(row[place] for row in rows)]
    for column in (found.columns[place] for place in kept):
        label = column.label.replace(" ", "\n", 1)
        table.add_column(label, justify="right" if column.numeric else "left", overflow="fold", max_width=40)
    for row in rows:
        table.add_row(*(escape(row[place]) for place in kept))
    return table


def trials_table(trials: Sequence[Trial], method: str, target: float) -> Table:
    """One line per learning rate: rounds until half of the clients reached the target, and how good it was then."""
    seeds = list(dict.fromkeys(trial.seed for trial in trials))
    table = _table(f"{method}: rounds until half of the clients reach {target:.0%}, on samples held back from training")
    for heading in ("rate", *(f"seed {seed}" for seed in seeds), "all samples, when it stopped"):
        table.add_column(heading, justify="right")
    for rate in dict.fromkeys(trial.learning_rate for trial in trials):
        mine = [trial for trial in trials if trial.learning_rate == rate]
        rounds = ["not reached" if trial.rounds is None else str(trial.rounds) for trial in mine]
        table.add_row(f"{rate:g}", *rounds, f"{statistics.fmean(trial.metric for trial in mine):.1%}")
    return table


def sparkline(values: Sequence[float]) -> str:
    """A curve as a line of bars, from its lowest value to its highest.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    if not values:
        return ""
    count = min(SPARK_WIDTH, len(values))
    picked = [values[index * (len(values) - 1) // max(1, count - 1)] for index in range(count)]
    low, span = min(picked), (max(picked) - min(picked)) or 1.0
    if not math.isfinite(span):
        return ""  # no bar is high enough
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in picked)


def remarks(run: RunFolder) -> list[str]:
    """What a reader of the table should know: worst clients, criteria without effect, rounds that changed nothing."""
    found, series = [], series_of([run])
    if any(value is not None for one in series for value in one.summary.worst_decile):
        found.append("“worst decile”: 10% of the honest clients do no better than this on their own test data.")
    if run.target is not None and any(len(one.summary.seeds) > 1 for one in series):
        found.append(
            f"“rounds to {run.target:.0%}”: how many seeds got there, and the median, “not reached” being most."
        )
    for one in series:
        name, value = worst_client(one)
        if name is not None:
            found.append(f"{one.label}: the worst client is {name} with {percent_of(value)} on its own test data.")
    for method in run.methods:
        rounds = run.no_effect(method)
        constant = Counter(name for names in rounds for name in names)
        found += [
            f"{method}: {name} was equal for all clients in {count} of {len(rounds)} rounds: no effect there, all alike"
            for name, count in constant.items()
        ]
        notes = Counter(note for notes in run.notes(method) for note in notes)
        found += [f"{method}: {note} ({count} rounds)" for note, count in notes.items()]
        found += [f"{method}: {count} updates refused: {reason}" for reason, count in run.refusal_counts(method)]
    if not run.finished:
        found.append("This run is not finished.")
    return found


def audit_tables(run: RunFolder, round_num: int, method: str | None = None) -> list[Group]:
    """Who got which weight in a round, and why: one table per method and seed, with what moved the weights below it."""
    if method is not None:
        run.lane(method, next(iter(run.seeds(method)), -1))  # says so if there is none
    lanes = [lane for lane in run.lanes_with_round(round_num) if method in (None, lane.method)]
    if not lanes:
        raise RunError(f"{run.folder}: has no round {round_num} (yet)")
    found = [audit(run, lane.method, lane.seed, round_num) for lane in lanes]
    return [Group(_audit_table(one), *map(escape, _audit_remarks(one))) for one in found]


def _audit_table(found: Audit) -> Table:
    order = f", priority {' > '.join(found.priority)}" if found.priority and len(found.priority) > 1 else ""
    table = _table(f"{found.method}, seed {found.seed}, round {found.round_num}{order}")
    headings = [*(name.replace("_", "\n") for name in found.criteria), *(place.label for place in found.places)]
    for heading in ("client", *headings):
        table.add_column(heading.replace(" ", "\n"), justify="right", overflow="fold")
    if beside := not _is_explained(found):
        table.add_column("")
    for one in found.participants[:MOST_LINES]:
        values = ["–" if value is None else f"{value:.4g}" for value in one.raw]
        remark = [escape(one.remark)] if beside else []
        table.add_row(
            escape(client_cell(one.client, one.name).text), *values, *(cell.text for cell in one.chain), *remark
        )
    return table


def _audit_remarks(found: Audit) -> Iterator[str]:
    """How the weights came about, what moved each, and what is to be known about the round."""
    if (more := len(found.participants) - MOST_LINES) > 0:
        yield f"… and {more:,} more with less weight, or refused: `Run.participants` in Python has all of them."
    yield found.explanation
    for one in found.participants[:MOST_LINES] if _is_explained(found) else ():
        if said := "; ".join(filter(None, [one.remark, *one.moved])):
            yield f"Client {client_cell(one.client, one.name).text}: {said}."
    yield from found.notes


def _is_explained(found: Audit) -> bool:
    """Whether there is more to say about a client than fits into a column."""
    return any(one.moved for one in found.participants)


def _table(title: str) -> Table:
    return Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )  # narrow: fits 80 columns


def _median(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    median = median_rounds(values)
    return "–" if median is None else text(median).replace(" ", "\u00a0")  # nothing else keeps it in one line


def _mean(values: Sequence[float | None], layout: str = "{:.1%}") -> str:
    known = [value for value in values if value is not None]
    return layout.format(statistics.fmean(known)) if known else "–"
