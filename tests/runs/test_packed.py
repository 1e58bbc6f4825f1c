"""Large rounds have compressed columns: every value is read as it was, and by the same queries."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from clientwise.report.audit.pages import audit_client, audit_round
from clientwise.report.audit.why import why_weight
from clientwise.report.views import overview

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.core.types import LookBack, Refusal, RoundRecord
from clientwise.errors import RunError
from clientwise.record import packed
from clientwise.record.database import reading
from clientwise.record.reading.folder import RunFolder
from clientwise.record.schema import DATABASE
from clientwise.record.writer import Store

CLIENTS = 2_000
ROUNDS = 5
METHOD = "three"
CONFIG: dict[str, Any] = {
    "name": "packed",
    "rounds": 3,
    "device": "cpu",
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 12},
    "hostile": [{"clients": [1], "attack": "broken"}],
    "methods": [
        {"name": METHOD, "criteria": ["dataset_size", "label_diversity", "model_divergence"]}
    ],
}
TABLES = ("participants", "criteria", "rounds", "refusals", "look_back")


def rows_of(folder: Path, table: str) -> list[Any]:
    """The rows that readers see, with every float as its bits. A row has no negative zero."""
    found = RunFolder(folder).query(f"SELECT * FROM {table} ORDER BY lane, round_num")
    timed = table == "rounds"
    rows = [tuple(map(_bits, row[:3] if timed else row)) for row in found]
    return sorted(rows, key=str)


def _bits(value: Any) -> Any:
    return struct.pack("<d", value + 0.0) if isinstance(value, float) else value


def is_packed(folder: Path) -> bool:
    """Whether no accepted update has a row of its own."""
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        (found,) = database.execute("SELECT COUNT(*) FROM packed").fetchone()
        (measured,) = database.execute("SELECT COUNT(*) FROM criteria").fetchone()
        own = "SELECT COUNT(*) FROM participants WHERE client IS NOT NULL AND refusal IS NULL"
        (rows,) = database.execute(own).fetchone()
    return bool(found > 0 and measured == rows == 0)


def as_rows(folder: Path, copy: Path) -> Path:
    """A copy of a run with rows in place of packed columns."""
    shutil.copytree(folder, copy)
    with closing(sqlite3.connect(copy / DATABASE)) as database, database:
        packed._add_callbacks(database)
        columns = packed._columns(database)
        clients = f"{packed._clients(database)} WHERE p.client IS NULL"
        database.execute(f"INSERT INTO participants SELECT {columns} FROM ({clients})")
        database.execute("DELETE FROM participants WHERE client IS NULL")
        database.execute(f"INSERT INTO criteria {packed._CRITERIA}")
        database.execute("DELETE FROM packed")
    assert not is_packed(copy)
    return copy


def made_up(like: RoundRecord, round_num: int) -> RoundRecord:
    """A large round with odd values, and a client that sent a second update."""
    random = torch.Generator().manual_seed(round_num)
    sizes = torch.randint(5, 300, (CLIENTS, 1), generator=random).double()
    others = torch.rand(CLIENTS, 2, dtype=torch.float64, generator=random)
    raw = torch.cat([sizes, others], 1)
    raw[0, 1] = -0.0
    raw[1, 1] = 5e-324
    scales = raw.sum(0)
    normalised = raw / scales
    normalised[:, 2] = others[:, 1].sqrt()  # is no quotient
    scores = normalised.prod(1)
    training_loss = torch.rand(CLIENTS, generator=random).double()
    training_loss[2] = torch.inf
    training_loss[3] = torch.nan  # the database has NULL for it
    order = torch.randperm(3 * CLIENTS, generator=random)[:CLIENTS].tolist()
    prior = scores / scores.sum()
    posterior = z = None
    copies = None
    if round_num > 2:  # as of another method
        z = torch.randn(CLIENTS, dtype=torch.float64, generator=random)
        posterior = prior * torch.rand(CLIENTS, dtype=torch.float64, generator=random)
        copies = torch.ones(CLIENTS, dtype=torch.float64)
    weights = prior if posterior is None else posterior / posterior.sum()
    if round_num == 4:
        weights = torch.cat([torch.zeros(7), weights[7:]])
    return replace(
        like,
        round_num=round_num,
        client_ids=tuple(order),
        raw=raw,
        normalised=normalised,
        scores=scores,
        prior=prior,
        z=z,
        posterior=posterior,
        look_back=LookBack(None, copies),
        weights=weights,
        influence=torch.rand(CLIENTS, dtype=torch.float64, generator=random),
        training_loss=training_loss,
        seconds=torch.full((CLIENTS,), 0.25, dtype=torch.float64),
        refusals=(Refusal(order[0], "sent twice"),),
    )


@pytest.fixture(scope="module")
def like(tmp_path_factory: pytest.TempPathFactory) -> RoundRecord:
    seen: list[RoundRecord] = []
    folder = tmp_path_factory.mktemp("like") / "run"
    cw.run(CONFIG, folder, progress=False, on_round=lambda step: seen.append(step.record))
    return seen[0]


def write(folder: Path, like: RoundRecord, rounds: int = ROUNDS) -> Path:
    store = Store(folder)
    facts = {"name": "made", "metric": "accuracy", "target": None, "rounds": ROUNDS, "lanes": 1}
    store.set_facts(facts)
    store.set_clients(1, [10] * 3 * CLIENTS, [2] * 3 * CLIENTS, {4: "boast"})
    lane = store.open_lane(METHOD, 1)
    for round_num in range(1, rounds + 1):
        store.write_round(lane, made_up(like, round_num), Classification(10), {4: "boast"}, 1.0)
    store.close()
    return folder


@pytest.fixture(scope="module")
def large(like: RoundRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("large") / "run", like)


@pytest.fixture
def copied(large: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "copied"))


def test_every_value_is_read_to_the_bit(
    copied: Path, like: RoundRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MANY", 10**9)
    plain = write(tmp_path / "plain", like)
    assert is_packed(copied)
    assert not is_packed(plain)
    for table in TABLES:
        assert rows_of(copied, table) == rows_of(plain, table), table
    one, other = RunFolder(copied), RunFolder(plain)
    record = made_up(like, 3)
    some = [*record.client_ids[:5], *made_up(like, 5).client_ids[:5]]
    assert readings(one, some) == readings(other, some)
    assert {row.client for row in one.lowered_by_evidence(METHOD, 1, 5, some, 0.5)} <= set(some)
    for folder in (copied, plain):
        with closing(sqlite3.connect(folder / DATABASE)) as database, database:
            database.execute("DELETE FROM sums")
    assert readings(one, some) == readings(other, some)
    for frame in ("weights", "criteria"):
        assert one.columns(frame) == other.columns(frame), frame
    by_hand = """SELECT criterion, COUNT(*), SUM(raw * score) FROM criteria
        JOIN participants USING (lane, round_num, client)
        WHERE round_num = 4 AND refusal IS NULL GROUP BY criterion"""
    for row, expected in zip(one.query(by_hand), other.query(by_hand), strict=True):
        assert row == pytest.approx(expected)
    means = "SELECT client, AVG(weight) FROM participants GROUP BY client ORDER BY client"
    assert one.query(means) == other.query(means)
    next_round = """SELECT client, b.weight - a.weight FROM participants AS a
        JOIN participants AS b USING (lane, client)
        WHERE b.round_num = a.round_num + 1 ORDER BY 1, 2"""
    assert one.query(next_round) == other.query(next_round)
    raws = dict(
        one.query(
            "SELECT client, raw FROM criteria WHERE round_num = 3 AND criterion = ?",
            record.criteria[1],
        )
    )
    expected = dict(zip(record.client_ids, record.raw[:, 1].tolist(), strict=True))
    assert str(sorted(raws.items())) == str(sorted(expected.items()))  # also the negative zero
    names = "SELECT name FROM packed WHERE round_num = ? AND name LIKE 'scale %' ORDER BY name"
    quotients = [f"scale normalised {criterion}" for criterion in sorted(record.criteria[:2])]
    assert one.query(names, 2) == [(name,) for name in [*quotients, "scale weight"]]
    assert one.query(names, 3) == [(name,) for name in [*quotients, "scale prior", "scale weight"]]
    assert one.query(names, 4) == [(name,) for name in [*quotients, "scale prior"]]


def readings(run: RunFolder, clients: list[int]) -> list[Any]:
    """What all readers of participants and criteria return."""
    found: list[Any] = [run.participants(METHOD, 1, number) for number in range(1, ROUNDS + 1)]
    found += [sorted(run.criteria(METHOD, 1, number)) for number in range(1, ROUNDS + 1)]
    found += [run.client_rounds(METHOD, 1, client) for client in [*clients, 10**9]]
    found.append(sorted(run.criteria(METHOD, 1, 3, clients)))
    found.append(run.lowered_by_evidence(METHOD, 1, ROUNDS, clients, 0.5))
    found.append(run.participants(METHOD, 1, 3))  # of all clients again
    found.append(run.false_alarms(METHOD, 1))
    found.append(run.hostile_influences(METHOD, 1))
    found.append(run.weight_grid(METHOD, 1, 4))
    found.append(run.refusals(METHOD, 9))
    found.append(run.arrived(METHOD))
    return found


def test_a_participant_takes_few_bytes(large: Path) -> None:
    """With rows alone it takes 231 bytes. These rounds have random numbers in eight columns and more."""
    size = (large / DATABASE).stat().st_size
    others = 25 * 3 * CLIENTS + 30 * CLIENTS * (ROUNDS - 2)  # `clients` and `look_back`
    assert (size - others) / (CLIENTS * ROUNDS) < 65


def test_rounds_after_a_checkpoint_are_forgotten(copied: Path, like: RoundRecord) -> None:
    before = {table: rows_of(copied, table) for table in TABLES}
    store = Store(copied)
    store.forget_after(1, 3)
    assert {row[1] for row in rows_of(copied, "criteria")} == {1, 2, 3}
    assert RunFolder(copied).query("SELECT MAX(round_num) FROM packed") == [(3,)]
    for round_num in (4, 5):
        store.write_round(1, made_up(like, round_num), Classification(10), {4: "boast"}, 1.0)
        # A reader beside the writer has the new round
        assert len(RunFolder(copied).criteria(METHOD, 1, round_num)) == 3 * CLIENTS
    store.close()
    assert {table: rows_of(copied, table) for table in TABLES} == before


ZEROS = cache(lambda: zlib.compress(bytes(2**28), 9))  # takes a second


def bomb(data: bytes) -> bytes:
    return ZEROS()


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-9], lambda data: b"", lambda data: b"no zlib", bomb, lambda data: 2**40],
    ids=["cut off", "empty", "no column", "too long", "a number"],
)
@pytest.mark.parametrize("name", ["score", "client", "scale weight", "raw dataset_size"])
def test_a_damaged_column_is_named_as_damage(
    copied: Path, name: str, change: Callable[[bytes], object]
) -> None:
    with closing(sqlite3.connect(copied / DATABASE)) as database, database:
        where = f"WHERE round_num = 2 AND name = '{name}'"
        (data,) = database.execute(f"SELECT data FROM packed {where}").fetchone()
        database.execute(f"UPDATE packed SET data = ? {where}", (change(data),))
    run = RunFolder(copied)
    read = run.criteria if name.startswith("raw") else run.participants
    with pytest.raises(RunError, match="its database cannot be read"):
        read(METHOD, 1, 2)
    assert run.participants(METHOD, 1, 3)


def test_a_round_without_its_clients_is_damage(copied: Path) -> None:
    with closing(sqlite3.connect(copied / DATABASE)) as database, database:
        database.execute("DELETE FROM packed WHERE round_num = 2 AND name = 'client'")
    run = RunFolder(copied)
    for read in (run.participants, run.criteria):
        with pytest.raises(RunError, match="its database cannot be read"):
            read(METHOD, 1, 2)


@pytest.mark.parametrize("statement", ["DROP COLUMN client", "RENAME COLUMN weight TO place"])
def test_other_columns_of_participants_are_damage(copied: Path, statement: str) -> None:
    with closing(sqlite3.connect(copied / DATABASE)) as database, database:
        database.execute("DROP INDEX participants_by_round")
        database.execute(f"ALTER TABLE participants {statement}")
    with pytest.raises(RunError, match="its database cannot be read"):
        RunFolder(copied).participants(METHOD, 1, 2)


def test_a_reader_sees_the_rounds_that_there_were_when_it_began(
    like: RoundRecord, tmp_path: Path
) -> None:
    """Also where the first large round is written meanwhile."""
    folder = tmp_path / "run"
    write(folder, like, rounds=0)
    run = RunFolder(folder)
    with reading(folder):
        assert run.query("SELECT COUNT(*) FROM participants") == [(0,)]
        write(folder, like, rounds=1)
        assert run.query("SELECT COUNT(*) FROM participants") == [(0,)]
    assert run.query("SELECT COUNT(*) FROM participants") == [(CLIENTS + 1,)]


def test_what_trackers_plot_counts_all_participants(copied: Path, tmp_path: Path) -> None:
    plain = as_rows(copied, tmp_path / "plain")
    for folder in (copied, plain):
        store = Store(folder)
        values = [store.round_values(1, number, "accuracy") for number in (3, 4)]
        store.refuse_nothing_learned()
        store.close()
        zeros = sum(row.weight == 0 for row in RunFolder(folder).participants(METHOD, 1, 4))
        assert values[1]["without_weight"] == zeros >= 7
        assert values[0]["without_weight"] < zeros


def test_a_run_whose_weights_were_all_zero_learned_nothing(
    like: RoundRecord, tmp_path: Path
) -> None:
    folder = write(tmp_path / "run", like, rounds=0)
    store = Store(folder)
    zero = torch.zeros(CLIENTS, dtype=torch.float64)
    record = replace(made_up(like, 1), weights=zero)
    store.write_round(1, record, Classification(10), {}, 1.0)
    with pytest.raises(RunError, match="all weights were zero"):
        store.refuse_nothing_learned()
    store.close()


def test_a_scale_gives_the_quotients_to_the_bit() -> None:
    random = numpy.random.default_rng(1)
    for _ in range(200):
        raw = random.random(50) * 10 ** random.uniform(-9, 9)
        scale = raw.sum()
        found = packed._scale(raw, raw / scale)
        assert found is not None
        assert (raw / found).tobytes() == (raw / scale).tobytes()
    assert packed._scale(raw, raw) == 1.0
    assert packed._scale(numpy.zeros(3), numpy.zeros(3)) is None
    assert packed._scale(numpy.array([1.0, 2.0, numpy.nan]), numpy.array([0.5, 0.9, 1.0])) is None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the rounds of a small run are packed."""
    monkeypatch.setattr(packed, "MANY", 3)


