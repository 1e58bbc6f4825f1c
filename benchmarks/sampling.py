"""Evaluation by a sample of the clients: its error against the stated standard error, and the time it saves.

python benchmarks/sampling.py [--clients 100000] [--sample 1000] [--rounds 40]

The same run twice: all clients evaluate the model in every round, or a sample of them (`evaluation.clients_sample`).
Models are the same, so that the difference of the two means is the error of the sample. Divided by the standard error
that the run states, it should have a root mean square of 1, and be below 1.96 in about 95% of the rounds.

Network and training are those of W4 (`works.py`). Clients have 20 samples to train on and 2 to 20 to test on; some have
noisier labels than others. Time is processor time of all threads, the median over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.data.federated import FederatedData, Holdings, Samples
from works import WORKS

W4 = WORKS["W4"]
FEATURES, HIDDEN, CLASSES = W4.layers
COHORT = 100
MOST_TESTED = 20  # samples of a client


class Evaluated(NamedTuple):
    """A run: the clients' mean accuracy by round, its standard errors, and seconds per round."""

    means: list[float]
    errors: list[float]
    seconds: float


def make_data(clients: int) -> FederatedData:
    """Clients whose labels are wrong with a probability of 0 to 0.5, with test sets of different sizes."""
    random = torch.Generator().manual_seed(0)
    held = W4.samples + MOST_TESTED
    shape = (clients * held, FEATURES)
    inputs = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
    noise = 0.5 * torch.rand(clients, generator=random).repeat_interleave(held)
    drawn = torch.randint(0, CLASSES, (len(inputs),), generator=random)
    is_wrong = torch.rand(len(inputs), generator=random) < noise
    labels = torch.where(is_wrong, drawn, inputs[:, :CLASSES].argmax(1))
    indices = torch.arange(clients * held).reshape(clients, held)
    sizes = torch.randint(2, MOST_TESTED + 1, (clients,), generator=random)
    is_tested = torch.arange(MOST_TESTED) < sizes[:, None]
    train = indices[:, : W4.samples].flatten()
    test = indices[:, W4.samples :][is_tested]
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return FederatedData(
        Samples(inputs, labels, Classification(CLASSES), scale=1 / 255),
        Holdings(train, labels[train], torch.arange(clients + 1) * W4.samples),
        Holdings(test, labels[test], ends),
        weigh=None,
        report=None,
    )


def evaluate(data: FederatedData, rounds: int, sample: int | None) -> Evaluated:
    """A run whose model is evaluated by a sample of the clients; None: by all of them."""
    config = {
        "name": "sampling",
        "rounds": rounds,
        "device": "cpu",
        "model": {"name": "mlp", "hidden": [HIDDEN]},
        "training": {"epochs": W4.epochs, "batch_size": W4.batch, "learning_rate": W4.rate},
        "federation": {"clients_per_round": min(COHORT, data.num_clients)},
        "evaluation": {} if sample is None else {"clients_sample": sample},
        "methods": ["FedAvg"],
    }
    used: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        cw.run(config, place, data=data, on_round=lambda *_: used.append(time.process_time()))
        run = cw.Run(place)
        frame = run.frame("rounds")
        means = frame["local_mean"].tolist()
        errors = frame["sampling_error"].tolist() if sample else []
    seconds = statistics.median(after - before for before, after in pairwise(used))
    return Evaluated(means, errors, seconds)


def main() -> None:
    """Both runs, and what the sample costs and saves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    data = make_data(given.clients)
    part = evaluate(data, given.rounds, given.sample)
    whole = evaluate(data, given.rounds, None)
    errors = [some - every for some, every in zip(part.means, whole.means, strict=True)]
    ratios = [error / stated for error, stated in zip(errors, part.errors, strict=True)]
    root_mean_square = statistics.fmean(ratio**2 for ratio in ratios) ** 0.5
    within = statistics.fmean(abs(ratio) < 1.96 for ratio in ratios)
    print(
        f"{given.sample:,} of {given.clients:,} clients, {given.rounds} rounds: stated standard error "
        f"{100 * statistics.fmean(part.errors):.2f} points; error / standard error: root mean square "
        f"{root_mean_square:.2f}, below 1.96 in {within:.0%} of the rounds; "
        f"{part.seconds:.2f} s per round, {whole.seconds:.2f} s with all clients"
    )


if __name__ == "__main__":
    main()
