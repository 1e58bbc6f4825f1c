"""Optimizers that are restarted for every client instead of built anew, where they can be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.training import OPTIMIZERS, Rate, is_elementwise, is_plain, part_of
from ..core.types import LocalTraining


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
    optimizer = OPTIMIZERS.get(part.name)([parameter], rate, training, **part.options)
    if is_elementwise(part):
        assert parameter.grad is not None
        parameter.grad.zero_()
        optimizer.step()
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer | None, rate: float) -> None:
    """Let the next steps have this learning rate."""
    groups = optimizer.param_groups if optimizer is not None else []
    for group in groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


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


def is_plain_sgd(training: LocalTraining, device: torch.device) -> bool:
    """Whether a step is nothing but θ −= η·∇: it can then be taken where the gradient is made."""
    more = (
        training.momentum
        or training.weight_decay
        or training.proximal
        or training.control_variates
        or training.clip_gradients
    )
    return is_plain(training.optimizer) and not more and not _reads_rate(training, device)


def _reads_rate(training: LocalTraining, device: torch.device) -> bool:
    """Whether steps read the rate from a tensor, since it changes and CUDA graphs do not."""
    return training.rate_factor is not None and device.type == "cuda"
