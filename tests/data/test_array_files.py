"""Arrays in NumPy files: mapped, not read into memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import clientwise as cw
from clientwise.data.datasets import arrays
from clientwise.data.folder import DataError

ROWS, FEATURES = 4_000, 16
LIMIT = 2**31  # bytes of address space that a process may fill with data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = numpy.random.default_rng(0)
    inputs = random.integers(0, 256, (ROWS, FEATURES), dtype=numpy.uint8)
    place = tmp_path / "mine"
    place.mkdir()
    numpy.save(place / "inputs.npy", inputs)
    numpy.save(place / "targets.npy", inputs[:, :4].argmax(1))
    numpy.save(place / "clients.npy", numpy.arange(ROWS) // 100)
    return tmp_path


def test_a_run_on_arrays_is_that_on_the_same_tensors(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        "name": "arrays",
        "rounds": 2,
        "device": "cpu",
        "data": {"name": "arrays", "folder": "mine", "scale": 1 / 255},
        "data_dir": str(folder),
        "partition": "by_id",
        "model": "linear",
        "federation": {"fraction": 0.5},
        "methods": ["FedAvg"],
    }
    mapped = arrays(folder, folder="mine", scale=1 / 255)
    assert mapped.problem.num_classes == 4
    own = cw.Samples(
        mapped.inputs.clone(), mapped.targets, mapped.problem, scale=1 / 255, ids=mapped.ids
    )
    here = cw.Run(cw.run(config, tmp_path / "a"))
    assert not caplog.text
    there = cw.Run(cw.run(config, tmp_path / "b", data=own))
    assert "data = arrays of the config is not used" in caplog.text
    sql = "SELECT round_num, metric, loss FROM rounds"
    assert here.query(sql) == there.query(sql)
    assert here.query("SELECT COUNT(*) FROM clients") == [(40,)]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("inputs.npy", numpy.array(["a"]), "numpy.str_"),
        ("inputs.npy", numpy.array(3.0), "single number"),
        ("targets.npy", numpy.arange(7), "has 7 rows, but inputs.npy has 4,000"),
        ("clients.npy", numpy.arange(8), "has 8 rows"),
    ],
)
def test_wrong_files_are_named(
    folder: Path, name: str, values: numpy.ndarray, message: str
) -> None:
    numpy.save(folder / "mine" / name, values)
    with pytest.raises(DataError, match=message) as error:
        arrays(folder, folder="mine")
    assert name in str(error.value)


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    (folder / "mine" / "inputs.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match="not an array of numbers"):
        arrays(folder, folder="mine")
    with pytest.raises(DataError, match=r"other/inputs.npy is missing.*numpy\.save"):
        arrays(folder, folder="other")


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_inputs_larger_than_memory_are_trained_on(tmp_path: Path) -> None:
    """A sparse file of 8 GB, in a process that may allocate 2 GB."""
    place = tmp_path / "mine"
    place.mkdir()
    rows = 8 * 10**9 // FEATURES
    inputs = numpy.lib.format.open_memmap(place / "inputs.npy", "w+", numpy.uint8, (rows, FEATURES))
    inputs[:ROWS] = numpy.random.default_rng(0).integers(0, 256, (ROWS, FEATURES))
    del inputs
    code = f"""
import resource
import torch
from clientwise.core.objective.problem import Classification
from clientwise.data.datasets import numbers_in
from clientwise.data.federated import FederatedData, Holdings, Samples
from clientwise.core.method import Method, Plan
from clientwise.core.round import first_state, run_round
from clientwise.engine.local import LocalEngine
from clientwise.models.networks import linear
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT}, {LIMIT}))
inputs = numbers_in(Path({str(place / "inputs.npy")!r}))
targets = torch.arange({ROWS}) % 4
held = Holdings(torch.arange({ROWS}), targets, torch.arange(41) * 100)
report = Holdings.of([(held.indices, held.targets)])
data = FederatedData(Samples(inputs, targets, Classification(4)), held, held, None, report)
engine = LocalEngine(data, linear(({FEATURES},), 4), seed=1)
state, record = run_round(first_state(engine.initial_model, Method(), engine), Method(), Plan(1, 40), engine)
assert len(record.client_ids) == 40
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
