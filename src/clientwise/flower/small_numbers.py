"""Small counts can identify single patients: how a node avoids sending them.

With a smallest cell of k, a node trains, measures and tests on whole groups of k samples per class,
and reports counts about its test set in multiples of k.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.metrics import METRICS
from ..core.problem import Problem
from ..core.types import Evaluation
from .data import OwnData


def in_groups(own: OwnData, cell: int) -> OwnData:
    """Of every class the first samples, a multiple of `cell`; the others are not used."""
    if cell == 1:
        return own
    train = _kept(own.train[1], cell)
    test = _kept(own.test[1], cell)
    return OwnData(
        (own.train[0][train], own.train[1][train]),
        (own.test[0][test], own.test[1][test]),
        {name: torch.as_tensor(values)[train] for name, values in own.sample_attributes.items()},
    )


def in_cells(evaluation: Evaluation, problem: Problem, cell: int) -> Evaluation:
    """A confusion matrix in multiples of `cell`, with the metric computed from it.

    The counts of other problems have no groups and stay as they are.
    """
    if cell == 1 or not problem.num_classes:
        return evaluation
    counts = evaluation.counts.flatten(1)
    cells = counts // cell
    rest = counts % cell
    ranks = rest.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    # Keeps the sum, which is a multiple of `cell`
    cells += ranks < (rest.sum(1, keepdim=True) // cell)
    counts = (cells * cell).reshape(evaluation.counts.shape)
    values = METRICS.get(problem.metric)(counts.double())[:, None]
    return replace(evaluation, counts=counts, values=values)


def _kept(targets: Tensor, cell: int) -> Tensor:
    """Mask [n] of the samples that are kept.

    Regression targets have no classes and are one group.
    """
    targets = torch.as_tensor(targets)
    classes = torch.zeros(len(targets)) if targets.is_floating_point() else targets
    kept = torch.zeros(len(targets), dtype=torch.bool)
    for one in set(classes.tolist()):
        members = (classes == one).nonzero().flatten()
        kept[members[: len(members) // cell * cell]] = True
    return kept
