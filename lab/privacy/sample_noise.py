"""What noise of single samples costs in accuracy, for the table in docs/results/privacy.md.

    CLIENTWISE_DATA=... python lab/privacy/sample_noise.py

Heart needs the data folder; without it, only the digits are measured. Takes three minutes on one core.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import clientwise as cw

ROUNDS = 5
NOISE = {"sample_clip": 1.0, "sample_noise": 3.2}  # μ = 0.70 after five rounds
DIGITS = {
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 3, "concentration": 0.5},
    "seeds": [1, 2],
}
HEART = {"data": "heart", "partition": "by_id", "seeds": [1, 2, 3, 4, 5]}


def accuracy(data: dict[str, Any], model: Any, noise: dict[str, Any]) -> float:
    """Mean over the seeds, on the server's samples, after the last round."""
    config = {
        "name": "sample-noise",
        "rounds": ROUNDS,
        "model": model,
        "training": {"epochs": 1, "batch_size": "full", "learning_rate": 2.0} | noise,
        "evaluation": {"clients_every": 0},
        "methods": ["FedAvg"],
        **data,
    }
    with TemporaryDirectory() as folder:
        run = cw.run(config, Path(folder) / "run", progress=False)
        ends = run.frame("rounds").groupby("seed")["metric"].last()
    return 100 * float(ends.mean())


def main() -> None:
    """Print the rows of the table."""
    places = {"digits": DIGITS}
    if (Path(os.environ.get("CLIENTWISE_DATA", "")) / "heart").is_dir():
        places = {"heart": HEART, **places}
    for name, data in places.items():
        for model in ("linear", {"name": "mlp", "hidden": [32]}):
            plain, noisy = (accuracy(data, model, noise) for noise in ({}, NOISE))
            print(f"{name} {model}: no noise {plain:.1f}, with noise {noisy:.1f}", flush=True)


if __name__ == "__main__":
    main()
