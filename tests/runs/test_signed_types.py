"""A signed record under attack: other types and encodings, odd rows, and the files beside the database."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
import unicodedata
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rfc8785", reason="needs clientwise[signed]")

import clientwise as cw
import processes
from clientwise.experiment.running.recompute import recompute
from clientwise.record import migrations
from clientwise.record.reading.folder import RunFolder
from clientwise.record.schema import DATABASE, SCHEMA_VERSION
from clientwise.record.signed.chain import (
    OF_THE_RUN,
    TABLES,
    SignedChain,
    canonical,
    leaf_digest,
    leaves_of_round,
    links,
)
from clientwise.record.signed.keys import make_private_key, private_key, public_bytes
from clientwise.record.signed.receipts import is_valid_receipt, receipts
from clientwise.record.signed.verify import verify

FIXTURES = Path(__file__).parent / "fixtures"
CONFIG: dict[str, Any] = {
    "name": "Zürich",
    "rounds": 3,
    "device": "cpu",
    "data": "digits",
    "model": "linear",
    "partition": {"name": "iid", "clients": 6},
    "server_set": {"fraction": 0.2},
    "evaluation": {"counterfactuals": True, "shapley": True, "clients_sample": 4},
    "devices": {"down": 2e4, "speed": 0.01, "dropout": 0.2},
    "hostile": [{"clients": [0], "attack": "broken"}],
    "record": {"clients": 4},
    "methods": [
        {"name": "capped", "bounds": {"cap": 0.4, "quorum": 4, "note": "agreed in Genève"}},
        "Recommended",
    ],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A signed run with rows in every table, and the file of its key."""
    folder = tmp_path_factory.mktemp("signed")
    make_private_key(folder / "key")
    run = cw.run(CONFIG, folder / "run", progress=False, signing_key=folder / "key")
    assert verify(run).faults == []
    with tampering(run) as database:
        database.execute("INSERT INTO privacy VALUES (1, 1, 2.0, 0.5, 0.0)")
        database.execute("INSERT INTO adapters VALUES (1, 1, 0.25)")
        database.execute("DELETE FROM chain")
        chain = SignedChain(database, private_key(folder / "key"), "id")
        chain.add_missing()
        chain.add_facts()
        for table in (*TABLES, *OF_THE_RUN):
            assert database.execute(f"SELECT 1 FROM {table}").fetchone(), table
    assert verify(run).faults == []
    return run, folder / "key"


@pytest.fixture
def run(made: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "run"))


@contextmanager
def tampering(run: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(run / DATABASE)) as database, database:
        yield database


def without_types(database: sqlite3.Connection, table: str) -> None:
    """Make a table anew whose columns take values of every type as they are."""
    found = database.execute(f"SELECT * FROM {table}")
    columns = [column[0] for column in found.description]
    rows = found.fetchall()
    database.execute(f"DROP TABLE {table}")
    database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    places = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)


def test_rows_are_hashed_as_canonical_json() -> None:
    """What `rfc8785` makes of every kind of value; entries of all versions are hashed so."""
    values: list[Any] = [
        *(0, -1, 2**53 - 1, 2**53, -(2**53), -(2**63)),
        *(0.0, -0.0, 1.0, -3.0, 0.1, 1e-4, 9.9e-5, 1e-6, -1e-7, 5e-324, 1e16, 1e21, 1.5e300),
        *(1 / 3, 123456789.123, float("inf"), float("-inf")),
        *("", 'a "b": 1.0, c', "back\\slash", "\n\t\x00\x1f\x7f", "Zürich {0} %s", "\U0001f600"),
        *(b"", b"\x00\xff", None),
    ]
    letters = {int: "i", float: "r", str: "t", bytes: "b"}
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE participants (weight, lane, client, round_num)")
        for client, value in enumerate(values, start=1):
            row = (value, 1, client, 1)
            database.execute("INSERT INTO participants VALUES (?, ?, ?, ?)", row)
        for table in TABLES:
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} (lane, round_num)")
        found = leaves_of_round(database, 1, 1)
    for client, value in enumerate(values, start=1):
        row = {"client": client, "lane": 1, "round_num": 1, "table": "participants"}
        types = "iii"
        if value is not None:
            row["weight"] = value
            types += "n" if str(value) == "-0.0" else letters[type(value)]
        if isinstance(value, bytes):
            row["weight"] = value.hex()
        elif value in (2**53, -(2**53), -(2**63), float("inf"), float("-inf")):
            row["weight"] = str(value)
        row["$types"] = types
        assert found[f"client {client}"] == [canonical(row).decode()], value


