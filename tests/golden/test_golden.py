"""The results of short runs are those of the golden files, which `python tests/golden/make_golden.py` writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden_runs import (
    FOLDER,
    MATRIX,
    RUNS,
    SIMULATED,
    assert_equal,
    write_matrix,
    write_run,
)

import processes

pytest.importorskip("sklearn", reason="needs clientwise[datasets]")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_golden_frames_and_headline(name: str, tmp_path: Path) -> None:
    write_run(name, tmp_path / "run", tmp_path / name)
    assert_equal(tmp_path / name, FOLDER / name)


def test_the_cells_of_a_matrix_give_the_golden_frames_and_headline(tmp_path: Path) -> None:
    name = MATRIX["name"]
    write_matrix(tmp_path / "run", tmp_path / name)
    assert_equal(tmp_path / name, FOLDER / name)


@pytest.mark.flower
@pytest.mark.timeout(1800)
def test_flowers_simulation_gives_the_same_golden_frames(tmp_path: Path) -> None:
    """In a process of its own: Ray leaves threads and handlers behind."""
    pytest.importorskip("flwr", reason="needs clientwise[flower]")
    pytest.importorskip("ray", reason="needs clientwise[flower]")
    code = (
        "from pathlib import Path; from golden_runs import write_run; "
        f"write_run({SIMULATED!r}, Path('run'), Path('found'), engine='flower')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=280 * processes.pace(),
    )
    assert done.returncode == 0, done.stderr
    # On Flower, the time that rounds end at is the server's.
    assert_equal(tmp_path / "found", FOLDER / SIMULATED, leaving_out="ended")
