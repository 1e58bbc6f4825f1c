"""Your own images and network, with random augmentation and a learning rate that falls.

    python examples/own_images.py

`transform` changes every training batch. It is drawn anew in every round, and the same for every run of a seed.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import clientwise as cw

NAMES = ["phone", "tablet", "scanner", "camera"]


def augmented(images: Tensor) -> Tensor:
    """Images shifted by up to one pixel, with a little noise."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    return images.roll((down, right), dims=(-2, -1)) + 0.05 * torch.randn_like(images)


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(digits)
    clients = {}
    for index, name in enumerate(NAMES):
        rows = torch.arange(index, 400, len(NAMES))
        clients[name] = TensorDataset(images[rows], labels[rows])

    torch.manual_seed(1)  # of the initial parameters
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )
    run = cw.fit(
        network,
        clients,
        held_out=TensorDataset(images[400:500], labels[400:500]),
        test=TensorDataset(images[500:], labels[500:]),
        method="FedAvg",
        rounds=20,
        training={
            "epochs": 2,
            "batch_size": 10,
            "learning_rate": 0.01,
            "optimizer": "adamw",
            "schedule": {"name": "cosine"},
            "transform": augmented,
        },
        keep="best",
    )
    print(run)
    print("first test images:", run.predict(images[500:510]).tolist())
    print("their labels:     ", labels[500:510].tolist())


if __name__ == "__main__":
    main()
