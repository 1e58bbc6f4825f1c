"""How samples are divided among clients: what `clientwise check --data` prints and draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas
import torch

from ..data.summary import DataSummary
from ..errors import shortened
from .items import Chart, Item, Table, counted, percent

MOST_ROWS = 24
MOST_CLASSES = 12  # with more of them, a client has only how many classes it holds


def data_items(
    summary: DataSummary, title: str, weighs_by_report: bool, hostile: Sequence[int]
) -> Iterator[Item]:
    """Sizes, the server's samples, classes by client, and the columns of a table."""
    sizes = {"training samples": summary.train, "test samples": summary.test}
    if summary.classes.shape[1]:
        sizes["classes"] = summary.classes_per_client
    rows = [
        (name, *values.double().quantile(torch.tensor([0.0, 0.5, 1.0]).double()).int().tolist())
        for name, values in sizes.items()
    ]
    frame = pandas.DataFrame(rows, columns=["per client", "minimum", "median", "maximum"])
    totals = [int(summary.train.sum()), int(summary.test.sum()), summary.classes.shape[1]]
    yield Table("sizes", title, frame.assign(total=totals[: len(rows)]))
    yield from _remarks(summary, weighs_by_report, hostile)
    if summary.classes.shape[1]:
        yield _classes(summary)
    if summary.table is not None:
        columns = [
            (
                shortened(one.name, 40),
                shortened(f"categories: {', '.join(one.categories)}", 60)
                if one.categories
                else f"numbers, mean {one.fill:.4g}",
                one.missing,
            )
            for one in summary.table.columns[:MOST_ROWS]
        ]
        frame = pandas.DataFrame(columns, columns=["column", "values", "missing"])
        more = len(summary.table.columns) - MOST_ROWS
        note = f"{more:,} more columns." if more > 0 else ""
        name = f"Columns to predict {summary.table.target} from"
        yield Table("columns", name, frame, note, formats={"missing": percent})


def _remarks(summary: DataSummary, weighs_by_report: bool, hostile: Sequence[int]) -> Iterator[str]:
    weigh, report = int(summary.weigh.sum()), int(summary.report.sum())
    if weighs_by_report and report:
        yield f"Server: {report:,} samples, for weighting and for reporting."
    elif weigh or report:
        yield f"Server: {weigh:,} samples for weighting, {report:,} for reporting."
    else:
        yield "Server: no samples. The metric is reported on the clients' pooled test samples."
    if summary.shared:
        yield f"Not disjoint: {summary.shared:,} training samples are held by more than one client."
    if summary.unused:
        yield f"Not used: {summary.unused:,} of {summary.num_samples:,} samples."
    if not int(summary.test.sum()):
        yield "The clients have no test sets."
    if hostile:
        few = ", ".join(map(str, hostile[:10])) + " …" * (len(hostile) > 10)
        yield f"Hostile: {counted(len(hostile), 'client')} ({few}). The table shows their true classes."


def _classes(summary: DataSummary) -> Table:
    """Training samples by client and class; of many clients, some at even distances in the order of their size."""
    count = len(summary.train)
    shown = list(range(count))
    note = ""
    if count > MOST_ROWS:
        ranks = torch.linspace(0, count - 1, MOST_ROWS).round().long()
        shown = summary.train.argsort(descending=True, stable=True)[ranks].tolist()
        note = f"{MOST_ROWS} of the {count:,} clients, from the largest to the smallest."
    names = [f"{one} {summary.names[one]}" if summary.names else str(one) for one in shown]
    frame = pandas.DataFrame({"client": names, "samples": summary.train[shown].tolist()})
    if len(summary.class_names) > MOST_CLASSES:
        frame["classes"] = summary.classes_per_client[shown].tolist()
    else:
        for label, name in enumerate(summary.class_names):
            frame[name] = summary.classes[shown, label].tolist()
        server = [int(summary.report.sum()), *summary.report.tolist()]
        every = [int(summary.train.sum()), *summary.classes.sum(0).tolist()]
        frame.loc[len(frame)] = ["all", *every]
        if server[0]:
            frame.loc[len(frame)] = ["server", *server]
    formats = dict.fromkeys(frame.columns[2:], lambda number: f"{number:,}" if number else "·")
    return Table("classes", "Training samples of each class", frame, note, formats=formats)


def data_chart(summary: DataSummary, title: str) -> Chart:
    """Every client's mixture of classes; its size, where there are no classes."""
    clients = [str(client) for client in range(len(summary.train))]
    if not summary.classes.shape[1]:
        frame = pandas.DataFrame({"samples": summary.train.tolist(), "client": clients})
        return Chart("sizes", title, frame, "bars", x="samples", y="client")
    mixture = summary.classes / summary.classes.sum(1, keepdim=True).clamp(min=1)
    wide = pandas.DataFrame(mixture.tolist(), index=clients, columns=summary.class_names)
    frame = wide.rename_axis("client").reset_index().melt("client", None, "class", "share")
    return Chart(
        "mixture", title, frame, "cells", x="class", y="client", colour="share", format=".0%"
    )
