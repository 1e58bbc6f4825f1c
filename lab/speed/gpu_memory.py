"""How much of a GPU's memory runs take: 14 methods × 5 seeds in one process, and cells of `arena-quick` in several.

python lab/speed/gpu_memory.py [--out lab/results/speed/gpu_memory.json]

Nothing else may use the GPU meanwhile. A run's memory is the largest of all values read during it, with the contexts of
its processes. "Expected" is what `clientwise check` says of a single run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomli_w
import torch

METHODS = [
    "FedAvg", "Uniform", "FedProx", "FedAvgM", "FedNova", "SCAFFOLD", "AdaFed", "ServerTuning", "FLTrust",
    "Median", "GeometricMedian", {"like": "MultiKrum", "rule": {"hostile": 0.4}}, "Recommended", "KnowsHonestTuned",
]  # fmt: skip
ONE_PROCESS = {
    "name": "memory",
    "rounds": 10,
    "seeds": [1, 2, 3, 4, 5],
    "device": "cuda",
    "data": "mnist5k",
    "partition": {"name": "dirichlet", "clients": 20, "concentration": 0.1},
    "model": {"name": "mlp", "hidden": [64]},  # 50,890 parameters
    "training": {"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
    "server_set": {"fraction": 0.1, "report_fraction": 0.5},
    "evaluation": {"test_fraction": 0.0, "clients_every": 0},
    "methods": METHODS,
}
ARENA = Path(__file__).parents[1] / "default" / "arena-quick.toml"
CLIENTWISE = [sys.executable, "-m", "clientwise"]


def used() -> int:
    """Bytes of the GPU that are in use, by any process."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def largest_use(command: list[str]) -> tuple[int, float]:
    """Bytes that a command takes of the GPU at most, and its seconds."""
    before, most, began = used(), 0, time.perf_counter()
    with subprocess.Popen([*CLIENTWISE, *command], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, used() - before)
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"clientwise {' '.join(command)} ended with status {process.returncode}")
    return most, time.perf_counter() - began


def expected(config: Path) -> str:
    """What `clientwise check` says."""
    lines = subprocess.check_output([*CLIENTWISE, "check", str(config)], text=True).splitlines()
    return next(line for line in lines if line.startswith("memory")).split(maxsplit=1)[1]


def main() -> None:
    """All runs, as lines and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("lab/results/speed/gpu_memory.json"))
    given = parser.parse_args()
    results: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "memory.toml"
        config.write_text(tomli_w.dumps(ONE_PROCESS), encoding="utf-8")
        results["expected"] = expected(config)
        runs = {"14 methods × 5 seeds": ["run", str(config), "--out", f"{folder}/one"]}
        for jobs in (4, 16):
            name = f"arena-quick, --jobs {jobs}"
            out = ["--rounds", "5", "--out", f"{folder}/{jobs}"]
            runs[name] = ["run", str(ARENA), "--jobs", str(jobs), *out]
        for name, command in runs.items():
            most, seconds = largest_use(command)
            results[name] = {"gigabytes": round(most / 1e9, 2), "seconds": round(seconds, 1)}
            print(name, results[name], flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
