"""What the scan costs: CPU time of a round without it, and of its parts, in one thread.

python lab/backdoors/cost.py
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import clientwise as cw
from clientwise.core import round as of_round
from clientwise.core.evidence import significance
from clientwise.experiment.running import lanes

ROUNDS = 10
WARMUP = 2  # rounds that are not counted; the first one trains the server's own model and scans it
PATCH = {"clients": 0.2, "attack": {"name": "pixel_backdoor", "target": 1, "value": 2.0}}
CONFIG: dict[str, Any] = {
    "name": "cost",
    "rounds": ROUNDS,
    "seeds": [31],
    "data": "mnist5k",
    "evaluation": {"test_fraction": 0.0, "clients_every": 0},
    "methods": [{"name": "scan", "like": "Recommended", "evidence": {"backdoors": True}}],
}
WORKS: dict[str, dict[str, Any]] = {
    "MLP of W3, 75 clients with 60 samples, five epochs": {
        "model": {"name": "mlp", "hidden": [200, 200]},
        "partition": {"name": "iid", "clients": 75},
        "training": {"epochs": 5, "batch_size": 10, "learning_rate": 0.05},
        "server_set": {"fraction": 0.1, "report_fraction": 0.6},
    },
    "CNN, 20 clients with 200 samples, one epoch": {
        "model": {"name": "cnn", "channels": [8, 16], "kernel": 3, "dense": 32},
        "partition": {"name": "dirichlet", "clients": 20, "concentration": 0.5},
        "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
        "server_set": {"fraction": 0.2, "report_fraction": 0.909},
    },
}


def main() -> None:
    """Print a line for each work, without and with an attack."""
    torch.set_num_threads(1)
    spent: Counter[str] = Counter()
    scans: list[float] = []
    others: list[float] = []

    def timed(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            result = part(*args, **options)
            spent["scan"] += time.process_time() - start
            return result

        return run

    def timed_round(*args: Any) -> Any:
        before = spent["scan"]
        start = time.process_time()
        result = run_round(*args)
        scans.append(spent["scan"] - before)
        others.append(time.process_time() - start - scans[-1])
        return result

    significance.watch = timed(significance.watch)
    of_round.unlearned = timed(of_round.unlearned)
    of_round.loss_with = timed(of_round.loss_with)
    run_round = lanes.run_round
    lanes.run_round = timed_round
    for name, work in WORKS.items():
        for attack, hostile in (("no attack", []), ("a patch by 20%", [PATCH])):
            scans.clear()
            others.clear()
            with TemporaryDirectory() as folder:
                cw.run(CONFIG | work | {"hostile": hostile}, Path(folder) / "run", progress=False)
            scan = sum(scans[WARMUP:]) / len(scans[WARMUP:])
            other = sum(others[WARMUP:]) / len(others[WARMUP:])
            print(
                f"{name}, {attack}: a round without the scan {other:.2f} s, the scan {scan:.2f} s "
                f"({scan / other:.0%}), in the first round {scans[0]:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
