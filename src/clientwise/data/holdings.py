"""Which samples each client and the server hold, by the indices of the samples."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Given:
    """What samples were computed from; see `Samples.given`."""

    values: tuple[Tensor, ...]  # each [M, ...]
    # [N] the row of `values` that each sample comes from; None: row n is of sample n
    rows: Tensor | None = None

    def of(self, samples: Tensor) -> Given:
        """The same of some samples, by their indices."""
        return Given(self.values, samples if self.rows is None else self.rows[samples])


@dataclass(frozen=True)
class Holdings:
    """Which samples each of K holders has: holder k has `indices[offsets[k]:offsets[k+1]]`.

    The targets are kept beside the indices, since a hostile client may have other labels.

    Example:
        >>> held = Holdings.of([(torch.tensor([4, 7]), torch.tensor([0, 1])), (torch.tensor([2]), torch.tensor([1]))])
        >>> held.sizes.tolist(), held.gather([1])[0].tolist()
        ([2, 1], [2])
    """

    indices: Tensor  # [total] into Samples.inputs
    targets: Tensor  # [total, ...]
    offsets: Tensor  # [K + 1]

    @staticmethod
    def of(parts: Sequence[tuple[Tensor, Tensor]]) -> Holdings:
        """From one pair (sample indices, targets) per holder."""
        sizes = torch.tensor([0, *(len(indices) for indices, _ in parts)])
        return Holdings(
            torch.cat([part[0] for part in parts]),
            torch.cat([part[1] for part in parts]),
            sizes.cumsum(0),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def sizes(self) -> Tensor:
        """The number of samples of each holder [K]."""
        return self.offsets.diff()

    def slice(self, holder: int) -> slice:
        """The rows of a holder's samples."""
        return slice(int(self.offsets[holder]), int(self.offsets[holder + 1]))

    def gather(self, holders: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Indices [n] and targets [n, ...] of several holders, and each sample's index into `holders` [n]."""
        sizes = self.sizes
        if isinstance(holders, range) and holders == range(len(self)):  # all: nothing to pick
            return (
                self.indices,
                self.targets,
                torch.repeat_interleave(torch.arange(len(self)), sizes),
            )
        wanted = torch.tensor(list(holders), dtype=torch.int64)
        owner = torch.repeat_interleave(torch.arange(len(wanted)), sizes[wanted])
        starts = self.offsets[:-1][wanted] - (sizes[wanted].cumsum(0) - sizes[wanted])
        rows = (torch.arange(len(owner)) + starts[owner]).to(self.indices.device)
        return self.indices[rows], self.targets[rows], owner

    def only(self, holders: Sequence[int]) -> Holdings:
        """The same of some holders, in their order; the others keep their numbers and hold nothing."""
        indices, targets, _ = self.gather(holders)
        sizes = torch.zeros_like(self.sizes)
        sizes[list(holders)] = self.sizes[list(holders)]
        return Holdings(indices, targets, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def to(self, device: torch.device) -> Holdings:
        """The samples' indices and targets on a device; the offsets stay on the CPU."""
        return Holdings(self.indices.to(device), self.targets.to(device), self.offsets)


class NewData(NamedTuple):
    """Clients that hold other training samples from a round on."""

    from_round: int
    clients: tuple[int, ...]
    train: Holdings  # of all clients, from that round on
