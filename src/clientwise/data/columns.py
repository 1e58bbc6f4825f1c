"""Columns of a table, numbers and categories with missing values, as inputs of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from .federated import FederatedData

Standardise = Literal["pooled", "client", "off"]
VALUES_AT_ONCE = 2**22  # of a table: so many columns are prepared together


@dataclass(frozen=True)
class InputColumn:
    """A column of a table: numbers, or positions in `categories`; NaN is a missing value."""

    name: str
    categories: tuple[str, ...] = ()


def prepare(
    data: FederatedData, columns: Sequence[InputColumn], standardise: Standardise
) -> FederatedData:
    """The table [N, columns] as inputs [N, F], by the clients' training samples alone.

    - Numbers get mean 0 and standard deviation 1; a missing number becomes the mean.
    - Categories are one-hot.
    - A column with missing values gets a second one that says where they are.
    - A category that no training sample has is zero everywhere, and so is such a second column.

    Args:
        data: samples whose inputs are the table, and which client trains on which.
        columns: what each column holds.
        standardise: "pooled" takes mean and deviation over all clients; "client" takes those of
            each client (of all clients for the server); "off" leaves numbers as they are.
    """
    table = data.samples.inputs
    trained = torch.zeros(len(table), dtype=torch.bool)
    trained[data.train.indices] = True
    owner = torch.zeros(len(table), dtype=torch.int64)
    if standardise == "client":
        owner = _owners(data)
    width = max(1, VALUES_AT_ONCE // max(1, len(table)))
    rows: list[Tensor] = []  # each is a column of the inputs
    for start in range(0, len(columns), width):
        part = slice(start, start + width)
        rows += _prepared(table[:, part], columns[part], owner, trained, standardise)
    inputs = torch.cat(rows).T.contiguous()
    return replace(data, samples=replace(data.samples, inputs=inputs))


def _owners(data: FederatedData) -> Tensor:
    """The client of every sample [N]; K for samples of the server or of no client."""
    owner = torch.full((len(data.samples.inputs),), data.num_clients)
    for held in (data.test, data.train):
        owner[held.indices] = torch.repeat_interleave(torch.arange(data.num_clients), held.sizes)
    return owner


def _prepared(
    table: Tensor,
    columns: Sequence[InputColumn],
    owner: Tensor,
    trained: Tensor,
    standardise: Standardise,
) -> Iterator[Tensor]:
    """Some columns of the table as rows of float32, [1 or more, N] for each."""
    values = table.T.contiguous()
    is_number = torch.tensor([not column.categories for column in columns])
    numbers = _known(_filled(values[is_number], owner, trained, standardise), trained)
    missing = values.isnan()
    has_missing = missing.any(1).tolist()
    flags = _known(missing, trained)
    number = 0
    for index, column in enumerate(columns):
        if column.categories:
            codes = torch.arange(len(column.categories))
            yield _known(values[index] == codes[:, None], trained)
        else:
            yield numbers[number : number + 1]
            number += 1
        if has_missing[index]:
            yield flags[index : index + 1]


def _known(rows: Tensor, trained: Tensor) -> Tensor:
    """Rows [F, N] as float32; zero where all training samples are zero."""
    known = rows[:, trained].any(1, keepdim=True)
    return (rows * known).float()


def _filled(values: Tensor, owner: Tensor, trained: Tensor, standardise: Standardise) -> Tensor:
    """Columns of numbers, as rows [M, N], without missing values and standardised.

    A client without a number to train on takes mean and deviation of all clients.
    """
    values = values.double()
    given = ~values.isnan()
    seen = given[:, trained]
    numbers = torch.where(seen, values[:, trained], 0.0)
    groups = owner[trained]
    num_groups = int(owner.max()) + 1
    counts = _sums_by_group(seen.double(), groups, num_groups)
    mean_of_all, variance_of_all = _moments(numbers, seen, needed=bool((counts == 0).any()))

    sums = _sums_by_group(numbers, groups, num_groups)
    mean = torch.where(counts > 0, sums / counts, mean_of_all[:, None])
    squares = torch.where(seen, (numbers - mean[:, groups]).square(), 0.0)
    sums = _sums_by_group(squares, groups, num_groups)
    deviation = torch.where(counts > 0, sums / counts, variance_of_all[:, None]).sqrt()

    filled = torch.where(given, values, mean[:, owner])
    if standardise != "off":
        varies = deviation > 1e-12 * mean.abs()  # below that it is rounding
        standard = (filled - mean[:, owner]) / deviation[:, owner]
        filled = torch.where(varies[:, owner], standard, 0.0)
    return torch.where(seen.any(1, keepdim=True), filled, 0.0)


def _sums_by_group(rows: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Sums [M, num_groups] over the samples of each group, of rows [M, n]."""
    sums = torch.zeros(len(rows), num_groups, dtype=torch.float64)
    for row, result in zip(rows, sums, strict=True):
        result.copy_(torch.bincount(groups, weights=row, minlength=num_groups))
    return sums


def _moments(rows: Tensor, seen: Tensor, *, needed: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance [M] of the numbers of rows [M, n] that are `seen`; zeros unless `needed`."""
    mean = torch.zeros(len(rows), dtype=torch.float64)
    variance = torch.zeros_like(mean)
    if needed:
        for index, (row, given) in enumerate(zip(rows, seen, strict=True)):
            if given.any():
                mean[index] = row[given].mean()
                variance[index] = row[given].var(correction=0)
    return mean, variance
