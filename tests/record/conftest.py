from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw

CONFIG: dict[str, Any] = {
    "name": "finished",
    "rounds": 3,
    "seeds": [1, 2],
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "model": "linear",
    "training": {"batch_size": 20, "learning_rate": 0.1},
    "hostile": [{"clients": [0], "attack": "wrong_labels"}, {"clients": [1], "attack": "broken"}],
    "methods": [
        {"name": "FedAvg"},
        {
            "name": "all of it",
            "criteria": ["server_performance", "label_diversity", "dataset_size"],
            "adjust": "first_improvement",
            "adapt_loss": "class_weights",
        },
    ],
}


@pytest.fixture(scope="session")
def config() -> dict[str, Any]:
    return CONFIG


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real run: two methods, two seeds, one hostile client, one whose updates are refused."""
    return cw.run(CONFIG, tmp_path_factory.mktemp("runs") / "finished").folder


@pytest.fixture
def altered(finished: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of that run in which some SQL was executed."""

    def alter(*statements: str) -> Path:
        folder = Path(
            shutil.copytree(finished, tmp_path / f"altered-{len(list(tmp_path.iterdir()))}")
        )
        with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
            for statement in statements:
                database.execute(statement)
        return folder

    return alter
