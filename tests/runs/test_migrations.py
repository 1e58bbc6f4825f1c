"""Run folders of older versions open, read-only, and go on; those of newer versions are refused."""

from __future__ import annotations

import json
import platform
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_diabetes
from typer.testing import CliRunner

import clientwise as cw
import processes
from clientwise.cli import app
from clientwise.core.reasons import Kept
from clientwise.errors import RunError
from clientwise.experiment.matrix.grid import MATRIX_FILE, load_matrix, open_matrix
from clientwise.experiment.matrix.runs import run_matrix
from clientwise.experiment.running.machine import system
from clientwise.record import (
    database,
    migrations,
    run_database,
    schema,
    structure,
)
from clientwise.record.migrations import MIGRATIONS, OLDEST_VERSION
from clientwise.record.reading.reader import is_finished
from clientwise.record.schema import SCHEMA, SCHEMA_VERSION
from clientwise.record.writer import Store
from clientwise.report.arena.report import arena
from clientwise.report.output.export import audits
from clientwise.report.output.html import write_html
from clientwise.report.views import overview

pytestmark = pytest.mark.bits
FIXTURES = Path(__file__).parent / "fixtures"
RENAMED = {"hostile_weight": "hostile_influence"}  # fields since 0.2.0
RUNS = [
    (release.parent.name, name)
    for release in sorted(FIXTURES.glob("*/expected.json"))
    for name in json.loads(release.read_text(encoding="utf-8"))
]
RELEASE = "0.2.0-aarch64"
FORMAT_OF_RELEASE = 8
# Computed with floating-point functions: 0.2.0 recorded fingerprints that depend on the CPU.
COMPUTED = {"clock", "regression", "table"}
NOT_COMPARED = "the data of seed 1 cannot be compared with those that the run began with. "


