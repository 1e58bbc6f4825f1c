"""What training of clients draws and steps with: batch schedules, random generators, optimizers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor, nn

from ..core.seeding import derive_seed, mixed, seeded_default_generator
from ..core.training import OPTIMIZERS, Rate, is_elementwise, is_plain, part_of
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


@contextmanager
def seeded_generators(seed: int, purpose: str, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's default generator, `random` and `numpy.random`, and put them back afterwards."""
    drawn = derive_seed(seed, purpose)
    with seeded_default_generator(seed, purpose, device=device):
        before = random.getstate(), numpy.random.get_state()
        random.seed(drawn)
        numpy.random.seed(drawn % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])


def make_optimizer(
    parameter: nn.Parameter, training: LocalTraining
) -> torch.optim.Optimizer | None:
    """An optimizer. Where it can be restarted, its state exists from the start: CUDA graphs find it.

    None for plain SGD: its steps need none, and to make one imports PyTorch's compiler, which takes seconds.
    """
    if is_plain_sgd(training, parameter.device):
        return None
    rate: Rate = training.rate
    if _reads_rate(training, parameter.device):
        rate = torch.tensor(rate, device=parameter.device)
    part = part_of(training.optimizer)
    optimizer = OPTIMIZERS.get(part.name)([parameter], rate, **part.options)
    if is_elementwise(part):
        assert parameter.grad is not None
        parameter.grad.zero_()
        optimizer.step()
    return optimizer


def state_of(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """The tensors an optimizer keeps between steps."""
    if optimizer is None:
        return []
    values: list[object] = []
    for state in optimizer.state.values():
        values += state.values()
    return [value for value in values if isinstance(value, Tensor)]


def begin_steps(optimizer: torch.optim.Optimizer | None, training: LocalTraining) -> None:
    """Clients keep nothing between rounds: forget all steps, and take the rate of this round.

    A momentum of zero is where a new optimizer begins.
    """
    for value in state_of(optimizer):
        value.zero_()
    if optimizer is None or training.rate_factor is None:
        return
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(training.rate)
        else:
            group["lr"] = training.rate


def add_terms(
    parameter: nn.Parameter, training: LocalTraining, anchor: Tensor, correction: Tensor
) -> None:
    """Add to the gradient FedProx's term, µ·(θ − anchor), and SCAFFOLD's correction."""
    assert parameter.grad is not None
    if training.proximal:
        parameter.grad.add_(parameter - anchor, alpha=training.proximal)
    if training.control_variates:
        parameter.grad.add_(correction)


def is_plain_sgd(training: LocalTraining, device: torch.device) -> bool:
    """Whether a step is nothing but θ −= η·∇: it can then be taken where the gradient is made."""
    more = training.proximal or training.control_variates or training.clip_gradients
    return is_plain(training.optimizer) and not more and not _reads_rate(training, device)


def _reads_rate(training: LocalTraining, device: torch.device) -> bool:
    """Whether steps read the rate from a tensor, since it changes and CUDA graphs do not."""
    return training.rate_factor is not None and device.type == "cuda"
