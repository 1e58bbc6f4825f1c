"""Time clientwise on a work, as `clientwise run` does it: criteria, weights, record, checkpoint and all.

python benchmarks/ours.py W3 [--rounds 5] [--mode auto] [--precision auto] [--device auto]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from works import WORKS, Work, make_data

import clientwise as cw
from clientwise.core.types import Problem
from clientwise.data.federated import FederatedData, Samples, Shares


def federated(work: Work) -> FederatedData:
    """The work's data; one sample to report on, so that evaluation takes no time."""
    inputs, labels = make_data(work)
    total = work.clients * work.samples
    samples = Samples(
        torch.from_numpy(inputs).reshape(total, *work.shape),
        torch.from_numpy(labels).reshape(total),
        Problem("classification", 10),
    )
    train = Shares(torch.arange(total), samples.targets, torch.arange(work.clients + 1) * work.samples)
    one = Shares.of([(torch.zeros(1, dtype=torch.int64), samples.targets[:1])])
    nothing = Shares(train.numbers[:0], train.targets[:0], torch.zeros(work.clients + 1, dtype=torch.int64))
    return FederatedData(samples, train, nothing, None, one)


def config(work: Work, rounds: int, **options: object) -> dict[str, object]:
    """FedAvg on the work."""
    hidden = list(work.layers[1:-1])
    return {
        "name": work.name,
        "rounds": rounds,
        "model": {"name": "mlp", "hidden": hidden} if hidden else {"name": "cnn"},
        "training": {"epochs": work.epochs, "batch_size": work.batch, "learning_rate": work.rate},
        "federation": {"clients_per_round": work.cohort},
        "evaluation": {"clients_every": 0},
        **options,
    }


def seconds_per_round(work: Work, rounds: int, warmup: int = 2, **options: object) -> list[float]:
    """Wall-clock seconds between the ends of rounds."""
    ends: list[float] = []

    def note(progress: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        cw.run(config(work, rounds + warmup, **options), Path(folder) / "run", data=federated(work), on_round=note)
    return [after - before for before, after in zip(ends[warmup - 1 :], ends[warmup:], strict=False)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    took = seconds_per_round(
        WORKS[given.work], given.rounds, mode=given.mode, precision=given.precision, device=given.device
    )
    print(json.dumps({"system": "clientwise", "work": given.work, "seconds": took}))
