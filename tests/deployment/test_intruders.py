"""Server, proxy and four hospitals in network namespaces, over a wire that loses packets.

Intruders get nothing: an outsider, a curious member, another user of the server, the server's
administrator. The run survives failures: every process killed, a member lost, state restored from a
backup, keys and certificates renewed. The tests share one federation and run in this order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation, require

import clientwise as cw
import processes

pytestmark = [pytest.mark.netns, pytest.mark.timeout(3600)]  # the waits have limits of their own
HOSPITALS = ["Cleveland", "Hungarian", "Switzerland", "VA"]
DELAY = 0.02  # seconds each way
LOSS = 0.005  # share of the packets
PREFIX = f"cw{os.getpid()}-"
HOST = "10.77.0.1"

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
        said = f"error {reply.error.code}" if reply.has_error() else reply.content
        print("ANSWER", said, flush=True)
"""


@pytest.fixture(scope="module")
def wire() -> Iterator[subprocess.Popen[str]]:
    """Networks of server, hospitals and an outsider, the wire between them, and the SuperLink's."""
    require(["ip", "nginx", "curl", "openssl", "ssh-keygen", "systemd-socket-activate"], root=True)
    places = [PREFIX + place for place in ("server", *HOSPITALS, "outside")]
    for place in (*places, PREFIX + "link"):
        subprocess.run(["ip", "netns", "add", place], check=True)
    subprocess.run(["ip", "-n", PREFIX + "link", "link", "set", "lo", "up"], check=True)
    program = str(Path(__file__).with_name("bad_wire.py"))
    command = [sys.executable, program, "--delay", str(DELAY), "--loss", str(LOSS), *places]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)
        for place in (*places, PREFIX + "link"):
            subprocess.run(["ip", "netns", "del", place], check=True)


@pytest.fixture(scope="module")
def federation(
    wire: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """Heart patients of four real hospitals; digits where there is no data folder."""
    folder = tmp_path_factory.mktemp("federation")

    def enter(place: str) -> list[str]:
        return ["ip", "netns", "exec", PREFIX + place]

    one = Federation(folder, HOSPITALS, host=HOST, proxy=True, enter=enter)
    one.environment["LOG"] = "json"
    one.environment["SMALLEST_CELL"] = "1"  # to compare weights with a run in this process
    one.environment["ALERT"] = f"cat >> {folder / 'alerts'}"
    pace = processes.pace()
    limits = {"min_replies": 2, "train_seconds": 300 * pace, "grace_seconds": 60 * pace}
    data = None
    if (Path(os.environ.get("CLIENTWISE_DATA", "")) / "heart").is_dir():
        data = {"data": "heart", "partition": "by_id"}
    one.configure({"rounds": 2, "flower": limits, "evaluation": {"clients_every": 100}}, data)
    try:
        one.start()
        one.wait_for_nodes()
        yield one
    finally:
        one.stop()


def goes_on(federation: Federation, rounds: int) -> int:
    """More rounds: a new version of the app, approved by every node."""
    federation.change({"rounds": rounds})
    federation.agree()
    return federation.begin()


def test_four_hospitals_train(federation: Federation) -> None:
    run = federation.begin()
    federation.wait_for_rounds(2, 480)
    federation.script("wait.sh", run)
    assert federation.refused(1) == federation.refused(2) == {}
    online = [
        line.split()[:2]
        for line in federation.script("watch.sh").splitlines()
        if " online " in line
    ]
    assert sorted(online) == [[name, "online"] for name in HOSPITALS]
    assert federation.weights(2) == pytest.approx(federation.weights_here(2), abs=1e-6)
    events = [
        json.loads(line)
        for line in (federation.state / "run-events.jsonl").read_text().splitlines()
    ]
    runs = {one["member"]: one["differs"] for one in events if one["event"] == "versions"}
    assert runs == {name: [] for name in HOSPITALS}
    for service in ("superlink", *HOSPITALS):
        assert {json.loads(line)["service"] for line in federation.log(service).splitlines()} == {
            service
        }
    assert federation.script("health.sh", len(HOSPITALS), place="server").startswith("OK 4 members")


def test_who_does_not_belong_reaches_nothing(federation: Federation) -> None:
    check = federation.app / "deploy" / "check.sh"
    said = federation.run(federation.at("outside", check))
    assert "closed  /v1/control/start-run without a certificate" in said
    # A curious member has a certificate.
    assert "works   the fleet API, for members alone" in federation.run(
        federation.at("VA", check, "VA")
    )
    # Another user of the server cannot reach the SuperLink or enter its network.
    said = federation.run(federation.at("server", check, "VA"))
    assert "closed  the SuperLink, for another user" in said
    assert "closed  the SuperLink's network, for another user" in said
    # The script does find what is open.
    inside = federation.attempt(federation.at("link", "env", "HOST=127.0.0.1", check))
    assert inside.returncode == 1
    assert "OPEN    /v1/control/start-run without a certificate" in inside.stdout
    # A node does not start where other users of its machine can read the data.
    data = federation.app / "data" / "VA.npz"
    data.chmod(0o644)
    refused = federation.attempt([str(federation.app / "deploy" / "supernode.sh"), "VA", str(data)])
    data.chmod(0o600)
    assert refused.returncode == 1
    assert "can be read by other users of this machine" in refused.stdout


def test_nodes_run_what_was_agreed_to_and_nothing_else(
    federation: Federation, tmp_path: Path
) -> None:
    # An app that reads every node's rows: started from outside with a member's ca.crt, and by the
    # administrator.
    evil = tmp_path / "evil"
    shutil.copytree(federation.app, evil, ignore=shutil.ignore_patterns("data"))
    (evil / "federation" / "client_app.py").write_text(STEAL)
    (evil / "federation" / "server_app.py").write_text(COLLECT)
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "theirs"\n[superlink.theirs]\naddress = "{HOST}:{federation.environment["PORT"]}"\n'
        f'root-certificates = "{federation.state / "certificates" / "ca.crt"}"\n'
    )
    outsider = federation.attempt(
        federation.at("outside", "env", f"FLWR_HOME={tmp_path}", "flwr", "run", evil)
    )
    assert outsider.returncode != 0
    assert "400 Bad Request" in outsider.stdout + outsider.stderr
    administrator = [
        "env",
        f"FLWR_HOME={federation.state / 'flower'}",
        "flwr",
        "run",
        evil,
        "federation",
        "--stream",
    ]
    said = federation.run(federation.at("link", *administrator))
    assert said.count("ANSWER") == said.count("ANSWER error 7") == len(HOSPITALS)
    assert all("REFUSED an app" in federation.log(name) for name in HOSPITALS)

    # The approved app with one changed byte is another app, until a node's operator approves it.
    federation.run_folder.rename(federation.state / "kept")
    federation.change({"rounds": 1})
    run = federation.begin()
    federation.wait_for_rounds(1, 300)
    assert len(federation.refused(1)) == len(HOSPITALS)
    assert all(
        "not approved by the node's operator" in reason for reason in federation.refused(1).values()
    )
    ended = federation.attempt(federation.at("link", federation.app / "deploy" / "wait.sh", run))
    assert ended.returncode == 1  # a run that failed is reported as failed
    assert "no update was ever accepted" in ended.stdout
    health = federation.at("server", federation.app / "deploy" / "health.sh")
    assert "BAD the run failed" in federation.attempt(health).stdout
    shutil.rmtree(federation.run_folder)
    (federation.state / "kept").rename(federation.run_folder)


