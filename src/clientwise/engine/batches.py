"""Which samples a client trains on, and when: the batches of many clients, drawn together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.seeding import mixed
from ..core.types import LocalTraining


@dataclass(frozen=True)
class Batches:
    """The batches of G clients, side by side: client g does `steps[g]` of the S steps and then rests."""

    steps: list[int]  # [G]
    counts: Tensor  # [S, G] samples in the batch; 0: the client rests
    rows: Tensor  # [S, G, B] which of the client's samples; past the count any of them
    last_epoch: Tensor  # [S, G] share of the batch in the client's last epoch; 0 in earlier ones


def num_steps(sizes: Tensor, training: LocalTraining) -> Tensor:
    """How many batches clients of these sizes [G] train on in a round [G]."""
    batch = training.batch_size or sizes.clamp(min=1)
    return training.epochs * -(-sizes // batch)


def draw_batches(keys: Tensor, sizes: Tensor, training: LocalTraining, width: int) -> Batches:
    """Epochs of shuffled batches, at most `width` samples each; a client with one batch an epoch is not shuffled.

    `keys` [G] lie on the device where the batches are wanted; `sizes` [G] on the CPU.
    """
    device, steps = keys.device, num_steps(sizes, training)
    held = sizes.to(device)
    batch = held.clamp(min=1) if training.batch_size is None else torch.full_like(held, training.batch_size)
    per_epoch = (steps // training.epochs).to(device).clamp(min=1)
    step = torch.arange(int(steps.max()), device=device)[:, None]  # [S, 1]
    epoch = (step // per_epoch).clamp(max=training.epochs - 1)  # [S, G]
    first = step % per_epoch * batch  # [S, G] where the batch begins in its epoch
    counts = (held - first).clamp(min=0).minimum(batch) * (step < steps.to(device))
    places = first[..., None] + torch.arange(width, device=device)  # [S, G, B]
    places = places.minimum((held - 1).clamp(min=0)[:, None])
    if int(steps.max()) > training.epochs:  # somebody has more than one batch an epoch
        places = _orders(keys, held, batch, training.epochs)[
            torch.arange(len(sizes), device=device)[:, None], epoch[..., None], places
        ]
    last = (epoch == training.epochs - 1) * counts / held.clamp(min=1)
    return Batches(steps.tolist(), counts, places, last)


def _orders(keys: Tensor, sizes: Tensor, batch: Tensor, epochs: int) -> Tensor:
    """The order [G, E, N] in which every client goes through its samples, epoch by epoch."""
    place = torch.arange(int(sizes.max()), device=keys.device)
    draws = mixed(mixed(keys[:, None] + torch.arange(epochs, device=keys.device))[..., None] + place)  # [G, E, N]
    draws = torch.where((sizes > batch)[:, None, None], draws, place)
    beyond = place >= sizes[:, None, None]
    return draws.masked_fill(beyond, torch.iinfo(torch.int64).max).argsort(dim=-1, stable=True)
