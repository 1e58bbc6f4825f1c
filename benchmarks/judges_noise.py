"""What the nodes' noise leaves of evidence from judges: the table of docs/results/privacy.md.

python benchmarks/judges_noise.py

Clients judge the models of a round, and their losses get the noise of a node with so many test
samples. scikit-learn's digits, 20 clients, 20 rounds.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import clientwise as cw
from clientwise.core.judging import Judge
from clientwise.core.types import Evaluation
from clientwise.experiment.load import load_experiment
from clientwise.hosts.deployment.allowance import Allowance
from clientwise.hosts.deployment.small_numbers import loss_deviation

CLIENTS = 20
CLASSES = 10
CONFIG: dict[str, Any] = {
    "name": "judges-noise",
    "rounds": 20,
    "seeds": [6, 7, 8],
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": CLIENTS, "concentration": 0.5},
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"source": "clients", "fraction": 0.2},
    "evaluation": {"test_fraction": 0.2, "clients_every": 0},
    "methods": ["RecommendedJudged"],
    "flower": {"clients": [f"member-{number}" for number in range(CLIENTS)]},
}
ATTACK = {"hostile": [{"share": 0.2, "attack": {"name": "sign_flip", "strength": 2.0}}]}
TEST_SAMPLES = (None, 100_000, 10_000, 1_000, 100)  # of a judge; None: exact losses


def accuracy(config: dict[str, Any], deviation: float) -> float:
    """Accuracy in the last round, in percent, mean of the seeds."""
    chance = torch.Generator().manual_seed(1)
    exact = Judge.__call__

    def noisy(judge: Judge, models: Tensor) -> Evaluation:
        found = exact(judge, models)
        losses = found.losses + deviation * torch.randn(found.losses.shape, generator=chance)
        return replace(found, losses=losses.clamp(min=0))

    with tempfile.TemporaryDirectory() as folder, patch.object(Judge, "__call__", noisy):
        run = cw.Run(cw.run(config, f"{folder}/run", progress=False))
        curves = [run.curve("metric", "RecommendedJudged", seed) for seed in CONFIG["seeds"]]
    return 100 * mean(curve[-1][1] for curve in curves)


def main() -> None:
    """Print the table."""
    models = Allowance(load_experiment(CONFIG | {"seeds": [1]})).models
    print("| test samples of a judge | clean | sign flip by 20% |\n|---|--:|--:|")
    for samples in TEST_SAMPLES:
        deviation = 0.0
        if samples:
            deviation = loss_deviation(CLASSES, samples, models)
        cells = [accuracy(CONFIG | change, deviation) for change in ({}, ATTACK)]
        label = "exact losses" if samples is None else f"{samples:,} (σ {deviation:.2g})"
        print(f"| {label} |", " | ".join(f"{cell:.1f}" for cell in cells), "|", flush=True)


if __name__ == "__main__":
    main()
