"""The works every system is timed on: the same shapes, the same synthetic data, no evaluation in the timed rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WARMUP = 2  # rounds that are not timed: things are compiled, caches filled, processes started


@dataclass(frozen=True)
class Work:
    """One federated workload."""

    name: str
    layers: tuple[int, ...]  # of an MLP; empty: P1's CNN (1,663,370 parameters)
    clients: int
    samples: int  # of each client
    cohort: int
    epochs: int
    batch: int
    shape: tuple[int, ...]
    rate: float = 0.05


WORKS = {
    work.name: work
    for work in (
        Work(
            "W0", (20, 16, 10), 20, 10, 4, 1, 5, (20,)
        ),  # nothing to time: shows in seconds that a system runs
        Work("W1", (), 100, 600, 10, 1, 10, (1, 28, 28)),
        Work("W2", (), 100, 600, 10, 5, 600, (1, 28, 28)),
        Work("W3", (784, 200, 200, 10), 1000, 60, 100, 5, 10, (784,)),
        Work("W4", (60, 128, 10), 10_000, 20, 1000, 1, 20, (60,)),
    )
}


def make_data(work: Work) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Inputs [clients, samples, *shape] and labels [clients, samples] from a fixed random linear map."""
    random = np.random.default_rng(0)
    features = int(np.prod(work.shape))
    inputs = random.standard_normal((work.clients, work.samples, features), dtype=np.float32)
    labels = (inputs @ random.standard_normal((features, 10), dtype=np.float32)).argmax(-1)
    return inputs.reshape(work.clients, work.samples, *work.shape), labels


def cohort(work: Work, round_num: int) -> NDArray[np.int64]:
    """Who takes part in a round, for systems that do not draw their own."""
    return np.random.default_rng((1, round_num)).choice(work.clients, work.cohort, replace=False)
