"""Segmentation: a class for every pixel, measured by Dice and IoU.

    python examples/segmentation.py

Images are scikit-learn's digits with noise; the mask says which pixels belong to the digit.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import clientwise as cw


def noisy(images: Tensor, deviation: float, seed: int) -> Tensor:
    """Images with noise, as another microscope would show them."""
    generator = torch.Generator().manual_seed(seed)
    return images + deviation * torch.randn(images.shape, generator=generator)


def main() -> None:
    pixels, _ = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    masks = (images[:, 0] > 0.4).long()  # [N, 8, 8]: 1 where the digit is
    clients = {}
    for index, deviation in enumerate([0.1, 0.2, 0.3, 0.4]):
        rows = slice(150 * index, 150 * (index + 1))
        clients[f"microscope {index + 1}"] = (noisy(images[rows], deviation, index), masks[rows])

    torch.manual_seed(1)  # of the initial parameters
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)
    )
    run = cw.fit(
        network,
        clients,
        held_out=(noisy(images[600:700], 0.2, 8), masks[600:700]),
        test=(noisy(images[700:1100], 0.2, 9), masks[700:1100]),
        methods=["FedAvg", "Recommended"],
        rounds=10,
        training={"epochs": 1, "batch_size": 10, "learning_rate": 0.1},
    )
    print(run)
    found = run.predict(noisy(images[1200:1201], 0.2, 10), "Recommended")
    for row in found[0].tolist():
        print("".join("#" if pixel else "." for pixel in row))


if __name__ == "__main__":
    main()
