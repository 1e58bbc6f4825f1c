"""Columns of a table, numbers and categories with missing values, as inputs of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..encoding import InputColumn
from .federated import FederatedData

Standardise = Literal["pooled", "client", "off"]
VALUES_AT_ONCE = 2**22  # of a table: so many columns are prepared together


def prepare(
    data: FederatedData, columns: Sequence[InputColumn], standardise: Standardise
) -> FederatedData:
    """The table [N, columns] as inputs [N, F], by the clients' training samples alone.

    - Numbers get mean 0 and standard deviation 1; a missing number becomes the mean.
    - Categories are one-hot.
    - A column with missing values gets a second one that says where they are.
    - A category that no training sample has is zero everywhere, and so is such a second column.

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
    owner = torch.zeros(len(table), dtype=torch.int64)
    num_groups = 1
    if standardise == "client":
        owner = _owners(data)
        num_groups = data.num_clients + 1
    width = max(1, VALUES_AT_ONCE // max(1, len(table)))
    rows: list[Tensor] = []  # each is a column of the inputs
    fitted: list[InputColumn] = []
    for start in range(0, len(columns), width):
        part = slice(start, start + width)
        values = table[:, part].T.contiguous()
        for column, inputs in _prepared(
            values, columns[part], owner, trained, num_groups, standardise
        ):
            rows.append(inputs)
            fitted.append(column)
    encoding = samples.table
    if encoding is not None:
        encoding = replace(encoding, columns=tuple(fitted), by_client=standardise == "client")
    inputs = torch.cat(rows).T.contiguous()
    return replace(data, samples=replace(samples, inputs=inputs, table=encoding))


def _owners(data: FederatedData) -> Tensor:
    """The client of every sample [N]; K for samples of the server or of no client."""
    owner = torch.full((len(data.samples.inputs),), data.num_clients)
    for held in (data.test, data.train):
        owner[held.indices] = torch.repeat_interleave(torch.arange(data.num_clients), held.sizes)
    return owner


def _prepared(
    values: Tensor,
    columns: Sequence[InputColumn],
    owner: Tensor,
    trained: Tensor,
    num_groups: int,
    standardise: Standardise,
) -> Iterator[tuple[InputColumn, Tensor]]:
    """Columns of the table, given as rows [M, N]: what new rows are encoded by, and inputs [1 or more, N]."""
    is_number = torch.tensor([not column.categories for column in columns])
    scaled = _Scaled(values[is_number], owner, trained, num_groups, standardise)
    missing = values.isnan()
    has_missing = missing.any(1).tolist()
    shares = missing[:, trained].double().mean(1).nan_to_num().tolist()
    number = 0
    for index, column in enumerate(columns):
        if column.categories:
            codes = torch.arange(len(column.categories))
            inputs = (values[index] == codes[:, None]).float()
        else:
            inputs = scaled.values[number : number + 1].float()
            column = scaled.fitted(column, number)
            number += 1
        if has_missing[index]:
            inputs = torch.cat([inputs, missing[index : index + 1].float()])
        seen = inputs[:, trained].any(1)
        unseen = tuple((~seen).nonzero().flatten().tolist())
        yield (
            replace(
                column,
                marks_missing=has_missing[index],
                unseen=unseen,
                missing=shares[index],
            ),
            inputs * seen[:, None],
        )


class _Scaled:
    """Columns of numbers, as rows [M, N], without missing values and standardised.

    A client without a number to train on takes mean and deviation of all clients.
    """

    def __init__(
        self,
        values: Tensor,
        owner: Tensor,
        trained: Tensor,
        num_groups: int,
        standardise: Standardise,
    ) -> None:
        values = values.double()
        given = ~values.isnan()
        seen = given[:, trained]
        numbers = torch.where(seen, values[:, trained], 0.0)
        groups = owner[trained]
        counts = _sums_by_group(seen.double(), groups, num_groups)
        mean_of_all, variance_of_all = _moments(numbers, seen, needed=bool((counts == 0).any()))

        sums = _sums_by_group(numbers, groups, num_groups)
        mean = torch.where(counts > 0, sums / counts, mean_of_all[:, None])
        squares = torch.where(seen, (numbers - mean[:, groups]).square(), 0.0)
        sums = _sums_by_group(squares, groups, num_groups)
        deviation = torch.where(counts > 0, sums / counts, variance_of_all[:, None]).sqrt()

        varies = deviation > 1e-12 * mean.abs()  # below that it is rounding
        filled = torch.where(given, values, mean[:, owner])
        if standardise != "off":
            standard = (filled - mean[:, owner]) / deviation[:, owner]
            filled = torch.where(varies[:, owner], standard, 0.0)
        self.values = torch.where(seen.any(1, keepdim=True), filled, 0.0)
        # Of all clients, which are the last group
        self._mean = mean[:, -1].tolist()
        self._deviation = torch.where(varies[:, -1], deviation[:, -1], 1.0).tolist()
        self._standardises = standardise != "off"

    def fitted(self, column: InputColumn, row: int) -> InputColumn:
        """The column of this row with the statistics of all clients."""
        mean = self._mean[row]
        if not self._standardises:
            return replace(column, fill=mean)
        return replace(column, fill=mean, mean=mean, deviation=self._deviation[row])


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
