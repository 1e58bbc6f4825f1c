"""Processor seconds of `clientwise check` and `clientwise report`, each in a process of its own, as a line of JSON.

python benchmarks/commands.py [--rounds 20] [--turns 3]

The config is the README's, with five methods and five seeds. The fewest seconds of all turns count. "import torch" is
measured, too: no command that builds data or a network can take less.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """
rounds = {rounds}
seeds = [1, 2, 3, 4, 5]
data = "digits"
partition = {{ name = "dirichlet", clients = 20, concentration = 0.1 }}
model = {{ name = "mlp", hidden = [32] }}
training = {{ epochs = 2, batch_size = 20, learning_rate = 0.1 }}
methods = ["FedAvg", "AdaFed", "Recommended", "Uniform", "FedAdam"]
"""
MEASURED = {
    "import torch": ["-c", "import torch"],
    "check": ["-m", "clientwise", "check", "mine.toml"],
    "check of a misspelt method": ["-m", "clientwise", "check", "misspelt.toml"],
    "report": ["-m", "clientwise", "report", "run"],
    "report --figures pdf": ["-m", "clientwise", "report", "run", "--figures", "pdf"],
    "report --figures pdf,png,svg": [
        "-m",
        "clientwise",
        "report",
        "run",
        "--figures",
        "pdf,png,svg",
    ],
}


def seconds(arguments: list[str], folder: Path, *, may_fail: bool = False) -> float:
    """The processor seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, check=not may_fail
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, rounds: int, turns: int) -> dict[str, float]:
    """The fewest processor seconds of every command."""
    config = CONFIG.format(rounds=rounds)
    (folder / "mine.toml").write_text(config, encoding="utf-8")
    misspelt = config.replace("AdaFed", "AdaFde")
    (folder / "misspelt.toml").write_text(misspelt, encoding="utf-8")
    seconds(["-m", "clientwise", "run", "mine.toml", "--out", "run"], folder)
    found: dict[str, float] = {}
    for _ in range(turns):
        for name, arguments in MEASURED.items():
            spent = seconds(arguments, folder, may_fail="misspelt.toml" in arguments)
            found[name] = min(spent, found.get(name, spent))
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(Path(place), given.rounds, given.turns)))


if __name__ == "__main__":
    main()
