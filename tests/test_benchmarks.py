"""The benchmark scripts run, so that they are there when they are needed. What they measure is not looked at here."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

import history
import ours
import overhead
import quick
import record
import round_profile
import sampling
import scale
from works import WORKS, cohort, make_data

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
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


def test_overhead_compares_rounds_with_their_training() -> None:
    whole, bare = overhead.compare_rounds(TINY, 2)
    assert len(whole) == len(bare) == 2
    assert all(wall > 0 and processor > 0 for wall, processor in whole + bare)


def test_record_measures_disk_and_page(tmp_path: Path) -> None:
    result = record.measure(tmp_path, clients=200, cohort=50, rounds=3, recorded=20)
    assert result["participants"] == 150
    assert result["disk_mib"] > 0
    assert 0 < result["page_seconds"] < 60


def test_scale_measures_memory_and_time() -> None:
    result = scale.measure(clients=200, cohort=20, rounds=2)
    assert len(result["seconds"]) == 2
    assert 0 < result["rounds_peak_mib"] <= result["peak_mib"]


def test_a_sample_of_clients_is_compared_with_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = sampling.make_data(50)
    part, whole = (sampling.evaluate(data, 2, sample) for sample in (20, None))
    assert len(part.errors) == len(part.means) == len(whole.means) == 2
    assert not whole.errors
    given = ["sampling.py", "--clients", "50", "--sample", "20", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", given)
    sampling.main()
    assert "20" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_large_table_is_trained_on() -> None:
    done = run_script("large_table.py", "--gigabytes", "0.001", "--rounds", "1")
    assert "MiB of memory; metric of the last round 0." in done.stdout


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


def test_the_history_has_a_row_per_commit_and_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package of the commit is measured, not that of this tree."""
    monkeypatch.setattr(history, "HISTORY", tmp_path / "history.csv")
    where = "import clientwise, json; print(json.dumps({clientwise.__file__: {'loop': 3.0, 'auto': 2.0}}))"
    monkeypatch.setattr(history, "MEASURE", where)
    monkeypatch.setattr(sys, "argv", ["history.py", "HEAD", "HEAD"])
    history.main()
    lines = (tmp_path / "history.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    assert [row["ratio"] for row in rows] == ["1.5", "1.5"]
    assert all(not Path(row["work"]).is_relative_to(ROOT) for row in rows)


@pytest.mark.parametrize("layers", [TINY.layers, ()])
def test_round_profile_divides_the_whole_round(layers: tuple[int, ...]) -> None:
    work = TINY
    if not layers:  # a CNN
        work = replace(WORKS["W1"], clients=4, samples=4, cohort=2, batch=2)
    found = round_profile.profile(work, 1)
    parts = [found[part] for part in (*round_profile.PARTS, "other")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(found["total"])
    assert 0 < round_profile.floor(work) < found["training steps"]
