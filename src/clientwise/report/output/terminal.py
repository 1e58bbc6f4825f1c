"""Tables for the terminal."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from ...errors import RunError
from ...record.reading.folder import RunFolder
from ...record.reading.rows import MethodSummary
from ..audit.rounds import Audit, Participant, audit
from ..audit.what_if import round_table
from ..document import (
    Chart,
    Column,
    Document,
    client_cell,
    counted,
    in_bytes,
    in_time,
    text_of,
)
from ..document import Table as DocumentTable
from ..sections.clients import (
    client_word,
    evaluated_clients,
    sampling_in_words,
    worst_client,
)
from ..sections.privacy import privacy_in_words
from ..sections.targets import median_rounds, rounds_cell
from ..series import TRAINS_ON_SERVER_MEANS, Series, series_of
from ..statistics import mean_of
from ..units import Unit
from ..verdict import headline
from ..views import run_state
from .markup import escape

MOST_LINES = 1_000  # of a table: the terminal takes a millisecond for each
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 10
WHOLE_NAME = 16  # characters of a method's name that other columns make room for


def run_text(run: RunFolder) -> str:
    """A run in a Python session: its state, its headline, and one line per method."""
    series = series_of([run])
    methods = counted(len(run.methods), "method")
    seeds = counted(len({lane.seed for lane in run.lanes}), "seed")
    size = f"{methods}, {seeds}, {counted(run.rounds, 'round')}"
    lines = [f"Run({str(run.folder)!r}): {run_state(run)}, {size}", *headline(series)]
    width = max((len(one.label) for one in series), default=0)
    for one in series:
        lines.append(f"  {one.label:<{width}}  {run.metric} {one.unit.spread(one.summary.metric)}")
    return "\n".join(lines)


def summary_table(run: RunFolder) -> Table:
    """One line per method: means over the seeds, and the standard deviation of the metric."""
    series = series_of([run])
    table = _table(_summary_title(run, series))
    longest = max((len(one.marked_label) for one in series), default=0)
    table.add_column("method", overflow="fold", max_width=24, no_wrap=longest <= WHOLE_NAME)
    columns = list(_columns(run, series))
    for column in columns:
        width = max(map(len, column.heading.split("\n")))
        table.add_column(column.heading, justify="right", min_width=width)
    table.add_column("curve", no_wrap=True)
    for one in series:
        curve = [value for _, value in run.curve("metric", one.method, one.seed)]
        cells = [column.cell(one) for column in columns]
        table.add_row(escape(one.marked_label), *cells, sparkline(curve))
    return table


def _summary_title(run: RunFolder, series: Sequence[Series]) -> str:
    rounds = max((max(one.summary.rounds, default=0) for one in series), default=0)
    seeds = max((len(one.summary.seeds) for one in series), default=1)
    title = f"{run.id}: {counted(rounds, 'round')}"
    return f"{title}, mean ± SD of {seeds} seeds" if seeds > 1 else title


Values = Callable[[MethodSummary], Sequence[float | None]]


class _Column(NamedTuple):
    heading: str
    cell: Callable[[Series], str]


def _columns(run: RunFolder, series: Sequence[Series]) -> Iterator[_Column]:
    """The columns that have values in this run."""
    unit = Unit(run.is_share)
    of_sample = "" if run.clients_drawn() is None else "\n(sample)"
    yield _Column(run.metric, lambda one: unit.spread(one.summary.metric))
    if run.shows("macro_f1"):
        yield _Column("macro\nF1", lambda one: _mean(one.summary.macro_f1, "{:.3f}"))
    if _is_known(series, lambda summary: summary.worst_decile):
        heading = f"worst\ndecile{of_sample}"
        yield _Column(heading, lambda one: unit.text(mean_of(one.summary.worst_decile)))
    elif _is_known(series, lambda summary: summary.worst_client):
        heading = f"worst\nclient{of_sample}"
        yield _Column(heading, lambda one: unit.text(worst_client(one)[1]))
    if run.target is not None:
        yield from _target_columns(run, f"to {unit.target(run.target)}")
    if run.has_hostile:
        yield _Column("hostile\nweight", lambda one: _mean(one.summary.hostile_weight))
    if _is_known(series, lambda summary: summary.attack_success):
        yield _Column("backdoor\nsuccess", lambda one: _mean(one.summary.attack_success))
    if any(any(one.summary.testing_rounds) for one in series):
        yield _Column("testing\nrounds", lambda one: _mean(one.summary.testing_rounds, "{:.0f}"))


def _target_columns(run: RunFolder, to_target: str) -> Iterator[_Column]:
    def rounds(one: Series) -> str:
        return rounds_cell(one.summary.rounds_to_target).text

    def seconds(one: Series) -> str:
        return _median(one.summary.time_to_target, in_time)

    def size(one: Series) -> str:
        return _median(one.summary.bytes_to_target, in_bytes)

    yield _Column(f"rounds\n{to_target}", rounds)
    if run.has_clock:
        yield _Column(f"time\n{to_target}", seconds)
        yield _Column(f"bytes\n{to_target}", size)


def _is_known(series: Sequence[Series], values: Values) -> bool:
    """Whether any method has such a value under any seed."""
    return any(set(values(one.summary)) - {None} for one in series)


def matrix_tables(document: Document) -> Iterator[Table]:
    """The standings of all methods in a matrix: a table for each metric."""
    metrics = [section for section in document.sections if section.id.startswith("standings-")]
    for section in metrics:
        found = section.items[0]
        assert not isinstance(found, Chart)
        title = found.title if len(metrics) > 1 else document.subtitle
        shown = plain_table(found, f"{document.title}: {title}")
        shown.caption = escape(found.note)
        shown.caption_justify = "left"
        yield shown


def plain_table(found: DocumentTable, title: str) -> Table:
    """A table of a document, without its empty columns."""
    table = _table(title)
    rows = [[text_of(cell) for cell in row] for row in found.rows]
    kept = [index for index in range(len(found.columns)) if any(row[index] for row in rows)]
    for index in kept:
        column = found.columns[index]
        label = column.label.replace(" ", "\n", 1)
        table.add_column(label, justify=_side(column), overflow="fold", max_width=40)
    for row in rows:
        table.add_row(*(escape(row[index]) for index in kept))
    return table


def _side(column: Column) -> Literal["left", "right"]:
    return "right" if column.numeric else "left"


class TriedValues(Protocol):
    """Values of a method that were tried under some seeds."""

    @property
    def method(self) -> str:
        """The method."""

    @property
    def values(self) -> Mapping[tuple[str, ...], Any]:
        """The values by key."""

    @property
    def metrics(self) -> Sequence[float]:
        """By seed, the metric in the last round, over all samples that were held back."""

    @property
    def rounds(self) -> Sequence[int | None]:
        """By seed, the rounds until half of the clients reached the target; None if they did not."""


def trials_table(trials: Sequence[TriedValues], best: TriedValues, by: str, unit: Unit) -> Table:
    """One line per trial of a method, the best first: its values, and what came of them."""
    table = _table(f"{best.method}: {counted(len(trials), 'trial')}")
    for path in best.values:
        table.add_column(".".join(path).replace(".", ".\n"), justify="right")
    table.add_column("metric", justify="right")
    if by == "rounds":
        table.add_column("rounds to\nthe target", justify="right")
    others = [trial for trial in trials if trial is not best]
    for trial in [best, *others][:MOST_LINES]:
        row = [
            f"{value:g}" if isinstance(value, float) else str(value)
            for value in trial.values.values()
        ]
        row.append(unit.spread(trial.metrics))
        if by == "rounds":
            row.append(rounds_cell(trial.rounds).text)
        table.add_row(*map(escape, row))
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
    low = min(picked)
    span = (max(picked) - low) or 1.0
    if not math.isfinite(span):
        return ""
    levels = [int((value - low) / span * len(BARS)) for value in picked]
    return "".join(BARS[min(len(BARS) - 1, level)] for level in levels)


def remarks(run: RunFolder) -> list[str]:
    """Notes on the summary table: what its columns mean, and what was unusual in the run."""
    series = series_of([run])
    found = [*_on_columns(run, series), *privacy_in_words(series), *_on_worst_clients(series)]
    for method in run.methods:
        found += _on_method(run, method)
    if not run.finished:
        found.append("This run is not finished.")
    return found


def _on_columns(run: RunFolder, series: Sequence[Series]) -> Iterator[str]:
    if any(one.trains_on_server for one in series):
        yield TRAINS_ON_SERVER_MEANS
    if _is_known(series, lambda summary: summary.worst_decile):
        worse = f"this {run.metric} or a worse one on their own test data"
        yield f"“worst decile”: 10% of the {evaluated_clients(run)} have {worse}."
    yield from sampling_in_words(series)
    if run.target is not None and any(len(one.summary.seeds) > 1 for one in series):
        yield (
            f"“rounds to {Unit(run.is_share).target(run.target)}”: “2/3: 4” means that 2 of 3 seeds reached it; "
            "the median is round 4. Seeds that did not reach it count as slowest."
        )


def _on_worst_clients(series: Sequence[Series]) -> Iterator[str]:
    for one in series:
        name, value = worst_client(one)
        if name is not None:
            metric = f"{one.unit.text(value)} on its own test data"
            yield f"{one.label}: the worst {client_word(one.run)} is {name} with {metric}."


def _on_method(run: RunFolder, method: str) -> Iterator[str]:
    """Criteria without effect, notes and refusals of a method's rounds, each counted."""
    rounds = run.no_effect(method)
    for criterion, count in _count(rounds).items():
        yield (
            f"{method}: {criterion} was constant across clients in {count} of {len(rounds)} rounds "
            "and had no effect there."
        )
    for note, count in _count(run.notes(method)).items():
        yield f"{method}: {note} ({counted(count, 'round')})"
    for reason, count in run.refusal_counts(method):
        yield f"{method}: {counted(count, 'update')} refused: {reason}"


