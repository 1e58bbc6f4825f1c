"""Short runs whose frames are kept as files.

The runs are too short for differences in the last bits to grow: on every kind of CPU and with any number of
threads, numbers agree up to `TOLERANCE`. Keys and texts are equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas

import clientwise as cw
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix
from clientwise.report.standings import matrix_report
from reported import headline_of

FOLDER = Path(__file__).parent
KEYS = ["method", "seed", "round"]
TOLERANCE = {"rtol": 2e-3, "atol": 1e-4}
COLUMNS = {
    "rounds": [*KEYS, "metric", "loss", "local_mean", "attack_success", "epsilon", "ended"],
    "weights": [*KEYS, "client", "name", "prior", "weight", "influence"],
    "criteria": [*KEYS, "client", "criterion", "raw", "normalised"],
}

BASE: dict[str, Any] = {
    "rounds": 3,
    "seeds": [1, 2],
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "concentration": 0.5},
    "model": "linear",
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
}
PRIVATE = {"clip": 0.5, "delta": 0.01, "noise_multiplier": 1.0}
RUNS: dict[str, dict[str, Any]] = {
    "prioritized": {"methods": ["FedAvg", "Prioritized"], "seeds": [1, 2, 3, 4, 5]},
    "online-adjustment": {"methods": ["FedAvg", "OnlineAdjustment"]},
    "adafed": {"methods": ["FedAvg", {"like": "AdaFed", "adapt_loss": "class_weights"}]},
    "recommended": {
        "methods": ["FedAvg", "Recommended"],
        "rounds": 5,
        "hostile": [{"clients": 2, "attack": {"name": "sign_flip", "strength": 2.0}}],
    },
    "devices": {
        "methods": ["FedAvg", {"name": "deadline", "pace": {"deadline": 8.0}}, "FedBuff"],
        "rounds": 6,
        "devices": {"speed": {"name": "lognormal", "median": 50.0, "sigma": 1.0}, "up": 5e3},
    },
    "privacy": {
        "methods": ["FedAvg", {"name": "private", "bounds": {"cap": 0.5}, "privacy": PRIVATE}],
        "federation": {"fraction": 0.7, "sampling": "poisson"},
        "evaluation": {"clients_every": 0},
    },
}
MATRIX: dict[str, Any] = {
    "name": "matrix",
    "methods": ["FedAvg", "Median"],
    "matrix": {
        "shares": [0.34],
        "oracle": "Median",
        "attacks": {
            "sign flip": {"attack": "sign_flip"},
            "backdoor": {"attack": "pixel_backdoor"},
        },
    },
}
SIMULATED = "prioritized"  # by Flower, too, which must give the same numbers


def frames_of(run: cw.Run) -> dict[str, pandas.DataFrame]:
    """The frames of a run that are kept, with the columns that are kept."""
    return {name: run.frame(name).reindex(columns=columns) for name, columns in COLUMNS.items()}


def write_run(name: str, out: Path, folder: Path, engine: str = "local") -> None:
    """Run one of `RUNS` in a folder, and write its frames and its headline."""
    run = cw.run(BASE | RUNS[name] | {"engine": engine}, out, progress=False)
    _write(frames_of(run), headline_of(run), folder)


def write_matrix(out: Path, folder: Path) -> None:
    """Run the matrix in a folder, and write the frames of its cells and its headline."""
    matrix = load_matrix(BASE | MATRIX)
    run_matrix(matrix, out)
    cells = {cell.column: frames_of(cw.Run(out / cell.folder)) for cell in matrix.cells}
    together = {}
    for name in COLUMNS:
        parts = {column: frames[name] for column, frames in cells.items()}
        together[name] = pandas.concat(parts, names=["cell"]).reset_index("cell")
    _write(together, matrix_report(out).lead, folder)


def _write(frames: dict[str, pandas.DataFrame], headline: list[str], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, frame in frames.items():
        keys = [key for key in ("cell", *KEYS, "client", "criterion") if key in frame]
        frame.sort_values(keys).to_csv(folder / f"{name}.csv", index=False, float_format="%.5g")
    text = "".join(f"{line}\n" for line in headline)
    (folder / "headline.txt").write_text(text, encoding="utf-8")


def assert_equal(found: Path, kept: Path, leaving_out: str = "") -> None:
    """What a run has written agrees with what is kept, but for one column."""
    for name in COLUMNS:
        frames = [pandas.read_csv(folder / f"{name}.csv") for folder in (found, kept)]
        left, right = [frame.drop(columns=leaving_out, errors="ignore") for frame in frames]
        pandas.testing.assert_frame_equal(left, right, obj=f"{kept.name}/{name}", **TOLERANCE)
    assert (found / "headline.txt").read_text("utf-8") == (kept / "headline.txt").read_text("utf-8")
