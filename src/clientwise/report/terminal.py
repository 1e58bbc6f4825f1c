"""Tables for the terminal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import render
from rich.table import Column as TableColumn
from rich.table import Table

from ..errors import RunError
from ..record.reading.folder import RunFolder
from .audit.pages import audit_columns, reasons
from .audit.round_audit import Audit, audit
from .audit.what_if import round_table
from .document import (
    Chart,
    Column,
    Document,
    client_cell,
    counted,
    tabulate,
)
from .document import Table as DocumentTable
from .marks import Lines
from .output.markup import escape
from .sections.curves import metric_chart
from .sections.privacy import privacy_in_words
from .sections.result import brief_notes, result_table
from .sections.targets import rounds_cell
from .series import Series, series_of
from .units import Unit
from .verdict import headline
from .views import run_state

MOST_LINES = 1_000  # of a table: the terminal takes a millisecond for each
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 10
MAX_WIDTH = 40  # of a column
NAME_WIDTH = 16  # characters of a method's name that other columns make room for


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
    curve = Column[Series](
        "curve", lambda one: curves.get(one.label), numeric=False, is_secondary=True
    )
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
    rows = _texts(found)
    kept = [place for place in range(len(found.columns)) if any(row[place] for row in rows)]
    for place in kept:
        column = found.columns[place]
        side: Literal["left", "right"] = "right" if column.numeric else "left"
        table.add_column(escape(column.label), justify=side, overflow="fold")
        if column.is_secondary:
            table.secondary.append(table.columns[-1])
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    return table


class _FittingTable(Table):
    """A table that fits: without secondary columns, the last first, then with narrower columns."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.secondary: list[TableColumn] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the table."""
        every = self.columns
        kept, left_out = self._divide(options.max_width)
        self.columns = [replace(column, _index=index) for index, column in enumerate(kept)]
        labels = [_label(column) for column in self.columns]
        widths, whole, words = zip(*map(_widths, self.columns), strict=True) if labels else [()] * 3
        room = _room(options.max_width, len(widths))
        least_name = [*widths[:1]] if widths[:1] <= (NAME_WIDTH,) else [1]
        for least in (whole, words, least_name + [1] * len(widths)):
            widths = tuple(_fitted(widths, least, room))
        for column, label, width in zip(self.columns, labels, widths, strict=True):
            column.width = width
            column.header = escape(_heading(label, width))
        yield from super().__rich_console__(console, options)
        yield ""  # a line between the table and what follows
        if left_out:
            names = ", ".join(_label(column) for column in left_out)
            yield escape(f"Not shown in {options.max_width} columns: {names}.")
        self.columns = every

    def _divide(self, width: int) -> tuple[list[TableColumn], list[TableColumn]]:
        """Columns that fit without a break in a value, as far as possible, and those left out."""
        kept = self.columns
        left_out: list[TableColumn] = []
        for candidate in reversed(self.secondary):
            if sum(_widths(column)[1] for column in kept) <= _room(width, len(kept)):
                break
            kept = [column for column in kept if column is not candidate]
            left_out.append(candidate)
        return kept, left_out


def _label(column: TableColumn) -> str:
    return render(str(column.header)).plain


def _room(width: int, columns: int) -> int:
    return width - 2 * (columns - 1)  # two spaces between columns


def _widths(column: TableColumn) -> tuple[int, int, int]:
    """Of a column: its width; the least that breaks no value; the least that breaks no word."""
    texts = "\n".join(render(str(cell)).plain for cell in column.cells if cell)
    head = max(cell_len(word.rstrip()) for word in _words(_label(column)))
    # A deviation and a mark belong to what stands before them.
    values = re.split(r"\s(?![±†‡])(?<!±\s)", texts)
    parts = (texts.split("\n"), values, texts.split())
    longest, whole, word = (max([head, *map(cell_len, part)]) for part in parts)
    return min(MAX_WIDTH, longest), min(MAX_WIDTH, whole), min(MAX_WIDTH, word)


