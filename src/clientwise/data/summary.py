"""What samples there are: counts of what clients and server hold, and classes that the server's samples lack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import shortened
from .arrays import first_few
from .encoding import Encoding
from .federated import FederatedData, Holdings

NOTABLE = 0.01  # of a client's samples: fewer of a class that is lacking are not worth a line


@dataclass(frozen=True)
class DataSummary:
    """How many samples clients and server hold."""

    num_samples: int
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
    samples = data.samples
    num_classes = data.samples.problem.num_classes
    unused = torch.ones(len(samples.targets), dtype=torch.bool)
    for held in (data.train, data.test, data.weigh, data.report):
        if held is not None:
            unused[held.indices] = False

    def count(held: Holdings | None) -> Tensor:
        """Samples of every class by their holder [K, C], or of all [K, 1]."""
        if held is None:
            return torch.zeros(1, max(1, num_classes), dtype=torch.int64)
        if not num_classes:
            return held.sizes[:, None]
        cells = held.owner * num_classes + samples.targets[held.indices]
        return torch.bincount(cells, minlength=len(held) * num_classes).view(-1, num_classes)

    return DataSummary(
        num_samples=len(samples.targets),
        train=data.train.sizes,
        test=data.test.sizes,
        classes=count(data.train)[:, :num_classes],
        weigh=count(data.weigh)[0],
        report=count(data.report)[0],
        unused=int(unused.sum()),
        shared=int((torch.bincount(data.train.indices) > 1).sum()),
        names=data.names,
        table=samples.table,
    )


# Samples to weigh by ----------------------------------------------------------------------------------------------


def uncovered(data: FederatedData, held_out: Holdings | None) -> str | None:
    """What classes, labels or classes of pixels clients train on that no held-out sample has, in a sentence.

    None where no client has more than some samples of such a class.
    """
    if held_out is None or not len(held_out.targets) or not len(data.train.targets):
        return None
    trained = data.train.targets.cpu()
    held = held_out.targets.cpu()
    if data.samples.problem.predicts == "labels":
        lacking = trained.bool().any(0) & ~held.bool().any(0)
        classes = lacking.nonzero().flatten().tolist()
        lacks = trained[:, lacking].bool()
    elif data.samples.problem.predicts in ("classes", "masks"):
        classes = sorted({*torch.unique(trained).tolist()} - {*torch.unique(held).tolist()})
        lacks = torch.isin(trained, torch.tensor(classes, dtype=trained.dtype))
    else:
        return None
    is_uncovered = lacks.flatten(1).any(1) if lacks.ndim > 1 else lacks
    samples = torch.bincount(data.train.owner[is_uncovered], minlength=data.num_clients)
    clients = (samples > data.train.sizes * NOTABLE).nonzero().flatten().tolist()
    if not clients:
        return None
    names = data.samples.table.classes if data.samples.table else ()
    shown = first_few([repr(names[one]) if names else str(one) for one in classes])
    has = "has" if len(clients) == 1 else "have"
    return (
        f"no sample that the server weighs by is of class {shown}, and {len(clients)} of {data.num_clients} clients "
        f"{has} {int(samples[clients].sum()):,} training samples: "
        f"{first_few([data.called(one) for one in clients])}. The weights cannot reward these samples: add some to the "
        "held-out ones"
    )
