"""An attacked federation: which method survives hostile clients, and who was found?

    python examples/attacked.py

Three of ten simulated sites send their updates with the sign turned, twice as large.
"""

from __future__ import annotations

import numpy
from sklearn.datasets import load_digits

import clientwise as cw

HOSTILE = [2, 5, 8]  # numbers of clients


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    order = numpy.random.default_rng(1).permutation(len(digits))
    *sites, held_out, test = numpy.array_split(order, 12)
    clients = {
        f"site {index}": (pixels[rows] / 16, digits[rows]) for index, rows in enumerate(sites)
    }

    run = cw.fit(
        {"name": "mlp", "hidden": [32]},
        clients,
        held_out=(pixels[held_out] / 16, digits[held_out]),
        test=(pixels[test] / 16, digits[test]),
        methods=["FedAvg", "Median", "FLTrust", "Recommended", "KnowsHonest"],
        seeds=[1, 2, 3],
        rounds=15,
        training={"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
        hostile=[{"clients": HOSTILE, "attack": {"name": "sign_flip", "strength": 2.0}}],
    )
    print(run)
    weights = run.weights[15].unstack(sort=False).round(2)
    print(weights.loc[["FedAvg", "Recommended"]].T)
    print(run.why("site 2", "Recommended"))


if __name__ == "__main__":
    main()