def _count(rounds: Sequence[Sequence[str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for texts in rounds:
        found.update(texts)
    return found


def audit_tables(run: RunFolder, round_num: int, method: str | None = None) -> list[Group]:
    """The weights of a round and what changed them: a table per method and seed, with remarks."""
    if method is not None:
        run.lane(method, next(iter(run.seeds(method)), -1))  # RunError if there is no such method
    lanes = [lane for lane in run.lanes_with_round(round_num) if method in (None, lane.method)]
    if not lanes:
        raise RunError(f"{run.folder}: has no round {round_num} (yet)")
    shown = []
    for lane in lanes:
        found = audit(run, lane.method, lane.seed, round_num)
        parts: list[RenderableType] = [_audit_table(found), *map(escape, _audit_remarks(found))]
        for others in round_table(run, lane.method, lane.seed, round_num):
            parts += [plain_table(others, others.title), escape(others.note)]
        shown.append(Group(*parts))
    return shown


def _audit_table(found: Audit) -> Table:
    title = f"{found.method}, seed {found.seed}, round {found.round_num}"
    if found.priority and len(found.priority) > 1:
        title += f", priority {' > '.join(found.priority)}"
    table = _table(title)
    criteria = [name.replace("_", "\n") for name in found.criteria]
    stages = [stage.label.replace(" ", "\n") for stage in found.stages]
    for heading in ("client", *criteria, *stages):
        table.add_column(heading, justify="right", overflow="fold")
    has_remarks = not _is_explained(found)
    if has_remarks:
        table.add_column("")
    for one in found.participants[:MOST_LINES]:
        row = _audit_row(one)
        if has_remarks:
            row.append(one.remark)
        table.add_row(*map(escape, row))
    return table


def _audit_row(one: Participant) -> list[str]:
    measured = ["–" if value is None else f"{value:.4g}" for value in one.raw]
    return [client_cell(one.client, one.name).text, *measured, *(cell.text for cell in one.chain)]


def _audit_remarks(found: Audit) -> Iterator[str]:
    """How the weights came about, what changed each of them, and notes on the round."""
    more = len(found.participants) - MOST_LINES
    if more > 0:
        yield (
            f"{more:,} more clients are not shown: they have less weight, or were refused. "
            "`Run.participants` in Python returns all of them."
        )
    yield found.explanation
    if _is_explained(found):
        yield from _client_remarks(found)
    yield from found.notes


def _client_remarks(found: Audit) -> Iterator[str]:
    for one in found.participants[:MOST_LINES]:
        said = [text for text in (one.remark, *one.moved) if text]
        if said:
            yield f"Client {client_cell(one.client, one.name).text}: {'; '.join(said)}."


def _is_explained(found: Audit) -> bool:
    """Whether remarks on clients are too long for a column."""
    return any(one.moved for one in found.participants)


def _table(title: str) -> Table:
    narrow = (0, 1, 0, 0)  # so that tables fit into 80 columns
    return Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=narrow)


def _median(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    median = median_rounds(values)
    if median is None:
        return "–"
    return text(median).replace(" ", "\u00a0")  # a plain space would break the line


def _mean(values: Sequence[float | None], layout: str = "{:.1%}") -> str:
    known = [value for value in values if value is not None]
    return layout.format(statistics.fmean(known)) if known else "–"
