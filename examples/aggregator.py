"""Federated rounds of one's own, in plain PyTorch; clientwise weighs and aggregates the updates."""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import clientwise as cw

CLINICS = ["north", "south", "east", "west"]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(sent: dict[str, Tensor], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = network()
    model.load_state_dict(sent)
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for batch in torch.split(torch.randperm(len(labels)), 20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.state_dict()


def main(folder: str | None) -> None:
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float() / 16, torch.from_numpy(digits).long()
    data = {}
    for number, clinic in enumerate(CLINICS):
        rows = slice(400 + number, None, len(CLINICS))
        data[clinic] = (images[rows], labels[rows])
    data["west"] = (data["west"][0], 9 - data["west"][1])  # wrong labels

    model = network().state_dict()
    with (
        cw.Aggregator(
            "Recommended",
            model=network(),
            weigh=(images[:200], labels[:200]),  # the server's samples, to weigh by
            report=(images[200:400], labels[200:400]),  # and to report on
            learning_rate=0.2,
            folder=folder,
        ) as aggregator
    ):
        for round_num in range(1, 6):
            updates = {clinic: train(model, *data[clinic]) for clinic in CLINICS}
            sizes = {clinic: {"dataset_size": len(data[clinic][1])} for clinic in CLINICS}
            done = aggregator.aggregate(model, updates, sizes)
            model = dict(done.model)
            shown = {clinic: round(weight, 3) for clinic, weight in done.weights.items()}
            print(f"round {round_num}: {shown}")
    if folder:
        print(f"every weight of round 1: clientwise show {folder} --round 1")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
