"""A run that goes on under other conditions says so, and records which rounds were computed where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clientwise as cw
from clientwise.experiment.matrix.grid import load_matrix
from clientwise.experiment.matrix.runs import run_matrix
from clientwise.experiment.running import origin
from recorded import curve

pytestmark = pytest.mark.bits
MEANING = (
    "They may differ in their last bits from those of an uninterrupted run; metrics stay "
    "comparable. The record has the machine of every round"
)


@pytest.fixture
def config(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"rounds": 2, "methods": ["FedAvg"]}


def move(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """To a machine with other vector instructions."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


def test_a_run_on_one_machine_says_nothing(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = cw.run(config, tmp_path / "run").folder
    cw.run(config | {"rounds": 4}, folder, resume=True)
    run = cw.Run(folder)
    assert caplog.messages == []
    assert curve(run, "machine", "FedAvg") == {1: 1, 2: 1, 3: 1, 4: 1}
    (only,) = run.facts.machines
    assert only.rounds == 0
    assert only.facts["vector instructions"] == torch.backends.cpu.get_cpu_capability()
    assert only.facts["threads"] == "1"  # a small network
    assert only.facts["workers"] == str(torch.get_num_threads())
    assert {"system", "CPU", "MKL_CBWR", "GPU"} <= only.facts.keys()


def test_another_machine_is_said_and_recorded(
    config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    move(monkeypatch, "AVX2")
    folder = cw.run(config, tmp_path / "run").folder
    move(monkeypatch, "AVX512")
    cw.run(config, folder, resume=True)  # nothing is left to compute
    assert caplog.messages == []
    assert len(cw.Run(folder).facts.machines) == 1
    cw.run(config | {"rounds": 3}, folder, resume=True)
    changed = "vector instructions AVX512, before AVX2"
    assert caplog.messages == [
        f"warning: {folder}: the next rounds are computed under other conditions than those before: {changed}. "
        f"{MEANING}"
    ]
    caplog.clear()
    cw.run(config | {"rounds": 4}, folder, resume=True)
    assert caplog.messages == []  # said once
    run = cw.Run(folder)
    assert curve(run, "machine", "FedAvg") == {1: 1, 2: 1, 3: 2, 4: 2}
    assert [one.rounds for one in run.facts.machines] == [0, 2]
    assert run.facts.changes == []


def test_a_run_without_rounds_has_no_machine_before(
    config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    move(monkeypatch, "AVX2")
    monkeypatch.setattr(origin.Store, "write_round", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cw.run(config, tmp_path / "run")
    monkeypatch.undo()
    move(monkeypatch, "AVX512")
    run = cw.Run(cw.run(config, tmp_path / "run", resume=True))
    assert caplog.messages == []
    assert [one.facts["vector instructions"] for one in run.facts.machines] == ["AVX512"]
    assert curve(run, "machine", "FedAvg") == {1: 1, 2: 1}


def test_a_matrix_says_it_once(
    config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = config | {"matrix": {"attacks": {"flip": {"attack": "sign_flip"}}, "shares": [0.2]}}
    move(monkeypatch, "AVX2")
    folder = run_matrix(load_matrix(table), tmp_path / "matrix")
    move(monkeypatch, "AVX512")
    run_matrix(load_matrix(table | {"rounds": 3}), folder, resume=True)
    (message,) = caplog.messages
    assert message.startswith(f"warning: {folder}: the next rounds are computed under other")
    cells = sorted(path.parent for path in folder.glob("*/run.sqlite"))
    assert [len(cw.Run(cell).facts.machines) for cell in cells] == [2, 2]
