"""What is read is what was written, under its name; what is damaged is said to be, and nothing else is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.errors import NotBegunError, RunError
from clientwise.record.facts import recorded_fact
from clientwise.record.lock import locked
from clientwise.record.reading.reader import is_finished
from clientwise.record.writer import Store

ADJUSTED = ("all of it", 1)


@pytest.fixture(scope="module")
def run(finished: Path) -> cw.Run:
    return cw.Run(finished)


def test_rows_have_names(run: cw.Run) -> None:
    assert [(lane.method, lane.seed) for lane in run.lanes] == [
        (method, seed) for seed in (1, 2) for method in run.methods
    ]
    assert run.seeds("FedAvg") == [1, 2]
    assert run.rounds_done() == 12
    assert [(lane.finished, lane.rounds) for lane in run.progress()] == [(1, 3)] * 4
    assert run.round_nums(*ADJUSTED) == [1, 2, 3]
    assert run.last_round(*ADJUSTED) == 3
    assert run.lanes_with_round(3) == run.lanes
    assert run.lanes_with_round(4) == []
    assert sorted(run.data) == [1, 2]

    found = run.round(*ADJUSTED, 3)
    assert sorted(found.priority) == ["dataset_size", "label_diversity", "server_performance"]
    assert found.testing_rounds == len(found.candidates) >= 1
    assert max(value for _, value in found.candidates) <= 1
    assert [row.priority for row in run.priorities(*ADJUSTED)][-1] == found.priority
    rows = run.participants(*ADJUSTED, 3)
    assert [row.client for row in rows if row.refusal] == [1]
    assert {row.client: row.hostile for row in rows if row.hostile} == {
        0: "wrong_labels",
        1: "broken",
    }
    assert sum(row.weight for row in rows if row.weight is not None) == pytest.approx(1)
    measured = run.criteria(*ADJUSTED, 3)
    assert {row.criterion for row in measured} == set(found.priority)
    assert len(measured) == 3 * 5

    assert run.hostile_clients(1) == {0, 1}
    assert [row.client for row in run.clients(1, limit=2)] == [0, 1]
    assert run.client(1, 4) == run.clients(1)[4]
    assert [row.round_num for row in run.client_rounds(*ADJUSTED, 4)] == [1, 2, 3]
    assert len(run.client_curve(*ADJUSTED, 4)) == 3
    assert len(run.honest_metrics(*ADJUSTED, limit=100)) == 4
    assert [len(values) for _, values in run.classes("class_weights", *ADJUSTED)] == [10] * 3
    assert [
        (row.reason, row.client, row.times, row.first_round) for row in run.refusals("FedAvg", 10)
    ] == [("model has NaN or Inf", 1, 3, 1)] * 2
    assert run.refusal_counts("FedAvg") == [("model has NaN or Inf", 6)]
    assert (run.cost("FedAvg").rounds, run.cost("FedAvg").testing_rounds) == (6, 0)
    assert len(run.no_effect("FedAvg")) == 6


def test_a_grid_of_weights_is_what_the_participants_had(run: cw.Run) -> None:
    grid = run.weight_grid(*ADJUSTED, max_cells=150)
    for round_num in (1, 2, 3):
        for row in run.participants(*ADJUSTED, round_num):
            assert grid.means[row.client][round_num - 1] == row.weight
    coarse = run.weight_grid(*ADJUSTED, max_cells=2)
    assert (coarse.rounds_per_cell, coarse.clients_per_cell) == (2, 3)
    assert (len(coarse.means), coarse.width) == (2, 2)


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        ("UPDATE facts SET value = '{' WHERE key = 'metric'", lambda run: run),
        ("UPDATE facts SET value = '7' WHERE key = 'name'", lambda run: run),
        ("UPDATE facts SET value = '0' WHERE key = 'rounds'", lambda run: run),
        ("UPDATE facts SET value = '[]' WHERE key = 'data of seed 1'", lambda run: run),
        ("UPDATE lanes SET seed = 'one' WHERE lane = 1", lambda run: run),
        (
            "UPDATE rounds SET notes = 'no JSON' WHERE round_num = 1",
            lambda run: run.notes("FedAvg"),
        ),
        ("UPDATE rounds SET no_effect = 7", lambda run: run.no_effect("FedAvg")),
        ("UPDATE rounds SET no_effect = NULL", lambda run: run.round("FedAvg", 1, 1)),
        ("UPDATE rounds SET priority = '[1]'", lambda run: run.priorities(*ADJUSTED)),
        ("UPDATE rounds SET candidates = '[[\"a\"]]'", lambda run: run.round(*ADJUSTED, 1)),
        ("UPDATE rounds SET reached = '[0.5]'", lambda run: run.reached("FedAvg", 1)),
        ("UPDATE rounds SET metric = 'good'", lambda run: run.summary()),
        (
            "UPDATE rounds SET per_class_f1 = '3'",
            lambda run: run.classes("per_class_f1", "FedAvg", 1),
        ),
        (
            "UPDATE rounds SET per_class_f1 = '[0.5]' WHERE round_num = 2",
            lambda run: run.classes("per_class_f1", "FedAvg", 1),
        ),
        ("UPDATE participants SET weight = x'00'", lambda run: run.participants("FedAvg", 1, 1)),
        ("UPDATE participants SET client = 0.5", lambda run: run.weight_grid("FedAvg", 1, 10)),
        ("UPDATE criteria SET raw = NULL", lambda run: run.criteria("FedAvg", 1, 1)),
        ("UPDATE clients SET num_train = NULL", lambda run: run.client(1, 0)),
        ("UPDATE best SET bits = x'00'", lambda run: run.best_round("FedAvg", 1)),
        ("DROP TABLE local", lambda run: run.client_curve("FedAvg", 1, 0)),
    ],
)
def test_damage_is_named_where_it_is_read(
    altered: Callable[..., Path], damage: str, read: Callable[[cw.Run], object]
) -> None:
    folder = altered(damage)
    with pytest.raises(RunError, match=r"its database (is damaged|cannot be read) \(.+\)"):
        read(cw.Run(folder))


def test_a_wrong_call_is_not_called_damage(run: cw.Run) -> None:
    with pytest.raises(Exception, match="bindings") as caught:
        run.query("SELECT ?")
    assert not isinstance(caught.value, RunError)
    with pytest.raises(ValueError, match="not a curve"):
        run.curve("no such column", "FedAvg", 1)
    with pytest.raises(RunError, match="nothing of that number"):
        run.lanes_with_round(10**30)


def test_what_is_no_run_is_said_to_be_none(
    finished: Path, altered: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="no such folder"):
        cw.Run(tmp_path / "absent")
    with pytest.raises(RunError, match="not a run of clientwise"):
        cw.Run(tmp_path)
    with locked(tmp_path), pytest.raises(NotBegunError, match="just beginning"):
        cw.Run(tmp_path)
    old = altered("PRAGMA user_version = 2")
    with pytest.raises(
        RunError, match=r"by another version of clientwise \(format 2; .* Use that version"
    ):
        cw.Run(old)
    with pytest.raises(
        RunError, match=r"by another version of clientwise \(format 2; .* Use that version"
    ):
        Store(old)
    assert is_finished(finished)
    (old / "run.sqlite").write_bytes(b"garbage" * 1000)
    assert not is_finished(old)
    for use in (cw.Run, Store):
        with pytest.raises(RunError, match="its database cannot be read"):
            use(old)


def test_a_run_is_called_as_it_was_opened(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cw.Run(finished, "finished~2").id == "finished~2"
    monkeypatch.chdir(finished)
    assert cw.Run(".").id == "finished"
    with pytest.raises(RunError, match=r"^finished~2: no client 9 under seed 1"):
        cw.Run(finished, "finished~2").client(1, 9)


def test_leafs_percentiles_are_in_the_summary(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny |= {"rounds": 1, "partition": {"name": "dirichlet", "clients": 24, "concentration": 0.5}}
    run = cw.Run(cw.run(tiny | {"methods": [{"name": "FedAvg"}], "seeds": [1]}, tmp_path / "run"))
    values = sorted(row.metric for row in run.client_metrics("FedAvg"))
    (line,) = run.summary()
    assert (line.worst_decile, line.best_decile) == ([values[2]], [values[-3]])


def test_false_alarms_are_honest_clients_that_lost_half_of_their_weight(tmp_path: Path) -> None:
    doubtful = {"name": "doubtful", "like": "Recommended"}
    doubtful["evidence"] = {"name": "significance", "threshold": 0, "slack": 0, "copies": True}
    config = {
        "name": "alarms",
        "rounds": 4,
        "device": "cpu",
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 8, "concentration": 0.3},
        "model": "linear",
        "training": {"batch_size": 20, "learning_rate": 0.1},
        "server_set": {"fraction": 0.3, "report_fraction": 0.6},
        "hostile": [{"clients": [0, 1], "attack": "alie"}],
        "methods": ["FedAvg", doubtful],
    }
    run = cw.Run(cw.run(config, tmp_path / "run"))
    lowered = set()
    honest = set()
    for round_num in (1, 2, 3, 4):
        factors = {}
        for row in run.participants("doubtful", 1, round_num):
            if row.hostile is None:
                factors[row.client] = row.posterior / row.prior * row.copies
        honest |= factors.keys()
        half = max(factors.values()) / 2
        lowered |= {client for client, factor in factors.items() if factor < half}
    found = run.false_alarms("doubtful", 1)
    assert found == (len(lowered), len(honest))
    assert 0 < found.lowered < found.honest == 6
    assert found.share == found.lowered / 6
    assert run.false_alarms("FedAvg", 1).share is None


def test_the_fingerprints_of_a_million_clients_are_not_in_the_way(
    altered: Callable[..., Path],
) -> None:
    """20 bytes for each client: more than a value of somebody else's run may have."""
    many = 20_000_000
    folder = altered(f"UPDATE facts SET value = printf('%.{many}c', 'f') WHERE key = 'origin'")
    assert cw.Run(folder).rounds_done() == 12
    assert len(recorded_fact(folder, "origin") or "") == many
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:  # as after a crash
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        with database:
            database.execute("UPDATE facts SET value = value || 'f' WHERE key = 'origin'")
        assert (folder / "run.sqlite-wal").stat().st_size > 0
        assert len(recorded_fact(folder, "origin") or "") == many + 1
        assert cw.Run(folder).rounds_done() == 12
