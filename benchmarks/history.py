"""The ratios of benchmarks/quick.py at several commits, added to benchmarks/history.csv.

python benchmarks/history.py [COMMIT ...]

Ratios of one machine can be compared between commits. A busy machine is refused: it slows the two sides of a ratio
down differently.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
HISTORY = HERE / "history.csv"
COLUMNS = ["commit", "committed", "measured", "machine", "work", "loop_seconds", "chosen_seconds"]
COLUMNS += ["ratio"]
QUIET = 0.25  # of the load that all cores can bear, before the first measurement
MEASURE = (
    "import json, quick; "
    "print(json.dumps({work.name: quick.best_seconds(work) for work, _ in quick.REDUCED}))"
)


def main() -> None:
    """Measure every commit that is named; by default, the current one."""
    load = os.getloadavg()[0]
    if load > QUIET * (os.cpu_count() or 1):
        sys.exit(f"the load of this machine is {load:.1f}: measure when it is idle")
    for commit in sys.argv[1:] or ["HEAD"]:
        for row in measure(commit):
            append(row)
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ", flush=True)


def measure(commit: str) -> list[dict[str, object]]:
    """The package of that commit, with the benchmark of this one."""
    with TemporaryDirectory() as folder:
        archive = git("archive", commit, "src", "pyproject.toml")
        subprocess.run(["tar", "--extract"], cwd=folder, check=True, input=archive)
        path = f"{folder}/src{os.pathsep}{HERE}"
        environment = os.environ | {"PYTHONPATH": path}
        measured = subprocess.run(
            [sys.executable, "-c", MEASURE], check=True, stdout=subprocess.PIPE, env=environment
        )
    found: dict[str, dict[str, float]] = json.loads(measured.stdout.splitlines()[-1])
    name, committed = git("log", "-1", "--format=%h %cs", commit).decode().split()
    about = {
        "commit": name,
        "committed": committed,
        "measured": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
    }
    return [about | row_of(work, seconds) for work, seconds in found.items()]


def row_of(work: str, seconds: dict[str, float]) -> dict[str, object]:
    """The columns of one work."""
    return {
        "work": work,
        "loop_seconds": round(seconds["loop"], 4),
        "chosen_seconds": round(seconds["auto"], 4),
        "ratio": round(seconds["loop"] / seconds["auto"], 1),
    }


def append(row: dict[str, object]) -> None:
    """Add a line to the file, which begins with the names of the columns."""
    is_new = not HISTORY.exists()
    with HISTORY.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def git(*arguments: str) -> bytes:
    """What git prints."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=HERE.parent, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
