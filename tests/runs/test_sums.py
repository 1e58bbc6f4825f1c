"""Sums over the participants of large rounds: pages show the same as from the rows, and read less."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clientwise.report.audit.pages import steps_charts
from clientwise.report.audit.round_audit import MAX_COHORT, audit
from clientwise.report.views import overview

import clientwise as cw
from clientwise.errors import RunError
from clientwise.record import database
from clientwise.record.reading.folder import RunFolder
from clientwise.record.sums import CELLS

CLIENTS = 300
CONFIG: dict[str, Any] = {
    "name": "large",
    "rounds": 3,
    "device": "cpu",
    "data": "digits",
    "partition": {"name": "iid", "clients": CLIENTS},
    "federation": {"fraction": 0.5},
    "model": "linear",
    "hostile": [
        {"clients": [0, 1, 2, 3], "attack": "sign_flip"},
        {"clients": [4, 5], "attack": "broken"},
    ],
    "methods": [{"name": "two", "criteria": ["dataset_size", "label_diversity"]}],
}
LANE = ("two", 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder(cw.run(CONFIG, tmp_path_factory.mktemp("runs") / "run", progress=False))


def changed(run: RunFolder, target: Path, statement: str) -> RunFolder:
    folder = Path(shutil.copytree(run.folder, target))
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute(statement)
        assert connection.total_changes > 0
    return RunFolder(folder)


@pytest.mark.parametrize("where", ["1", "round_num = 2", "clients_per_cell = 2 AND round_num > 1"])
def test_sums_are_those_of_the_rows(run: RunFolder, tmp_path: Path, where: str) -> None:
    assert run.query("SELECT COUNT(*), MIN(clients_per_cell) FROM sums") == [(3, 2)]
    by_rows = changed(run, tmp_path / "run", f"DELETE FROM sums WHERE {where}")
    assert by_rows.arrived("two") == run.arrived("two")
    assert run.arrived("two").arrived == 3 * CLIENTS // 2
    assert dict(by_rows.hostile_influences(*LANE)) == pytest.approx(
        dict(run.hostile_influences(*LANE))
    )
    assert by_rows.weight_grid(*LANE, 70) == run.weight_grid(*LANE, 70)  # of other cells
    expected = by_rows.weight_grid(*LANE, CELLS)
    found = run.weight_grid(*LANE, CELLS)
    assert expected is not None
    assert found is not None
    assert found.clients_per_cell == 2
    assert found.totals == pytest.approx(expected.totals)
    assert sum(found.totals) == pytest.approx(3)
    for row, own in zip(found.means, expected.means, strict=True):
        assert [value is None for value in row] == [value is None for value in own]
        assert [value or 0 for value in row] == pytest.approx([value or 0 for value in own])


def test_cells_are_about_clients_with_rows_and_counts_about_all(tmp_path: Path) -> None:
    thin = cw.run(
        CONFIG | {"rounds": 1, "record": {"clients": 100}}, tmp_path / "thin", progress=False
    )
    run = RunFolder(thin)
    by_rows = changed(run, tmp_path / "copy", "DELETE FROM sums")
    assert run.arrived("two") == by_rows.arrived("two")
    found = dict(run.hostile_influences(*LANE))
    assert found == pytest.approx(dict(by_rows.hostile_influences(*LANE)))
    ours = run.weight_grid(*LANE, CELLS)
    theirs = by_rows.weight_grid(*LANE, CELLS)
    assert ours is not None
    assert theirs is not None
    assert ours.totals == pytest.approx(theirs.totals)
    assert 0 < sum(ours.totals) < 0.9


@pytest.mark.parametrize(
    "cells", ["x'00'", "'text'", "zeroblob(12 * 151)", "x'000000000000f07f00000000'"]
)
def test_cells_that_anybody_wrote_are_damage(run: RunFolder, tmp_path: Path, cells: str) -> None:
    broken = changed(run, tmp_path / "run", f"UPDATE sums SET cells = {cells}")
    with pytest.raises(RunError, match="damaged"):
        broken.weight_grid(*LANE, CELLS)


@pytest.mark.parametrize("clients", [20, CLIENTS])
@pytest.mark.parametrize("recorded", [None, 10])
def test_what_clipping_takes_from_hostile_clients_is_no_influence(
    tmp_path: Path, clients: int, recorded: int | None
) -> None:
    config = CONFIG | {
        "rounds": 1,
        "partition": {"name": "iid", "clients": clients},
        "federation": {},
        "hostile": [{"clients": clients // 4, "attack": {"name": "scaling", "factor": 100.0}}],
        "methods": [{"name": "FedAvg"}, {"name": "clipped", "before": ["clip"]}],
    }
    if recorded:
        config["record"] = {"clients": recorded}
    run = RunFolder(cw.run(config, tmp_path / "run", progress=False))
    (whole,) = dict(run.hostile_influences("FedAvg", 1)).values()
    (clipped,) = dict(run.hostile_influences("clipped", 1)).values()
    assert whole == pytest.approx(0.25, abs=0.02)
    assert 0 < clipped < 0.02


def test_small_runs_have_no_sums(tmp_path: Path) -> None:
    small = CONFIG | {"rounds": 1, "partition": {"name": "iid", "clients": 30}}
    run = RunFolder(cw.run(small, tmp_path / "small", progress=False))
    assert run.query("SELECT * FROM sums") == []


def steps_of_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many steps SQLite takes for the page of a run, in hundreds."""
    seen = []
    connect = database._connect

    def counting(folder: Path) -> sqlite3.Connection:
        connection = connect(folder)
        connection.set_progress_handler(lambda: bool(seen.append(1)), 100)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(database, "_connect", counting)
        overview([RunFolder(folder)])
    return len(seen)


def test_a_page_does_not_read_every_participant_of_every_round(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = cw.run(CONFIG | {"rounds": 13}, tmp_path / "long", progress=False)
    more = steps_of_page(long, monkeypatch) - steps_of_page(run.folder, monkeypatch)
    assert 100 * more / 10 < 10 * CLIENTS / 2  # a round more; reading a row takes ten steps or more
    copy = changed(RunFolder(long), tmp_path / "copy", "DELETE FROM sums")
    by_rows = steps_of_page(copy.folder, monkeypatch) - steps_of_page(run.folder, monkeypatch)
    assert by_rows > 5 * more


def test_the_overview_lists_the_notable_clients_of_a_large_cohort(tmp_path: Path) -> None:
    large = CONFIG | {
        "rounds": 1,
        "partition": {"name": "iid", "clients": MAX_COHORT + 200},
        "federation": {"fraction": 1.0},
    }
    run = RunFolder(cw.run(large, tmp_path / "run", progress=False))
    whole = audit(run, *LANE, 1)
    some = audit(run, *LANE, 1, notable=True)
    assert len(whole.participants) == whole.num_participants == MAX_COHORT + 200
    assert some.num_participants == whole.num_participants
    assert MAX_COHORT <= len(some.participants) <= MAX_COHORT + 20
    shown = {one.client: one for one in some.participants}
    assert shown.items() <= {one.client: one for one in whole.participants}.items()
    lightest = min(one.row.weight for one in some.participants if one.row.weight is not None)
    left_out = [one for one in whole.participants if one.client not in shown]
    assert all(one.row.weight is None or one.row.weight <= lightest for one in left_out)
    assert steps_charts(some, "t", "n") == steps_charts(whole, "t", "n")
    (section,) = (one for one in overview([run]).sections if one.id == "weights")
    (table,) = (one for one in section.items if one.id == "audit-two")
    assert f"{len(shown)} of {MAX_COHORT + 200} participants" in table.note
