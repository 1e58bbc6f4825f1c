"""A scaling that all members share: the mean and the deviation of every input column.

    python deploy/scaling.py sums DATA.csv > ward-a.json                 on each node
    python deploy/scaling.py combine ward-a.json ward-b.json ...

DATA is a table as `flower.table` in federation/experiment.toml describes it, or an .npz file with
train_inputs. `sums` prints a count, sums and sums of squares over the training samples; read them
before you send them. They are rounded: the count to tens, the deviation to two digits, the mean to a
tenth of it. Exact sums before and after a patient is added would differ by the patient's values.
A column with at most two values is left out, since its sum would be a count of
patients. So is a column in which almost all patients have the same value: its sums would be those of
the few others. `combine` prints the columns for federation/experiment.toml; of .npz files, JSON. It
scales a column by the members that sent it, and says which did not.
"""

import json
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy

FEWEST = 20  # training samples that differ from the usual value, below which nothing is printed
EXPERIMENT = Path(__file__).parents[1] / "federation" / "experiment.toml"


def sums(file: Path) -> dict[str, Any]:
    """What a node sends; null for the columns that are left out."""
    names, columns = read(file)
    count = len(columns[0])
    if count < FEWEST:
        sys.exit(f"{file}: {count} training samples; with fewer than {FEWEST}, nothing is sent")
    count = count // 10 * 10
    sent: list[list[float] | None] = []
    for column in columns:
        # Of missing values there is no count: the others stand for all.
        given = column[~numpy.isnan(column)]
        if hides(given):
            mean, deviation = rounded(given)
            sent.append([count * mean, count * (deviation**2 + mean**2)])
        else:
            sent.append(None)
    return {"names": names, "count": count, "columns": sent}


def rounded(column: Any) -> tuple[float, float]:
    """Mean and deviation, as roughly as a scaling needs them."""
    deviation = float(f"{column.std():.2g}")
    step = deviation / 10
    return float(round(column.mean() / step) * step), deviation


def hides(column: Any) -> bool:
    """Whether the sums of a column tell nothing about single patients."""
    values, counts = numpy.unique(column, return_counts=True)
    return len(values) > 2 and len(column) - counts.max() >= FEWEST


def read(file: Path) -> tuple[list[str], list[Any]]:
    """The names of the columns, none in an .npz file, and their numbers."""
    if file.suffix == ".npz":
        with numpy.load(file) as arrays:
            rows = arrays["train_inputs"].astype(float)
        return [], list(rows.reshape(len(rows), -1).T)
    from clientwise.errors import ClientwiseError
    from clientwise.flower import training_values

    try:
        found = training_values(str(file), EXPERIMENT)
    except ClientwiseError as error:
        sys.exit(str(error))
    return list(found), list(found.values())


def combine(files: list[Path]) -> str:
    """Mean and deviation over the members that sent a column; 0 and 1 where none did."""
    sent = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    names = next(iter(sent.values()))["names"]
    mean = []
    deviation = []
    for number in range(len(next(iter(sent.values()))["columns"])):
        given = {name: one for name, one in sent.items() if one["columns"][number] is not None}
        tell(names[number] if names else f"column {number}", sent.keys() - given.keys(), given)
        if not given:
            mean.append(0.0)
            deviation.append(1.0)
            continue
        count = sum(one["count"] for one in given.values())
        total, squares = numpy.sum([one["columns"][number] for one in given.values()], 0) / count
        mean.append(float(total))
        deviation.append(float(max(squares - total**2, 1e-12) ** 0.5))
    if not names:
        return json.dumps({"mean": mean, "deviation": deviation})
    experiment = tomllib.loads(EXPERIMENT.read_text(encoding="utf-8-sig"))
    columns = experiment["flower"]["table"]["columns"]
    known = {column["name"]: column for column in columns}
    lines = []
    for name, centre, spread in zip(names, mean, deviation, strict=True):
        lines.append(known[name] | {"mean": centre, "deviation": spread})
    return "\n".join(f"    {in_toml(line)}," for line in lines)


def tell(column: str, left_out: Collection[str], given: Collection[str]) -> None:
    """Say which members' sums are missing in a column's scaling."""
    if not left_out:
        return
    used = "the scaling is that of the others" if given else "it is not scaled: mean 0, deviation 1"
    print(f"{column}: left out in {', '.join(sorted(left_out))}; {used}", file=sys.stderr)


def in_toml(column: dict[str, Any]) -> str:
    """A column as an inline table."""
    pairs = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in column.items()]
    return f"{{ {', '.join(pairs)} }}"


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "sums":
        print(json.dumps(sums(Path(paths[0])), ensure_ascii=False))
    else:
        print(combine(list(map(Path, paths))))
