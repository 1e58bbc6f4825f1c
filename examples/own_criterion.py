"""The criterion of docs/parts.md as a program: phones with an empty battery should weigh less."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy
from sklearn.datasets import load_digits

import clientwise as cw

CONFIG = {
    "name": "batteries",
    "plugins": ["my_criteria"],
    "plugin_dir": str(Path(__file__).parent),
    "rounds": 5,
    "model": "linear",
    "training": {"epochs": 2, "batch_size": 20},
    "methods": [
        {"name": "FedAvg"},
        {
            "name": "batteries first",
            "criteria": [{"name": "battery", "floor": 0.2}, "dataset_size"],
        },
    ],
}


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(1).permutation(len(labels))
    parts = [(images[rows] / 16, labels[rows]) for rows in numpy.array_split(order, 8)]
    data = cw.FederatedData.from_clients(
        train=[(x[:-40], y[:-40]) for x, y in parts[:6]],
        test=[(x[-40:], y[-40:]) for x, y in parts[:6]],
        weigh=parts[6],
        report=parts[7],
        attributes={"battery": [0.9, 0.1, 0.5, 1.0, 0.7, 0.3]},
    )
    with tempfile.TemporaryDirectory() as folder:
        run = cw.run(CONFIG, Path(folder) / "run", data=data)
        for method, metric in run.frame("rounds").groupby("method")["metric"].last().items():
            print(f"{method:16} accuracy {metric:.1%}")
        weights = run.frame("weights").set_index(["method", "round"])["weight"]
        shown = ", ".join(f"{weight:.3f}" for weight in weights.loc["batteries first", 5])
        print("weights by battery:", shown)


if __name__ == "__main__":
    main()
