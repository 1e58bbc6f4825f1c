"""Batch schedules: which samples clients train on at every step, drawn for many clients at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.seeding import mixed
from ..core.types import LocalTraining


@dataclass(frozen=True)
class BatchSchedule:
    """How many samples each of G clients trains on at every step; a client that is done rests.

    It depends on the numbers of samples alone; `draw` chooses the samples.
    """

    sizes: Tensor  # [G], on the CPU
    counts: Tensor  # [S, G] samples in the batch; 0: the client rests
    last_epoch: Tensor  # [S, G] share of the batch in the client's last epoch; 0 in earlier ones
    epochs: int
    epoch: Tensor  # [S, G]
    positions: Tensor  # [S, G, B] which sample of the epoch; past the count any of them
    beyond: Tensor  # [G, N] whether the client has fewer samples than this
    # [G] whether the client has more than one batch an epoch; None: no client has
    shuffled: Tensor | None

    @staticmethod
    def of(
        sizes: Tensor, training: LocalTraining, width: int, device: torch.device
    ) -> BatchSchedule:
        """For clients of these sizes [G], in batches of at most `width` samples."""
        steps = training.num_steps(sizes)
        batch = (
            sizes.clamp(min=1)
            if training.batch_size is None
            else torch.full_like(sizes, training.batch_size)
        )
        per_epoch = (steps // training.epochs).clamp(min=1)
        step = torch.arange(int(steps.max()))[:, None]  # [S, 1]
        epoch = (step // per_epoch).clamp(max=training.epochs - 1)
        first = step % per_epoch * batch  # [S, G] where the batch begins in its epoch
        counts = (sizes - first).clamp(min=0).minimum(batch) * (step < steps)
        positions = first[..., None] + torch.arange(width)
        return BatchSchedule(
            sizes,
            counts.to(device),
            ((epoch == training.epochs - 1) * counts / sizes.clamp(min=1)).to(device),
            training.epochs,
            epoch.to(device),
            positions.minimum((sizes - 1).clamp(min=0)[:, None]).to(device),
            (torch.arange(int(sizes.max())) >= sizes[:, None]).to(device),
            (sizes > batch).to(device) if bool((sizes > batch).any()) else None,
        )

    def draw(self, keys: Tensor) -> Tensor:
        """Which of its samples [S, G, B] every client sees when; a client with one batch an epoch is not shuffled."""
        if self.shuffled is None:
            return self.positions
        device = keys.device
        sample = torch.arange(self.beyond.shape[1], device=device)
        # [G, E, N]
        draws = mixed(
            mixed(keys[:, None] + torch.arange(self.epochs, device=device))[..., None] + sample
        )
        draws = torch.where(self.shuffled[:, None, None], draws, sample)
        last = torch.iinfo(torch.int64).max
        orders = draws.masked_fill(self.beyond[:, None], last).argsort(dim=-1, stable=True)
        return orders[
            torch.arange(len(keys), device=device)[:, None], self.epoch[..., None], self.positions
        ]