def unpacked(release: str, name: str, target: Path) -> Path:
    """The run folder; what the run needs is beside it."""
    with tarfile.open(FIXTURES / release / f"{name}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name / "run"


def expected(release: str, name: str, rounds: int) -> list[dict[str, Any]]:
    written = json.loads((FIXTURES / release / "expected.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = written[name][f"{rounds} rounds"]
    return found


def cells_of(folder: Path) -> list[Path]:
    """The run folders of a matrix; of a run, its own."""
    return sorted(path.parent for path in folder.rglob("run.sqlite"))


def results(folder: Path, like: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every method, cell by cell, with the fields that were expected: others may be added."""
    lines = [line for cell in cells_of(folder) for line in cw.Run(cell).summary()]
    return [
        {field: getattr(line, RENAMED.get(field, field)) for field in wanted}
        for line, wanted in zip(lines, like, strict=True)
    ]


def content(folder: Path) -> dict[str, bytes]:
    """All files, but for those that SQLite itself needs beside a database in order to read it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    kept = [path for path in files if not path.name.endswith(("-shm", "-wal"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def assert_unchanged(folder: Path) -> None:
    """The run has the results that the release itself read."""
    wanted = expected(RELEASE, "hostile", 2)
    assert results(folder, wanted) == wanted


def version_of(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def resumed(folder: Path) -> Path:
    """The run or matrix with three rounds. Versions of Python and PyTorch may be others than those of the fixture."""
    changes: dict[str, Any] = {"rounds": 3}
    if (folder.parent / "data").exists():
        changes["data_dir"] = str(folder.parent / "data")
    if (folder / MATRIX_FILE).exists():
        matrix = load_matrix(open_matrix(folder).table | changes)
        return run_matrix(matrix, folder, resume=True, accept_changes=True)
    key = folder.parent / "key"
    return cw.run(
        cw.Run(folder).config | changes,
        folder,
        resume=True,
        accept_changes=True,
        signing_key=key if key.exists() else None,
    )


def check_results(folder: Path, wanted: list[dict[str, Any]]) -> None:
    """The chosen fields; numbers may differ by what the CPU rounds differently."""
    for found, line in zip(results(folder, wanted), wanted, strict=True):
        assert (found["method"], found["rounds"]) == (line["method"], line["rounds"])
        for key, values in line.items():
            if key != "method" and values != [None]:
                assert found[key] == pytest.approx(values, rel=1e-4), key


def test_the_fixtures_are_of_a_version_that_is_read() -> None:
    names = {name for release, name in RUNS if release == RELEASE}
    assert names == {"hostile", "clock", "regression", "table", "signed", "matrix"}
    for release in {release for release, _ in RUNS}:
        archives = {path.name for path in (FIXTURES / release).glob("*.tar.xz")}
        assert archives == {f"{name}.tar.xz" for own, name in RUNS if own == release}
    assert len(MIGRATIONS) == SCHEMA_VERSION - OLDEST_VERSION


@pytest.mark.parametrize(("release", "name"), RUNS)
def test_a_folder_of_an_older_version_is_read_and_left_as_it_is(
    release: str, name: str, tmp_path: Path
) -> None:
    folder = unpacked(release, name, tmp_path)
    before = content(folder)
    wanted = expected(release, name, 2)
    assert results(folder, wanted) == wanted
    for cell in cells_of(folder):
        run = cw.Run(cell)
        assert is_finished(cell)
        assert run.has_clock == (name == "clock")
        assert run.machines == []
        assert run.query("SELECT DISTINCT machine FROM rounds") == [(None,)]
        for method in run.methods:
            assert run.model(method).training is False
        frames = {what: len(run.frame(what)) > 0 for what in ("rounds", "clock", "weights")}
        assert frames == {"rounds": True, "clock": name == "clock", "weights": True}
        write_html(overview([run]), audits([run]), tmp_path / "report.html")
    commands: list[list[Any]] = [["show", folder]]
    if name == "matrix":
        write_html(arena(folder), {}, tmp_path / "report.html")
    else:
        commands.append(["show", folder, "--round", 2])
    for command in commands:
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exit_code == 0, done.output
    assert content(folder) == before
    assert {version_of(cell) for cell in cells_of(folder)} == {FORMAT_OF_RELEASE}


@pytest.mark.parametrize(("release", "name"), RUNS)
def test_a_folder_of_an_older_version_goes_on_as_it_would_have(
    release: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = unpacked(release, name, tmp_path)
    made_on = f"Linux {release.rpartition('-')[2]}"
    resumed(folder)
    moved = f"system {system()}, before {made_on}. They may differ in their last bits"
    assert (moved in caplog.text) == (system() != made_on)
    for cell in cells_of(folder):
        assert version_of(cell) == SCHEMA_VERSION
        said = [what for change in cw.Run(cell).changes for what in change.what if "data" in what]
        assert not said or (name in COMPUTED and said[0].startswith(NOT_COMPARED))
        rows = cw.Run(cell).query("SELECT round_num, machine FROM rounds ORDER BY lane, 1")
        assert [machine for _, machine in rows] == [None, None, 2] * (len(rows) // 3)
    check_results(folder, expected(release, name, 3))


@pytest.mark.parametrize("name", sorted({name for _, name in RUNS}))
def test_a_folder_goes_on_on_another_kind_of_cpu(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Simulated: whatever a floating-point function returns for the data differs in its last bit."""
    folder = unpacked(RELEASE, name, tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    for function in ("exp", "sqrt"):
        monkeypatch.setattr(torch.Tensor, function, elsewhere(getattr(torch.Tensor, function)))
    monkeypatch.setattr("sklearn.datasets.load_diabetes", other_diabetes)
    resumed(folder)
    assert f"system {system()}, before Linux aarch64. They may differ" in caplog.text
    if name == "matrix":
        return
    assert (NOT_COMPARED in caplog.text) == (name in COMPUTED)
    said = [what for change in cw.Run(folder).changes for what in change.what if "data" in what]
    assert [what.startswith(NOT_COMPARED) for what in said] == [True] * (name in COMPUTED)
    assert " then " not in cw.Run(folder).data[1]  # it is paired with runs of the same data
    check_results(folder, expected(RELEASE, name, 3))
    caplog.clear()
    monkeypatch.undo()  # and back again: the fingerprints are now of what was given
    data = {"data_dir": str(folder.parent / "data")} if name == "table" else {}
    key = folder.parent / "key"
    cw.run(
        cw.Run(folder).config | {"rounds": 4} | data,
        folder,
        resume=True,
        signing_key=key if key.exists() else None,
    )
    assert NOT_COMPARED not in caplog.text


def next_up(values: Any) -> Any:
    """What another CPU may return: the next larger numbers of float32, which inputs are."""
    return numpy.nextafter(numpy.float32(values), numpy.float32(numpy.inf)).astype(values.dtype)


def elsewhere(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *given: torch.from_numpy(next_up(function(*given).numpy()))


def other_diabetes(**options: Any) -> Any:
    inputs, targets = load_diabetes(**options)
    return (inputs if options.get("scaled") is False else next_up(inputs)), targets


def test_other_data_of_a_folder_of_0_2_0_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(RELEASE, "hostile", tmp_path)
    config = cw.Run(folder).config | {"rounds": 3}
    digits = cw.DATASETS.get("digits")(None)
    inputs = digits.inputs.clone()
    inputs[:, 0, 0, 0] += 1
    monkeypatch.setitem(
        cw.DATASETS._parts, "digits", lambda data_dir: replace(digits, inputs=inputs)
    )
    with pytest.raises(RunError, match=r"other data \(seed 1\): those of all clients"):
        cw.run(config, folder, resume=True)


def test_a_signed_record_of_an_older_version_is_verified_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("rfc8785", reason="needs clientwise[signed]")
    from clientwise.record.signed.verify import verify

    folder = unpacked(RELEASE, "signed", tmp_path)
    found = verify(folder)
    assert (found.faults, found.rounds) == ([], 2)
    resumed(folder)
    found = verify(folder)
    assert (found.faults, found.rounds) == ([], 3)
    assert any(line.startswith("facts machines: as it is since entry") for line in found.changed)


def test_migrations_lead_to_the_present_tables(tmp_path: Path) -> None:
    folder = unpacked(RELEASE, "hostile", tmp_path)
    with (
        closing(sqlite3.connect(folder / "run.sqlite")) as old,
        closing(sqlite3.connect(":memory:")) as new,
    ):
        migrations.migrate(old, FORMAT_OF_RELEASE, "main")
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
    folder = unpacked(RELEASE, "hostile", tmp_path)
    with closing(sqlite3.connect(folder / "run.sqlite", isolation_level=None)) as older:
        older.execute("PRAGMA journal_mode = WAL")
        older.execute("DELETE FROM rounds WHERE lane = 2 AND round_num = 2")
        assert cw.Run(folder).rounds_done() == 3
        older.execute("BEGIN IMMEDIATE")  # in the middle of a round
        older.execute("DELETE FROM rounds WHERE lane = 1 AND round_num = 2")
        assert cw.Run(folder).rounds_done() == 3
        older.execute("COMMIT")
        assert cw.Run(folder).rounds_done() == 2
        assert version_of(folder) == FORMAT_OF_RELEASE


def test_a_migration_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpacked(RELEASE, "hostile", tmp_path)

    def fails(connection: sqlite3.Connection, into: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(migrations, "MIGRATIONS", [*MIGRATIONS, fails])
    with pytest.raises(RunError, match=r"its files cannot be used \(database or disk is full"):
        Store(folder)
    assert version_of(folder) == FORMAT_OF_RELEASE
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        assert "machine" not in str(structure_of(connection)["rounds"])
    monkeypatch.undo()
    assert_unchanged(folder)


def test_a_later_version_may_add_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docstring of `migrations.py` says: readers see it as NULL, writers add it."""

    def adds_a_column(connection: sqlite3.Connection, into: Any) -> None:
        migrations.add_column(connection, into, "rounds", "energy REAL")

    folder = unpacked(RELEASE, "hostile", tmp_path)
    before = content(folder)
    monkeypatch.setattr(migrations, "MIGRATIONS", [*MIGRATIONS, adds_a_column])
    for module in (migrations, run_database, schema):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    run = cw.Run(folder)
    assert run.query("SELECT DISTINCT energy, machine FROM rounds") == [(None, None)]
    assert_unchanged(folder)
    assert run.client_rounds("FedAvg", 1, 1)
    assert run.weight_grid("FedAvg", 1, 10) is not None
    assert content(folder) == before
    store = Store(folder)
    store.forget_after(1, 2)
    store.close()
    assert version_of(folder) == SCHEMA_VERSION + 1
    assert cw.Run(folder).query("SELECT DISTINCT energy FROM rounds") == [(None,)]
    assert_unchanged(folder)


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = unpacked(RELEASE, "hostile", tmp_path)
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
    folder = unpacked(RELEASE, "hostile", tmp_path)
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
    folder = unpacked(RELEASE, "hostile", tmp_path)
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
    folder = unpacked(RELEASE, "hostile", tmp_path)
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
    folder = unpacked(RELEASE, "hostile", tmp_path)
    monkeypatch.setattr(database.os, "access", lambda path, mode: False)
    assert_unchanged(Path(shutil.copytree(folder, tmp_path / "copy")))


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
        "summary": run.summary(),
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
