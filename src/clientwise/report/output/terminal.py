"""Tables for the terminal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markup import render
from rich.table import Table

from ...errors import RunError
from ...record.reading.folder import RunFolder
from ..audit.rounds import Audit, Participant, audit
from ..audit.what_if import round_table
from ..document import (
    Chart,
    Column,
    Document,
    client_cell,
    counted,
    tabulate,
)
from ..document import Table as DocumentTable
from ..marks import Lines
from ..sections.curves import metric_chart
from ..sections.privacy import privacy_in_words
from ..sections.result import result_notes, result_table
from ..sections.targets import rounds_cell
from ..series import Series, series_of
from ..units import Unit
from ..verdict import headline
from ..views import run_state
from .markup import escape

MOST_LINES = 1_000  # of a table: the terminal takes a millisecond for each
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 10
MAX_WIDTH = 40  # of a column
NAME_WIDTH = 16  # characters of a method's name that other columns make room for
NUMBER_WIDTH = 12  # characters of a number, or of a curve, that is never broken


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
    """The table of results, with the curve of every method."""
    series = series_of([run])
    title = _summary_title(run, series)
    if not series:
        return _table(title)
    curves = sparklines(metric_chart(series))
    curve = Column[Series]("curve", lambda one: curves.get(one.label), numeric=False)
    return plain_table(result_table(series, curve), title)


def _summary_title(run: RunFolder, series: Sequence[Series]) -> str:
    rounds = max((max(one.summary.rounds, default=0) for one in series), default=0)
    seeds = max((len(one.summary.seeds) for one in series), default=1)
    title = f"{run.id}: {counted(rounds, 'round')}"
    return f"{title}, mean ± SD of {seeds} seeds" if seeds > 1 else title


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
    shown = []
    for column, texts in zip(found.columns, zip(*_texts(found), strict=True), strict=False):
        if not any(texts):
            continue
        width = max(cell_len(render(line).plain) for text in texts for line in text.split("\n"))
        table.add_column(
            escape(_heading(column.label, width)),
            justify="right" if column.numeric else "left",
            overflow="fold",
            max_width=MAX_WIDTH,
            no_wrap=width <= (NUMBER_WIDTH if shown else NAME_WIDTH),
        )
        shown.append(texts)
    for row in zip(*shown, strict=True):
        table.add_row(*row)
    return table


def _texts(found: DocumentTable) -> list[list[str]]:
    """The cells with markup; numbers have line breaks before brackets."""
    rows = found.texts(escape, lambda text: f"[bold]{text}[/]")
    for row in rows:
        for place, column in enumerate(found.columns):
            if column.numeric:
                row[place] = re.sub(r" (?=\\?[\[(])", "\n", row[place])
    return rows


def _heading(label: str, width: int) -> str:
    """A label in lines that are at most as wide as the cells, or one word.

    >>> _heading("weight of hostile clients", 9)
    'weight of\\nhostile\\nclients'
    """
    words = re.split(r"(?<= )|(?<=[._])(?=[A-Za-z])", label)
    width = max(width, *(len(word.rstrip()) for word in words))
    lines = [""]
    for word in words:
        if lines[-1] and len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


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

    def value_in(path: tuple[str, ...]) -> Callable[[TriedValues], str]:
        return lambda trial: _value_text(trial.values[path])

    columns = [Column(".".join(path), value_in(path)) for path in best.values]
    columns.append(Column("metric", lambda trial: unit.spread(trial.metrics)))
    if by == "rounds":
        columns.append(Column("rounds to the target", lambda trial: rounds_cell(trial.rounds)))
    others = [trial for trial in trials if trial is not best]
    title = f"{best.method}: {counted(len(trials), 'trial')}"
    shown = tabulate("trials", title, columns, [best, *others][:MOST_LINES], "")
    return plain_table(shown, title)


def _value_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def sparklines(chart: Chart) -> dict[str, str]:
    """The lines of a chart by their names, each as a line of bars."""
    assert isinstance(chart.mark, Lines)
    return {line.name: sparkline(line.y) for line in chart.mark.lines}


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
    found = [*result_notes(series), *privacy_in_words(series)] if series else []
    for method in run.methods:
        found += _on_method(run, method)
    if not run.finished:
        found.append("This run is not finished.")
    return found


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
    places = [place.label.replace(" ", "\n") for place in found.places]
    for heading in ("client", *criteria, *places):
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
