"""The verdict of the protocol of p2-operators (docs/results/reproduction.md), from its run folders.

python lab/papers/judge_operators.py RUNS/p2-operators RUNS/p2-operators-by-writer
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import product

from p1_tables import gain_against, until_clients_reach

from clientwise.record.run import RunFolder
from clientwise.report.results import Method, Results, difference_between
from clientwise.report.statistics import Difference, holm

ORDERS = ("MW>LD>DS", "MW>DS>LD")
OTHERS = (
    "weighted mean",
    "OWA most",
    "OWA at least half",
    "Choquet supporting",
    "Choquet replacing",
)
TARGET = 0.95
Compared = Mapping[tuple[str, str], Difference]  # an order of priority minus another operator


def main() -> None:
    """Print every comparison and the verdict of each run."""
    for folder in sys.argv[1:]:
        run = RunFolder(folder)
        series = {one.label: one for one in Results([run]).methods}
        measures = {"accuracy": accuracies(series), f"gain to {TARGET:.0%}": gains(series)}
        print(f"{run.facts.name}: {verdict([*measures.values()])}")
        for measure, compared in measures.items():
            for (order, other), found in compared.items():
                margin = 0.0 if found.margin is None else found.margin
                said = f"{found.mean:+.4f} ± {margin:.4f}, p = {found.p_value} (Holm)"
                print(f"  {measure}: {order} against {other}: {said}")


def accuracies(series: Mapping[str, Method]) -> Compared:
    """Paired differences of the accuracy in the last round."""
    found = {}
    for order, other in product(ORDERS, OTHERS):
        found[order, other] = difference_between(series[order], series[other])
    return _corrected(found)


def gains(series: Mapping[str, Method]) -> Compared:
    """Rounds by which an order reaches the target before another operator, by P1's rule."""
    reached = {name: until_clients_reach(series[name], TARGET) for name in (*ORDERS, *OTHERS)}
    found = {}
    for order, other in product(ORDERS, OTHERS):
        found[order, other] = gain_against(
            series[order], series[other], reached[order], reached[other]
        )
    return _corrected(found)


def _corrected(found: Mapping[tuple[str, str], Difference | None]) -> Compared:
    """The comparisons that could be made, with Holm's correction for their number."""
    known = {pair: one for pair, one in found.items() if one is not None}
    return dict(zip(known, holm([*known.values()]), strict=True))


def verdict(measures: list[Compared]) -> str:
    """Whether priority performs better: "holds", "fails" or "not seen"; see the protocol."""

    def leads(compared: Compared, order: str, other: str, sign: int) -> bool:
        found = compared.get((order, other))
        return found is not None and found.is_significant and sign * found.mean > 0

    for compared in measures:
        if any(all(leads(compared, order, other, 1) for other in OTHERS) for order in ORDERS):
            return "holds"
    for compared in measures:
        if any(all(leads(compared, order, other, -1) for order in ORDERS) for other in OTHERS):
            return "fails"
    return "not seen"


if __name__ == "__main__":
    main()
