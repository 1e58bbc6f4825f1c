from __future__ import annotations

import gc
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.errors import RunError
from clientwise.record.files import is_locked, locked, read_whole
from clientwise.record.store import Store

FACTS = {"name": "made", "metric": "accuracy", "target": None, "rounds": 1, "lanes": 1}


def test_clients_may_have_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.set_facts(FACTS)
    store.set_clients(1, [5, 6], [1, 2], {1: "boast"}, names=["Oslo", "Turin"])
    store.set_clients(2, [5, 6], [1, 2], {})
    store.close()
    clients = cw.Run(tmp_path).frame("clients")
    assert clients["name"].fillna("").tolist() == ["Oslo", "Turin", "", ""]
    assert clients["hostile"].fillna("").tolist() == ["", "boast", "", ""]
    assert clients["num_train"].tolist() == [5, 6, 5, 6]


def test_facts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.fact("rounds") is None
    store.set_facts({"rounds": 3, "name": "é"})
    assert (store.fact("rounds"), store.fact("name")) == (3, "é")
    store.close()


def test_a_signal_before_a_transaction_leaves_no_error_behind(tmp_path: Path) -> None:
    """`with` was entered, and its body never began: Python discards it after the database is closed."""
    store = Store(tmp_path)
    entered = store._transaction()
    entered.__enter__()
    store.close()
    errors: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", errors.append)
        del entered
        gc.collect()
    assert errors == []


def test_a_transaction_that_fails_is_undone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.set_facts(FACTS)

    def stopped_halfway() -> None:
        with store._transaction() as database:
            database.execute("DELETE FROM facts")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_halfway()
    assert store.fact("rounds") == 1
    store.close()


def test_whatever_a_run_writes_is_in_a_transaction(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one that clientwise begins: Python begins none by itself."""
    connect = sqlite3.connect
    written = []

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        database = connect(*given, **named)
        begun: list[str] = []

        def see(statement: str) -> None:
            word = statement.split()[0]
            if word == "BEGIN":
                begun.append(statement)
            elif word in ("COMMIT", "ROLLBACK"):
                begun.clear()
            elif word in ("INSERT", "UPDATE", "DELETE"):
                written.append((word, database.isolation_level, len(begun)))

        database.set_trace_callback(see)
        return database

    monkeypatch.setattr(sqlite3, "connect", traced)
    cw.run(tiny, tmp_path / "run")
    assert {word for word, _, _ in written} == {"INSERT", "UPDATE", "DELETE"}
    assert {(level, begun) for _, level, begun in written} == {(None, 1)}


def test_folders_in_the_place_of_files_are_no_files(tmp_path: Path) -> None:
    for name in (".lock", "config.toml"):
        (tmp_path / name).mkdir()
    assert not is_locked(tmp_path)
    with pytest.raises(OSError, match="not a file of at most 9 bytes"):
        read_whole(tmp_path / "config.toml", 9)


def test_a_folder_that_was_removed_is_not_said_to_be_kept(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    tiny["checkpoint_seconds"] = 0.0
    with pytest.raises(RunError, match=f"^{folder}: was removed during the run; run the exp"):
        cw.run(tiny, folder, on_round=lambda *_: shutil.rmtree(folder, ignore_errors=True))


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from clientwise.record.files import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    assert is_locked(tmp_path)
    holder.kill()
    holder.communicate()
    assert not is_locked(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(RunError, match="another clientwise process"), locked(tmp_path):
            pass
    assert not is_locked(tmp_path)


def test_a_run_is_read_while_it_is_written(tiny: dict[str, Any], tmp_path: Path) -> None:
    seen = []

    def look(run: cw.Run, _: object) -> None:
        seen.append((run.finished, len(run.frame("rounds")), run.frame("weights")["round"].max()))

    cw.run(tiny | {"methods": ["FedAvg"]}, tmp_path / "run", on_round=look)
    assert seen == [(False, 1, 1), (False, 2, 2), (False, 3, 3)]