def _fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit into the room: the widest become smaller, no column than its least width.

    >>> _fitted([9, 5, 3], [1, 5, 1], 12), _fitted([9, 5], [8, 5], 4)
    ([4, 5, 3], [8, 5])
    """
    widths = [*widths]
    while sum(widths) > room:
        wide = [place for place, width in enumerate(widths) if width > least[place]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _texts(found: DocumentTable) -> list[list[str]]:
    """The cells with markup; numbers have line breaks before brackets."""
    rows = found.texts(escape, lambda text: f"[bold]{text}[/]")
    for row in rows:
        for place, column in enumerate(found.columns):
            if column.numeric:
                row[place] = re.sub(r" (?=\\?[\[(])", "\n", row[place])
    return rows


def _heading(label: str, width: int) -> str:
    """A label in lines of that width, if no word is wider.

    >>> _heading("influence of hostile clients", 12)
    'influence of\\nhostile\\nclients'
    """
    lines = [""]
    for word in _words(label):
        if lines[-1] and cell_len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _words(label: str) -> list[str]:
    """Where a label can be broken: between words, and in names of criteria and keys.

    >>> _words("rounds to 0.5"), _words("training.learning_rate")
    (['rounds ', 'to ', '0.5'], ['training.', 'learning_', 'rate'])
    """
    return re.split(r"(?<= )|(?<=[._])(?=[A-Za-z])", label)


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
    """Notes on the summary table: its samples and marks, and what was unusual in the run."""
    series = series_of([run])
    found = [*brief_notes(series), *privacy_in_words(series)] if series else []
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
    for note, count in _count(run.notes(method, stops=False)).items():
        yield f"{method}: {note} ({counted(count, 'round')})"
    for reason, count in run.refusal_counts(method):
        yield f"{method}: {counted(count, 'update')} refused: {reason}"


def _count(rounds: Sequence[Sequence[str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for texts in rounds:
        found.update(texts)
    return found


def audit_tables(
    run: RunFolder,
    round_num: int,
    method: str | None = None,
    seed: int | None = None,
    *,
    details: bool = False,
) -> list[Group]:
    """The weights of a round and their reasons: a table per method and seed, with sentences.

    Args:
        run: the run.
        round_num: the round.
        method: only this one.
        seed: only this one.
        details: whether to add how weights are computed, with all parameters.
    """
    if method is not None:
        run.lane(method, next(iter(run.seeds(method)), -1))  # RunError if there is no such method
    lanes = [
        lane
        for lane in run.lanes_with_round(round_num)
        if method in (None, lane.method) and seed in (None, lane.seed)
    ]
    if not lanes:
        which = "" if seed is None else f" of seed {seed}"
        raise RunError(f"{run.folder}: has no round {round_num}{which} (yet)")
    shown = []
    for lane in lanes:
        found = audit(run, lane.method, lane.seed, round_num)
        remarks = _audit_remarks(found, details)
        parts: list[RenderableType] = [_audit_table(found), *map(escape, remarks)]
        for others in round_table(run, lane.method, lane.seed, round_num):
            parts += [plain_table(others, others.title), escape(others.note)]
        shown.append(Group(*parts))
    return shown


def _audit_table(found: Audit) -> Table:
    title = f"{found.method}, seed {found.seed}, round {found.round_num}"
    if found.priority and len(found.priority) > 1:
        title += f", priority {' > '.join(found.priority)}"
    columns = [column for column in audit_columns(found) if column.label != "reason"]
    return plain_table(
        tabulate("audit", title, columns, found.participants[:MOST_LINES], ""), title
    )


def _audit_remarks(found: Audit, details: bool) -> Iterator[str]:
    """Why each weight is what it is, notes on the round and, on request, the parameters."""
    more = len(found.participants) - MOST_LINES
    if more > 0:
        yield (
            f"{more:,} more clients are not shown: they have less weight, or were refused. "
            "`Run.participants` in Python returns all of them."
        )
    for one in found.participants[:MOST_LINES]:
        why = one.why
        said = why.answer() if why.refusal is not None else reasons(why)
        if said:
            yield f"{client_cell(one.client, why.name).text}: {said}"
    yield from found.notes
    if details:
        yield from found.parameters


def _table(title: str) -> _FittingTable:
    narrow = (0, 1, 0, 0)  # so that tables fit into 80 columns
    return _FittingTable(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=narrow,
        pad_edge=False,
        show_edge=False,
    )