def other_dresses(value: Any) -> Iterator[Any]:
    """Values that look like this one to somebody who does not ask for the type."""
    if isinstance(value, bytes):
        yield value.hex()
        yield bytearray(value + b"\0")
    elif isinstance(value, str):
        yield value.encode()
        yield value + "\0"
        yield value + " "
        yield unicodedata.normalize("NFD", value)
        yield None
    elif value is None:
        yield ""
        yield 0
        yield b""
    else:
        yield str(value)
        yield float(value) if isinstance(value, int) else int(value)
        yield -0.0 if value == 0 else -value
        yield None
        yield float("inf")
        yield 2**62


@pytest.mark.parametrize("table", [*TABLES, *OF_THE_RUN])
def test_another_type_or_encoding_of_any_value_is_found(run: Path, table: str) -> None:
    """Every column of the first row, as SQLite stores a value of any type.

    Each column in two other dresses; in two tables, one column of every type in all of them.
    """
    with tampering(run) as database:
        without_types(database, table)
        found = database.execute(f"SELECT rowid, * FROM {table}")
        columns = [column[0] for column in found.description][1:]
        rowid, *values = found.fetchone()
    assert verify(run).faults == []
    tried = 0
    types: set[type] = set()
    for column, value in zip(columns, values, strict=True):
        others = [
            other
            for other in other_dresses(value)
            if (type(other), str(other)) != (type(value), str(value))
        ]
        if type(value) in types or table not in ("participants", "lanes"):
            others = [others[0], others[-1]]  # of another type; and a number is another one
        types.add(type(value))
        for other in others:
            change = f"UPDATE {table} SET {column} = ? WHERE rowid = {rowid}"
            with tampering(run) as database:
                database.execute(change, [other])
            assert verify(run).faults, f"{table}.{column}: {value!r} became {other!r}"
            with tampering(run) as database:
                database.execute(change, [value])
            tried += 1
    assert tried > len(columns)
    assert verify(run).faults == []


@pytest.mark.parametrize("table", ["participants", "rounds", "policies"])
def test_a_row_of_no_lane_or_round_is_a_finding(run: Path, table: str) -> None:
    with tampering(run) as database:
        without_types(database, table)
        columns = [one[0] for one in database.execute(f"SELECT * FROM {table}").description]
        row = dict(zip(columns, database.execute(f"SELECT * FROM {table}").fetchone(), strict=True))
    places = ", ".join("?" * len(row))
    for column in ("lane", "round_num"):
        for value in ("x", "", None, b"\xff", 1.5, 2**62):
            other = {**row, column: value}
            with tampering(run) as database:
                database.execute(f"INSERT INTO {table} VALUES ({places})", [*other.values()])
            assert verify(run).faults, (column, value)
            with tampering(run) as database:
                database.execute(f"DELETE FROM {table} WHERE {column} IS ?", [value])
    assert verify(run).faults == []


def test_the_command_prints_the_finding_and_no_traceback(run: Path) -> None:
    """`participants` has no key, so that its columns take any value."""
    with tampering(run) as database:
        database.execute("INSERT INTO participants (lane, round_num) VALUES ('x', 'y')")
        database.execute("UPDATE rounds SET notes = 7 WHERE lane = 1")
        odd = r"\ud800 \u001b[2J\u001b[31mall is well"  # half a character; clears a terminal
        database.execute("UPDATE chain SET leaves = replace(leaves, 'client 2', ?)", [odd])
    done = processes.run(processes.COMMAND, "verify", run)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "unknown, seed x, round y: was inserted: no entry is about it" in done.stdout
    assert "capped, seed 1, round 1, round: was changed" in done.stdout
    assert "all is well: was deleted" in done.stdout
    assert "\x1b[2J" not in done.stdout


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE chain SET leaves = replace(leaves, 'clients 1 1', 'clients ')",
        "UPDATE chain SET leaves = replace(leaves, 'client 1', '')",
        "UPDATE chain SET leaves = replace(leaves, 'client 1', '\\ud800')",
        "UPDATE chain SET leaves = '[[[]]]'",
        'UPDATE chain SET leaves = \'{"a": [{}], "b": 7, "c": null}\'',
        'UPDATE chain SET leaves = \'{"a": "\\ud800"}\'',
        f"UPDATE chain SET leaves = '{'[' * 100_000}'",
        f"UPDATE chain SET entry = '{'[' * 100_000}' WHERE position = 2",
        'UPDATE chain SET entry = \'{"key": "\\ud800", "seed": 1e999}\' WHERE position = 2',
        "UPDATE chain SET entry = '[]' WHERE position = 2",
        "UPDATE chain SET entry = CAST(entry AS BLOB) WHERE position = 2",
        "UPDATE chain SET signature = hex(signature) WHERE position = 2",
    ],
)
def test_a_chain_that_anybody_wrote_is_a_finding(run: Path, sql: str) -> None:
    with tampering(run) as database:
        assert database.execute(sql).rowcount >= 1
    is_only_a_label = "clients " in sql or "client 1" in sql
    assert verify(run).faults or is_only_a_label


