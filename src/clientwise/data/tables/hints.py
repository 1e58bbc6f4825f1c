"""Columns of a table that are probably not meant as inputs: identifiers, copies of the target, numbers as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy
import torch
from torch import Tensor

from ...errors import shortened
from ..federated import Samples
from .cells import is_date, parse_numbers
from .encoding import InputColumn

MOST_COLUMNS = 2_000  # that are looked at
MOST_ROWS = 2_000  # of a column
MOST_VALUES = 400_000  # of all columns together: a second
FEWEST_ROWS = 30  # below that, numbers differ by chance
TOO_WELL = 0.8  # of what the most frequent class, or the mean, gets wrong
ROWS_PER_CLIENT = 5  # below that, clients have one value by chance
MOST_LINES = 5
MOST_CODES = 20  # numbers that are categories
MOST_CATEGORIES = 50  # or, where it is more, this share of the rows:
PER_ROW = 0.1
MOSTLY = 0.9  # of the categories


def column_hints(samples: Samples) -> list[str]:
    """A line for each column that should probably be left out; none where there is no table.

    A row is predicted by the rows of the other half that are nearest in this one column. A column
    with a different whole number in every row is named whatever it predicts, and so is one with
    very many categories, with dates or numbers as categories, or with the names of the clients.

    Args:
        samples: as they were read, or as clients hold them (`Samples.given` has the table).
    """
    table = samples.table
    raw = _as_read(samples)
    if table is None or raw is None or len(raw) < FEWEST_ROWS:
        return []
    columns = table.columns[:MOST_COLUMNS]
    count = max(FEWEST_ROWS, min(MOST_ROWS, MOST_VALUES // len(columns)))
    rows = torch.randperm(len(raw), generator=torch.Generator().manual_seed(0))[:count]
    values = raw[rows][:, : len(columns)].double().numpy()
    targets = samples.targets[rows].abs().numpy()
    owners = _owners(samples, rows)
    usual = _score_of_the_usual(targets) if table.classes else None
    lines = []
    for column, cells in zip(columns, values.T, strict=True):
        found = list(_about_categories(column.categories, len(raw)))
        if _is_identifier(cells):
            found.append("It has a different value in every row, like an identifier.")
        if _names_clients(column, cells, owners):
            found.append("It has one value with each client, like the client's name.")
        found += _about_target(cells, targets, table.target, usual)
        if found:
            lines.append(
                f"column {shortened(column.name, 60)!r}: {' '.join(found)} If it is an identifier, or is "
                "not known when you predict, put it into `ignore`."
            )
    if len(lines) > MOST_LINES:
        more = len(lines) - MOST_LINES
        lines = [*lines[:MOST_LINES], f"{more} more columns look like these."]
    return lines


def _as_read(samples: Samples) -> Tensor | None:
    """The table [N, columns] before it became inputs; None where it is not known."""
    raw = samples.inputs
    if samples.given is not None and samples.given.rows is None:
        raw = samples.given.values[0]
    if samples.table is None or raw.ndim != 2 or raw.shape[1] != len(samples.table.columns):
        return None
    return raw


def _owners(samples: Samples, rows: Tensor) -> numpy.ndarray:
    """The client of each row; -1 where a row is of no client, such as the server's."""
    if samples.ids is None:
        return numpy.full(len(rows), -1)
    ids = samples.ids[rows].numpy()
    return numpy.where(ids < len(samples.names), ids, -1) if samples.names else ids


def _about_target(
    cells: numpy.ndarray, targets: numpy.ndarray, target: str, usual: float | None
) -> Iterator[str]:
    """A column that alone predicts the target too well; `usual`: the accuracy of the most frequent class."""
    is_class = usual is not None
    score = _score_alone(cells, targets, is_class)
    least = usual or 0.0
    if score - least >= TOO_WELL * (1 - least):
        yield f"Alone it predicts {shortened(target, 40)!r} {_said(score, usual)}."


