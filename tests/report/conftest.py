from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clientwise as cw

CONFIG: dict[str, Any] = {
    "name": "shown",
    "rounds": 5,
    "seeds": [1, 2, 3],
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 8, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
    "federation": {"fraction": 0.75},
    "evaluation": {"target": 0.6},
    "hostile": [
        {"clients": 1, "attack": "wrong_labels", "ignore_global": True},
        {"clients": 1, "attack": "broken"},
    ],
    "methods": [
        {"name": "FedAvg"},
        {
            "name": "<b>AdaFed</b> & co",
            "criteria": ["server_performance"],
            "score": "product",
            "adapt_loss": "class_weights",
        },
        {
            "name": "online",
            "criteria": ["label_diversity", "dataset_size", "model_divergence"],
            "normalise": "max",
            "adjust": "first_improvement",
        },
    ],
}


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    """A real run with everything a report can show: three seeds, hostile and broken clients, both loops."""
    return cw.Run(cw.run(CONFIG, tmp_path_factory.mktemp("runs") / "shown"))


@pytest.fixture(scope="session")
def run_folder(shown: cw.Run) -> Path:
    return shown.folder


# Moves weights within five rounds
QUICK_EVIDENCE = {"name": "significance", "threshold": 2.0, "slack": 1.0, "margin": 0.1}

MOVED: dict[str, Any] = CONFIG | {
    "name": "moved",
    "seeds": [1],
    "federation": {"fraction": 1.0},
    "hostile": [{"clients": 2, "attack": "wrong_labels"}],
    "methods": [
        {
            "name": "all of it",
            "criteria": ["dataset_size", "label_diversity"],
            "evidence": QUICK_EVIDENCE,
            "bounds": {"cap": 0.2, "floor": 0.02},
            "before": ["clip"],
            "rule": {"name": "multi_krum", "hostile": 0.3},
        },
        {"name": "evidence alone", "evidence": QUICK_EVIDENCE},
        {"name": "bounds", "bounds": {"cap": 0.15}},
        {"name": "rule", "rule": "median"},
    ],
}


@pytest.fixture(scope="session")
def moved(tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    """A real run whose weights are moved by evidence, bounds and rules."""
    return cw.Run(cw.run(MOVED, tmp_path_factory.mktemp("runs") / "moved"))
