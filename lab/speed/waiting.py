"""How long one waits for the commands that compute little: processor seconds of fresh processes, beside their aims.

python lab/speed/waiting.py [REPEATS]

It makes a run of 25 (five methods with five seeds on digits; half a minute), and takes the least of the repeats.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """
name = "waiting"
rounds = 30
seeds = [1, 2, 3, 4, 5]
data = "digits"
partition = { name = "dirichlet", clients = 20, concentration = 0.5 }
model = { name = "mlp", hidden = [32] }
training = { epochs = 1, batch_size = 16, learning_rate = 0.05 }
methods = ["FedAvg", "Prioritized", "OnlineAdjustment", "AdaFed", "Recommended"]
server_set = { fraction = 0.2 }
hostile = [{ clients = 2, attack = "wrong_labels" }]
"""
PAGE = """import time, clientwise as cw
run = cw.load("one")
begun = time.process_time()
run.report()
print(time.process_time() - begun)"""
COMMAND = ["-m", "clientwise"]
WAITS = {  # what, its aim, and Python's arguments
    "report of 25 runs": (3.0, [*COMMAND, "report", "many"]),
    "run.report of one run": (0.5, ["-c", PAGE]),  # without imports and opening the run
    "check": (1.0, [*COMMAND, "check", "waiting.toml"]),
    "import clientwise": (0.3, ["-c", "import clientwise"]),
    "--help": (None, [*COMMAND, "--help"]),
    "import torch": (None, ["-c", "import torch"]),
    "import pandas": (None, ["-c", "import pandas"]),
}


def seconds(arguments: list[str], folder: str) -> float:
    """The processor seconds, user and system, of Python with these arguments, or those that it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    if PAGE in arguments:
        return float(said)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for everything that is waited for."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "waiting.toml").write_text(CONFIG)
        run = [*COMMAND, "run", "waiting.toml", "--out"]
        seconds([*run, "many"], folder)
        seconds([*run, "one", "--seeds", "1", "--methods", "Recommended"], folder)
        for what, (aim, arguments) in WAITS.items():
            least = min(seconds(arguments, folder) for _ in range(repeats))
            print(f"{what:<22} {least:5.2f} s" + f" (aim: {aim} s)" * (aim is not None), flush=True)


if __name__ == "__main__":
    main()
