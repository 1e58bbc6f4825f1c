"""A scaling that all members share: the mean and the deviation of every input column.

    python deploy/scaling.py sums DATA.npz > ward-a.json                 on each node
    python deploy/scaling.py combine ward-a.json ward-b.json ... > federation/scaling.json

`sums` prints a count, sums and sums of squares over the training samples; read them before you send
them. A column with at most two values is left out, since its sum would be a count of patients. So is
a column in which almost all patients have the same value: its sums would be those of the few others.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy

FEWEST = 20  # training samples that differ from the usual value, below which nothing is printed


def sums(file: Path) -> dict[str, Any]:
    """What a node sends; null for the columns that are left out."""
    with numpy.load(file) as arrays:
        rows = arrays["train_inputs"].astype(float)
    rows = rows.reshape(len(rows), -1)
    if len(rows) < FEWEST:
        sys.exit(f"{file}: {len(rows)} training samples; with fewer than {FEWEST}, nothing is sent")
    columns = []
    for column in rows.T:
        values, counts = numpy.unique(column, return_counts=True)
        hides_patients = len(values) > 2 and len(column) - counts.max() >= FEWEST
        columns.append([column.sum(), (column**2).sum()] if hides_patients else None)
    return {"count": len(rows), "columns": columns}


def combine(files: list[Path]) -> dict[str, list[float]]:
    """Mean and deviation over all members; 0 and 1 for a column that any member left out."""
    sent = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    count = sum(one["count"] for one in sent)
    mean = []
    deviation = []
    for parts in zip(*(one["columns"] for one in sent), strict=True):
        if None in parts:
            mean.append(0.0)
            deviation.append(1.0)
            continue
        total, squares = numpy.sum(parts, axis=0) / count
        mean.append(float(total))
        deviation.append(max(squares - total**2, 1e-12) ** 0.5)
    return {"mean": mean, "deviation": deviation}


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    found = sums(Path(paths[0])) if command == "sums" else combine(list(map(Path, paths)))
    print(json.dumps(found))
