"""A second computation of the tables of docs/results/proof.md, which shares no code with make_proof.py.

    python lab/proof/check_proof.py lab/results/proof.csv.gz

Reads the raw results as text and computes with the standard library alone. The exit status is 1 if a number in the page
is not what it should be.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "results" / "proof.md"
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?")
# Written down again: a mistake in make_proof.py's list must not be repeated here
ADDED = {"airports", "bananas", "boroughs", "collisions", "families"}
HALF_A_DIGIT = 0.5001
SMALLEST_P = "0.001"  # that is written out
STEPS = 600  # of an integration by Simpson's rule

Cell = tuple[str, str, str]  # federation, attack, share


class Run(NamedTuple):
    """A row of the raw results."""

    cell: Cell
    variant: str
    method: str
    numbers: dict[str, float]


class Estimate(NamedTuple):
    """A mean over federations with its 95% interval, and p."""

    mean: float
    low: float
    high: float
    p: float


def main() -> None:
    """Compare all tables of the page with the raw results."""
    wrong = differences(PAGE.read_text(encoding="utf-8"), read(Path(sys.argv[1])))
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(1)
    print("all numbers of the tables are those of the raw results")


def read(path: Path) -> list[Run]:
    """The rows of the raw results."""
    runs = []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            names = ("points", "alarms", "auroc", "seconds")
            numbers = {name: float(row[name]) if row[name] else math.nan for name in names}
            cell = (row["federation"], row["attack"], row["share"])
            runs.append(Run(cell, row["variant"], row["method"], numbers))
    return runs


def differences(page: str, runs: list[Run]) -> list[str]:
    """What is wrong in a page: a line for every row of a table."""
    text = page.partition("<!-- make_proof -->")[2].partition("<!-- end -->")[0]
    third = [run for run in runs if run.variant == "as it is"]
    chosen = {
        "": third,
        "added federations": [run for run in third if run.cell[0] in ADDED],
        "second run": [run for run in runs if run.variant == "second run"],
    }
    others = [run for run in runs if run.variant not in ("as it is", "second run")]
    blocks = [block.splitlines() for block in re.split(r"\n\n(?=\*\*)", text.strip()) if block]
    titles = {title.strip("*") for title, *_ in blocks}
    wrong = [f"no table {title!r}" for title in ALWAYS if title not in titles]
    for title, *lines in blocks:
        name, _, scope = title.strip("*").partition(", ")
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line]
        expected = EXPECTED[name](others if name == OF_VARIANTS else chosen[scope])
        shown = dict(key_and_rest(name, row) for row in rows[2:])
        if shown.keys() != expected.keys():
            wrong.append(f"{title}: rows {sorted(shown.keys() ^ expected.keys())}")
        for key in shown.keys() & expected.keys():
            if not agree(shown[key], expected[key]):
                wrong.append(f"{title}: {key}: {shown[key]}, expected {expected[key]}")
    return wrong


def key_and_rest(name: str, row: list[str]) -> tuple[str, list[str]]:
    """What a row is about, and its numbers as text."""
    if name == OF_VARIANTS:
        return f"{row[0]}, {row[2]}", [row[1], *row[3:]]
    return row[0], row[1:]


def agree(texts: list[str], expected: list[float | str]) -> bool:
    """Whether the numbers and words in the cells of a row are those expected, as far as they are written out."""
    wanted = list(expected)
    for text in texts:
        if isinstance(wanted[0], str):
            if text != wanted.pop(0):
                return False
            continue
        for found in NUMBER.findall(text):
            number = wanted.pop(0)
            if not isinstance(number, float) or not close(text, found, number):
                return False
    return not wanted


def close(text: str, found: str, number: float) -> bool:
    """Whether a number is written correctly: rounded, or as "< 0.001"."""
    if text.startswith("<"):
        return found == SMALLEST_P and number < float(found)
    decimals = len(found.partition(".")[2])
    return abs(float(found) - number) <= HALF_A_DIGIT * 10**-decimals


# The tables ------------------------------------------------------------------------------------------------------


def shares_of(runs: Iterable[Run]) -> list[str]:
    """The shares of hostile clients, none first."""
    return sorted({run.cell[2] for run in runs}, key=float)


def with_share(values: dict[Cell, float], share: str) -> list[float | str]:
    """Mean and interval over federations of the cells with a share of hostile clients; a dash for none."""
    own = {cell: value for cell, value in values.items() if cell[2] == share}
    return [one for one in over_federations(own)[:3] if not math.isnan(one)] if own else ["–"]


def leads(runs: list[Run], wanted: Callable[[str], bool]) -> dict[str, list[float | str]]:
    """The lead of `Recommended` over the methods that are wanted: means, intervals and corrected p."""
    points = cell_means(runs)
    methods = sorted({run.method for run in runs if wanted(run.method)})
    found: dict[str, list[float | str]] = {method: [] for method in methods}
    for share in shares_of(runs):
        estimates = {}
        for method in methods:
            leads_of_cells = {
                cell: by_method["Recommended"] - by_method[method]
                for cell, by_method in points.items()
                if cell[2] == share and method in by_method
            }
            if leads_of_cells:
                estimates[method] = over_federations(leads_of_cells)
        p_values = step_down({method: one.p for method, one in estimates.items()})
        for method in methods:
            if method in estimates:
                found[method] += [*estimates[method][:3], p_values[method]]
            else:
                found[method] += ["–", "–"]
    return found


def by_attack(runs: list[Run]) -> dict[str, list[float | str]]:
    """The lead under each attack, over the methods that met all."""
    points = cell_means(run for run in runs if float(run.cell[2]) > 0)
    methods = [
        method
        for method in sorted({run.method for run in runs})
        if (method.endswith(", tuned") or method == "KnowsHonestTuned")
        and all(method in row for row in points.values())
    ]
    found: dict[str, list[float | str]] = {}
    for _, attack, share in points:
        row: list[float | str] = []
        for method in methods:
            lead = {
                cell: values["Recommended"] - values[method]
                for cell, values in points.items()
                if cell[1:] == (attack, share)
            }
            row += over_federations(lead)[:3]
        found[in_words(("", attack, share)).removeprefix(": ")] = row
    return found


def chassis(name: str) -> bool:
    """Whether a method has the same clipping, steps and fine-tuning, or is a control without them."""
    return name.endswith(", tuned") or name.startswith("Server") or name == "FedAvg"


def part_left_out(name: str) -> bool:
    """Whether a method is `Recommended` without a part."""
    return name == "FedAvg, tuned" or name.startswith("Recommended without")


def distances(runs: list[Run]) -> dict[str, list[float | str]]:
    """How far methods are behind the oracle."""
    points = cell_means(runs)
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if float(run.cell[2]) == 0:
            seconds[run.cell[0]][run.method].append(run.numbers["seconds"])
    found: dict[str, list[float | str]] = {}
    for method in {run.method for run in runs} - {"KnowsHonestTuned"}:
        behind = {
            cell: row["KnowsHonestTuned"] - row[method]
            for cell, row in points.items()
            if method in row
        }
        row: list[float | str] = []
        for share in shares_of(runs):
            row += with_share(behind, share)
        within = {cell: 100.0 if value <= 2 + 1e-9 else 0.0 for cell, value in behind.items()}
        largest = max(sorted(behind), key=lambda cell: behind[cell])
        row += [*over_federations(within)[:3], behind[largest], in_words(largest)]
        ratios = [
            fmean(one[method]) / fmean(one["FedAvg"]) for one in seconds.values() if method in one
        ]
        found[method] = [*row, median(ratios)]
    return found


def false_alarms(runs: list[Run]) -> dict[str, list[float | str]]:
    """Mean share of false alarms, and AUROC, by share of hostile clients."""
    shares = shares_of(runs)
    found: dict[str, list[float | str]] = {}
    for method in {run.method for run in runs}:
        own = [run for run in runs if run.method == method]
        if all(math.isnan(run.numbers["alarms"]) for run in own):
            continue
        row: list[float | str] = []
        for name, some in (("alarms", shares), ("auroc", shares[1:])):
            for share in some:
                grouped = defaultdict(list)
                for run in own:
                    value = run.numbers[name]
                    if run.cell[2] == share and not math.isnan(value):
                        grouped[run.cell[0]].append(100 * value)
                means = [fmean(values) for values in grouped.values()]
                row += estimate(means)[:3] if means else ["–"]
        found[method] = row
    return found


def variants(runs: list[Run]) -> dict[str, list[float | str]]:
    """The lead in every variant of federations."""
    found: dict[str, list[float | str]] = {}
    for variant in {run.variant for run in runs}:
        own = [run for run in runs if run.variant == variant]
        points = cell_means(own)
        count = len({cell[0] for cell in points})
        for method in {run.method for run in own} - {"Recommended"}:
            lead = {
                cell: row["Recommended"] - row[method]
                for cell, row in points.items()
                if method in row
            }
            row: list[float | str] = [float(count)]
            for share in shares_of(own):
                row += with_share(lead, share)
            found[f"{variant}, {method}"] = row
    return found


OF_VARIANTS = "Lead in variants of the federations"
EXPECTED: dict[str, Callable[[list[Run]], dict[str, list[float | str]]]] = {
    "Lead on the same chassis": lambda runs: leads(runs, chassis),
    "Lead by attack": by_attack,
    "What each part brings": lambda runs: leads(runs, part_left_out),
    "Distance to the oracle": distances,
    "False alarms": false_alarms,
    OF_VARIANTS: variants,
}
ALWAYS = ["Lead on the same chassis", "Lead by attack", "Distance to the oracle", "False alarms"]


def in_words(cell: Cell) -> str:
    """A cell as the tables name it."""
    federation, attack, share = cell
    return f"{federation}: {attack}" + (f" {100 * float(share):.0f}%" if float(share) else "")


# Statistics ------------------------------------------------------------------------------------------------------


def cell_means(runs: Iterable[Run]) -> dict[Cell, dict[str, float]]:
    """The mean over the seeds, by cell and method."""
    grouped: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        grouped[run.cell][run.method].append(run.numbers["points"])
    return {
        cell: {method: fmean(values) for method, values in by_method.items()}
        for cell, by_method in grouped.items()
    }


def over_federations(values: dict[Cell, float]) -> Estimate:
    """The mean over federations of the means over their cells."""
    grouped = defaultdict(list)
    for cell, value in values.items():
        grouped[cell[0]].append(value)
    return estimate([fmean(own) for own in grouped.values()])


def estimate(values: list[float]) -> Estimate:
    """Mean, Student's 95% interval and two-sided p."""
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan, math.nan)
    error = stdev(values) / math.sqrt(len(values))
    freedom = len(values) - 1
    margin = quantile(0.975, freedom) * error
    if not error:
        return Estimate(mean, mean, mean, float(mean == 0))
    p = 2 * (1 - student(abs(mean) / error, freedom))
    return Estimate(mean, mean - margin, mean + margin, p)


def student(t: float, freedom: int) -> float:
    """The distribution function of Student's t at t ≥ 0: ½ + ∫₀^t of its density, with x = √ν·tan θ."""
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    end = math.atan(t / math.sqrt(freedom))
    step = end / STEPS
    # In θ, the density is proportional to cos^(ν−1) θ
    heights = [math.cos(index * step) ** (freedom - 1) for index in range(STEPS + 1)]
    whole = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + math.exp(log_scale) * whole * step / 3


@cache
def quantile(level: float, freedom: int) -> float:
    """The t at which `student` is `level`, by bisection."""
    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if student(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return low


def step_down(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's corrected p-values."""
    ranked = sorted(p_values, key=lambda name: p_values[name])
    corrected: dict[str, float] = {}
    for rank, name in enumerate(ranked):
        largest = max(corrected.values(), default=0.0)
        corrected[name] = max(largest, min(1.0, p_values[name] * (len(ranked) - rank)))
    return corrected


if __name__ == "__main__":
    main()
