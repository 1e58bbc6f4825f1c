"""Members' updates are on no disk of the server: the bytes of one are looked for in all of its files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation

from clientwise.hosts.deployment.retention import TABLES
from clientwise.record.wipe import wipe_tables

PLANTED = b"Planted update. "  # four float32 numbers, all finite
# The app of a member whose model consists of these bytes.
CLIENT_APP = f"""
from pathlib import Path

import numpy
from clientwise.flower import client_app
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp

honest = client_app(Path(__file__).with_name("experiment.toml"))
app = ClientApp()


@app.train()
def train(message, context):
    reply = honest(message, context)
    for record in reply.content.array_records.values():
        size = record["data"].numpy().size
        planted = numpy.frombuffer({PLANTED!r} * size, "float32")[:size]
        record["data"] = Array(planted.copy())
    return reply


@app.evaluate()
def evaluate(message, context):
    return honest(message, context)
"""


def files_with(folder: Path, content: bytes) -> list[str]:
    """The files below a folder that contain these bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if content in path.read_bytes())


@pytest.mark.flower
@pytest.mark.timeout(3600)  # the waits have limits of their own
@pytest.mark.parametrize("keep", ["false", "true"])
def test_updates_of_a_finished_run_are_in_no_file_of_the_server(tmp_path: Path, keep: str) -> None:
    federation = Federation(tmp_path, ["ward-a"])
    federation.environment["KEEP_UPDATES"] = keep
    try:
        federation.configure({"rounds": 1, "methods": [{"name": "FedAvg"}]})
        app = federation.app / "federation" / "client_app.py"
        app.write_text(CLIENT_APP, encoding="utf-8")
        federation.start()
        federation.wait_for_nodes()
        federation.begin()
        federation.wait_for_rounds(1)
        federation.wait_until_finished()
        found = files_with(federation.state, 4 * PLANTED)
        federation.kill("superlink")  # without a chance to tidy up
        found += files_with(federation.state, 4 * PLANTED)
        assert bool(found) == (keep == "true"), found
        assert all(name.startswith("superlink.sqlite") for name in found)
        if keep == "true":  # the next start wipes what is there
            federation.environment["KEEP_UPDATES"] = "false"
            federation.start_superlink()
            assert files_with(federation.state, 4 * PLANTED) == []
            federation.wait_for_nodes()  # the members' keys are still there
    finally:
        federation.stop()


def test_wiped_rows_are_in_no_file_of_the_database(tmp_path: Path) -> None:
    file = tmp_path / "link.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE objects (content BLOB)")
        database.execute("CREATE TABLE node (name TEXT)")
        database.execute("INSERT INTO node VALUES ('ward-a')")
        for _ in range(20):
            database.execute("INSERT INTO objects VALUES (?)", [1000 * PLANTED])
        database.execute("DELETE FROM objects WHERE rowid <= 10")  # stay in free pages
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in list(tmp_path.glob("link.sqlite*")):  # as a killed process leaves them
            (copy / path.name).write_bytes(path.read_bytes())
    assert files_with(copy, 4 * PLANTED)
    wipe_tables(copy / "link.sqlite", TABLES)
    assert files_with(copy, 4 * PLANTED) == []
    with closing(sqlite3.connect(copy / "link.sqlite")) as database:
        assert database.execute("SELECT name FROM node").fetchall() == [("ward-a",)]