def _about_categories(categories: Sequence[str], num_rows: int) -> Iterator[str]:
    """Categories that are too many, or dates and numbers as text."""
    given = [text for text in categories if text]
    said = f"It has {len(categories)} categories, each an input of its own"
    if sum(map(is_date, given)) > MOSTLY * len(given):
        yield f"{said}. They look like dates: turn them into numbers."
    elif len(given) > MOST_CODES and _count_numbers(given) > MOSTLY * len(given):
        yield f"{said}. They look like numbers: turn text into numbers, unless they are codes."
    elif len(categories) > max(MOST_CATEGORIES, PER_ROW * num_rows):
        yield f"{said}: group them."


def _count_numbers(texts: Sequence[str]) -> int:
    import pandas

    return int((~numpy.isnan(parse_numbers(pandas.Series(texts, dtype=object)))).sum())


def _is_identifier(cells: numpy.ndarray) -> bool:
    """Whether all cells differ, and are whole numbers or categories."""
    given = cells[~numpy.isnan(cells)]
    if len(given) < max(FEWEST_ROWS, 0.9 * len(cells)):
        return False
    is_whole = bool(numpy.all(given == numpy.round(given)))
    return is_whole and len(numpy.unique(given)) == len(given)


def _names_clients(column: InputColumn, cells: numpy.ndarray, owners: numpy.ndarray) -> bool:
    """Whether each client has one value, and no two the same: a category, or numbers without a gap."""
    held = (owners >= 0) & ~numpy.isnan(cells)
    pairs = numpy.unique(numpy.stack([owners[held], cells[held]]), axis=1)
    clients, values = (numpy.unique(one) for one in pairs)
    count = len(clients)
    if count < 2 or held.sum() < ROWS_PER_CLIENT * count:
        return False
    if not pairs.shape[1] == count == len(values):
        return False
    return bool(column.categories) or bool((numpy.diff(values) == 1).all())


def _score_of_the_usual(targets: numpy.ndarray) -> float:
    """The accuracy of the most frequent class."""
    _, counts = numpy.unique(targets, return_counts=True)
    return float(counts.max() / counts.sum())


def _score_alone(cells: numpy.ndarray, targets: numpy.ndarray, is_class: bool) -> float:
    """Accuracy, or R², on each half of the rows by the nearest value in the other half; the lower one."""
    given = ~numpy.isnan(cells)
    if len(numpy.unique(cells[given])) < 2:
        return 0.0
    filled = numpy.where(given, cells, cells[given].min() - 1)
    half = len(cells) // 2
    first = slice(half)
    second = slice(half, None)
    scores = []
    for learned, scored in ((first, second), (second, first)):
        known, positions = numpy.unique(filled[learned], return_inverse=True)
        predicted = _usual_by_value(positions, targets[learned], is_class)
        right = numpy.searchsorted(known, filled[scored]).clip(1, max(1, len(known) - 1))
        left = right - 1
        right = right.clip(max=len(known) - 1)
        is_left = filled[scored] - known[left] <= known[right] - filled[scored]
        found = predicted[numpy.where(is_left, left, right)]
        scores.append(_accuracy_or_r2(found, targets[scored], is_class))
    return min(scores)


def _usual_by_value(
    positions: numpy.ndarray, targets: numpy.ndarray, is_class: bool
) -> numpy.ndarray:
    """The most frequent class, or the mean, of the targets at every value."""
    counts = numpy.bincount(positions)
    if not is_class:
        means: numpy.ndarray = numpy.bincount(positions, targets) / counts
        return means
    classes, codes = numpy.unique(targets, return_inverse=True)
    cells = numpy.bincount(positions * len(classes) + codes, minlength=len(counts) * len(classes))
    usual: numpy.ndarray = classes[cells.reshape(len(counts), -1).argmax(1)]
    return usual


def _accuracy_or_r2(found: numpy.ndarray, targets: numpy.ndarray, is_class: bool) -> float:
    if is_class:
        return float((found == targets).mean())
    spread = float(((targets - targets.mean()) ** 2).sum())
    return 1 - float(((targets - found) ** 2).sum()) / spread if spread else 0.0


def _said(score: float, usual: float | None) -> str:
    if usual is not None:
        return f"with {score:.1%} accuracy (the most frequent class: {usual:.1%})"
    return f"with R² = {score:.2f}"
