"""A federation on loopback with real processes, TLS, node authentication, and failures."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation

import processes
from clientwise.core.guard import NOT_FINITE
from clientwise.hosts.flower.replies import DIED, WENT_AWAY
from clientwise.record.lock import is_locked
from clientwise.record.signed.verify import verify

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]  # the waits have limits of their own
NAMES = ["ward-a", "ward-b", "ward-c", "ward-d"]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    one = Federation(tmp_path, NAMES)
    yield one
    one.stop()


def test_a_federation_survives_its_clients_its_nodes_and_its_superlink(
    federation: Federation,
) -> None:
    train_seconds = 100 * processes.pace()  # longer than Flower takes to notice that a process died
    limits = {"train_seconds": train_seconds, "evaluate_seconds": train_seconds, "min_replies": 1}
    federation.configure(
        {
            "rounds": 8,
            "flower": limits,
            "evaluation": {"clients_every": 8},  # so that a client's nth message is the nth round's
        }
    )
    #                              round  1    2       3            4   5
    federation.set_moods("ward-a", *["", "", "sleep 600"])
    federation.set_moods("ward-b", *["", "raise", "sleep 600"])
    federation.set_moods("ward-c", *["", "nan", "", "", "sleep 600"])
    federation.set_moods("ward-d", *["", "", f"sleep {train_seconds + 1}"])
    federation.start()

    # A node whose key is not registered is refused.
    federation.script("node-key.sh", "stranger")
    shutil.copy(federation.app / "data" / "ward-a.npz", federation.app / "data" / "stranger.npz")
    federation.start_node("stranger")
    federation.wait_for_nodes()
    federation.wait_for(lambda: federation.has_ended("stranger"), 120, "the stranger to be refused")
    assert "Failed to activate SuperNode" in federation.log("stranger")

    # Round 1: nothing fails. Round 2: one client raises, another sends NaN.
    federation.begin()
    federation.wait_for_rounds(2)
    assert federation.refused(1) == {}
    assert federation.refused(2) == {1: "OSError; the node's log says more", 2: NOT_FINITE}

    # The error's text quotes a sample: it stays in the node's own log.
    assert "disk full while reading [" in federation.log("ward-b")
    for path in federation.state.glob("superlink.sqlite*"):
        assert b"disk full while reading [" not in path.read_bytes()
    assert "disk full" not in federation.log("superlink")

    # Round 3: a client process is killed, a SuperNode is killed with its processes, a client
    # answers too late.
    os.kill(federation.sleeper("ward-a"), signal.SIGKILL)
    federation.sleeper("ward-b")
    federation.kill("ward-b")
    federation.wait_for_rounds(3, train_seconds + 120)
    assert set(federation.weights(3)) == {2}
    assert federation.refused(3) == {0: DIED, 1: WENT_AWAY, 3: "no answer in time"}
    federation.start_node("ward-b")

    # The SuperLink is killed during round 5 and started again; the run resumes from the checkpoint.
    os.kill(federation.sleeper("ward-c", 400), signal.SIGKILL)
    before = federation.query("SELECT * FROM rounds WHERE round_num <= 4")
    federation.kill("superlink", children=False)
    federation.start_superlink()
    events = federation.state / "run-events.jsonl"
    begun = events.read_text().count('"event": "begun"')
    # At once: the server app of the killed SuperLink still holds the lock, and is waited for.
    number = federation.begin()
    federation.wait_for(
        lambda: events.read_text().count('"event": "begun"') > begun, 240, "the run to resume"
    )
    federation.script("stop.sh", number)
    federation.wait_for(lambda: not is_locked(federation.run_folder), 120, "the run to stop")
    federation.wait_for(
        lambda: '"event": "stopped"' in events.read_text().splitlines()[-1],
        30,
        "the event of the stop",
    )
    federation.begin()
    federation.wait_for_rounds(8, 800)
    federation.wait_until_finished()
    assert federation.query("SELECT * FROM rounds WHERE round_num <= 4") == before
    assert [row[0] for row in federation.query("SELECT round_num FROM rounds ORDER BY 1")] == [
        *range(1, 9)
    ]
    complete = [one for one in (6, 7, 8) if set(federation.weights(one)) == {0, 1, 2, 3}]
    assert (
        complete
    )  # a node that slept answers old messages first, which takes a busy machine a round
    assert federation.refused(complete[-1]) == {}

    # The record is signed. It agrees with what the nodes were told, although rounds were run again.
    kept = [federation.state / "nodes" / name / "ledger-receipts.jsonl" for name in NAMES]
    found = verify(federation.run_folder, receipts=kept)
    assert found.faults == []
    assert found.rounds == 8
    assert found.receipts >= 8


def test_a_new_app_runs_at_once_with_flowers_own_command(tmp_path: Path) -> None:
    """`flwr run` in simulation on a local SuperLink: three clients on Flower's default of two nodes."""
    federation = Federation(tmp_path, ["ward-a", "ward-b", "ward-c"])
    try:
        port = federation.environment["PORT"]
        home = tmp_path / "flower"
        home.mkdir()
        connection = {"default": "here", "here": {"address": f"127.0.0.1:{port}", "insecure": True}}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": connection}))
        federation.environment["FLWR_HOME"] = str(home)
        federation.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        command = [
            "flower-superlink",
            "--simulation",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            port,
        ]
        federation.launch("superlink", command)
        federation.wait_for(
            lambda: "Uvicorn running" in federation.log("superlink"), 120, "the SuperLink to listen"
        )
        places = {
            "out": federation.run_folder,
            "files": federation.app / "data",
            "loader": federation.app / "data.py",
        }
        config = " ".join(f'{key}="{path}"' for key, path in places.items())
        federation.run(["flwr", "run", str(federation.app), "--run-config", config])
        federation.wait_for_rounds(5)
    finally:
        federation.stop()
    assert federation.weights(5) == pytest.approx(federation.weights_here(5), abs=1e-6)
