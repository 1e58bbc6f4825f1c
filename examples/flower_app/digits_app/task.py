"""The model and the data of this app: nothing here knows clientwise."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

SERVER_SAMPLES = 300


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()


def samples_of(client: int, num_clients: int) -> tuple[Tensor, Tensor]:
    """Client k has few kinds of digits, and the more samples the higher its number."""
    images, labels = (part[SERVER_SAMPLES:] for part in load())
    mine = (labels + client) % num_clients <= client
    return images[mine], labels[mine]


def server_samples() -> tuple[Tensor, Tensor]:
    images, labels = (part[:SERVER_SAMPLES] for part in load())
    return images, labels


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def train(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for batch in torch.split(torch.randperm(len(labels)), 20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()
