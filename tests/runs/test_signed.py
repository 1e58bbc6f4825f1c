"""A signed record: whatever is inserted, deleted, moved or changed afterwards is found, and located."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rfc8785", reason="needs clientwise[signed]")

import clientwise as cw
from clientwise.errors import ClientwiseError, RunError
from clientwise.experiment.running.recompute import Recomputed, recompute
from clientwise.record.reading.folder import RunFolder
from clientwise.record.schema import DATABASE, SCHEMA, TABLES_BY_ROUND
from clientwise.record.signed.chain import (
    OF_THE_RUN,
    TABLES,
    SignedChain,
    links,
)
from clientwise.record.signed.keys import make_private_key, private_key, public_bytes
from clientwise.record.signed.receipts import receipts
from clientwise.record.signed.verify import verify
from clientwise.record.writer import Store

BOUNDS = {"cap": 0.3, "groups": [{"name": "two", "clients": [0, 1], "cap": 0.45}]}
CONFIG: dict[str, Any] = {
    "name": "signed",
    "rounds": 3,
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 4},
    "server_set": {"fraction": 0.2},
    "evaluation": {"counterfactuals": True, "shapley": True},
    "devices": {"down": 2e4, "speed": 0.01},
    "methods": [
        {"name": "capped", "criteria": ["dataset_size", "label_diversity"], "bounds": BOUNDS},
        "Recommended",
    ],
}
TAKEN = "Recommended: weights after evidence are taken as recorded"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A signed run and the file of its key."""
    folder = tmp_path_factory.mktemp("signed")
    make_private_key(folder / "key")
    run = cw.run(CONFIG, folder / "run", progress=False, signing_key=folder / "key")
    return run, folder / "key"


@pytest.fixture
def run(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(made[0], tmp_path / "run"))


@contextmanager
def tampering(run: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(run / DATABASE)) as database, database:
        yield database


def recomputed(run: Path) -> Recomputed:
    return recompute(RunFolder(run), verify(run).members)


def written_receipts(run: Path, target: Path) -> list[Path]:
    files = []
    for name, own in receipts(run).items():
        file = target / f"{name}.jsonl"
        file.write_text("\n".join(json.dumps(one) for one in own), encoding="utf-8")
        files.append(file)
    return files


@pytest.mark.bits
def test_a_record_that_nobody_changed_has_no_fault(made: tuple[Path, Path], tmp_path: Path) -> None:
    run, key = made
    files = written_receipts(run, tmp_path)
    found = verify(run, [public_bytes(private_key(key))], files)
    assert found.faults == []
    assert found.rounds == 6
    assert found.receipts == 4 * 6
    assert found.repeated == []


def tables() -> list[str]:
    return [*TABLES, *OF_THE_RUN]


def test_every_table_is_signed_and_known_to_have_rounds_or_not() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in SCHEMA:
            database.execute(statement)
        sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
        names = {name for (name,) in database.execute(sql)}
        by_round = set()
        for name in names:
            columns = database.execute(f"SELECT * FROM {name}").description
            if ("round_num",) in [column[:1] for column in columns]:
                by_round.add(name)
    assert by_round == {*TABLES_BY_ROUND}
    # Packed columns are signed as the rows that they stand for
    assert names == {*tables(), "chain", "packed"}


def rows_of(run: Path, table: str) -> list[tuple[Any, ...]]:
    with tampering(run) as database:
        return database.execute(f"SELECT * FROM {table}").fetchall()


