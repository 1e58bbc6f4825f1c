"""Counts of the samples that clients and server hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import shortened
from .encoding import Encoding
from .federated import FederatedData, Holdings


@dataclass(frozen=True)
class DataSummary:
    """How many samples clients and server hold."""

    num_samples: int
    kind: str
    train: Tensor  # [K] samples of every client
    test: Tensor  # [K]
    classes: Tensor  # [K, C] training samples of every class, by what they truly are; C = 0 in regression
    weigh: Tensor  # [C], or [1] in regression: what the server weighs by
    report: Tensor  # [C], or [1]: what it reports on
    unused: int  # samples that no client and no server holds
    shared: int  # training samples that more than one client holds
    names: tuple[str, ...] = ()  # of the clients, where they have some
    table: Encoding | None = None  # the columns, where the samples come from a table

    @property
    def class_names(self) -> list[str]:
        """The classes: their names, or their numbers."""
        if self.table is not None and self.table.classes:
            return [shortened(name, 20) for name in self.table.classes]
        return [str(label) for label in range(self.classes.shape[1])]

    @property
    def classes_per_client(self) -> Tensor:
        """How many classes every client holds [K]."""
        return (self.classes > 0).sum(1)


def summarise(data: FederatedData) -> DataSummary:
    """Count what clients and server hold."""
    samples, num_classes = data.samples, data.samples.problem.num_classes
    used = torch.zeros(len(samples.targets), dtype=torch.bool)
    for held in (data.train, data.test, data.weigh, data.report):
        if held is not None:
            used[held.indices] = True
    owner = torch.repeat_interleave(torch.arange(data.num_clients), data.train.sizes)
    classes = torch.zeros(data.num_clients, num_classes, dtype=torch.int64)
    if num_classes:
        cells = owner * num_classes + samples.targets[data.train.indices]
        classes = torch.bincount(cells, minlength=classes.numel()).reshape(classes.shape)

    def count(held: Holdings | None) -> Tensor:
        if held is None:
            return torch.zeros(max(1, num_classes), dtype=torch.int64)
        if not num_classes:
            return torch.tensor([len(held.indices)])
        return torch.bincount(samples.targets[held.indices], minlength=num_classes)

    return DataSummary(
        num_samples=len(samples.targets),
        kind=samples.problem.kind,
        train=data.train.sizes,
        test=data.test.sizes,
        classes=classes,
        weigh=count(data.weigh),
        report=count(data.report),
        unused=int((~used).sum()),
        shared=int((torch.bincount(data.train.indices) > 1).sum()),
        names=data.names,
        table=samples.table,
    )
