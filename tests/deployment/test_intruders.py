"""Who does not belong gets nothing: an outsider, a curious member, another user of the server, the server itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from federation import Federation

pytestmark = [pytest.mark.netns, pytest.mark.timeout(1500)]
LINK = "cw-link"
NAMES = ["ward-a", "ward-b"]

# An app that returns what it finds where a node's data are.
STEAL = """
import numpy
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    rows = numpy.load(context.node_config["data"])["train_inputs"][:2].ravel().tolist()
    return Message(RecordDict({"rows": ConfigRecord({"rows": rows})}), reply_to=message)
"""
COLLECT = """
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(messages, timeout=120):
        print(f"ANSWER error {reply.error.code}" if reply.has_error() else f"ANSWER {reply.content}", flush=True)
"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    programs = ("ip", "nginx", "curl", "systemd-socket-activate")
    if os.geteuid() or not all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in programs):
        pytest.skip(f"needs root and {', '.join(programs)}")
    subprocess.run(["ip", "netns", "add", LINK], check=True)
    subprocess.run(["ip", "-n", LINK, "link", "set", "lo", "up"], check=True)
    one = Federation(
        tmp_path, NAMES, proxy=True, enter=lambda place: ["ip", "netns", "exec", LINK] if place == "link" else []
    )
    try:
        yield one
    finally:
        one.stop()
        subprocess.run(["ip", "netns", "del", LINK], check=True)


def test_nobody_gets_in_and_nodes_run_what_was_agreed_to(federation: Federation, tmp_path: Path) -> None:
    federation.configure({"rounds": 1, "flower": {"min_replies": 1, "train_seconds": 300}})
    federation.start()
    federation.wait_for_nodes()

    # From outside, as a member, and as another user of the server: what must be closed is.
    said = federation.run([str(federation.app / "deploy" / "check.sh"), "ward-a"])
    assert "works   the fleet API, for members alone" in said
    assert "closed  the SuperLink, for another user" in said
    assert "OPEN" not in said
    # The same script does find an open door.
    inside = federation.attempt(["ip", "netns", "exec", LINK, str(federation.app / "deploy" / "check.sh")])
    assert inside.returncode == 1
    assert "OPEN    /v1/control/start-run without a certificate" in inside.stdout

    # The app that reads everybody's rows: started from outside with a member's ca.crt, and by whoever has the server.
    evil = tmp_path / "evil"
    shutil.copytree(federation.app, evil, ignore=shutil.ignore_patterns("data"))
    (evil / "federation" / "client_app.py").write_text(STEAL)
    (evil / "federation" / "server_app.py").write_text(COLLECT)
    outsider = federation.attempt(
        ["env", f"FLWR_HOME={federation.state / 'flower'}", "flwr", "run", str(evil), "federation"]
    )
    assert outsider.returncode != 0
    assert "400 Bad Request" in outsider.stdout + outsider.stderr
    command = ["env", f"FLWR_HOME={federation.state / 'flower'}", "flwr", "run", str(evil), "federation", "--stream"]
    said = federation.run(["ip", "netns", "exec", LINK, *command])
    assert said.count("ANSWER") == said.count("ANSWER error 7") == len(NAMES)
    assert all("REFUSED an app" in federation.log(name) for name in NAMES)

    # Our own app, changed by one byte on the server, is another one, until a node agrees to it.
    config = federation.app / "federation" / "experiment.toml"
    config.write_bytes(config.read_bytes() + b"\n")
    run = federation.begin()
    federation.wait_for(lambda: federation.rounds() == 1, 300, "the round")
    assert all("refused the app" in reason for reason in federation.refused(1).values())
    assert len(federation.refused(1)) == len(NAMES)
    ended = federation.attempt(["ip", "netns", "exec", LINK, str(federation.app / "deploy" / "wait.sh"), str(run)])
    assert ended.returncode == 1  # a run that failed is reported as failed
    assert "no update was ever accepted" in ended.stdout
    shutil.rmtree(federation.run_folder)
    federation.script("agree.sh")
    run = federation.begin()
    federation.wait_for(lambda: federation.rounds() == 1, 300, "the round")
    assert federation.refused(1) == {}
    federation.script("wait.sh", run)
