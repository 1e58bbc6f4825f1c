"""What it costs to spread a run: seconds per round on three Ray nodes and in Flower's simulation, beside one process.

python lab/speed/nodes.py [--rounds 6] [--turns 2] [--out lab/results/speed/nodes.json]

The nodes are processes of this machine and share its cores, so they show what spreading costs, not what it gains. In
one run a node is killed in the middle of a round; all rounds must have the losses of the run without. The ways take
turns, each in a process of its own. The median leaves out the first round, in which processes start and read the data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import machine
from flower_overhead import experiment

NODES = 3
CLIENTS = 100  # of 40 training samples each, all of them in every round
HIDDEN = 200  # a network of 159,010 parameters
EPOCHS = 5
WAYS = ("one process", "Ray", "Ray, one node killed", "Flower")
HEALTH = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}


def measure(way: str, rounds: int) -> dict[str, Any]:
    """Seconds and losses of all rounds, and the round in which a node died."""
    config = experiment(CLIENTS, CLIENTS, HIDDEN, rounds, "flower" if way == "Flower" else "local")
    config["training"]["epochs"] = EPOCHS
    if not way.startswith("Ray"):
        return run(config)

    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(NODES - 1):
        nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False)
    ends: list[float] = []
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)

    def note(*_: object) -> None:
        ends.append(time.monotonic())
        if way != "Ray" and len(ends) == 3:  # in the middle of a round like the last one
            threading.Timer((ends[-1] - ends[-2]) / 2, kill).start()

    found = run({**config, "workers": "ray"}, on_round=note)
    if killed:
        found["killed_in"] = sum(end < killed[0] for end in ends)  # counted from 0
    ray.shutdown()
    nodes.shutdown()
    return found


def run(config: dict[str, Any], **options: Callable[..., object]) -> dict[str, Any]:
    """Seconds and losses of all rounds."""
    import clientwise as cw

    with tempfile.TemporaryDirectory() as folder:
        frame = cw.run(config, Path(folder) / "run", progress=False, **options).frame("rounds")
    return {"seconds": frame["seconds"].tolist(), "losses": frame["loss"].tolist()}


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Over the turns of one way: the median of the rounds, and of those in which a node died."""
    others, with_death = [], []
    for one in found:
        killed_in = one.get("killed_in")
        others += [
            took for place, took in enumerate(one["seconds"]) if place and place != killed_in
        ]
        if killed_in is not None:
            with_death.append(one["seconds"][killed_in])
    result = {"seconds": statistics.median(others)}
    if with_death:
        result["with_death"] = statistics.median(with_death)
    return result


def main() -> None:
    """All ways in turns, as lines and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--alone", choices=WAYS, help="this way alone, printing nothing but JSON")
    parser.add_argument("--out", type=Path, default=Path("lab/results/speed/nodes.json"))
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.alone, given.rounds)))
        return
    turns: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(given.turns):
        for way, found in turns.items():
            command = [sys.executable, __file__, "--alone", way, "--rounds", str(given.rounds)]
            environment = os.environ | {"RAY_ADDRESS": "local"}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(way, found[-1], flush=True)
    losses = [one["losses"] for way in WAYS[1:3] for one in turns[way]]
    if any(one != losses[0] for one in losses):
        sys.exit("a node that died changed the losses")
    ways = {way: summary(found) for way, found in turns.items()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({"machine": machine(), "ways": ways}, indent=1) + "\n", encoding="utf-8"
    )
    print(given.out)


if __name__ == "__main__":
    main()
