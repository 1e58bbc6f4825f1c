"""What the clients have and the server's held-out samples lack: classes, and targets outside of their range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .arrays import first_few
from .federated import FederatedData, Holdings

NOTABLE = (
    0.01  # of a client's training samples: fewer of a class that is lacking are not worth a line
)
OUTSIDE = 0.05  # of a client's targets; the same of those outside of the range


@dataclass(frozen=True)
class Uncovered:
    """Training samples that held-out samples say nothing about."""

    classes: tuple[int, ...]  # which the held-out samples lack; empty in regression
    bounds: tuple[float, float] | None  # of the held-out targets in regression
    samples: Tensor  # [K] how many training samples of every client have such a class or target
    clients: list[int]  # of which this is more than some samples

    def in_words(self, data: FederatedData) -> str:
        """A sentence that names the classes and says how many clients and samples there are."""
        if self.bounds is None:
            names = class_names(data, self.classes)
            lacking = f"no sample that the server weighs by is of class {names}"
        else:
            low, high = self.bounds
            lacking = f"targets that the server weighs by are {low:.4g} to {high:.4g}"
        count = len(self.clients)
        outside = " outside of this range" if self.bounds else ""
        verb = "has" if count == 1 else "have"
        own = f"{int(self.samples[self.clients].sum()):,} training samples"
        said = f"{lacking}, and {count} of {data.num_clients} clients {verb} {own}{outside}"
        listed = first_few([data.called(one) for one in self.clients])
        return f"{said}: {listed}. The weights cannot reward these samples: add some to the held-out ones"


def uncovered(data: FederatedData, held_out: Holdings | None) -> Uncovered | None:
    """What clients train on and held-out samples lack; None where no client has more than some samples of it.

    - Classes, labels and classes of pixels: those that no held-out sample has.
    - Numbers: targets below the least or above the largest held-out one.
    """
    problem = data.samples.problem
    if held_out is None or not len(held_out.targets) or not len(data.train.targets):
        return None
    trained = data.train.targets.cpu()
    held = held_out.targets.cpu()
    classes: tuple[int, ...] = ()
    bounds = None
    if problem.predicts == "numbers":
        bounds = (float(held.min()), float(held.max()))
        is_uncovered = (trained < bounds[0]) | (trained > bounds[1])
    elif problem.predicts == "labels":
        lacking = trained.bool().any(0) & ~held.bool().any(0)
        classes = tuple(lacking.nonzero().flatten().tolist())
        is_uncovered = trained[:, lacking].bool()
    elif problem.predicts in ("classes", "masks"):
        classes = tuple(sorted({*torch.unique(trained).tolist()} - {*torch.unique(held).tolist()}))
        is_uncovered = torch.isin(trained, torch.tensor(classes, dtype=trained.dtype))
    else:
        return None
    samples = _by_client(
        data.train, is_uncovered.flatten(1).any(1) if trained.ndim > 1 else is_uncovered
    )
    clients = (samples > _by_chance(data.train.sizes, len(held), bounds)).nonzero().flatten()
    return Uncovered(classes, bounds, samples, clients.tolist()) if len(clients) else None


def _by_chance(sizes: Tensor, held: int, bounds: tuple[float, float] | None) -> Tensor:
    """How many samples of every client [K] are not worth a line.

    The range of n numbers leaves out 2 / (n + 1) of others on average, and in one of forty cases about
    three times as many.
    """
    if bounds is None:
        return sizes * NOTABLE
    expected = sizes * max(OUTSIDE, 6 / (held + 1))
    return expected + 2 * expected.sqrt()


def class_names(data: FederatedData, classes: Sequence[int]) -> str:
    """Classes in a message: their names in the table, or their numbers; the first ones."""
    table = data.samples.table
    return first_few(
        [repr(table.classes[one]) if table and table.classes else str(one) for one in classes]
    )


def _by_client(held: Holdings, are: Tensor) -> Tensor:
    """How many samples of every client [K] are so [total]."""
    owner = torch.repeat_interleave(torch.arange(len(held)), held.sizes)
    return torch.bincount(owner[are], minlength=len(held))