@pytest.mark.parametrize("position", ["'x'", "NULL", "2", "1.5", "x'00'"])
def test_positions_of_other_types_are_a_finding(run: Path, position: str) -> None:
    with tampering(run) as database:
        without_types(database, "chain")
        database.execute(f"UPDATE chain SET position = {position} WHERE position = 3")
    assert verify(run).faults


def changed_versions(run: Path) -> None:
    file = run / "versions.json"
    file.write_text(file.read_text().replace('"torch": "', '"torch": "9'))


def reformatted_versions(run: Path) -> None:
    file = run / "versions.json"
    file.write_text(json.dumps(json.loads(file.read_text())))


def deleted_versions(run: Path) -> None:
    (run / "versions.json").unlink()


def long_versions(run: Path) -> None:
    (run / "versions.json").write_bytes(b" " * 10**6)


@pytest.mark.parametrize(
    "change", [changed_versions, reformatted_versions, deleted_versions, long_versions]
)
def test_a_changed_file_of_versions_is_found(run: Path, change: Any) -> None:
    change(run)
    (fault,) = verify(run).faults
    assert fault.startswith("versions.json: was ")


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("rounds = 3", "rounds = 4", "rounds"),
        ("seeds = [\n    1,\n]", "seeds = [1, 2]", "seeds"),
        ("quorum = 4", "quorum = 3", "quorum"),
        ("learning_rate = 0.1", "learning_rate = 0.2", "learning_rate"),
    ],
)
def test_a_changed_config_is_found(run: Path, before: str, after: str, key: str) -> None:
    file = run / "config.toml"
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after, 1), encoding="utf-8")
    faults = recompute(RunFolder(run), verify(run).members).faults
    assert any("config.toml" in fault and key in fault for fault in faults)


def test_a_program_in_the_database_is_refused(run: Path) -> None:
    for sql in (
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON rounds BEGIN DELETE FROM lanes; END",
        "CREATE TABLE other (x)",
    ):
        copy = Path(shutil.copytree(run, run.with_name("copy"), dirs_exist_ok=True))
        with tampering(copy) as database:
            database.execute(sql)
        done = processes.run(processes.COMMAND, "verify", copy)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is no table of this version" in done.stderr


def test_columns_that_were_added_are_found(run: Path) -> None:
    with tampering(run) as database:
        database.execute("ALTER TABLE participants ADD COLUMN odd TEXT")
    assert verify(run).faults == []  # an empty column says nothing
    with tampering(run) as database:
        database.execute("UPDATE participants SET odd = 'x' WHERE client = 1 AND round_num = 1")
    assert verify(run).faults


# Receipts -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(made: tuple[Path, Path]) -> dict[str, Any]:
    """A receipt."""
    return next(iter(receipts(made[0]).values()))[0]


def test_a_salt_has_its_length(made: tuple[Path, Path], own: dict[str, Any]) -> None:
    """Otherwise bytes could move from the rows into the salt, and the digest would be the same."""
    trusted = [public_bytes(private_key(made[1]))]
    assert is_valid_receipt(own, trusted)
    rows = canonical([own["label"], own["rows"]])
    for salt in ("", own["salt"][2:], own["salt"] + rows[:1].hex()):
        assert not is_valid_receipt({**own, "salt": salt}, trusted)
    assert leaf_digest(bytes.fromhex(own["salt"]), own["label"], own["rows"]) in own["digests"]


