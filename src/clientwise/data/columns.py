"""Columns of a table, numbers and categories with holes, as inputs of a network: by the training samples alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from .federated import FederatedData

Standardise = Literal["pooled", "client", "off"]


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, or the places of values in `categories`; NaN is missing."""

    name: str
    categories: tuple[str, ...] = ()


def prepare(data: FederatedData, columns: Sequence[Column], standardise: Standardise) -> FederatedData:
    """The table [N, columns] as inputs [N, F], by what the clients' training samples say and nothing else.

    Numbers get mean 0 and deviation 1 ("pooled": over all clients; "client": every client by its own, the server by
    everybody's); a missing one is the mean. Categories are one-hot. A column with holes gets a second one that says
    where they are. What no training sample has (a category, a hole) is zero: nobody could learn what it means.
    """
    table = data.samples.inputs
    trained = torch.zeros(len(table), dtype=torch.bool)
    trained[data.train.indices] = True
    owner = _owners(data) if standardise == "client" else torch.zeros(len(table), dtype=torch.int64)
    blocks: list[Tensor] = []  # rows of the inputs, turned around: a row there is a column of the table
    for values, column in zip(table.T, columns, strict=True):
        missing = values.isnan()
        if column.categories:
            blocks.append(values == torch.arange(len(column.categories))[:, None])
        else:
            blocks.append(_filled(values, owner, trained, standardise)[None])
        if bool(missing.any()):
            blocks.append(missing[None])
    learned = [block[:, trained].any(1, keepdim=True) for block in blocks]
    inputs = torch.cat([(block * known).float() for block, known in zip(blocks, learned, strict=True)]).T.contiguous()
    return replace(data, samples=replace(data.samples, inputs=inputs))


def _owners(data: FederatedData) -> Tensor:
    """The client of every sample [N]; K for those that are the server's or nobody's."""
    owner = torch.full((len(data.samples.inputs),), data.num_clients)
    for shares in (data.test, data.train):
        owner[shares.indices] = torch.repeat_interleave(torch.arange(data.num_clients), shares.sizes)
    return owner


def _filled(values: Tensor, owner: Tensor, trained: Tensor, standardise: Standardise) -> Tensor:
    """A column of numbers without holes; who has no number to train on takes the mean and deviation of all clients."""
    known = trained & ~values.isnan()
    seen, whose, groups = values[known].double(), owner[known], int(owner.max()) + 1
    if not len(seen):
        return torch.zeros_like(values)
    counts = torch.bincount(whose, minlength=groups)

    def mean_of(numbers: Tensor, of_all: Tensor) -> Tensor:
        return torch.where(counts > 0, torch.bincount(whose, weights=numbers, minlength=groups) / counts, of_all)

    mean = mean_of(seen, seen.mean())
    deviation = mean_of((seen - mean[whose]).square(), seen.var(correction=0)).sqrt()
    filled = torch.where(values.isnan(), mean[owner], values.double())
    if standardise == "off":
        return filled
    varies = deviation > 1e-12 * mean.abs()  # or it is rounding
    return torch.where(varies[owner], (filled - mean[owner]) / deviation[owner], 0.0)
