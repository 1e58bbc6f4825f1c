"""Columns of a table that are probably not meant as inputs: identifiers, copies of the target, numbers as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy
import torch
from torch import Tensor

from ..errors import shortened
from .federated import Samples

MOST_COLUMNS = 2_000  # that are looked at
MOST_VALUES = 400_000  # of all columns together: a second
ROWS = (30, 2_000)  # of a column: with fewer, numbers differ by chance
NEIGHBOURS = 5  # on either side, that predict a row
TOO_WELL = 0.8  # of what the most frequent class, or the mean, gets wrong
ROWS_PER_CLIENT = 5  # below that, clients have one value by chance
MOST_LINES = 5
MOST_CODES = 20  # numbers that are categories
MOST_CATEGORIES = 50  # or, where it is more, this share of the rows:
PER_ROW = 0.1
MOSTLY = 0.9  # of the categories
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([T ].*)?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def is_date(text: str) -> bool:
    """Whether this is a date, with or without a time.

    >>> is_date("2024-06-30"), is_date("30.06.2024 12:00"), is_date("2024")
    (True, True, False)
    """
    return DATE.fullmatch(text) is not None


def column_hints(samples: Samples) -> list[str]:
    """A line for each column that should probably be left out; none where there is no table.

    Named are columns with a different whole number or category in every row, with dates, numbers or very
    many categories as text, with one value for each client, and those that alone predict the target: each
    row by its neighbours, when all are sorted by this column.

    Args:
        samples: as they were read, or as clients hold them (`Samples.given` has the table).
    """
    table = samples.table
    raw = _as_read(samples)
    if table is None or raw is None or len(raw) < ROWS[0]:
        return []
    columns = table.columns[:MOST_COLUMNS]
    count = max(ROWS[0], min(ROWS[1], MOST_VALUES // len(columns)))
    rows = torch.randperm(len(raw), generator=torch.Generator().manual_seed(0))[:count]
    values = raw[rows][:, : len(columns)].double().numpy()
    targets = samples.targets[rows].abs().numpy()
    owners = numpy.full(len(rows), -1) if samples.ids is None else samples.ids[rows].numpy()
    lines = []
    for column, cells in zip(columns, values.T, strict=True):
        found = list(_about_categories(column.categories, len(raw)))
        if _is_identifier(cells):
            found.append("It has a different value in every row, like an identifier.")
        if _names_clients(cells, owners, len(samples.names)):
            found.append("It has one value with each client, like the client's name.")
        if said := _predicts(cells, targets, are_classes=bool(table.classes)):
            found.append(f"Alone it predicts {shortened(table.target, 40)!r} {said}.")
        if found:
            lines.append(
                f"column {shortened(column.name, 60)!r}: {' '.join(found)} If it is an identifier, or is "
                "not known when you predict, put it into `ignore`."
            )
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"{len(lines) - MOST_LINES} more columns look like these."]
    return lines


def _as_read(samples: Samples) -> Tensor | None:
    """The table [N, columns] before it became inputs; None where it is not known."""
    raw = samples.inputs
    if samples.given is not None and samples.given.rows is None:
        raw = samples.given.values[0]
    if samples.table is None or raw.ndim != 2 or raw.shape[1] != len(samples.table.columns):
        return None
    return raw


def _about_categories(categories: Sequence[str], num_rows: int) -> Iterator[str]:
    """Categories that are too many, or dates and numbers as text."""
    said = f"It has {len(categories)} categories, each an input of its own"
    least = MOSTLY * len(categories)
    if categories and sum(map(is_date, categories)) > least:
        yield f"{said}. They look like dates: turn them into numbers."
    elif len(categories) > MOST_CODES and sum(map(_is_number, categories)) > least:
        yield f"{said}. They look like numbers: turn text into numbers, unless they are codes."
    elif len(categories) > max(MOST_CATEGORIES, PER_ROW * num_rows):
        yield f"{said}: group them."


def _is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None


def _is_identifier(cells: numpy.ndarray) -> bool:
    """Whether all cells differ, and are whole numbers or categories."""
    given = cells[~numpy.isnan(cells)]
    if len(given) < max(ROWS[0], 0.9 * len(cells)):
        return False
    return bool((given == given.round()).all()) and len(numpy.unique(given)) == len(given)


def _names_clients(cells: numpy.ndarray, owners: numpy.ndarray, clients: int) -> bool:
    """Whether each client has one value, and no two the same; other owners hold the server's samples."""
    held = (owners >= 0) & (owners < clients) & ~numpy.isnan(cells)
    pairs = numpy.unique(numpy.stack([owners[held], cells[held]]), axis=1)
    count = len(numpy.unique(pairs[0]))
    if count < 2 or held.sum() < ROWS_PER_CLIENT * count:
        return False
    return bool(pairs.shape[1] == count == len(numpy.unique(pairs[1])))


def _predicts(cells: numpy.ndarray, targets: numpy.ndarray, are_classes: bool) -> str:
    """How well a column alone predicts the target, where that is too well; otherwise "".

    Rows are in random order before they are sorted, so that the neighbours of equal cells are random.
    """
    if len(numpy.unique(cells)) < 2:
        return ""
    windows = torch.from_numpy(targets[numpy.argsort(cells, kind="stable")]).unfold(
        0, 2 * NEIGHBOURS + 1, 1
    )
    wanted = windows[:, NEIGHBOURS]
    near = torch.cat([windows[:, :NEIGHBOURS], windows[:, NEIGHBOURS + 1 :]], 1)
    if not are_classes:
        spread = float(wanted.var(correction=0))
        score = 1 - float((near.mean(1) - wanted).square().mean()) / spread if spread else 0.0
        return f"with R² = {score:.2f}" if score >= TOO_WELL else ""
    usual = float((wanted == wanted.mode().values).double().mean())
    score = float((near.mode(1).values == wanted).double().mean())
    if usual == 1 or score - usual < TOO_WELL * (1 - usual):
        return ""
    return f"with {score:.1%} accuracy (the most frequent class: {usual:.1%})"
