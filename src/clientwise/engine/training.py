"""What a client does with a task: local training. Shared by every engine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.seeding import generator, seeded_default_generator
from ..core.types import LocalTraining, Task
from ..models.flat import FlatModel


def train_locally(
    flat: FlatModel,
    start: Tensor,
    load: Callable[[Tensor], tuple[Tensor, Tensor]],
    num_samples: int,
    task: Task,
    seed: int,
    client_id: int,
) -> tuple[Tensor, float]:
    """Train from the vector `start` [d] and return the trained vector and the mean loss of the last epoch.

    `load(rows)` gives inputs and targets of the client's samples. Batches are drawn by (seed, round, client).
    """
    training = task.training
    flat.load(start)
    flat.module.train()
    optimizer = make_optimizer(flat, training)
    gradient = flat.parameter.grad
    assert gradient is not None
    anchor = start[: flat.spec.num_parameters]
    shuffle = generator(seed, "batches", task.round_num, client_id)
    batch_size = training.batch_size or num_samples
    total = torch.zeros((), device=start.device)
    with seeded_default_generator(seed, "dropout", task.round_num, client_id, device=start.device):
        for _ in range(training.epochs if num_samples else 0):
            total.zero_()
            rows = (
                torch.arange(num_samples)
                if batch_size >= num_samples
                else torch.randperm(num_samples, generator=shuffle)
            )
            for batch in torch.split(rows, batch_size):
                inputs, targets = load(batch)
                gradient.zero_()
                loss = task.loss(flat.module(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if training.proximal:
                    gradient.add_(flat.parameter.detach() - anchor, alpha=training.proximal)
                optimizer.step()
                total += loss.detach() * len(batch)
    return flat.vector.clone(), float(total) / max(1, num_samples)


def make_optimizer(flat: FlatModel, training: LocalTraining) -> torch.optim.Optimizer:
    """A new optimizer every round: clients keep nothing between rounds."""
    if training.optimizer == "adam":
        return torch.optim.Adam([flat.parameter], training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        [flat.parameter], training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
