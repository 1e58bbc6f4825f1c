"""What a round with evidence costs: methods take turns on the same work, with 200 held-out samples.

python benchmarks/evidence.py [W1 W3] [--rounds 10] [--turns 3] [--device auto] [--clients N]

Prints the median milliseconds of a round and the ratio of `Recommended` to AdaFed. The methods alternate in one
process, so that other work on the machine slows all of them alike. Target: a ratio of at most 1.25. `--clients`
reduces the clients in a round, for slow machines.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from clientwise.data.federated import FederatedData, Holdings
from ours import federated, seconds_per_round
from works import WORKS, Work

METHODS = ("FedAvg", "AdaFed", "Evidence", "Recommended")
SAMPLES = 200
WARMUP = 3  # rounds; on a GPU the first ones record graphs


def with_server_set(work: Work) -> FederatedData:
    """The work's data; the server weighs by the first 200 samples."""
    data = federated(work)
    held = (data.train.indices[:SAMPLES], data.train.targets[:SAMPLES])
    return replace(data, weigh=Holdings.of([held]))


def compare(work: Work, rounds: int, turns: int, device: str) -> dict[str, float]:
    """Median milliseconds of a round of each method."""
    data = with_server_set(work)
    took: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(turns):
        for method in METHODS:
            took[method] += seconds_per_round(
                work, rounds, warmup=WARMUP, data=data, methods=[method], device=device
            )
    return {method: 1000 * statistics.median(seconds) for method, seconds in took.items()}


def main() -> None:
    """One line per work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", default=["W1", "W3"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int)
    given = parser.parse_args()
    for name in given.works:
        work = WORKS[name]
        if given.clients:
            work = replace(work, clients=given.clients, cohort=min(given.clients, work.cohort))
        took = compare(work, given.rounds, given.turns, given.device)
        shown = ", ".join(f"{method} {one:.1f} ms" for method, one in took.items())
        ratio = took["Recommended"] / took["AdaFed"]
        print(f"{name}: {shown}; Recommended / AdaFed {ratio:.2f} (target: 1.25)", flush=True)


if __name__ == "__main__":
    main()
