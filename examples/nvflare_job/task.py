"""The model and the data of this job: nothing here knows clientwise or NVFlare."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

WEIGH, REPORT = slice(0, 200), slice(200, 400)  # the server's samples
SITES = slice(400, None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


def load() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()


def samples_of(site: int, num_sites: int) -> tuple[Tensor, Tensor]:
    """Site k, counted from 1, holds every n-th sample."""
    images, labels = (part[SITES] for part in load())
    return images[site - 1 :: num_sites], labels[site - 1 :: num_sites]


def server_samples(rows: slice) -> tuple[Tensor, Tensor]:
    images, labels = load()
    return images[rows], labels[rows]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for batch in torch.split(torch.randperm(len(labels)), 20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
