"""The works' networks and data for the systems that run on PyTorch."""

from __future__ import annotations

import platform
from itertools import pairwise

import torch
from torch import Tensor, nn

from works import Work, make_data


def set_up(threads: int) -> None:
    """As many threads as asked for; oneDNN where it helps."""
    torch.set_num_threads(threads)
    if platform.machine() in (
        "aarch64",
        "arm64",
    ):  # there it slows small layers down and ignores the thread setting
        torch._C._set_mkldnn_enabled(False)


def tensors(work: Work) -> tuple[Tensor, Tensor]:
    """Inputs [clients, samples, ...] and labels [clients, samples]."""
    inputs, labels = make_data(work)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def network(work: Work) -> nn.Sequential:
    """An MLP, or P1's CNN."""
    torch.manual_seed(0)
    if not work.layers:
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10)),
        )
    layers = [layer for sizes in pairwise(work.layers) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def train(model: nn.Module, work: Work, inputs: Tensor, labels: Tensor) -> Tensor:
    """One client's local training; returns the last batch's loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=work.rate)
    for _ in range(work.epochs):
        for first in range(0, work.samples, work.batch):
            optimizer.zero_grad()
            batch = slice(first, first + work.batch)
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return loss.detach()


@torch.no_grad()
def final_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Of the first 1,000 samples."""
    return nn.functional.cross_entropy(
        model(inputs.flatten(0, 1)[:1000]), labels.flatten()[:1000]
    ).item()
