"""How samples are divided among clients: tables for the terminal, and charts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rich import box
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..data.encoding import InputColumn
from ..data.summary import DataSummary
from ..errors import shortened
from .document import Chart, counted
from .marks import (
    COLOURS,
    Axis,
    HeatMap,
    Line,
    Lines,
)
from .output.markup import escape

MOST_ROWS = 24
MOST_COLUMNS = 12  # with more classes, a cell is a block instead of a number
BLOCKS = " ░▒▓█"
HEAT = (  # for 0, and up to ¼, ½, ¾ and 1 of a client's largest class
    "",
    "white on grey23",
    "white on orange4",
    "black on dark_goldenrod",
    "black on gold3",
)


def size_table(summary: DataSummary, title: str) -> Table:
    """Samples and classes per client: minimum, median, maximum and total."""
    table = _table(escape(title))
    table.add_column("per client")
    for heading in ("minimum", "median", "maximum", "total"):
        table.add_column(heading, justify="right")
    table.add_row("training samples", *_spread(summary.train), f"{int(summary.train.sum()):,}")
    table.add_row("test samples", *_spread(summary.test), f"{int(summary.test.sum()):,}")
    num_classes = summary.classes.shape[1]
    if num_classes:
        table.add_row("classes", *_spread(summary.classes_per_client), f"{num_classes}")
    return table


def _spread(values: Tensor) -> list[str]:
    numbers = values.double()
    return [f"{value:,.0f}" for value in (numbers.min(), numbers.quantile(0.5), numbers.max())]


def remarks(summary: DataSummary, weighs_by_report: bool, hostile: list[int]) -> Iterator[str]:
    """The server's samples, overlaps, unused samples and hostile clients, in sentences."""
    yield _server(int(summary.weigh.sum()), int(summary.report.sum()), weighs_by_report)
    if summary.shared:
        yield f"Not disjoint: {summary.shared:,} training samples are held by more than one client."
    if summary.unused:
        yield f"Not used: {summary.unused:,} of {summary.num_samples:,} samples."
    if not int(summary.test.sum()):
        yield "The clients have no test sets."
    if hostile:
        few = ", ".join(map(str, hostile[:10]))
        if len(hostile) > 10:
            few += " …"
        count = counted(len(hostile), "client")
        yield f"Hostile: {count} ({few}). The table shows their true classes."
    if summary.classes.shape[1] and len(summary.train) > MOST_ROWS:
        total = f"{len(summary.train):,}"
        yield f"Below: {MOST_ROWS} of the {total} clients, from the largest to the smallest."


def _server(weigh: int, report: int, weighs_by_report: bool) -> str:
    if weighs_by_report and report:
        return f"Server: {report:,} samples, for weighting and for reporting."
    if weigh or report:
        return f"Server: {weigh:,} samples for weighting, {report:,} for reporting."
    return "Server: no samples. The metric is reported on the clients' pooled test samples."


def class_table(summary: DataSummary) -> Table | None:
    """Training samples by client and class; None in regression.

    Of many clients, a selection is shown from the largest to the smallest.
    """
    num_classes = summary.classes.shape[1]
    if not num_classes:
        return None
    table = _table("Training samples of each class")
    table.add_column("client", justify="right")
    table.add_column("samples", justify="right")
    if num_classes <= MOST_COLUMNS:
        for name in summary.class_names:
            table.add_column(escape(name), justify="right")
    else:
        table.add_column(f"classes 0 to {num_classes - 1}", no_wrap=True)
    for client in _shown(summary):
        name = f"{client} {escape(summary.names[client])}" if summary.names else str(client)
        table.add_row(name, f"{int(summary.train[client]):,}", *_cells(summary.classes[client]))
    table.add_section()
    table.add_row("all", f"{int(summary.train.sum()):,}", *_cells(summary.classes.sum(0)))
    if int(summary.report.sum()):
        table.add_row("server", f"{int(summary.report.sum()):,}", *_cells(summary.report))
    return table


def column_table(summary: DataSummary) -> Table | None:
    """The columns of the inputs and their missing values; None where the samples are no table."""
    if summary.table is None:
        return None
    columns = summary.table.columns
    table = _table(f"Columns to predict {escape(summary.table.target)} from")
    for heading in ("column", "values"):
        table.add_column(heading)
    table.add_column("missing", justify="right")
    for column in columns[:MOST_ROWS]:
        table.add_row(
            escape(shortened(column.name, 40)),
            escape(_values(column)),
            f"{column.missing:.1%}" if column.missing else "·",
        )
    if len(columns) > MOST_ROWS:
        table.add_row(f"{len(columns) - MOST_ROWS:,} more", "", "")
    return table


def _values(column: InputColumn) -> str:
    if not column.categories:
        return f"numbers, mean {column.fill:.4g}"
    return shortened(f"categories: {', '.join(column.categories)}", 60)


def _shown(summary: DataSummary) -> list[int]:
    """All clients; of many, some at even distances in the order of their size."""
    num_clients = len(summary.train)
    if num_clients <= MOST_ROWS:
        return list(range(num_clients))
    ranks = torch.linspace(0, num_clients - 1, MOST_ROWS).round().long()
    by_size = summary.train.argsort(descending=True, stable=True)
    shown: list[int] = by_size[ranks].tolist()
    return shown


def _cells(counts: Tensor) -> list[Text]:
    """The samples of each class; the colour is relative to the largest class."""
    relative = counts / counts.max().clamp(min=1)
    levels = (relative * (len(BLOCKS) - 1)).ceil().int().tolist()
    if len(counts) > MOST_COLUMNS:
        return [Text("".join(BLOCKS[level] for level in levels))]
    return [_cell(count, level) for count, level in zip(counts.tolist(), levels, strict=True)]


def _cell(count: int, level: int) -> Text:
    return Text(f"{count:,}", style=HEAT[level]) if count else Text("·", style="dim")


def _table(title: str) -> Table:
    narrow = (0, 1, 0, 0)  # so that tables fit into 80 columns
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=narrow)


def data_charts(summary: DataSummary, title: str) -> list[Chart]:
    """Every client's mixture of classes, and the clients' sizes."""
    num_clients, num_classes = summary.classes.shape
    charts = []
    if num_classes:
        mixture = summary.classes / summary.classes.sum(1, keepdim=True).clamp(min=1)
        mark = HeatMap(
            summary.class_names,
            [str(client) for client in range(num_clients)],
            mixture.tolist(),
            1,
            percent=True,
            column_label="class; the colour is its share of the client's training samples",
        )
        alt = f"Share of every class in the training samples of {num_clients} clients."
        charts.append(Chart("mixture", title, alt, mark))
    positions = list(range(1, num_clients + 1))
    lines = []
    if int(summary.train.sum()):
        sizes = summary.train.sort(descending=True).values.tolist()
        lines.append(Line("training samples", positions, sizes, COLOURS[0]))
    if int(summary.test.sum()):
        sizes = summary.test.sort(descending=True).values.tolist()
        lines.append(Line("test samples", positions, sizes, COLOURS[1], "dash"))
    alt = f"Samples of {num_clients} clients, from the largest to the smallest."
    axis = Axis("clients, from the largest to the smallest")
    return [*charts, Chart("sizes", "Samples per client", alt, Lines(lines, axis, Axis()))]
