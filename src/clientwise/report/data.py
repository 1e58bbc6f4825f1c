"""Who holds what: tables for the terminal, and charts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..data.summary import DataSummary
from .document import Chart, counted
from .marks import COLOURS, Axis, HeatMap, Line, Lines

MOST_ROWS = 24
MOST_COLUMNS = 12  # with more classes than that, a cell is a block instead of a number
BLOCKS = " ░▒▓█"
HEAT = ("", "white on grey23", "white on orange4", "black on dark_goldenrod", "black on gold3")  # to 0, ¼, ½, ¾, 1


def size_table(summary: DataSummary, title: str) -> Table:
    """How much clients hold, from the least to the most."""
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("per client")
    for heading in ("least", "median", "most", "in all"):
        table.add_column(heading, justify="right")
    lines = [("training samples", summary.train, True), ("test samples", summary.test, True)]
    if summary.classes.shape[1]:
        lines.append(("classes", summary.classes_per_client, False))
    for name, values, adds_up in lines:
        numbers = values.double()
        cells = [f"{value:,.0f}" for value in (numbers.min(), numbers.quantile(0.5), numbers.max())]
        table.add_row(name, *cells, f"{int(values.sum()):,}" if adds_up else f"{summary.classes.shape[1]}")
    return table


def remarks(summary: DataSummary, weighs_by_report: bool, hostile: list[int]) -> Iterator[str]:
    """What else there is to know."""
    weigh, report = int(summary.weigh.sum()), int(summary.report.sum())
    if weighs_by_report and report:
        yield f"Server: {report:,} samples, to weigh by and to report on."
    elif weigh or report:
        yield f"Server: {weigh:,} samples to weigh by, {report:,} to report on."
    else:
        yield "Server: no samples; what is reported is taken over the clients' test samples, all together."
    if summary.shared:
        yield f"Not disjoint: {summary.shared:,} training samples are held by more than one client."
    if summary.unused:
        yield f"Not used: {summary.unused:,} of {summary.num_samples:,} samples."
    if not int(summary.test.sum()):
        yield "The clients have no test sets."
    if hostile:
        few = ", ".join(map(str, hostile[:10])) + (" …" if len(hostile) > 10 else "")
        yield f"Hostile: {counted(len(hostile), 'client')} ({few}); classes as they truly are."
    if summary.classes.shape[1] and len(summary.train) > MOST_ROWS:
        yield f"Below: {MOST_ROWS} of the {len(summary.train):,} clients, from the largest to the smallest."


def class_table(summary: DataSummary) -> Table | None:
    """Clients × classes; of many clients some, from the largest to the smallest. None in regression."""
    num_clients, num_classes = summary.classes.shape
    if not num_classes:
        return None
    shown = list(range(num_clients))
    if num_clients > MOST_ROWS:
        ranks = torch.linspace(0, num_clients - 1, MOST_ROWS).round().long()
        shown = summary.train.argsort(descending=True, stable=True)[ranks].tolist()
    table = Table(
        title="Training samples of each class", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("client", justify="right")
    table.add_column("samples", justify="right")
    if num_classes <= MOST_COLUMNS:
        for label in range(num_classes):
            table.add_column(str(label), justify="right")
    else:
        table.add_column(f"classes 0 to {num_classes - 1}", no_wrap=True)
    for client in shown:
        name = f"{client} {escape(summary.names[client])}" if summary.names else str(client)
        table.add_row(name, f"{int(summary.train[client]):,}", *_cells(summary.classes[client]))
    table.add_section()
    table.add_row("all", f"{int(summary.train.sum()):,}", *_cells(summary.classes.sum(0)))
    if int(summary.report.sum()):
        table.add_row("server", f"{int(summary.report.sum()):,}", *_cells(summary.report))
    return table


def _cells(counts: Tensor) -> list[Text]:
    """One client's classes: the stronger the colour, the larger the part of its largest class."""
    strength = (counts / counts.max().clamp(min=1) * (len(BLOCKS) - 1)).ceil().int().tolist()
    if len(counts) > MOST_COLUMNS:
        return [Text("".join(BLOCKS[level] for level in strength))]
    return [
        Text(f"{count:,}", style=HEAT[level]) if count else Text("·", style="dim")
        for count, level in zip(counts.tolist(), strength, strict=True)
    ]


def data_charts(summary: DataSummary, title: str) -> list[Chart]:
    """Every client's mixture of classes, and the clients' sizes."""
    num_clients, num_classes = summary.classes.shape
    charts = []
    if num_classes:
        mixture = summary.classes / summary.classes.sum(1, keepdim=True).clamp(min=1)
        mark = HeatMap(
            list(range(num_classes)),
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
