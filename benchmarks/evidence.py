"""What weighing by held-out samples costs a round: evidence beside AdaFed, each less FedAvg, with 200 samples.

python benchmarks/evidence.py [W1 W3] [--rounds 20] [--device auto]
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from clientwise.data.federated import Holdings
from ours import federated, seconds_per_round
from works import WORKS

METHODS = ("FedAvg", "AdaFed", "Evidence", "Recommended")
SAMPLES = 200


def milliseconds(name: str, method: str, rounds: int, device: str) -> float:
    """Median time of a round."""
    data = federated(WORKS[name])
    data = replace(
        data, weigh=Holdings.of([(data.train.indices[:SAMPLES], data.train.targets[:SAMPLES])])
    )
    took = seconds_per_round(
        WORKS[name], rounds, warmup=5, data=data, methods=[method], device=device
    )
    return 1000 * statistics.median(took)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", default=["W1", "W3"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    for name in given.works:
        took = {
            method: milliseconds(name, method, given.rounds, given.device) for method in METHODS
        }
        more = ", ".join(
            f"{method} +{took[method] - took['FedAvg']:.1f} ms" for method in METHODS[1:]
        )
        print(f"{name}: FedAvg {took['FedAvg']:.1f} ms a round; {more}", flush=True)