def test_types_are_in_the_receipts(made: tuple[Path, Path], own: dict[str, Any]) -> None:
    trusted = [public_bytes(private_key(made[1]))]
    row = own["rows"][0]
    assert set(row["$types"]) <= set("irtbn")
    assert len(row["$types"]) == len(row) - 2  # without itself and the name of the table
    assert not is_valid_receipt({**own, "rows": [{**row, "$types": "t" * 9}]}, trusted)


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "odd", ["\ud800", ["\ud800"], nested(5_000), float("inf"), None, {}, 10**400]
)
@pytest.mark.parametrize("key", ["entry", "signature", "label", "salt", "rows", "digests"])
def test_a_receipt_that_anybody_wrote_is_no_receipt(
    own: dict[str, Any], key: str, odd: Any
) -> None:
    assert not is_valid_receipt({**own, key: odd}, [])


def test_several_folders_of_receipts(made: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = made
    found = receipts(run)
    for name, own in found.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps(receipt) for receipt in own]
        (tmp_path / name / "ledger-receipts.jsonl").write_text("\n".join(lines))
    (tmp_path / "empty").mkdir()
    folders = [tmp_path / name for name in found]
    total = sum(map(len, found.values()))
    given = ("--receipts", *folders)
    for arguments in ((run, *given), (run, *given[:2], "--receipts", *folders[1:])):
        done = processes.run(processes.COMMAND, "verify", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Receipts     {total:,}" in done.stdout
    done = processes.run(processes.COMMAND, "verify", run, *given, tmp_path / "empty")
    assert done.stderr == f"error: {tmp_path / 'empty'}: no receipts (*.jsonl) in it\n"
    done = processes.run(processes.COMMAND, "verify", run, folders[0])
    assert done.returncode == 2
    assert "Give receipts with --receipts" in done.stderr


# Records of version 0.2.0 -------------------------------------------------------------------------


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURES / "signed-0.2.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "signed"


def migrate(run: Path) -> None:
    with tampering(run) as database:
        migrations.migrate(database, 8, "main")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def versions_of(run: Path) -> set[int]:
    with tampering(run) as database:
        return {link.version for link in links(database)}


@pytest.mark.parametrize("is_migrated", [False, True])
def test_a_record_of_0_2_0_is_verified(older: Path, is_migrated: bool) -> None:
    if is_migrated:
        migrate(older)
    assert versions_of(older) == {2}
    found = verify(older)
    assert (found.faults, found.changed) == ([], [])
    assert recompute(RunFolder(older), found.members).faults == []
    for own in receipts(older).values():
        assert all(is_valid_receipt(receipt, []) for receipt in own)
    with tampering(older) as database:
        database.execute("UPDATE participants SET score = 7 WHERE client = 1 AND lane = 1")
    assert {fault.rpartition(", ")[2] for fault in verify(older).faults} == {
        "client 1: was changed"
    }


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE kept SET cause = 'brake' WHERE lane = 1",
        "UPDATE kept SET detail = 'x' WHERE lane = 4 AND round_num = 1",
        "DELETE FROM kept WHERE lane = 1",
        "INSERT INTO kept VALUES (1, 2, 'brake', '')",
        "UPDATE refusals SET kind = 'absent' WHERE kind = 'diverged'",
        "UPDATE refusals SET honest = 3",
        "DELETE FROM refusals WHERE lane = 1",
    ],
)
def test_what_a_migration_added_to_0_2_0_must_follow_from_what_was_signed(
    older: Path, sql: str
) -> None:
    migrate(older)
    with tampering(older) as database:
        assert database.execute(sql).rowcount >= 1
    faults = verify(older).faults
    assert faults
    assert all(
        fault.endswith((", kept: was changed", ", refusals: was changed")) for fault in faults
    )


def test_a_signed_run_of_0_2_0_goes_on(older: Path, tmp_path: Path) -> None:
    files = []
    for name, own in receipts(older).items():
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("\n".join(json.dumps(receipt) for receipt in own))
    make_private_key(tmp_path / "key")
    config = cw.Run(older).config | {"rounds": 6}
    cw.run(
        config,
        older,
        resume=True,
        accept_changes=True,
        progress=False,
        signing_key=tmp_path / "key",
    )
    assert versions_of(older) == {2, 3}
    found = verify(older, receipts=files)
    assert found.faults == []
    assert found.rounds == 30
    assert "clients" not in {text.split()[0] for text in found.changed}
    assert recompute(RunFolder(older), found.members).faults == []
