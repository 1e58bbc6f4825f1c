"""Regression: numbers to predict, measured by RMSE, with a loss that outliers move little.

    python examples/regression.py

Clients are age groups of scikit-learn's diabetes table. In one, a unit was confused: targets are ten times too large.
"""

from __future__ import annotations

import numpy
from sklearn.datasets import load_diabetes

import clientwise as cw

GROUPS = ["youngest", "younger", "older", "oldest"]
ROBUST = {"name": "robust", "shape": 1.0}  # linear for large errors, as Huber's loss is


def main() -> None:
    inputs, progression = load_diabetes(return_X_y=True)
    inputs = inputs / inputs.std(0)
    target = progression / 100
    order = numpy.random.default_rng(1).permutation(len(target))
    held_out, test, train = numpy.split(order, [60, 160])
    by_age = train[numpy.argsort(inputs[train, 0])]
    clients = {}
    for name, rows in zip(GROUPS, numpy.array_split(by_age, len(GROUPS)), strict=True):
        clients[name] = (inputs[rows], target[rows] * (10 if name == "older" else 1))

    run = cw.fit(
        "linear",
        clients,
        held_out=(inputs[held_out], target[held_out]),
        test=(inputs[test], target[test]),
        methods=["FedAvg", "Recommended"],
        seeds=[1, 2, 3],
        rounds=20,
        training={"epochs": 1, "batch_size": 10, "learning_rate": 0.01, "loss": ROBUST},
    )
    print(run)
    print(run.weights[20].unstack(sort=False).round(2))
    print("predicted:", run.predict(inputs[test[:5]], "Recommended").round(2))
    print("true:     ", target[test[:5]].round(2))


if __name__ == "__main__":
    main()
