"""A CSV file that is larger than the memory that a process may use: seconds, and the largest use of memory.

python benchmarks/large_table.py [--gigabytes 1] [--limit MIB] [--rounds 2]

Writes a CSV file of random numbers, a column of categories and missing values, of eight clients. A new process reads,
prepares and trains on it with an empty cache. Memory is what the process has of its own (RssAnon) beyond that of a run
on a small table. Pages of mapped files are not counted, since the system can take them back at any time. With --limit,
the process may not allocate more than so many MiB beyond that run (RLIMIT_DATA). One thread computes: each thread has a
stack, an arena of the allocator and buffers of the BLAS library, whose sizes depend on the machine. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import torch

import clientwise as cw

NUMBERS = 100  # columns
BLOCK = 2_000  # rows that are repeated: to draw all of them would take longer than to read them
CLIENTS = 8


def write_table(path: Path, size: int) -> None:
    """A CSV file of about `size` bytes."""
    random = numpy.random.default_rng(0)
    values = random.normal(size=(BLOCK, NUMBERS))
    labels = numpy.where(values[:, :3].sum(1) > 0, "yes", "no")
    lines = []
    for row, label in zip(values, labels, strict=True):
        cells = [f"{value:.6f}" for value in row]
        if random.random() < 0.1:
            cells[-1] = ""
        cells += [
            random.choice(["red", "green", "blue"]),
            label,
            f"site {random.integers(CLIENTS)}",
        ]
        lines.append(",".join(cells))
    names = [f"x{index}" for index in range(NUMBERS)]
    block = "\n".join(lines) + "\n"
    with path.open("w") as file:
        file.write(",".join([*names, "colour", "ill", "site"]) + "\n")
        for _ in range(max(1, size // len(block))):
            file.write(block)


def config(folder: Path, file: str, rounds: int) -> dict[str, Any]:
    """A linear model on a table."""
    options = {"files": file, "target": "ill", "client": "site", "categories": ["colour"]}
    return {
        "name": "large table",
        "rounds": rounds,
        "device": "cpu",
        "data": {"name": "table", **options},
        "data_dir": str(folder),
        "partition": "by_id",
        "model": "linear",
        "training": {"batch_size": 256, "learning_rate": 0.1},
        "methods": ["FedAvg"],
    }


def status(kind: str) -> int:
    """MiB of this process, as /proc/self/status says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(kind))


def train(folder: Path, rounds: int, limit: int | None) -> dict[str, Any]:
    """The run in this process: seconds, MiB of memory, and the metric and loss of all rounds."""
    torch.set_num_threads(1)
    write_table(folder / "small.csv", 0)
    cw.run(config(folder, "small.csv", 1), folder / "small", progress=False)  # imports everything
    before = status("RssAnon")
    if limit is not None:
        most = (status("VmData") + limit) * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    peak = before
    is_done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.02):
            peak = max(peak, status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        run = cw.Run(cw.run(config(folder, "large.csv", rounds), folder / "run", progress=False))
    finally:
        is_done.set()
        watcher.join()
    return {
        "seconds": time.perf_counter() - start,
        "memory": peak - before,
        "metrics": run.curve("metric", "FedAvg", 1),
        "losses": run.curve("loss", "FedAvg", 1),
    }


def main() -> None:
    """Write the table, and train in a new process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--limit", type=int, help="MiB that the process may allocate")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--alone", type=Path, help="train on the table in this folder, and print JSON"
    )
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(train(given.alone, given.rounds, given.limit)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        write_table(path, int(given.gigabytes * 1e9))
        command = [sys.executable, __file__, "--alone", folder, "--rounds", str(given.rounds)]
        if given.limit is not None:
            command += ["--limit", str(given.limit)]
        own = os.environ | {"CLIENTWISE_CACHE": str(Path(folder) / "cache")}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own)
        found = json.loads(done.stdout)
        print(
            f"CSV file of {path.stat().st_size / 2**20:,.0f} MiB: {found['seconds']:.0f} s, "
            f"{found['memory']:,} MiB of memory; metric of the last round {found['metrics'][-1][1]:.4f}"
        )


if __name__ == "__main__":
    main()