@pytest.mark.parametrize("table", tables())
def test_a_deleted_row_is_found(run: Path, table: str) -> None:
    """Up to four rows, spread over the rounds, one after the other."""
    rows = rows_of(run, table)
    if not rows:
        pytest.skip("the run has no such rows")
    with tampering(run) as database:
        columns = [one[0] for one in database.execute(f"SELECT * FROM {table}").description]
    key = " AND ".join(f"{column} IS ?" for column in columns)
    places = ", ".join("?" * len(columns))
    for row in rows[:: 1 + len(rows) // 4]:
        with tampering(run) as database:
            assert database.execute(f"DELETE FROM {table} WHERE {key}", row).rowcount == 1
        assert verify(run).faults, row
        with tampering(run) as database:
            database.execute(f"INSERT INTO {table} VALUES ({places})", row)
    assert verify(run).faults == []


def keys() -> list[tuple[str, str]]:
    """The columns that say what a row of a table is about."""
    named = ("client", "key", "seed", "lane", "round_num")
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in SCHEMA:
            database.execute(statement)
        found = [(table, database.execute(f"SELECT * FROM {table}")) for table in tables()]
        columns = [(table, one[0]) for table, cursor in found for one in cursor.description]
    return [(table, column) for table, column in columns if column in named]


@pytest.mark.parametrize(("table", "column"), keys())
def test_an_inserted_row_is_found(run: Path, table: str, column: str) -> None:
    """A row that differs from the first one in this column alone."""
    with tampering(run) as database:
        found = database.execute(f"SELECT * FROM {table}")
        columns = [one[0] for one in found.description]
        row = dict(zip(columns, found.fetchone() or [1] * len(columns), strict=True))
        row[column] = f"{row[column]}x" if isinstance(row[column], str) else 77
        if table == "lanes":
            row |= {"lane": 77, "seed": 77}
        places = ", ".join("?" * len(columns))
        database.execute(f"INSERT INTO {table} VALUES ({places})", list(row.values()))
    assert verify(run).faults


def test_a_fault_names_method_round_and_client(run: Path) -> None:
    with tampering(run) as database:
        database.execute(
            "UPDATE criteria SET raw = 9 WHERE lane = 1 AND round_num = 2 AND client = 3"
        )
    assert verify(run).faults == ["capped, seed 1, round 2, client 3: was changed"]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM chain WHERE position = 4",
        "DELETE FROM chain WHERE position = 1",
        "UPDATE chain SET position = 1000 + position WHERE position = 3",
        "UPDATE chain SET entry = replace(entry, '2026', '2025') WHERE position = 3",
        "UPDATE chain SET signature = zeroblob(64) WHERE position = 3",
        "UPDATE chain SET salt = zeroblob(32) WHERE position = 3",
        "UPDATE chain SET leaves = '{}' WHERE position = 3",
        "UPDATE chain SET entry = 'x' WHERE position = 3",
        "UPDATE chain SET entry = NULL WHERE position = 3",
        "UPDATE chain SET entry = replace(entry, '\"seed\":1', '\"seed\":[]') WHERE position = 3",
        'UPDATE chain SET entry = replace(entry, \'"kind":"round"\', \'"kind":"forget"\') WHERE position = 3',
        "UPDATE chain SET leaves = NULL WHERE position = 3",
        "INSERT INTO chain SELECT 99, entry, signature, salt, leaves FROM chain WHERE position = 3",
    ],
)
def test_a_changed_chain_is_found(run: Path, sql: str) -> None:
    with tampering(run) as database:
        assert database.execute(sql).rowcount == 1
    assert verify(run).faults


def test_entries_that_changed_places_are_found(run: Path) -> None:
    with tampering(run) as database:
        database.execute("UPDATE chain SET position = 100 WHERE position = 3")
        database.execute("UPDATE chain SET position = 3 WHERE position = 4")
        database.execute("UPDATE chain SET position = 4 WHERE position = 100")
    assert any("entry 3" in fault for fault in verify(run).faults)


def test_a_cut_end_is_found_by_the_receipts(run: Path, tmp_path: Path) -> None:
    files = written_receipts(run, tmp_path)
    with tampering(run) as database:
        chain = list(links(database))
        last = [link for link in chain if link.kind == "round"][-1]
        lane = "(SELECT lane FROM lanes WHERE method = ?)"
        for table in TABLES:
            sql = f"DELETE FROM {table} WHERE round_num = ? AND lane = {lane}"
            database.execute(sql, (last.number("round"), last.lane[0]))
        database.execute("DELETE FROM chain WHERE position >= ?", (last.position,))
        database.execute("UPDATE lanes SET finished = 0")
    # Nothing else in the folder shows it: a best round before the end is no longer in `best`.
    assert all("best: was deleted" in fault for fault in verify(run).faults)
    assert any("was cut off" in fault for fault in verify(run, receipts=files).faults)


