"""Thirty runs in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import processes

CONFIG = {
    "name": "many",
    "rounds": 3,
    "workers": 2,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 8},
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
    "federation": {"fraction": 0.5},
    "hostile": [{"clients": 2, "attack": "wrong_labels", "ignore_global": True}],
    "methods": [
        {"name": "FedAvg"},
        {
            "name": "everything",
            "criteria": ["trust", "server_performance", "dataset_size"],
            "adjust": "first_improvement",
            "adapt_loss": "class_weights",
            "server_step": "adam",
        },
        "Median",
    ],
}


THIRTY = """
import json, os, sys, threading, time
import clientwise as cw
config, found = json.loads(sys.argv[1]), []
for number in range(30):
    cw.run(config, f"{sys.argv[2]}/{number}")
    until = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < until:  # its threads have been told, and take a moment
        time.sleep(0.01)
    pages = int(open("/proc/self/statm").read().split()[1])
    found.append((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, threading.active_count()))
print(json.dumps(found))
"""


@pytest.mark.fire
@pytest.mark.timeout(0)
def test_thirty_runs_in_one_process_take_no_more_than_ten(tmp_path: Path) -> None:
    done = processes.run(THIRTY, json.dumps(CONFIG), tmp_path, seconds=1_500)
    done.check_returncode()
    memory, threads = zip(*json.loads(done.stdout), strict=True)
    assert set(threads) == {1}
    assert memory[-1] - memory[9] < 30, memory  # megabytes
