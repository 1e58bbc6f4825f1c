"""Time clientwise and its peers on the same works, one system at a time, and print a table.

python lab/speed/compare.py [W1 W2 W3 W4] [--rounds 3] [--repeats 3] [--systems clientwise pfl ...] [--out FILE]

Peers live in environments of their own under $VENVS (default: .peers in the current folder), which
lab/speed/peers/setup.sh builds. A system without one is skipped, one that fails is reported. What was measured is
written to a file after every step, so an interrupted comparison loses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from works import WORKS, Work

HERE = Path(__file__).parent
VENVS = Path(os.environ.get("VENVS", ".peers")).absolute()
CORES = len(os.sched_getaffinity(0))
LIMIT = 900  # seconds that a system may take for its rounds


@dataclass(frozen=True)
class System:
    """How a system is run at its best here; {threads} are those that suit the work."""

    name: str
    environment: str  # under $VENVS; empty: this one
    command: str  # in the environment's bin/; the work and the rounds come after it

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return VENVS / self.environment / "bin" if self.environment else Path(sys.executable).parent

    def call(self, work: Work, rounds: int) -> list[str]:
        """The command line. One process shares large layers among the cores; small ones are faster on one."""
        program, *rest = self.command.format(threads=CORES if not work.layers else 1).split()
        return [str(self.bin / program), *rest, work.name, "--rounds", str(rounds)]


OURS = System("clientwise", "", f"{Path(sys.executable).name} -m ours")
SYSTEMS = [
    OURS,
    System("plain-loop-threads", "torch", f"python -m peers.plain_loop --threads {CORES}"),
    System("plain-loop-processes", "torch", f"python -m peers.plain_loop --processes {CORES}"),
    System("pfl", "pfl", "python -m peers.pfl --threads {threads}"),
    System("pfl-processes", "pfl", f"torchrun --standalone --nproc_per_node {CORES} -m peers.pfl"),
    System("flower", "flwr", f"python -m peers.flower --processes {CORES}"),
    System("fedjax", "fedjax", "python -m peers.fedjax"),
    System("blazefl", "blazefl", "python -m peers.blazefl"),
    System("blazefl-threads", "blazefl", f"python -m peers.blazefl --threads {CORES}"),
    System("blazefl-processes", "blazefl", f"python -m peers.blazefl --processes {CORES}"),
]


def run(system: System, work: Work, rounds: int) -> dict[str, Any]:
    """What a system prints about a work, or why it did not."""
    hidden = (
        ("OMP_", "MKL_") if system is OURS else ("OMP_", "MKL_", "PYTHONPATH")
    )  # it knows its threads and packages
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    environment |= {"PATH": f"{system.bin}{os.pathsep}{os.environ['PATH']}"}
    began, load = time.perf_counter(), os.getloadavg()
    process = subprocess.Popen(
        system.call(work, rounds),
        cwd=HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it starts can be ended with it
    )
    try:
        printed, complaints = process.communicate(timeout=LIMIT)
        wrong = f"exit status {process.returncode}" if process.returncode else None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, complaints = process.communicate()
        wrong = f"not done after {LIMIT} s"
    except BaseException:  # Ctrl-C does not reach a session of its own
        os.killpg(process.pid, signal.SIGKILL)
        raise
    lines = [line for line in printed.splitlines() if line.startswith('{"system"')]
    if wrong or not lines:
        last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
        result: dict[str, Any] = {"error": f"{wrong or 'no result'}: {last[:300]}"}
    else:
        result = json.loads(lines[-1])
    whole = time.perf_counter() - began
    return {
        **result,
        "system": system.name,
        "work": work.name,
        "whole": round(whole, 2),
        "load": load,
    }


def machine() -> dict[str, Any]:
    """What it was measured on."""
    models = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0].split(":")[1].strip() if models else platform.machine(),
        "architecture": platform.machine(),
        "cores": CORES,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def medians(results: list[dict[str, Any]], work: str) -> dict[str, float]:
    """Median seconds per round of the systems that ran."""
    seconds: dict[str, list[float]] = {}
    for result in results:
        if result["work"] == work and "error" not in result:
            seconds.setdefault(result["system"], []).extend(result["seconds"])
    return {system: statistics.median(values) for system, values in seconds.items()}


def table(results: list[dict[str, Any]]) -> str:
    """Seconds per round and how many times ours that is, in Markdown."""
    works = list(dict.fromkeys(result["work"] for result in results))
    systems = dict.fromkeys(result["system"] for result in results)
    versions = {result["system"]: result["versions"] for result in results if "versions" in result}
    lines = [f"| system | {' | '.join(works)} |", f"|---|{'---|' * len(works)}"]
    for system in systems:
        cells = []
        for work in works:
            known = medians(results, work)
            ratio = (
                f" ({known[system] / known[OURS.name]:.2f}×)"
                if {system, OURS.name} <= known.keys()
                else ""
            )
            cells.append(f"{known[system]:.4g} s{ratio}" if system in known else "–")
        packages = ", ".join(
            f"{name} {number}" for name, number in versions.get(system, {}).items()
        )
        lines.append(
            f"| {system} ({packages}) | {' | '.join(cells)} |"
            if packages
            else f"| {system} | did not run |"
        )
    return "\n".join(lines)


def main() -> None:
    """Alternate between the systems, so that what else the machine does falls on all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "works", nargs="*", default=["W1", "W2", "W3", "W4"], metavar="|".join(WORKS)
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each system")
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--systems", nargs="+", choices=names, default=names)
    default = HERE.parent / "results" / "speed" / f"compare-{datetime.now():%Y-%m-%d-%H%M}.json"
    parser.add_argument(
        "--out",
        type=Path,
        default=default,
        help="default: lab/results/speed/compare-DATE-TIME.json",
    )
    given = parser.parse_args()
    if unknown := set(given.works) - set(WORKS):
        parser.error(f"no such work: {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    systems = []
    for system in [system for system in SYSTEMS if system.name in given.systems]:
        if system.bin.exists():
            systems.append(system)
        else:
            print(
                f"{system.name}: skipped, there is no {system.bin.parent}; lab/speed/peers/setup.sh makes it"
            )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for work in given.works:
        for repeat in range(given.repeats):
            for system in systems:
                result = run(system, WORKS[work], given.rounds)
                results.append(result)
                given.out.write_text(
                    json.dumps({"machine": machine(), "results": results}, indent=1) + "\n"
                )
                said = (
                    result.get("error") or f"{statistics.median(result['seconds']):.4g} s per round"
                )
                place = f"{work} {repeat + 1}/{given.repeats}"
                print(f"{place} {system.name}: {said} (load {result['load'][0]:.1f})", flush=True)
    print(
        f"\nMedian seconds per round (times ours) on {', '.join(f'{k} {v}' for k, v in machine().items())}\n"
    )
    print(f"{table(results)}\n\nWritten to {given.out}")
    for result in results:
        if "error" in result:
            print(f"{result['system']} failed on {result['work']}: {result['error']}")


if __name__ == "__main__":
    main()
