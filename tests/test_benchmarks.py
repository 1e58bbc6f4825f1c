"""The benchmark scripts run, so that they are there when they are needed. What they measure is not looked at here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

import gpu_cost
import make_speed
import nodes
import ours
import quick
import record
import round_profile
import scale
from works import WORKS, cohort, make_data

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "lab" / "speed"
TINY = WORKS["W0"]


def run_script(name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / name), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, **options
    )


def test_works_are_the_same_for_everybody() -> None:
    inputs, labels = make_data(TINY)
    assert inputs.shape == (TINY.clients, TINY.samples, *TINY.shape)
    assert labels.shape == (TINY.clients, TINY.samples)
    assert numpy.array_equal(inputs, make_data(TINY)[0])
    assert len(set(cohort(TINY, 3))) == TINY.cohort
    assert numpy.array_equal(cohort(TINY, 3), cohort(TINY, 3))
    assert not numpy.array_equal(cohort(TINY, 3), cohort(TINY, 4))


def test_ours_holds_what_the_work_says() -> None:
    data = ours.federated(TINY)
    inputs, labels = make_data(TINY)
    indices, targets, _ = data.train.gather([7])
    assert numpy.array_equal(data.samples.batch(indices).numpy(), inputs[7])
    assert targets.tolist() == labels[7].tolist()
    assert data.num_clients == TINY.clients


@pytest.mark.parametrize("mode", ["loop", "auto"])
def test_ours_times_every_round_but_the_first(mode: str) -> None:
    seconds = ours.seconds_per_round(TINY, 3, mode=mode, device="cpu")
    assert len(seconds) == 3
    assert min(seconds) > 0


@pytest.mark.slow
def test_the_comparison_runs_ours_and_says_who_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENVS", str(tmp_path))
    result = tmp_path / "result.json"
    arguments = [
        "W0",
        "--rounds",
        "2",
        "--repeats",
        "1",
        "--systems",
        "clientwise",
        "pfl",
        "--out",
        str(result),
    ]
    printed = run_script("compare.py", *arguments).stdout
    assert "pfl: skipped" in printed
    assert "| clientwise (clientwise" in printed
    (only,) = json.loads(result.read_text())["results"]
    assert len(only["seconds"]) == 2


def test_a_system_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "fedjax" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho no JAX here >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("VENVS", str(tmp_path))
    printed = run_script(
        "compare.py",
        "W0",
        "--repeats",
        "1",
        "--systems",
        "fedjax",
        "--out",
        str(tmp_path / "r.json"),
    )
    assert "fedjax failed on W0: exit status 3: no JAX here" in printed.stdout


def test_record_measures_disk_and_reading(tmp_path: Path) -> None:
    """A participant of a large round takes nine numbers, less what compression saves."""
    result = record.measure(tmp_path, cohort=1_000, rounds=30, lanes=1, hostile=0.1)
    assert 0 < result["bytes_per_participant"] < 72
    assert 0 < result["weights_seconds"] < 60


def test_scale_measures_memory_and_time() -> None:
    result = scale.measure(clients=200, cohort=20, rounds=2)
    assert len(result["seconds"]) == 2
    assert 0 < result["rounds_peak_mib"] <= result["peak_mib"]


def test_the_page_has_the_tables_of_what_was_measured() -> None:
    text = make_speed.PAGE.read_text(encoding="utf-8")
    assert len(make_speed.MARKER.findall(text)) == len(make_speed.TABLES)
    assert make_speed.filled(text) == text, "run `python lab/speed/make_speed.py`"


def test_a_round_in_which_a_node_dies_is_no_ordinary_one() -> None:
    turns = [
        {"seconds": [9.0, 1.0, 5.0, 3.0], "killed_in": 2},
        {"seconds": [9.0, 2.0, 7.0, 2.0], "killed_in": 2},
    ]
    assert nodes.summary(turns) == {"seconds": 2.0, "with_death": 6.0}


def test_the_quick_benchmark_fails_below_its_floor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quick, "TURNS", 1)
    monkeypatch.setattr(quick, "REDUCED", [(TINY, 0.0)])
    quick.main()
    assert "W0, reduced" in capsys.readouterr().out
    monkeypatch.setattr(quick, "REDUCED", [(TINY, 1e9)])
    with pytest.raises(SystemExit, match="W0: training many clients at once"):
        quick.main()


@pytest.mark.parametrize("layers", [TINY.layers, ()])
def test_round_profile_divides_the_whole_round(layers: tuple[int, ...]) -> None:
    work = TINY
    if not layers:  # a CNN
        work = replace(WORKS["W1"], clients=4, samples=4, cohort=2, batch=2)
    found = round_profile.profile(work, 1)
    parts = [found[part] for part in (*round_profile.PARTS, "other")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(found["total"])
    floors = [round_profile.floor(work) for _ in range(3)]  # other processes may interrupt one
    assert 0 < min(floors) < found["training steps"]


def test_what_a_gpu_has_to_do_is_counted_from_shapes() -> None:
    work = WORKS["W4"]
    data = gpu_cost.with_server_set(replace(work, clients=20))
    counted = gpu_cost.count_work(work, data)
    forward = 2 * (60 * 128 + 128 * 10)
    training = 3 * forward - 2 * 60 * 128
    assert counted["parameters"] == 9098
    local = 1000 * 20 * training
    tuned = 2 * 4 * 200 * training  # two server steps, four epochs
    judged = 200 * training + 2 * 5 * 200 * forward  # gradients of groups, then two line searches
    expected = {
        "FedAvg": local / 1e9,
        "AdaFed": (local + 1000 * 200 * forward) / 1e9,
        "Recommended": (local + judged + tuned) / 1e9,
    }
    assert counted["GFLOP"] == pytest.approx(expected)


def test_a_trace_becomes_numbers_of_a_round() -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm"}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0, "dur": 1}
    spans = [(0, 1000), (500, 1000), (3000, 1500)]  # microseconds: two overlap
    events = [kernel | {"ts": first, "dur": length} for first, length in spans]
    found = gpu_cost.summary([*events, *[launch] * 6])
    assert found["kernels"] == 3 / gpu_cost.PROFILED
    assert found["launches"] == 6 / gpu_cost.PROFILED
    assert found["busy, ms"] == pytest.approx(3.0 / gpu_cost.PROFILED)
    assert found["longest, ms"] == pytest.approx({"gemm": 3.5 / gpu_cost.PROFILED})
