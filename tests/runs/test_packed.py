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

import clientwise as cw
from clientwise.core.objective.problem import Classification
from clientwise.core.types import Refusal, RoundRecord
from clientwise.errors import RunError
from clientwise.experiment.running.recompute import recompute
from clientwise.record import packed
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
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        (found,) = database.execute("SELECT COUNT(*) FROM packed").fetchone()
        (rows,) = database.execute("SELECT COUNT(*) FROM criteria").fetchone()
    return bool(found > 0 and rows == 0)


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
    return replace(
        like,
        round_num=round_num,
        client_ids=tuple(order),
        raw=raw,
        normalised=normalised,
        scores=scores,
        prior=scores / scores.sum(),
        weights=scores / scores.sum(),
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


def write(folder: Path, like: RoundRecord) -> Path:
    store = Store(folder)
    facts = {"name": "made", "metric": "accuracy", "target": None, "rounds": ROUNDS, "lanes": 1}
    store.set_facts(facts)
    store.set_clients(1, [10] * 3 * CLIENTS, [2] * 3 * CLIENTS, {4: "boast"})
    lane = store.open_lane(METHOD, 1)
    for round_num in range(1, ROUNDS + 1):
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
    large: Path, like: RoundRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MANY", 10**9)
    plain = write(tmp_path / "plain", like)
    assert is_packed(large)
    assert not is_packed(plain)
    for table in TABLES:
        assert rows_of(large, table) == rows_of(plain, table), table
    one, other = RunFolder(large), RunFolder(plain)
    record = made_up(like, 3)
    client = record.client_ids[7]
    assert one.participants(METHOD, 1, 3) == other.participants(METHOD, 1, 3)
    assert sorted(one.criteria(METHOD, 1, 3)) == sorted(other.criteria(METHOD, 1, 3))
    assert one.client_rounds(METHOD, 1, client) == other.client_rounds(METHOD, 1, client)
    assert one.hostile_weights(METHOD, 1) == other.hostile_weights(METHOD, 1)
    assert one.weight_grid(METHOD, 1, 4) == other.weight_grid(METHOD, 1, 4)
    assert one.refusals(METHOD, 9) == other.refusals(METHOD, 9)
    assert one.arrived(METHOD) == other.arrived(METHOD)
    for frame in ("weights", "criteria"):
        assert one.columns(frame) == other.columns(frame), frame
    by_hand = """SELECT criterion, COUNT(*), SUM(raw * score) FROM criteria
        JOIN participants USING (lane, round_num, client)
        WHERE round_num > 4 AND refusal IS NULL GROUP BY criterion"""
    for row, expected in zip(one.query(by_hand), other.query(by_hand), strict=True):
        assert row == pytest.approx(expected)
    raws = dict(
        one.query(
            "SELECT client, raw FROM criteria WHERE round_num = 3 AND criterion = ?",
            record.criteria[1],
        )
    )
    expected = dict(zip(record.client_ids, record.raw[:, 1].tolist(), strict=True))
    assert str(sorted(raws.items())) == str(sorted(expected.items()))  # also the negative zero
    # Of three normalised columns, two are quotients
    names = "SELECT name FROM packed WHERE round_num = 3 AND name LIKE '% %' ORDER BY name"
    assert [name.split()[0] for (name,) in one.query(names)] == [
        "normalised",
        *["raw"] * 3,
        *["scale"] * 2,
    ]


def test_a_participant_takes_few_bytes(large: Path) -> None:
    """With rows alone it takes 231 bytes."""
    size = (large / DATABASE).stat().st_size
    of_clients = 25 * 3 * CLIENTS
    assert (size - of_clients) / (CLIENTS * ROUNDS) < 110


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
    [lambda data: data[:-9], lambda data: b"", lambda data: b"no zlib", bomb],
    ids=["cut off", "empty", "no column", "too long"],
)
@pytest.mark.parametrize("name", ["score", "client", "raw dataset_size"])
def test_a_damaged_column_is_named_as_damage(
    copied: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    with closing(sqlite3.connect(copied / DATABASE)) as database, database:
        where = f"WHERE round_num = 2 AND name = '{name}'"
        (data,) = database.execute(f"SELECT data FROM packed {where}").fetchone()
        database.execute(f"UPDATE packed SET data = ? {where}", (change(data),))
    run = RunFolder(copied)
    read = run.participants if name == "score" else run.criteria
    with pytest.raises(RunError, match="its database cannot be read"):
        read(METHOD, 1, 2)
    assert run.participants(METHOD, 1, 3)


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
    assert recompute(RunFolder(stopped), {}) == recompute(RunFolder(whole), {})


@pytest.mark.usefixtures("small")
def test_a_packed_run_that_is_signed_later_has_rows(tmp_path: Path) -> None:
    pytest.importorskip("rfc8785", reason="needs clientwise[signed]")
    from clientwise.record.signed.keys import make_private_key
    from clientwise.record.signed.verify import verify

    key = tmp_path / "key"
    make_private_key(key)
    folder = cw.run(CONFIG, tmp_path / "run", progress=False)
    assert is_packed(folder)
    before = {name: rows_of(folder, name) for name in ("participants", "criteria")}
    longer = CONFIG | {"rounds": 4}
    cw.run(longer, folder, progress=False, resume=True, signing_key=key)
    assert not is_packed(folder)
    for name, rows in before.items():
        assert [row for row in rows_of(folder, name) if row[1] <= 3] == rows
    assert verify(folder).faults == []
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("UPDATE criteria SET raw = raw + 1e-9 WHERE round_num = 2 AND client = 3")
    assert any("round 2, client 3: was changed" in fault for fault in verify(folder).faults)
    # A packed column cannot bring in what nobody signed
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("UPDATE participants SET influence = NULL")
        clients = packed._packed(numpy.array([3]))
        values = packed._packed(numpy.array([0.9]))
        for name, data in (("client", clients), ("influence", values)):
            database.execute("INSERT INTO packed VALUES (1, 3, ?, ?)", (name, data))
    assert any("round 3, client 3: was changed" in fault for fault in verify(folder).faults)
