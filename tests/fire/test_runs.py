"""Runs whose process is killed at any moment, and thirty runs in one process."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors.torch import load_file

import clientwise as cw
import processes
from fire_share import EVERY
from recorded import everything

KILLABLE = {
    "name": "killable",
    "rounds": 60,
    "seeds": [1, 2],
    "device": "cpu",
    "checkpoint_seconds": 0.05,
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
    ],
}


def content(folder: Path) -> dict[str, Any]:
    """What a run left, to the bit, but for how long it took."""
    run = cw.Run(folder)
    assert run.finished
    left = {
        path.name: {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
        for path in sorted((folder / "checkpoints").glob("*.safetensors"))
    }
    return {**left, **everything(run)}


@pytest.mark.fire
@pytest.mark.timeout(0)
def test_thirty_kills_at_any_moment(tmp_path: Path) -> None:
    (tmp_path / "killable.toml").write_text(tomli_w.dumps(KILLABLE))
    expected = content(cw.run(KILLABLE, tmp_path / "whole").folder)
    draw, kills, tries, folder = random.Random(1), 0, 0, tmp_path / "killed"
    while kills < max(1, 30 // EVERY):
        again = ["--resume"] if (folder / "config.toml").exists() else []
        process = processes.start(
            processes.COMMAND, "run", tmp_path / "killable.toml", "--out", folder, *again
        )
        began = time.monotonic()
        while not (folder / ".lock").exists() and time.monotonic() < began + 60:
            time.sleep(0.001)
        time.sleep(draw.choice((0.01, 0.1, 1.0)) * draw.random())
        process.kill()
        process.join()
        kills, tries = kills + (process.exitcode == -signal.SIGKILL), tries + 1
        assert process.exitcode in (0, -signal.SIGKILL)
        if process.exitcode == 0:  # it was faster: begin anew
            assert content(folder) == expected
            folder = tmp_path / f"killed {tries}"
    processes.run(
        processes.COMMAND, "run", tmp_path / "killable.toml", "--out", folder, "--resume"
    ).check_returncode()
    assert content(folder) == expected


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
    config = KILLABLE | {
        "rounds": 3,
        "workers": 2,
        "seeds": [1],
        "methods": [*KILLABLE["methods"], "Median"],
    }
    done = processes.run(THIRTY, json.dumps(config), tmp_path, seconds=1_500)
    done.check_returncode()
    memory, threads = zip(*json.loads(done.stdout), strict=True)
    assert set(threads) == {1}
    assert memory[-1] - memory[9] < 30, memory  # megabytes
