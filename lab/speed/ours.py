"""Time clientwise on a work, as `clientwise run` does it: criteria, weights, record, checkpoint and all.

python lab/speed/ours.py W3 [--rounds 5] [--mode auto] [--precision auto] [--device auto]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import clientwise as cw  # before PyTorch, whose allocator it sets (docs/performance.md, "Kept memory")

# isort: split
import torch

from clientwise.core.objective.problem import Classification
from clientwise.data.federated import FederatedData, Holdings, Samples
from works import WARMUP, WORKS, Work, make_data


def evenly(samples: Samples, clients: int) -> FederatedData:
    """The same number of samples for every client; one to test and to report on, so that evaluation takes no time."""
    total = len(samples.targets)
    train = Holdings(
        torch.arange(total), samples.targets, torch.arange(clients + 1) * (total // clients)
    )
    one = train.indices[:1], train.targets[:1]
    test = Holdings(*one, torch.arange(clients + 1).clamp(max=1))
    return FederatedData(samples, train, test, None, Holdings.of([one]))


def federated(work: Work) -> FederatedData:
    """The work's data."""
    inputs, labels = (torch.from_numpy(array).flatten(0, 1) for array in make_data(work))
    return evenly(Samples(inputs, labels, Classification(10)), work.clients)


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


def seconds_per_round(
    work: Work,
    rounds: int,
    warmup: int = WARMUP,
    data: FederatedData | None = None,
    **options: object,
) -> list[float]:
    """Wall-clock seconds between the ends of rounds."""
    ends: list[float] = []
    data = data or federated(work)

    def note(*_: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        # One more than is timed: a round is told of while the next one trains, and the last has no next one.
        cw.run(
            config(work, rounds + warmup + 1, **options),
            Path(folder) / "run",
            data=data,
            on_round=note,
        )
    return [
        after - before
        for before, after in zip(ends[warmup - 1 : -1], ends[warmup:-1], strict=False)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    took = seconds_per_round(
        WORKS[given.work],
        given.rounds,
        mode=given.mode,
        precision=given.precision,
        device=given.device,
    )
    versions = {package: version(package) for package in ("clientwise", "torch")}
    print(
        json.dumps(
            {"system": "clientwise", "work": given.work, "seconds": took, "versions": versions}
        )
    )