def test_what_dies_is_survived(federation: Federation) -> None:
    # The proxy is killed while every node trains: a message on its way to a node would be lost. The
    # replies find no proxy and are sent again.
    for name in HOSPITALS:
        federation.set_moods(name, "hold")
    goes_on(federation, 4)
    federation.wait_until_held(300)
    federation.kill("proxy")
    federation.release()
    federation.start_proxy()
    federation.wait_for_rounds(4, 300)
    assert len(federation.weights(3)) == len(HOSPITALS)
    assert len(federation.weights(4)) >= 2

    # A member is lost for good; the server app and a client app are killed in the middle of a
    # round.
    federation.kill("VA")
    federation.set_moods("Cleveland", "sleep 600")
    run = goes_on(federation, 6)
    os.kill(federation.sleeper("Cleveland", 300), signal.SIGKILL)
    federation.kill_app("serverapp")
    ended = federation.attempt(federation.at("link", federation.app / "deploy" / "wait.sh", run))
    assert ended.returncode == 1
    federation.begin()
    federation.wait_for_rounds(5)
    assert {0, 1, 2} == set(federation.weights(5))
    alerts = [
        json.loads(line) for line in (federation.state.parent / "alerts").read_text().splitlines()
    ]
    assert any(one["event"] in ("lost", "refused") and one["member"] == "VA" for one in alerts)

    # A backup is made during a run. Then the server's disk and processes are lost.
    copy = Path(federation.script("backup.sh", federation.state.parent).splitlines()[-1])
    before = federation.query("SELECT * FROM rounds WHERE round_num <= 5")
    federation.wait_for_rounds(6)
    for name in ("superlink", "door", "proxy"):
        federation.kill(name)
    federation.state.rename(federation.state.parent / "lost")
    copy.rename(federation.state)
    federation.start_superlink()
    federation.start_door()
    federation.start_proxy()
    run = federation.begin()
    federation.wait_for_rounds(6)
    federation.script("wait.sh", run)
    assert federation.query("SELECT * FROM rounds WHERE round_num <= 5") == before
    assert cw.Run(federation.run_folder).finished


def test_certificates_and_keys_are_renewed_and_a_member_leaves(federation: Federation) -> None:
    before = (federation.state / "certificates" / "server.crt").read_bytes()
    federation.script("certificates.sh")
    assert (federation.state / "certificates" / "server.crt").read_bytes() != before
    for name in ("superlink", "proxy"):
        federation.kill(name)
    federation.start_superlink()
    federation.start_proxy()

    federation.register("Hungarian", "--renew")  # the same key, a new certificate
    federation.end("Hungarian")
    federation.start_node("Hungarian")
    for path in (federation.state / "keys").glob("Cleveland*"):
        path.rename(path.with_name(f"old-{path.name}"))
    federation.script("node-key.sh", "Cleveland")  # another key: another node, of the same name
    federation.register("Cleveland")
    federation.end("Cleveland")
    federation.start_node("Cleveland")

    federation.change({"flower": {"left": ["VA"]}})  # the lost member does not return
    federation.wait_for_nodes(online=3)
    goes_on(federation, 7)
    federation.wait_for_rounds(7)
    assert set(federation.weights(7)) == {0, 1, 2}
    assert federation.refused(7) == {}
    assert cw.Run(federation.run_folder).changes[-1].what == ["VA left"]


def test_the_wire_was_bad(federation: Federation, wire: subprocess.Popen[str]) -> None:
    wire.terminate()
    said, _ = wire.communicate(timeout=60)
    seen, lost = map(int, re.findall(r"\d+", said))
    assert seen > 500
    assert 0 < lost < seen / 10