@pytest.mark.usefixtures("small")
def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    whole = cw.run(CONFIG, tmp_path / "whole", progress=False)

    def stop(step: Any) -> None:
        if step.record.round_num == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cw.run(CONFIG, tmp_path / "stopped", progress=False, on_round=stop)
    stopped = cw.run(CONFIG, tmp_path / "stopped", progress=False, resume=True)
    assert is_packed(stopped)
    for name in ("participants", "criteria"):
        columns = "lane, round_num, client, weight, score" if name == "participants" else "*"
        sql = f"SELECT {columns} FROM {name} ORDER BY 1, 2, 3, 4"
        assert RunFolder(stopped).query(sql) == RunFolder(whole).query(sql)


@pytest.mark.usefixtures("small")
def test_reports_do_not_depend_on_packing(tmp_path: Path) -> None:
    config = CONFIG | {
        "methods": ["Recommended", {"name": METHOD, "criteria": ["dataset_size"]}],
        "evaluation": {"counterfactuals": True, "shapley": True},
    }
    folder = cw.run(config, tmp_path / "run" / "same", progress=False)
    assert is_packed(folder)
    plain = as_rows(folder, tmp_path / "plain" / "same")
    one, other = RunFolder(folder), RunFolder(plain)
    assert overview([one]) == overview([other])
    for method in one.methods:
        for client in (0, 1, 5):
            assert audit_client(one, method, 1, client) == audit_client(other, method, 1, client)
            assert why_weight(one, client, method, 1) == why_weight(other, client, method, 1)
        for number in (1, 3):
            assert audit_round(one, method, 1, number) == audit_round(other, method, 1, number)
        assert one.false_alarms(method, 1) == other.false_alarms(method, 1)
