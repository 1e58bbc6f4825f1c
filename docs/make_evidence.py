"""The four aims of docs/evidence.md, from the runs of experiments/arena.toml.

python docs/make_evidence.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy

from clientwise.report.standings import Federation, Results, read_results
from clientwise.report.statistics import Difference, paired_difference
from clientwise.runs.folder import RunFolder

OURS, ORACLE = "Recommended", "KnowsHonestTuned"
HOSPITALS = 4


def shown(difference: Difference | None) -> str:
    """In points."""
    assert difference is not None
    return f"{100 * difference.mean:+.1f} ± {100 * (difference.margin or 0):.1f}"


def against(results: Results, one: Federation, other: str, column: int) -> Difference:
    """Ours minus another in a column, the higher the better."""
    ours, theirs = (one.goodness[results.methods.index(name), column] for name in (OURS, other))
    found = paired_difference(ours.tolist(), theirs.tolist())
    assert found is not None
    return found


def worst_case_difference(results: Results, one: Federation, other: str) -> Difference | None:
    """Ours minus another in the worst case of these protocols: the lowest column of each seed."""
    ours, theirs = (one.goodness[results.methods.index(name)].min(0) for name in (OURS, other))
    return paired_difference(ours.tolist(), theirs.tolist())


def worst_hospital(folder: Path, cell: str, method: str) -> list[float]:
    """The accuracy of the honest hospital with the lowest one, seed by seed."""
    run = RunFolder(folder / cell)
    return [min(run.honest_metrics(method, seed, HOSPITALS)) for seed in run.seeds(method)]


def main(folder: Path) -> None:
    """Four tables in Markdown."""
    results = read_results(folder)
    left_out = {*results.unavailable, "ServerOnly", OURS}
    usable = [name for name in results.methods if name not in left_out]
    print(
        "| federation | clean, vs FedAvg | clean, vs ServerTuning | lowest vs KnowsHonestTuned "
        "| in column | next best worst case | lead over it |"
    )
    print("| :-- | --: | --: | --: | :-- | :-- | --: |")
    for one in results.federations:
        regrets = [against(results, one, ORACLE, column) for column in range(len(one.columns))]
        largest = int(numpy.argmin([regret.mean for regret in regrets]))
        worst = {
            name: float(one.goodness[results.methods.index(name)].min(0).mean()) for name in usable
        }
        second = max(worst, key=worst.__getitem__)
        ahead = worst_case_difference(results, one, second)
        clean = [shown(against(results, one, name, 0)) for name in ("FedAvg", "ServerTuning")]
        at = one.columns[largest]
        print(
            f"| {one.name} | {' | '.join(clean)} | {shown(regrets[largest])} | {at} | {second} | {shown(ahead)} |"
        )
    print(
        "\n| heart, worst honest hospital | FedAvg | Recommended | difference |\n| :-- | --: | --: | --: |"
    )
    for cell in sorted(folder.glob("heart--*")):
        theirs, ours = (worst_hospital(folder, cell.name, name) for name in ("FedAvg", OURS))
        means = f"{100 * numpy.mean(theirs):.1f}% | {100 * numpy.mean(ours):.1f}%"
        print(f"| {cell.name[7:]} | {means} | {shown(paired_difference(ours, theirs))} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
