"""The files of a federation's members: whatever is in one, reading it ends in arrays or in a DataError."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path
from typing import Any

import numpy
import pytest

from clientwise.data.folder import DataError

pytest.importorskip("flwr", reason="members' files are read where Flower is installed")
from clientwise.experiment.load import load_experiment
from clientwise.hosts.flower.data import data_held_by, load_npz, server_side

CONFIG = {
    "name": "members",
    "rounds": 1,
    "model": "linear",
    "engine": "flower",
    "flower": {"clients": ["north", "south"], "input_shape": [4], "num_classes": 3},
    "methods": ["FedAvg"],
}


def whole(**changed: Any) -> dict[str, Any]:
    arrays = {
        "train_inputs": numpy.arange(40, dtype=numpy.float32).reshape(10, 4),
        "train_targets": numpy.arange(10) % 3,
        "test_inputs": numpy.ones((3, 4), numpy.float32),
        "test_targets": numpy.arange(3),
        "age": numpy.arange(10.0),
    }
    return arrays | changed


def read(path: Path) -> None:
    """As a node does, and as `check` does with all members' files."""
    data_held_by(load_experiment(CONFIG), {0: load_npz(str(path))}, {})


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "north.npz"
    for save in (numpy.savez, numpy.savez_compressed):
        save(
            path, **whole(train_inputs=numpy.zeros((10, 4), ">f4"))
        )  # of another machine's byte order
        read(path)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    contents = []
    for save in (numpy.savez, numpy.savez_compressed):
        file = io.BytesIO()
        save(file, **whole())
        contents.append(file.getvalue())
    path, draw = tmp_path / "north.npz", random.Random(1)
    for case in range(60):
        content = bytearray(contents[case % 2])
        if case % 3 == 0:
            del content[draw.randrange(len(content)) :]
        for _ in range(draw.randrange(1, 20) if content else 0):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        with contextlib.suppress(DataError):  # any other exception fails the test
            read(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_inputs": numpy.float32(1)}, r"samples of shape \(\), but flower.input_shape"),
        ({"train_targets": numpy.arange(9) % 3}, r"\(north\), training: has 10 inputs, 9 targets"),
        ({"age": numpy.arange(9.0)}, "'age': give one value for each training sample"),
        (
            {"train_targets": numpy.array(["a"] * 10)},
            r"north\.npz: .*train_targets is of type <U1, not of numbers",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    numpy.savez(tmp_path / "north.npz", **whole(**changed))
    with pytest.raises(DataError, match=said):
        read(tmp_path / "north.npz")


def test_the_servers_file_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "server.npz"
    numpy.savez(path, weigh_inputs=numpy.ones((3, 4), numpy.float32))
    with pytest.raises(DataError, match=r"server\.npz: has no array weigh_targets"):
        server_side(load_experiment(CONFIG), str(path))
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"server\.npz: not a NumPy file of arrays"):
        server_side(load_experiment(CONFIG), str(path))
