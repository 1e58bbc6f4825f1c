"""What counterfactuals cost beside the training: CPU seconds of ten clients and a hundred rounds.

python benchmarks/counterfactuals.py          # 100 rounds: some minutes
python benchmarks/counterfactuals.py 10       # fewer rounds

"others" is the time of all rounds with `evaluation.counterfactuals` (13 models in every round: chosen,
equal, by size, without each client; on the server's set and on every client's own test set) minus
their time without it. "training" is the time in the clients' training.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clientwise.core.round import first_state, run_round
from clientwise.core.types import Task, Updates
from clientwise.engine.wrapping import WrappingEngine
from clientwise.experiment.build.data import build_data, load_samples
from clientwise.experiment.build.engine import build_engine, build_executor, build_plan
from clientwise.experiment.load import load_experiment

CLIENTS = 10
NETWORKS = ("linear", "mlp", "cnn")


class Stopwatch(WrappingEngine):
    """Counts the CPU seconds of training."""

    seconds = 0.0

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.types.Engine`."""
        began = time.process_time()
        updates = list(self.inner.train(client_ids, model, task))
        self.seconds += time.process_time() - began
        yield from updates


def config_of(network: str, rounds: int, *, counterfactuals: bool) -> dict[str, Any]:
    """An experiment."""
    return {
        "name": "cost",
        "rounds": rounds,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": CLIENTS, "concentration": 0.5},
        "model": network,
        "training": {"epochs": 1, "batch_size": 10},
        "device": "cpu",
        "workers": 1,
        "evaluation": {"counterfactuals": counterfactuals},
        "methods": ["FedAvg"],
    }


def cpu_seconds(network: str, rounds: int, *, counterfactuals: bool) -> tuple[float, float]:
    """CPU seconds of all rounds, and of the training in them."""
    experiment = load_experiment(config_of(network, rounds, counterfactuals=counterfactuals))
    samples = load_samples(experiment)
    data, hostile = build_data(experiment, samples, 1)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    (method,) = experiment.build_methods()
    engine = Stopwatch(build_engine(experiment, data, hostile, 1, executor, method))
    plan = build_plan(experiment, data.num_clients, 1)
    state = first_state(engine.initial_model, method, engine)
    state, _ = run_round(state, method, plan, engine)  # the first round warms up
    engine.seconds = 0.0
    began = time.process_time()
    for _ in range(rounds):
        state, _ = run_round(state, method, plan, engine)
    return time.process_time() - began, engine.seconds


def main(rounds: int) -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print(f"{CLIENTS} clients, {rounds} rounds of one epoch; CPU seconds of one core")
    print(f"{'network':<10}{'training':>10}{'others':>10}{'ratio':>8}")
    for network in NETWORKS:
        plain, training = cpu_seconds(network, rounds, counterfactuals=False)
        whole, _ = cpu_seconds(network, rounds, counterfactuals=True)
        others = whole - plain
        print(f"{network:<10}{training:>10.2f}{others:>10.2f}{others / training:>8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
