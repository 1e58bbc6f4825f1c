"""How far a node's noise moves the accuracy it reports: the table of docs/results/privacy.md.

python benchmarks/node_noise.py
"""

from __future__ import annotations

import torch

from clientwise.core.objective.problem import Classification
from clientwise.core.types import Evaluation
from clientwise.hosts.deployment.small_numbers import USUAL_CELL, Release

PATIENTS = (50, 500, 5_000)
MODELS = (3, 11, 110)  # that a run may evaluate: 2, 10 and 100 of them planned
DRAWS = 200


def spread(patients: int, models: int) -> float:
    """Standard deviation of the reported accuracy, in points, where 80% of each class are right."""
    totals = (patients * 3 // 5, patients * 2 // 5)
    right = [total * 4 // 5 for total in totals]
    matrix = [[right[0], totals[0] - right[0]], [totals[1] - right[1], right[1]]]
    exact = Evaluation(
        num_samples=torch.tensor([patients]),
        values=torch.full((DRAWS, 1), 0.8),
        losses=torch.full((DRAWS, 1), 0.5),
        counts=torch.tensor(matrix).expand(DRAWS, 2, 2),
        sample_losses=torch.full((DRAWS, patients), 0.5),
    )
    names = [str(number) for number in range(DRAWS)]
    said = Release(USUAL_CELL, models, b"any").evaluation(exact, Classification(2), names)
    return 100 * float(said.values.std())


def main() -> None:
    """Print the table."""
    print("| test patients of a node |", " | ".join(f"{one} models" for one in MODELS), "|")
    print("|---|" + "--:|" * len(MODELS))
    for patients in PATIENTS:
        cells = [f"{spread(patients, models):.1f}" for models in MODELS]
        print(f"| {patients:,} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
