"""Optimizers that are restarted for every client instead of built anew."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.types import LocalTraining


def make_optimizer(
    parameter: nn.Parameter, training: LocalTraining
) -> torch.optim.Optimizer | None:
    """An optimizer whose state exists from the start, so that `restart` and CUDA graphs find it.

    None for plain SGD: its steps need none, and to make one imports PyTorch's compiler, which takes seconds.
    """
    if is_plain_sgd(training):
        return None
    optimizer: torch.optim.Optimizer
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        optimizer = torch.optim.Adam(
            [parameter], rate, weight_decay=decay, capturable=parameter.is_cuda
        )
    else:
        optimizer = torch.optim.SGD(
            [parameter], rate, momentum=training.momentum, weight_decay=decay
        )
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


def restart(optimizer: torch.optim.Optimizer | None) -> None:
    """Clients keep nothing between rounds: forget all steps. A momentum of zero is where a new optimizer begins."""
    for value in state_of(optimizer):
        value.zero_()


def is_plain_sgd(training: LocalTraining) -> bool:
    """Whether a step is nothing but θ −= η·∇: it can then be taken where the gradient is made."""
    more = (
        training.momentum or training.weight_decay or training.proximal or training.control_variates
    )
    return training.optimizer == "sgd" and not more
