"""A regression benchmark of ratios, under a minute: many clients at once must stay faster than one after the other.

python lab/speed/quick.py

Ratios, not seconds: they hold on any machine, also a busy one. The floors leave a wide margin to what was measured
(docs/performance.md): falling below one means that something broke, not that the machine was busy.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from ours import seconds_per_round
from works import WORKS, Work

REDUCED = [  # work, floor of (seconds of the loop / seconds of what the engine chooses)
    (replace(WORKS["W3"], clients=60, cohort=20, epochs=1), 1.3),
    (replace(WORKS["W4"], clients=600, cohort=200), 4.0),
]
ROUNDS, TURNS = 3, 3


def best_seconds(work: Work) -> dict[str, float]:
    """Seconds of the best round of a few turns each, of the loop and of the engine's own choice."""
    best = {"loop": float("inf"), "auto": float("inf")}
    for _ in range(TURNS):
        for mode in best:
            best[mode] = min(best[mode], *seconds_per_round(work, ROUNDS, mode=mode, device="cpu"))
    return best


def main() -> None:
    """Exit with status 1 if a ratio is below its floor."""
    below = []
    for work, floor in REDUCED:
        best = best_seconds(work)
        times = best["loop"] / best["auto"]
        print(
            f"{work.name}, reduced: {times:.1f} times as fast as one client after the other (floor: {floor})"
        )
        if times < floor:
            below.append(work.name)
    if below:
        sys.exit(
            f"{' and '.join(below)}: training many clients at once has lost its advantage over the loop"
        )


if __name__ == "__main__":
    main()
