"""Memory of a run, with the allocator as clientwise sets it: what `clientwise check` foretells beside what it takes.

python lab/speed/run_memory.py [--clients 5000]
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import clientwise as cw  # before PyTorch, whose allocator it sets (docs/performance.md, "Kept memory")

# isort: split
import torch

from clientwise.core.objective.problem import Classification
from clientwise.data.federated import FederatedData, Holdings, Samples
from clientwise.experiment.build.engine import build_executor, lanes_that_fit
from clientwise.experiment.checks.against_data import fixed_bytes, largest_round
from clientwise.experiment.load import load_experiment
from method_memory import memory
from ours import evenly
from scale import CLASSES, FEATURES, HIDDEN

HELD = 2  # samples of each client
HELD_OUT = 200
WARM_UP = 20  # clients of a first run, for what libraries load and keep
CONFIG: dict[str, Any] = {
    "name": "memory",
    "rounds": 2,
    "device": "cpu",
    "model": {"name": "mlp", "hidden": [HIDDEN]},
    "training": {"epochs": 1, "batch_size": HELD, "learning_rate": 0.1},
    "evaluation": {"clients_every": 0},
    "methods": ["Recommended"],
}


def federated(clients: int) -> FederatedData:
    """Clients with two samples each, and a server with samples to weigh by."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(clients * HELD + HELD_OUT, FEATURES, generator=random)
    labels = inputs[:, :CLASSES].argmax(1)
    samples = Samples(inputs, labels, Classification(CLASSES))
    train = torch.arange(clients * HELD)
    held_out = torch.arange(clients * HELD, len(inputs))
    ends = torch.arange(clients + 1) * HELD
    return replace(
        evenly(samples, clients),
        train=Holdings(train, labels[train], ends),
        weigh=Holdings.of([(held_out, labels[held_out])]),
    )


def foretell(data: FederatedData) -> dict[str, int]:
    """Bytes that a run takes beyond the data, and those of them that do not grow with the clients."""
    experiment = load_experiment(CONFIG)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    lanes = lanes_that_fit(experiment, data, executor)
    fixed = fixed_bytes(executor.workers)
    return {
        "foretold": largest_round(experiment, data, executor.spec, lanes) + fixed,
        "fixed": fixed,
    }


def measure(clients: int) -> dict[str, int]:
    """Bytes that a run takes beyond what was there before it, beside those that are foretold."""
    data = federated(clients)
    found = foretell(data)
    with tempfile.TemporaryDirectory() as folder:
        cw.run(CONFIG, Path(folder) / "first", data=federated(WARM_UP))
        gc.collect()
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        cw.run(CONFIG, Path(folder) / "run", data=data)
    return found | {"measured": memory("VmHWM") - before}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=5_000)
    print(json.dumps(measure(parser.parse_args().clients)))
