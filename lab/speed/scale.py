"""A million clients on one machine: seconds per round, and memory, which must not grow with the clients per round.

python lab/speed/scale.py [--clients 1000000] [--cohorts 100 1000 10000 100000] [--rounds 3] [--device cpu] [--out FILE]

Clients and network are those of W4 (`works.py`), with inputs of one byte; three criteria; rows of 1,000 clients are
recorded. Processor time is that of all threads: on a busy machine it says more than the time that passed.

`python lab/speed/make_speed.py` makes the table and the chart of the page from lab/results/speed/scale.json.

Every cohort size runs in a process of its own. Exits with status 1 if rounds of the largest cohort take more memory
than those of the next one by half of what the models of the additional clients would take if they were kept. (A cohort
that is smaller than what the workers train at once takes less.)
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import clientwise as cw  # before PyTorch, whose allocator it sets (docs/performance.md, "Kept memory")

# isort: split
import torch

from clientwise.core.objective.problem import Classification
from clientwise.data.federated import Samples
from compare import machine
from ours import evenly
from works import WORKS

W4 = WORKS["W4"]
FEATURES, HIDDEN, CLASSES = W4.layers
HELD = W4.samples  # of each client
CRITERIA = ["dataset_size", "label_diversity", "model_divergence"]
MODEL_MIB = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES) / 2**20


def memory(kind: str) -> float:
    """MiB of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def measure(clients: int, cohort: int, rounds: int, device: str = "cpu") -> dict[str, Any]:
    """Rounds of a cohort; the first is not timed, and the memory of the others is told apart from building the data."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (clients * HELD, FEATURES), dtype=torch.uint8, generator=random)
    labels = inputs[:, :CLASSES].argmax(1)
    data = evenly(Samples(inputs, labels, Classification(CLASSES), scale=1 / 255), clients)
    config = {
        "name": "scale",
        "rounds": rounds + 1,
        "device": device,
        "model": {"name": "mlp", "hidden": [HIDDEN]},
        "training": {"epochs": W4.epochs, "batch_size": W4.batch, "learning_rate": W4.rate},
        "federation": {"clients_per_round": cohort},
        "evaluation": {"clients_every": 0},
        "methods": [{"name": "three criteria", "criteria": CRITERIA}],
    }
    data_mib, ends, building = memory("VmRSS"), [time.perf_counter()], {}
    used = [time.process_time()]

    def note(*_: object) -> None:
        ends.append(time.perf_counter())
        used.append(time.process_time())
        if len(ends) == 2:
            building["peak"] = memory("VmHWM")
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # give back what building the data has left behind
            building["left"] = memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            ends[-1] = time.perf_counter()
            building["used"] = used[-1] - used[0]
            used[-1] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        cw.run(config, Path(folder) / "run", data=data, on_round=note)
    seconds = [after - before for before, after in pairwise(ends)]
    return {
        "clients": clients,
        "cohort": cohort,
        "seconds": seconds[1:],
        "processor_seconds": [after - before for before, after in pairwise(used)][1:],
        "first_round_processor_seconds": building["used"],
        "first_round_after": seconds[0],  # with everything before it
        "data_mib": data_mib,
        "peak_mib": max(building["peak"], memory("VmHWM")),
        "rounds_peak_mib": memory("VmHWM"),
        "rounds_mib": memory("VmHWM") - building["left"],
    }


def main() -> None:
    """One process per cohort size; a table and JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path("lab/results/speed/scale.json"))
    parser.add_argument(
        "--alone", action="store_true", help="in this process, printing nothing but JSON"
    )
    given = parser.parse_args()
    if given.alone:
        found = measure(given.clients, given.cohorts[0], given.rounds, given.device)
        print(json.dumps(found))
        return
    results = []
    for cohort in sorted(given.cohorts):
        command = [sys.executable, __file__, "--alone", "--cohorts", str(cohort)]
        command += ["--clients", str(given.clients), "--rounds", str(given.rounds)]
        command += ["--device", given.device]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(result := json.loads(done.stdout.splitlines()[-1]))
        seconds = statistics.median(result["seconds"])
        processor = statistics.median(result["processor_seconds"])
        print(
            f"{given.clients:,} clients, {cohort:,} per round: {seconds:.3f} s per round, of the processor "
            f"{processor:.3f} s, {1e6 * processor / cohort:.0f} µs per client; "
            f"first round done after {result['first_round_after']:.1f} s; data {result['data_mib']:.0f} MiB, "
            f"peak {result['peak_mib']:.0f} MiB, peak of the rounds {result['rounds_peak_mib']:.0f} MiB, "
            f"of which {result['rounds_mib']:.0f} MiB came and went",
            flush=True,
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    written = {"machine": machine(), "results": results}
    given.out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if len(results) > 1:
        clients, grown = (
            results[-1][what] - results[-2][what] for what in ("cohort", "rounds_peak_mib")
        )
        if grown > (allowed := clients * MODEL_MIB / 2):
            sys.exit(
                f"memory grows with the cohort: by {grown:.0f} MiB, {allowed:.0f} MiB are allowed"
            )


if __name__ == "__main__":
    main()
