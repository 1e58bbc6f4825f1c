"""What the scripts of all systems share: their arguments, the clock, the line they print. Needs no framework."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from itertools import pairwise

from works import WARMUP, WORKS, Work


def arguments() -> argparse.Namespace:
    """The work and how to run it; `total` counts the rounds that are not timed, too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=WORKS.__getitem__, metavar="|".join(WORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument(
        "--processes", type=int, default=1, help="where the script starts them itself"
    )
    given = parser.parse_args()
    given.total = given.rounds + WARMUP
    return given


class Clock:
    """To be told when a round has ended."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def round_ended(self, *_: object, **__: object) -> None:
        """Takes whatever a system hands to its callbacks."""
        self._ends.append(time.perf_counter())

    def report(self, system: str, work: Work, *packages: str, loss: float | None = None) -> None:
        """Print the result as a line of JSON; `loss`, of the final model, shows that it has learned."""
        ends = self._ends[WARMUP - 1 :]
        seconds = [after - before for before, after in pairwise(ends)]
        versions = {package: version(package) for package in packages}
        result = {
            "system": system,
            "work": work.name,
            "seconds": seconds,
            "versions": versions,
            "loss": loss,
        }
        print(json.dumps(result), flush=True)
