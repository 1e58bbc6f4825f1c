"""A rare class: class weights and focal loss against the plain loss, by macro F1.

    python examples/imbalanced.py

Is the digit an eight? One image in thirty is, and one clinic has most of them.
"""

from __future__ import annotations

import numpy
from sklearn.datasets import load_digits

import clientwise as cw

LOSSES = {
    "plain": {"name": "cross_entropy"},
    "balanced": {"name": "cross_entropy", "class_weights": "balanced"},
    "focal": {"name": "focal", "gamma": 2.0, "class_weights": "balanced"},
}


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    random = numpy.random.default_rng(1)
    order = random.permutation(len(digits))
    is_eight = (digits[order] == 8).astype(int)
    inputs = pixels[order] / 16
    *train, held_out, test = numpy.array_split(numpy.arange(len(order)), 8)
    clients = {}
    for index, rows in enumerate(train):
        share = 1.0 if index == 0 else 0.2  # of the eights that a clinic has
        kept = rows[(is_eight[rows] == 0) | (random.random(len(rows)) < share)]
        clients[f"clinic {index + 1}"] = (inputs[kept], is_eight[kept])

    methods = [
        {"name": name, "like": "FedAvg", "training": {"loss": loss}}
        for name, loss in LOSSES.items()
    ]
    run = cw.fit(
        {"name": "mlp", "hidden": [16]},
        clients,
        held_out=(inputs[held_out], is_eight[held_out]),
        test=(inputs[test], is_eight[test]),
        methods=methods,
        seeds=[1, 2, 3],
        rounds=15,
        evaluation={"metric": "macro_f1"},
        training={"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
    )
    print(run)


if __name__ == "__main__":
    main()
