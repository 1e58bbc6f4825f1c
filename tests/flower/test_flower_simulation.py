"""Flower's simulation, by `clientwise run --set engine=flower`: the local engine's numbers, resumable.

Time limits are those of an ordinary idle machine; a slower one gets more (`processes.pace`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs clientwise[flower]")
pytest.importorskip("ray", reason="needs clientwise[flower]")

import clientwise as cw
import processes

CRITERIA = ["label_diversity", "dataset_size", "model_divergence"]
METHODS = [
    {"name": "FedAvg"},
    {"name": "prioritized", "criteria": CRITERIA},
    {"name": "online", "criteria": CRITERIA, "adjust": "first_improvement"},
    {"name": "AdaFed", "criteria": ["server_performance"], "adapt_loss": "class_weights"},
]


def weights(run: cw.Run) -> dict[tuple[str, int, int], float]:
    return run.frame("weights").set_index(["method", "round", "client"])["weight"].to_dict()


def models(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {path.name: load_file(path)["model"] for path in (folder / "checkpoints").iterdir()}


@pytest.fixture
def config(tiny: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(
        tomli_w.dumps(tiny | {"methods": METHODS, "checkpoint_seconds": 0.0}), encoding="utf-8"
    )
    return path


@pytest.mark.flower
@pytest.mark.timeout(1800)
def test_a_simulation_that_was_stopped_goes_on_to_the_local_engines_numbers(
    config: Path, tmp_path: Path
) -> None:
    """The command in processes of its own: Ray leaves threads and handlers behind."""
    ours, theirs = tmp_path / "local", tmp_path / "flower"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "clientwise", "run"]
    start = [*command, str(config), "--set", "engine=flower", "--out", str(theirs)]
    process = subprocess.Popen(
        start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:  # one line per second or so: FedAvg, seed 1: round 1/3 ...
        said.append(line)
        if "round 1/3" in line:
            process.terminate()
            break
    said.append(process.stderr.read())
    process.stderr.close()
    assert process.wait(60 * processes.pace()) == 130, "".join(said)
    assert not cw.Run(theirs).finished
    again = [*command, str(theirs), "--resume"]
    limit = 280 * processes.pace()
    done = subprocess.run(
        again, capture_output=True, text=True, timeout=limit, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    cw.run(config, ours)
    one, other = cw.Run(ours), cw.Run(theirs)
    assert other.finished
    assert weights(one) == pytest.approx(weights(other), abs=1e-6)
    assert len(weights(one)) == 4 * 3 * 3  # methods, rounds, clients in a round
    for name, model in models(ours).items():
        assert model.numpy() == pytest.approx(models(theirs)[name].numpy(), rel=1e-4, abs=1e-5)
    assert tomllib.loads((theirs / "config.toml").read_text(encoding="utf-8"))["engine"] == "flower"


def test_arrays_of_ones_own_stay_where_they_are(tiny: dict[str, Any], tmp_path: Path) -> None:
    import numpy

    own = [(numpy.zeros((4, 3), "float32"), numpy.array([0, 1, 0, 1]))] * 6
    data = cw.FederatedData.from_clients(own, own, report=own[0], weigh=own[0])
    with pytest.raises(cw.ClientwiseError, match="simulated nodes cannot use your arrays"):
        cw.run({**tiny, "engine": "flower"}, tmp_path / "run", data=data)
