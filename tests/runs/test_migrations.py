"""Run folders of older versions open, read-only, and go on; those of newer versions are refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import clientwise as cw
import processes
from clientwise.core.reasons import Kept
from clientwise.errors import RunError
from clientwise.report.export import audits
from clientwise.report.html import write_html
from clientwise.report.views import overview
from clientwise.runs import database, migrations, schema, structure, writer
from clientwise.runs.migrations import MIGRATIONS, OLDEST_VERSION
from clientwise.runs.reader import is_finished
from clientwise.runs.schema import SCHEMA, SCHEMA_VERSION
from clientwise.runs.writer import Store

FIXTURES = Path(__file__).parent / "fixtures"
RUNS = [
    (version.name, name)
    for version in sorted(FIXTURES.glob("v*"))
    for name in json.loads((version / "expected.json").read_text(encoding="utf-8"))
]


def unpacked(version: str, name: str, target: Path) -> Path:
    with tarfile.open(FIXTURES / version / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name


def expected(version: str, name: str) -> dict[str, Any]:
    written = json.loads((FIXTURES / version / "expected.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = written[name]
    return found


def summary(folder: Path) -> list[dict[str, Any]]:
    return [asdict(line) for line in cw.Run(folder).summary()]


def without_seconds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def content(folder: Path) -> dict[str, bytes]:
    """All files, but for those that SQLite itself needs beside a database in order to read it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    kept = [path for path in files if not path.name.endswith(("-shm", "-wal"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def version_of(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def test_there_are_fixtures_of_every_older_version() -> None:
    assert {version for version, _ in RUNS} == {
        f"v{number}" for number in range(OLDEST_VERSION, SCHEMA_VERSION)
    }
    assert len(MIGRATIONS) == SCHEMA_VERSION - OLDEST_VERSION


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_a_folder_of_an_older_version_is_read_and_left_as_it_is(
    version: str, name: str, tmp_path: Path
) -> None:
    folder = unpacked(version, name, tmp_path)
    before = content(folder)
    assert summary(folder) == expected(version, name)["summary"]
    assert cw.Run(folder).has_clock == (name == "clock")
    assert is_finished(folder)
    for method in cw.Run(folder).methods:
        assert cw.Run(folder).model(method).training is False
    assert {
        what: len(cw.Run(folder).frame(what)) > 0 for what in ("rounds", "clock", "weights")
    } == {
        "rounds": True,
        "clock": name == "clock",
        "weights": True,
    }
    run = cw.Run(folder)
    write_html(overview([run]), audits([run]), tmp_path / "report.html")
    commands: list[list[Any]] = [["show", folder], ["show", folder, "--round", 2]]
    # It draws all figures, which takes seconds. The oldest folder passes every migration.
    if (version, name) == (f"v{OLDEST_VERSION}", "clock"):
        commands.append(["report", folder, "--out", tmp_path / "report"])
    for command in commands:
        done = processes.run(processes.COMMAND, *command)
        assert done.returncode == 0, done.stderr
    assert content(folder) == before
    assert version_of(folder) == int(version[1:])


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_a_folder_of_an_older_version_goes_on_as_it_would_have(
    version: str, name: str, tmp_path: Path
) -> None:
    folder = unpacked(version, name, tmp_path)
    config = cw.Run(folder).config | {"rounds": 3}
    # The versions of Python and PyTorch may be others than those of the fixture.
    cw.run(config, folder, resume=True, accept_changes=True)
    changes = [what for change in cw.Run(folder).changes for what in change.what]
    assert not [what for what in changes if "data" in what]
    assert version_of(folder) == SCHEMA_VERSION
    for found, wanted in zip(
        summary(folder), expected(version, name)["summary of 3 rounds"], strict=True
    ):
        assert (found["method"], found["rounds"]) == (wanted["method"], [3])
        for key in (
            "metric",
            "worst_client",
            "time_to_target",
            "bytes_to_target",
            "hostile_weight",
        ):
            if wanted[key] == [None]:
                assert found[key] == [None]
            else:
                assert found[key] == pytest.approx(wanted[key], rel=1e-4), key


@pytest.mark.parametrize("name", ["hostile", "clock"])
@pytest.mark.parametrize("missing", [["PRAGMA user_version = 0"], ["DROP TABLE clock"], None])
def test_version_4_may_lack_its_number_and_the_clock(
    name: str, missing: list[str] | None, tmp_path: Path
) -> None:
    folder = unpacked("v4", name, tmp_path)
    lost = missing or ["DROP TABLE clock", "PRAGMA user_version = 0"]
    execute(folder, *lost)
    run = cw.Run(folder)
    has_clock = name == "clock" and "DROP TABLE clock" not in lost
    assert run.has_clock == has_clock
    assert len(run.times("FedAvg", 1)) == (2 if has_clock else 0)
    assert len(run.query("SELECT * FROM clock")) == (4 if has_clock else 0)
    before = content(folder)["run.sqlite"]
    assert cw.Run(folder).columns("rounds")["round"] == [1, 2] * 2
    assert content(folder)["run.sqlite"] == before
    Store(folder).close()
    assert version_of(folder) == SCHEMA_VERSION
    assert (
        without_seconds(summary(folder))[0]["metric"]
        == expected("v4", name)["summary"][0]["metric"]
    )


def test_migrations_lead_to_the_present_tables(tmp_path: Path) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, "DROP TABLE clock")
    with (
        closing(sqlite3.connect(folder / "run.sqlite")) as old,
        closing(sqlite3.connect(":memory:")) as new,
    ):
        migrations.migrate(old, 4, "main")
        for statement in SCHEMA:
            new.execute(statement)
        assert structure_of(old) == structure_of(new)


def structure_of(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    found = {}
    for kind, name in connection.execute("SELECT type, name FROM sqlite_master").fetchall():
        pragma = "table_xinfo" if kind == "table" else "index_xinfo"
        found[name] = connection.execute(f"PRAGMA {pragma}({name})").fetchall()
    return found


def test_a_folder_that_is_being_written_by_an_older_version_is_read(tmp_path: Path) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, "DROP TABLE clock")
    with closing(sqlite3.connect(folder / "run.sqlite", isolation_level=None)) as older:
        older.execute("PRAGMA journal_mode = WAL")
        older.execute("DELETE FROM rounds WHERE lane = 2 AND round_num = 2")
        assert cw.Run(folder).rounds_done() == 3
        older.execute("BEGIN IMMEDIATE")  # in the middle of a round
        older.execute("DELETE FROM rounds WHERE lane = 1 AND round_num = 2")
        assert cw.Run(folder).rounds_done() == 3
        older.execute("COMMIT")
        assert cw.Run(folder).rounds_done() == 2
        assert version_of(folder) == 4


def test_a_migration_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, "DROP TABLE clock")

    def fails(connection: sqlite3.Connection, into: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(migrations, "MIGRATIONS", [*MIGRATIONS, fails])
    with pytest.raises(RunError, match=r"its files cannot be used \(database or disk is full"):
        Store(folder)
    assert version_of(folder) == 4
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        assert "clock" not in structure_of(connection)
    monkeypatch.undo()
    assert summary(folder) == expected("v4", "hostile")["summary"]


def test_a_later_version_may_add_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docstring of `migrations.py` says: readers see it as NULL, writers add it."""

    def adds_a_column(connection: sqlite3.Connection, into: str) -> None:
        if into == "main":
            connection.execute("ALTER TABLE rounds ADD COLUMN energy REAL")
        else:
            connection.execute(
                "CREATE TEMP VIEW rounds AS SELECT *, NULL AS energy FROM main.rounds"
            )

    folder = unpacked("v4", "hostile", tmp_path)
    before = content(folder)
    monkeypatch.setattr(migrations, "MIGRATIONS", [*MIGRATIONS, adds_a_column])
    for module in (migrations, writer, schema):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    run = cw.Run(folder)
    assert run.query("SELECT DISTINCT energy FROM rounds") == [(None,)]
    assert summary(folder) == expected("v4", "hostile")["summary"]
    assert run.client_rounds("FedAvg", 1, 1)
    assert run.weight_grid("FedAvg", 1, 10) is not None
    assert content(folder) == before
    store = Store(folder)
    store.forget_after(1, 2)
    store.close()
    assert version_of(folder) == SCHEMA_VERSION + 1
    assert cw.Run(folder).query("SELECT DISTINCT energy FROM rounds") == [(None,)]
    assert summary(folder) == expected("v4", "hostile")["summary"]


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, "CREATE TABLE of_the_future (x)", f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = content(folder)
    refused = rf"was written by a newer version of clientwise \(format {SCHEMA_VERSION + 1}; .*\)\. Upgrade clientwise"
    for use in (cw.Run, Store):
        with pytest.raises(RunError, match=refused):
            use(folder)
    assert not is_finished(folder)
    done = processes.run(processes.COMMAND, "show", folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Upgrade clientwise" in done.stderr
    assert content(folder) == before


def rewrite_header(path: Path, change: Callable[[dict[str, str]], object]) -> None:
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    change(header)
    save_file(load_file(path), path, header)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda header: header.update(version="3"),
            r"newer version of clientwise \(checkpoint version 3; .* Upgrade",
        ),
        (
            lambda header: header.update(version="new"),
            r"not a checkpoint of clientwise \(version 'new'\); delete it",
        ),
        (lambda header: header.pop("fingerprint"), "damaged .it is not as it was written"),
    ],
)
def test_checkpoints_have_a_version(
    change: Callable[[dict[str, str]], object], reason: str, tmp_path: Path
) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    config = cw.Run(folder).config | {"rounds": 3}
    cw.run(config, folder, resume=True, accept_changes=True)
    path = folder / "checkpoints" / "lane-1.safetensors"
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["version"] == "2"
    rewrite_header(path, change)
    before = path.read_bytes()
    with pytest.raises(RunError, match=reason):
        cw.run(config | {"rounds": 4}, folder, resume=True, accept_changes=True)
    with pytest.raises(RunError, match=reason):
        cw.Run(folder).trained("FedAvg", 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "odd",
    [
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON rounds BEGIN DELETE FROM lanes; END",
        "CREATE TABLE other (x)",
        "CREATE INDEX odd ON rounds (hex(zeroblob(3000000)))",
        "CREATE INDEX odd ON rounds (lane) WHERE length(notes) > 3",
        "ALTER TABLE rounds ADD COLUMN odd AS (hex(zeroblob(3000000)))",
        "ALTER TABLE rounds ADD COLUMN odd CHECK (length(hex(zeroblob(3000000))) > 1)",
        "ALTER TABLE rounds ADD COLUMN odd REFERENCES lanes (lane) ON DELETE CASCADE",
        "ALTER TABLE rounds ADD COLUMN '--' CHECK (1)",
        "CREATE VIRTUAL TABLE odd USING fts5 (x)",
        "ANALYZE",
    ],
)
def test_what_sqlite_would_execute_is_refused(odd: str, tmp_path: Path) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, odd)
    for use in (cw.Run, Store):
        with pytest.raises(RunError, match="is no table of this version of clientwise"):
            use(folder)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE VIEW rounds AS SELECT 1",
        "CREATE TABLE rounds (lane INTEGER /* -- */ CHECK (1))",
        "CREATE TABLE rounds (lane INTEGER, [--] CHECK (1)\n)",
        'CREATE TABLE rounds ("--" CHECK (1),\nlane)',
        "CREATE TABLE rounds (lane DEFAULT '--', b AS (1)\n)",
        "CREATE TABLE rounds (lane INTEGER)\x00 CHECK",
        "CREATE TABLE rounds (lane INTEGER); DROP TABLE lanes",
        "CREATE TABLE rounds AS SELECT 1",
        "CREATE TABLE rounds (lane COLLATE odd)",
        "CREATE TABLE rounds (lane DEFAULT (hex(zeroblob(3))))",
        "CREATE TEMP TABLE rounds (lane)",
        "CREATE TABLE sqlite_stat1 (tbl, idx, stat)",
        "CREATE UNIQUE INDEX i ON rounds (lane)",
        "CREATE TABLE rounds (" + "lane, " * 2_000 + "lane)",
        "",
    ],
)
def test_only_plain_text_of_a_table_passes(text: str) -> None:
    assert not structure._is_plain(text)


def test_the_tables_of_this_version_pass() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in SCHEMA:
            connection.execute(statement)
        structure.refuse_programs(connection)
        structure.refuse_missing_columns(connection)
        connection.execute("ALTER TABLE rounds ADD COLUMN energy REAL")
        structure.refuse_programs(connection)  # of a database that a later version would migrate


def test_a_table_without_a_column_cannot_be_added_to(tmp_path: Path) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, "ALTER TABLE rounds DROP COLUMN no_effect")
    with pytest.raises(
        RunError,
        match=r"its database cannot be read \(its table 'rounds' has no column 'no_effect'",
    ):
        Store(folder)
    with pytest.raises(RunError, match=r"its database cannot be read \(no such column: no_effect"):
        cw.Run(folder).no_effect("FedAvg")


def test_a_folder_that_cannot_be_written_to_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked("v4", "hostile", tmp_path)
    execute(folder, "DROP TABLE clock")
    monkeypatch.setattr(database.os, "access", lambda path, mode: False)
    assert (
        summary(Path(shutil.copytree(folder, tmp_path / "copy")))
        == expected("v4", "hostile")["summary"]
    )


ABSENT_AND_BROKEN = {"dropped out": "absent", "model has NaN or Inf": "diverged"}
STAYED = {  # rounds that kept their model, as the sentences of 0.2.0 say it
    "plain": [Kept("no update")],
    "in time": [Kept("no update")] * 5,
    "bounded": [
        Kept("bounds", "quorum = 3, and there are 1 client"),
        Kept("no update"),
        Kept("bounds", "quorum = 3, and there are 2 clients"),
    ],
    "nobody": [
        Kept("zero criteria", "member"),
        Kept("zero criteria", "member"),
        Kept("no update"),
        Kept("zero criteria", "member"),
        Kept("zero criteria", "member"),
    ],
    "braked": [Kept("no update"), Kept("brake", "0.0391 ± 0.025")],
}


def test_what_0_2_0_said_in_sentences_becomes_fields(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "signed-0.2.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "signed"
    before = _asked_of(folder)
    assert before["kept"] == STAYED
    sentences = [
        note for method in STAYED for notes in cw.Run(folder).notes(method) for note in notes
    ]
    assert sentences == [kept.sentence for own in STAYED.values() for kept in own]
    assert before["kinds"] == {
        "plain": ABSENT_AND_BROKEN,
        "in time": {"dropped out": "absent", "late: the round had ended": "absent"},
        "bounded": ABSENT_AND_BROKEN,
        "nobody": ABSENT_AND_BROKEN,
        "braked": ABSENT_AND_BROKEN,
    }
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        migrations.migrate(connection, 8, "main")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.commit()
    assert _asked_of(folder) == before


def _asked_of(folder: Path) -> dict[str, Any]:
    run = cw.Run(folder)
    sql = "SELECT DISTINCT reason, kind FROM refusals JOIN lanes USING (lane) WHERE method = ?"
    return {
        "kept": {method: run.kept(method) for method in run.methods},
        "kinds": {method: dict(run.query(sql, method)) for method in run.methods},
        "arrived": {method: run.arrived(method) for method in run.methods},
        "counts": {method: run.refusal_counts(method) for method in run.methods},
        "summary": summary(folder),
    }


def test_the_fields_of_an_old_folder_are_those_of_a_new_one(tmp_path: Path) -> None:
    """Also of participants that have no rows: what is read from sentences is what is written now."""
    config = {
        "name": "thin",
        "rounds": 3,
        "device": "cpu",
        "data": "digits",
        "model": "linear",
        "partition": {"name": "iid", "clients": 8},
        "record": {"clients": 2},
        "hostile": [{"clients": [0, 1, 2], "attack": "broken"}],
        "devices": {"down": 2e4, "speed": 0.01, "dropout": 0.3},
        "methods": ["FedAvg"],
    }
    folder = cw.run(config, tmp_path / "run", progress=False)
    wanted = _asked_of(folder)
    assert cw.Run(folder).query("SELECT COUNT(*) FROM omitted") == [(3,)]
    assert wanted["kinds"] == {"FedAvg": ABSENT_AND_BROKEN}
    execute(folder, "DROP TABLE kept", "DROP TABLE refusals", "PRAGMA user_version = 8")
    assert _asked_of(folder) == wanted
