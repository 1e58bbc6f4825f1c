"""What Flower costs: seconds a round of its simulation against the local engine on the same work, and server memory.

    python lab/speed/flower_overhead.py            # measure; print the tables of docs/results/performance.md

Every measurement is a process of its own. A round's seconds are the median of those after the first, in which workers
load the data. Memory is the server process's peak, so in a simulation it also holds the answers nobody has fetched yet.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CRITERIA = ["label_diversity", "dataset_size", "model_divergence"]


def experiment(
    clients: int, in_round: int, hidden: int, rounds: int, engine: str
) -> dict[str, Any]:
    """Prioritized weighting on 5,000 MNIST digits, evaluated by the server alone."""
    return {
        "name": "overhead",
        "rounds": rounds,
        "engine": engine,
        "device": "cpu",
        "data": "mnist5k",
        "partition": {"name": "iid", "clients": clients},
        "model": {"name": "mlp", "hidden": [hidden]},
        "training": {"batch_size": 10, "learning_rate": 0.1},
        "federation": {"clients_per_round": in_round},
        "evaluation": {"clients_every": 0},
        "methods": [{"name": "prioritized", "criteria": CRITERIA}],
    }


def measure(config: dict[str, Any]) -> dict[str, float]:
    """Run it here: seconds a round, and the peak memory of this process in MB."""
    import clientwise as cw

    with tempfile.TemporaryDirectory() as folder:
        run = cw.run(config, Path(folder) / "run")
        seconds = run.frame("rounds")["seconds"].tolist()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": statistics.median(seconds[1:]),
        "first_seconds": seconds[0],
        "peak_megabytes": peak,
    }


def apart(config: dict[str, Any]) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, json.dumps(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure everything and print it."""
    rounds = {10: 6, 100: 4, 1000: 3}
    speed = {
        str(clients): {
            engine: apart(experiment(clients, clients, 32, count, engine))
            for engine in ("local", "flower")
        }
        for clients, count in rounds.items()
    }
    memory = {
        str(count): apart(experiment(300, count, 2000, 3, "flower")) for count in (10, 100, 300)
    }
    megabytes = (785 * 2000 + 2001 * 10) * 4 / 2**20
    found = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, shared with other work while measuring",
        "model_megabytes": round(megabytes, 1),
        "seconds_a_round": speed,
        "server_memory": memory,
    }
    print(table(found))


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        f"Measured on a {found['machine']}: prioritized weighting on 5,000 MNIST digits,",
        "divided among all clients of a round, and a network of 25,450 parameters: messages take most of the time.",
        "",
        "| clients in a round | local engine | Flower simulation | overhead per client |",
        "|---|---|---|---|",
    ]
    for clients, one in found["seconds_a_round"].items():
        local, flower = one["local"]["seconds"], one["flower"]["seconds"]
        each = 1000 * (flower - local) / int(clients)
        lines.append(f"| {int(clients):,} | {local:.2f} s | {flower:.2f} s | {each:.0f} ms |")
    size = found["model_megabytes"]
    lines += [
        "",
        f"Peak memory of the server's process, with replies not yet fetched and a model of {size} MB:",
        "",
        "| clients in a round | peak memory | their models, if they were kept |",
        "|---|---|---|",
    ]
    for clients, one in found["server_memory"].items():
        lines.append(
            f"| {clients} | {one['peak_megabytes']:,.0f} MB | {int(clients) * size:,.0f} MB |"
        )
    lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    else:
        main()
