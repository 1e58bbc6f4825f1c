"""Columns of a table, numbers and categories with missing values, as inputs of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy
import torch
from torch import Tensor

from ..cache import unnamed_rows
from ..federated import FederatedData
from ..folder import ProgressLog
from .encoder import Encoder
from .encoding import Encoding, InputColumn
from .files import VALUE_BYTES

Standardise = Literal["pooled", "client", "off"]
BLOCK = 2**21  # bytes of values that are in memory, in up to ten copies
COLUMNS_AT_ONCE = 512  # 4 KiB of a row: no page of a file is read for a few of its values


def prepare(
    data: FederatedData, columns: Sequence[InputColumn], standardise: Standardise
) -> FederatedData:
    """The table [N, columns] as inputs [N, F], by the clients' training samples alone.

    - Numbers get mean 0 and standard deviation 1; a missing number becomes the mean.
    - Categories are one-hot.
    - A column with missing values gets a second one that says where they are.
    - A category that no training sample has is zero everywhere, and so is such a second column.

    The table is read in blocks, and the inputs are memory-mapped: both may be larger than memory.

    `samples.table` then has what new rows are encoded by; of `standardise = "client"`, the mean and
    deviation of all clients.

    Args:
        data: samples whose inputs are the table, and which client trains on which.
        columns: what each column holds.
        standardise: "pooled" takes mean and deviation over all clients; "client" takes those of
            each client (of all clients for the server); "off" leaves numbers as they are.
    """
    samples = data.samples
    table = samples.inputs
    trained = torch.zeros(len(table), dtype=torch.bool)
    trained[data.train.indices] = True
    owner = _one_group(len(table))
    num_groups = 1
    if standardise == "client":
        owner = _owners(data)
        num_groups = data.num_clients + 1
    found = _statistics(table, owner, trained, num_groups)
    scaling = None if standardise == "off" else found
    marked = []
    for index, column in enumerate(columns):
        marked.append(
            replace(
                column,
                fill=0.0 if scaling or column.categories else float(found.mean[-1, index]),
                marks_missing=bool(found.has_missing[index]),
                missing=float(found.missing[index]),
            )
        )
    inputs, seen = _encoded(table, marked, owner, trained, scaling)
    fitted = []
    for index, (column, own) in enumerate(zip(marked, _by_column(seen, marked), strict=True)):
        unseen = tuple((~own).nonzero().flatten().tolist())
        column = replace(column, unseen=unseen)
        if scaling and not column.categories:
            column = scaling.applied_to(column, index)
        fitted.append(column)
    encoding = samples.table
    if encoding is not None:
        encoding = replace(encoding, columns=tuple(fitted), by_client=standardise == "client")
    return replace(data, samples=replace(samples, inputs=inputs, table=encoding))


def _one_group(count: int) -> Tensor:
    """Group 0 for every sample [N], in the memory of one."""
    return torch.zeros(1, dtype=torch.int64).expand(count)


def _owners(data: FederatedData) -> Tensor:
    """The client of every sample [N]; K for samples of the server or of no client."""
    owner = torch.full((len(data.samples.inputs),), data.num_clients)
    for held in (data.test, data.train):
        owner[held.indices] = torch.repeat_interleave(torch.arange(data.num_clients), held.sizes)
    return owner


def _encoded(
    table: Tensor,
    columns: Sequence[InputColumn],
    owner: Tensor,
    trained: Tensor,
    scaling: _Statistics | None,
) -> tuple[Tensor, Tensor]:
    """Inputs [N, F], memory-mapped, and which of them a training sample has [F]. The others are 0."""
    encoding = Encoding("", tuple(columns))
    encode = Encoder(encoding)
    is_number = torch.tensor([not column.categories for column in columns])
    seen = torch.zeros(encoding.width, dtype=torch.bool)
    with unnamed_rows("the inputs of a table", encoding.width, numpy.float32) as file:
        for block in blocks(table, "inputs", encoding.width):
            values = table[block].double()
            if scaling:
                values = torch.where(is_number, scaling.scaled(values, owner[block]), values)
            inputs = encode(values)
            seen |= inputs[trained[block]].any(0)
            file.append(inputs.numpy())
        mapped = torch.from_numpy(file.finish())
    mapped.index_fill_(1, (~seen).nonzero().flatten(), 0.0)
    return mapped, seen


def _by_column(inputs: Tensor, columns: Sequence[InputColumn]) -> tuple[Tensor, ...]:
    """What belongs to the inputs [F], column by column."""
    return torch.split(inputs, [column.width for column in columns])


def blocks(table: Tensor | numpy.ndarray, what: str, width: int = 0) -> Iterator[slice]:
    """Rows of a table that are in memory together.

    Args:
        table: its rows.
        what: is made of them, for the progress.
        width: the values that are made of a row.
    """
    row_bytes = VALUE_BYTES * max(1, width, table.shape[1])
    size = max(1, BLOCK // row_bytes)
    progress = ProgressLog(f"preparing the table, {what}")
    for start in range(0, len(table), size):
        yield slice(start, start + size)
        progress.tell(f"{start / len(table):.0%}")


@dataclass(frozen=True)
class _Statistics:
    """The numbers that training samples have, by group of samples and column [G, M]."""

    mean: Tensor
    deviation: Tensor
    has_missing: Tensor  # [M] whether any sample has no value
    missing: Tensor  # [M] share of the training samples without a value

    @property
    def varies(self) -> Tensor:
        """Whether the numbers differ by more than rounding."""
        return self.deviation > 1e-12 * self.mean.abs()

    def scaled(self, values: Tensor, owner: Tensor) -> Tensor:
        """Rows [B, M] of these groups with mean 0 and deviation 1; a constant is 0."""
        standard = (values - self.mean[owner]) / self.deviation[owner]
        return torch.where(self.varies[owner] | values.isnan(), standard, 0.0)

    def applied_to(self, column: InputColumn, index: int) -> InputColumn:
        """A column of numbers with the statistics of all clients, which are the last group."""
        mean = float(self.mean[-1, index])
        deviation = float(self.deviation[-1, index]) if self.varies[-1, index] else 1.0
        return replace(column, fill=mean, mean=mean, deviation=deviation)


def _statistics(table: Tensor, owner: Tensor, trained: Tensor, num_groups: int) -> _Statistics:
    """A group without a number to train on takes mean and deviation of all groups."""
    parts = []
    for start in range(0, table.shape[1], COLUMNS_AT_ONCE):
        some = table[:, start : start + COLUMNS_AT_ONCE]
        counts, mean, variance = _moments(some, owner, trained, num_groups)
        if num_groups > 1:
            _, mean_of_all, variance_of_all = _moments(
                some, _one_group(len(table)), trained, num_groups=1
            )
            mean = torch.where(counts > 0, mean, mean_of_all)
            variance = torch.where(counts > 0, variance, variance_of_all)
        has_missing = torch.zeros(some.shape[1], dtype=torch.bool)
        for block in blocks(some, "missing values"):
            has_missing |= some[block].isnan().any(0)
        missing = (trained.sum() - counts.sum(1)) / trained.sum()
        parts.append((mean.T, variance.sqrt().T, has_missing, missing.nan_to_num()))
    return _Statistics(*(torch.cat(part, -1) for part in zip(*parts, strict=True)))


def _moments(
    table: Tensor, owner: Tensor, trained: Tensor, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and variance [M, G] of the training samples' numbers; 0 where there are none.

    Sums are taken in the order of the rows, so that they do not depend on the blocks.
    """
    counts, sums, squares = torch.zeros(3, table.shape[1], num_groups, dtype=torch.float64)
    for numbers, given, groups in _training_numbers(table, "means", owner, trained):
        _add_by_group(counts, groups, given.double())
        _add_by_group(sums, groups, numbers)
    mean = torch.where(counts > 0, sums / counts, 0.0)
    for numbers, given, groups in _training_numbers(table, "deviations", owner, trained):
        distances = torch.where(given, (numbers - mean[:, groups]).square(), 0.0)
        _add_by_group(squares, groups, distances)
    return counts, mean, torch.where(counts > 0, squares / counts, 0.0)


def _training_numbers(
    table: Tensor, what: str, owner: Tensor, trained: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of training samples: numbers [M, n], which of them are given [M, n], groups [n]."""
    for block in blocks(table, what):
        here = trained[block]
        values = table[block][here].T.double().contiguous()
        given = ~values.isnan()
        yield torch.where(given, values, 0.0), given, owner[block][here]


def _add_by_group(sums: Tensor, groups: Tensor, rows: Tensor) -> None:
    """Add rows [M, n] to the sums [M, G] of the groups [n] of their values."""
    for row, result in zip(rows, sums, strict=True):
        result.index_add_(0, groups, row)