def rewritten(run: Path, key: Path) -> None:
    """The record of a server that uses its key to sign whatever the database says now."""
    with tampering(run) as database:
        database.execute("DELETE FROM chain")
        chain = SignedChain(database, private_key(key), "id")
        chain.add_missing()
        chain.add_facts()


def test_a_record_that_is_signed_anew_contradicts_the_receipts(
    made: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    files = written_receipts(run, tmp_path)
    with tampering(run) as database:
        database.execute("UPDATE local SET metric = 0.99 WHERE client = 1")
    rewritten(run, made[1])
    assert verify(run).faults == []
    assert any("written anew" in fault for fault in verify(run, receipts=files).faults)
    make_private_key(tmp_path / "other")
    rewritten(run, tmp_path / "other")
    trusted = [public_bytes(private_key(made[1]))]
    assert any("another key" in fault for fault in verify(run, trusted).faults)


def test_a_round_that_the_owner_of_the_key_signs_again_is_found(
    made: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    """The entries so far stay as they are, so that all receipts are still in the chain."""
    files = written_receipts(run, tmp_path)
    with tampering(run) as database:
        sql = "SELECT lane, score FROM participants WHERE client = 1 AND round_num = ?"
        lane, score = database.execute(sql, (2,)).fetchone()
        database.execute(
            "UPDATE participants SET score = 7 WHERE lane = ? AND client = 1 AND round_num > 1",
            (lane,),
        )
        run_id = json.loads(database.execute("SELECT entry FROM chain").fetchone()[0])["run"]
        SignedChain(database, private_key(made[1]), run_id).add_round(lane, 2)
    (fault,) = [one for one in verify(run).faults if "second time" in one]
    assert "round 2: was signed a second time, after round 3" in fault
    # As if the run had been interrupted: the chain alone cannot tell.
    with tampering(run) as database:
        database.execute("DELETE FROM chain WHERE position = (SELECT MAX(position) FROM chain)")
        chain = SignedChain(database, private_key(made[1]), run_id)
        chain.add_forgotten(lane, 1)
        chain.add_round(lane, 2)
        chain.add_round(lane, 3)
    found = verify(run)
    assert found.faults == []
    assert any("rounds 2 to 3 run again" in text for text in found.repeated)
    faults = verify(run, receipts=files).faults
    assert len(faults) == 2
    assert f"participants, score: {score} became 7 in entry" in faults[0]
    assert faults[0].startswith(f"{tmp_path}/client-1.jsonl, line ")


def chain_of(database: sqlite3.Connection, key: Path) -> SignedChain:
    """The chain, to be continued by the owner of the key."""
    run_id = json.loads(database.execute("SELECT entry FROM chain").fetchone()[0])["run"]
    return SignedChain(database, private_key(key), run_id)


@pytest.mark.parametrize("hides_labels", [False, True])
def test_clients_that_change_names_after_their_rounds_are_found(
    made: tuple[Path, Path], run: Path, hides_labels: bool
) -> None:
    """No receipt has a name, so that all of them would still be in the chain."""
    with tampering(run) as database:
        database.execute("UPDATE clients SET name = 'other' WHERE client = 1")
        if hides_labels:
            database.execute("UPDATE chain SET leaves = REPLACE(leaves, 'clients 1 1', 'lanes x')")
        chain_of(database, made[1]).add_facts()
    assert verify(run).faults == ["clients 1 1: is not what it was when entry 2 was signed"]


def test_other_facts_that_change_after_rounds_are_said(made: tuple[Path, Path], run: Path) -> None:
    assert verify(run).changed == []
    with tampering(run) as database:
        last = database.execute("SELECT MAX(position) FROM chain").fetchone()[0]
        database.execute("UPDATE policies SET note = 'since 3 March' WHERE lane = 1")
        database.execute("DELETE FROM facts WHERE key = 'begun'")
        chain_of(database, made[1]).add_facts()
    found = verify(run)
    assert found.faults == []
    policy, begun = found.changed
    assert policy.startswith(f"policies 1 1: as it is since entry {last + 1} (")
    assert begun.startswith(f"facts begun: deleted in entry {last + 1} (")


@pytest.mark.parametrize(
    ("sql", "change"),
    [
        ("DELETE FROM local WHERE client = 1", "local : deleted"),
        ("INSERT INTO look_back VALUES (1, 3, 1, 9.0, 4)", "look_back : inserted"),
    ],
)
def test_rows_that_a_last_round_lost_or_got_contradict_the_receipts(
    made: tuple[Path, Path], run: Path, tmp_path: Path, sql: str, change: str
) -> None:
    files = written_receipts(run, tmp_path)
    with tampering(run) as database:
        where = " AND lane = 1 AND round_num = 3" if "DELETE" in sql else ""
        assert database.execute(sql + where).rowcount == 1
        chain_of(database, made[1]).add_round(1, 3)
    assert verify(run).faults == []
    (fault,) = verify(run, receipts=files).faults
    assert fault.startswith(f"{tmp_path}/client-1.jsonl, line ")
    assert change in fault


@pytest.mark.parametrize(
    ("table", "first"), [("facts", "'begun', '1'"), ("policies", "1, 1, '', ''")]
)
def test_a_second_row_in_a_table_without_its_key_is_found(
    run: Path, table: str, first: str
) -> None:
    """Some queries would read the first row, which nobody signed."""
    with tampering(run) as database:
        columns = ", ".join(
            one[0] for one in database.execute(f"SELECT * FROM {table}").description
        )
        rows = database.execute(f"SELECT * FROM {table}").fetchall()
        database.execute(f"DROP TABLE {table}")
        database.execute(f"CREATE TABLE {table} ({columns})")
        database.execute(f"INSERT INTO {table} VALUES ({first})")
        places = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
    assert any("was changed" in fault for fault in verify(run).faults)


def test_a_row_without_any_value_is_found(run: Path) -> None:
    with tampering(run) as database:
        names = [column[0] for column in database.execute("SELECT * FROM clients").description]
        database.execute("ALTER TABLE clients RENAME TO before")
        database.execute(f"CREATE TABLE clients({', '.join(names)})")
        database.execute("INSERT INTO clients SELECT * FROM before")
        database.execute("DROP TABLE before")
        database.execute(f"INSERT INTO clients ({names[0]}) VALUES (NULL)")
    assert any("clients None None" in fault for fault in verify(run).faults)


def test_an_index_that_differs_from_its_table_is_found(run: Path) -> None:
    """SQLite reads a value from either, depending on the query."""
    name = "participants_by_round"
    with tampering(run) as database:
        database.execute("PRAGMA writable_schema = ON")
        sql = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = ?"
        index = database.execute(sql, (name,)).fetchone()
        database.execute("DELETE FROM sqlite_master WHERE name = ?", (name,))
    with tampering(run) as database:
        database.execute("UPDATE participants SET weight = 0.01 WHERE client = 1")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    assert any("contradicts itself" in fault for fault in verify(run).faults)


def test_rounds_without_a_receipt_are_counted(run: Path, tmp_path: Path) -> None:
    (file, *_) = written_receipts(run, tmp_path)
    assert verify(run, receipts=[file]).unreceipted == 0
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(lines[2:]), encoding="utf-8")
    assert verify(run, receipts=[file]).unreceipted == 2


def test_a_weight_that_does_not_follow_from_its_criteria_is_found_although_it_is_signed(
    made: tuple[Path, Path], run: Path
) -> None:
    found = recomputed(run)
    assert (found.faults, found.rounds, found.taken) == ([], 6, {TAKEN})
    with tampering(run) as database:
        database.execute(
            "UPDATE participants SET weight = weight + 0.01 WHERE lane = 1 AND client = 2 AND round_num = 1"
        )
    rewritten(run, made[1])
    assert verify(run).faults == []
    (fault,) = recomputed(run).faults
    assert fault.startswith("capped, seed 1, round 1, client 2: weight is")


def test_weights_on_probation_are_recomputed(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Of a member that joins, see tests/flower/test_flower_members.py."""
    probation = {"cap": 0.05, "rounds": 2, "clients": [0]}
    config = CONFIG | {"methods": [{"name": "capped", "bounds": {"probation": probation}}]}
    run = cw.run(config, tmp_path / "run", progress=False, signing_key=made[1])
    found = recomputed(run)
    assert (found.faults, found.taken) == ([], set())
    with tampering(run) as database:
        database.execute("UPDATE participants SET weight = 0.25 WHERE round_num = 2")
    rewritten(run, made[1])
    assert verify(run).faults == []
    faults = recomputed(run).faults
    assert len(faults) == 4
    assert "round 2, client 0: weight is 0.25, recomputed 0.05" in faults[0]


def test_receipts_are_checked(made: tuple[Path, Path], run: Path, tmp_path: Path) -> None:
    own = receipts(run)["client-1"][0]
    wrong = [
        own | {"rows": [{**own["rows"][0], "weight": 0.9}]},
        own | {"signature": "00" * 64},
        own | {"digests": own["digests"][1:]},
        {"entry": 5},
        {},
    ]
    for number, receipt in enumerate([own, *wrong]):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(json.dumps(receipt), encoding="utf-8")
        assert bool(verify(run, receipts=[file]).faults) == (number > 0)
    (tmp_path / "text.jsonl").write_text("no receipt\n", encoding="utf-8")
    assert verify(run, receipts=[tmp_path / "text.jsonl"]).faults


def test_a_receipt_does_not_show_what_was_recorded_about_others(run: Path) -> None:
    for name, own in receipts(run).items():
        client = int(name.removeprefix("client-"))
        for receipt in own:
            assert {row["client"] for row in receipt["rows"]} == {client}


def test_rounds_that_are_run_again_are_said_and_no_fault(
    made: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    """As after a crash behind the last checkpoint. Receipts of the first try stay valid."""
    files = written_receipts(run, tmp_path)
    store = Store(run, made[1])
    lane = store.open_lane("capped", 1)
    store.forget_after(lane, 1)
    store.reopen_lanes(3)
    store.close()
    (run / "checkpoints" / f"{lane}.safetensors").unlink(missing_ok=True)
    for file in (run / "checkpoints").glob(f"*{lane}*"):
        file.unlink()
    cw.run(CONFIG, run, resume=True, progress=False, signing_key=made[1])
    found = verify(run, receipts=files)
    assert found.faults == []
    assert any("rounds 2 to 3 run again" in text for text in found.repeated)


def test_a_run_that_is_extended_stays_verifiable(made: tuple[Path, Path], run: Path) -> None:
    with pytest.raises(RunError, match="its record is signed"):
        cw.run(CONFIG | {"rounds": 4}, run, resume=True, progress=False)
    cw.run(CONFIG | {"rounds": 4}, run, resume=True, progress=False, signing_key=made[1])
    found = verify(run)
    assert (found.faults, found.rounds) == ([], 8)


def test_a_run_can_be_signed_from_some_round_on(made: tuple[Path, Path], tmp_path: Path) -> None:
    run = cw.run(CONFIG, tmp_path / "run", progress=False)
    with pytest.raises(RunError, match="is not signed"):
        verify(run)
    cw.run(CONFIG | {"rounds": 4}, run, resume=True, progress=False, signing_key=made[1])
    assert verify(run).faults == []


def test_keys(tmp_path: Path) -> None:
    make_private_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ClientwiseError, match="exists already"):
        make_private_key(tmp_path / "key")
    with pytest.raises(ClientwiseError, match="no private key"):
        private_key(tmp_path / "key.pub")
    with pytest.raises(ClientwiseError, match="no private key"):
        cw.run(CONFIG, tmp_path / "run", progress=False, signing_key=tmp_path / "missing")
