"""What a round of a real deployment waits for: SuperLink, nginx and four SuperNodes in real processes on loopback.

    python benchmarks/deployment.py [--rounds 5] [--secure] [--idle 30]

Prints seconds per round, how many messages each node answered in it, and where the time of a message went. A step
ends with a line in the log of one of the processes; every line gets its time where it is written. The nodes share the
processors of this machine: with a machine each, they are faster. Needs nginx, openssl and ssh-keygen.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "deployment")]

from federation import Federation, free_port  # noqa: E402  its folder was added just now

NAMES = ["ward-a", "ward-b", "ward-c", "ward-d"]
# Python imports it first, in every process.
STAMPS = """
import logging, os, time

FILE = os.open(os.environ["STAMPS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
NODE = os.path.basename(os.environ.get("FLWR_HOME", ""))

class Stamp(logging.Handler):
    def emit(self, record):
        text = " ".join(record.getMessage().split())[:200]
        os.write(FILE, f"{time.time():.3f}\\t{NODE}\\t{text}\\n".encode())

logging.getLogger("flwr").addHandler(Stamp())
"""
# What a message waits for, by the log line with which each wait ends.
STEPS = {
    "Receiving: ": "node asks the server",
    "Received successfully": "download",
    "Start `flwr-clientapp` process": "process of the app starts",
    'ledger: {"event": "asked"': "app is loaded, request is checked",
    'ledger: {"event": "answered"': "data are loaded, work",
    "Sending: ": "node finds the answer",
    "Sent successfully": "upload",
}


@dataclass(frozen=True)
class Stamp:
    """A log line."""

    at: float
    node: str
    text: str


def stamps(file: Path) -> list[Stamp]:
    """All lines so far, in order."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        at, node, text = line.split("\t", 2)
        found.append(Stamp(float(at), node, text))
    return sorted(found, key=lambda one: one.at)


def waits(lines: list[Stamp], begun: float, ended: float) -> Iterator[tuple[str, float]]:
    """The waits of every message of every node between two times, each with its seconds."""
    for name in NAMES:
        last = begun
        for line in lines:
            if line.node != name or not begun <= line.at <= ended:
                continue
            for start, step in STEPS.items():
                if line.text.startswith(start):
                    yield step, line.at - last
                    last = line.at


def cpu_seconds(federation: Federation) -> dict[str, float]:
    """Processor time of all processes so far, by service."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for service, process in federation._processes.items():
        total = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == process.pid:  # of its session
                total += int(fields[11]) + int(fields[12])
        found[service] = total / ticks
    return found


def start(federation: Federation, rounds: int, secure: bool) -> None:
    """Start all processes, with the template's method on digits, or with a masked mean."""
    flower: dict[str, Any] = {"min_replies": len(NAMES), "grace_seconds": 120}
    change: dict[str, Any] = {"rounds": rounds, "flower": flower}
    if secure:
        criteria = ["class_balance", "label_diversity"]
        change["methods"] = [{"name": "secret", "criteria": criteria, "secure_aggregation": {}}]
        change["evaluation"] = {"clients_every": 0}
    printed = {name: federation.script("node-key.sh", name) for name in NAMES}
    flower["identities"] = {
        name: re.findall(r'= "([0-9a-f]{64})"', said)[-1] for name, said in printed.items()
    }
    federation.configure(change)
    federation.script("certificates.sh")
    federation.start_superlink()
    federation.start_proxy()
    federation.script("agree.sh")
    for name in NAMES:
        federation.register(name)
        federation.start_node(name)
    federation.wait_for_nodes()


def show_idle(federation: Federation, seconds: float) -> None:
    """Print the processor time of a federation that does nothing."""

    def spent(span: float) -> dict[str, float]:
        before = cpu_seconds(federation)
        time.sleep(span)
        return {name: now - before[name] for name, now in cpu_seconds(federation).items()}

    for _ in range(60):  # nodes import PyTorch in the background first
        if max(spent(5).values()) < 0.5:
            break
    print(f"processor time in {seconds:g} idle seconds:")
    for service, found in spent(seconds).items():
        print(f"    {service:<12}{found:6.2f} s")


def measure(folder: Path, rounds: int, secure: bool, idle: float) -> None:
    """Run a federation and print what it waited for."""
    federation = Federation(folder, NAMES)
    file = federation.logs / "stamps.tsv"
    (federation.logs / "sitecustomize.py").write_text(STAMPS, encoding="utf-8")
    paths = [str(federation.logs), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    federation.environment |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "STAMPS": str(file),
        "LINK_PORT": str(free_port()),  # nodes connect to nginx
    }
    try:
        start(federation, rounds, secure)
        if idle:
            show_idle(federation, idle)
        began = time.time()
        federation.begin()
        federation.wait_for_rounds(rounds, 200 * rounds)
        federation.wait_until_finished()
        report(stamps(file), began, time.time(), rounds)
    finally:
        federation.stop()


def report(lines: list[Stamp], began: float, ended: float, rounds: int) -> None:
    """Print the rounds and the waits of a run."""
    done = [began]
    for number in range(1, rounds + 1):
        mark = f"round {number} of {rounds}: "
        done.append(next(line.at for line in lines if mark in line.text and "weighed" in line.text))
    print(
        f"run: {ended - began:.1f} s from start.sh to its end; to the first round {done[1] - began:.1f} s"
    )
    for number, (first, last) in enumerate(pairwise(done[1:]), 2):
        messages = sum(line.text.startswith("Sent") and first < line.at <= last for line in lines)
        print(f"round {number}: {last - first:5.1f} s, {messages / len(NAMES):g} messages per node")
    by_step: dict[str, list[float]] = {}
    for step, seconds in waits(lines, done[1], ended):
        by_step.setdefault(step, []).append(seconds)
    print("seconds of a message after round 1 (median, largest):")
    for step, seconds in by_step.items():
        print(f"    {step:<36}{statistics.median(seconds):6.2f}{max(seconds):7.2f}")


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secure", action="store_true", help="secure aggregation")
    parser.add_argument("--idle", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--folder", type=Path, help="keep logs and run folder here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = options.folder or Path(folder)
        measure(where, options.rounds, options.secure, options.idle)


if __name__ == "__main__":
    main()
