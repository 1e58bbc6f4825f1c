"""What an operator meets: a proxy that hangs, a killed server app, an upgrade, a full disk.

Real processes on loopback. A node runs in a loop that starts it again, as its systemd unit does.
The tests share one federation and run in this order.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation, free_port, require

import processes
from clientwise.record.lock import is_locked

pytestmark = [
    pytest.mark.flower,
    pytest.mark.long,  # more than ten minutes
    pytest.mark.timeout(3600),  # the waits have limits of their own
]
NAMES = ["ward-a", "ward-b", "ward-c"]
SILENCE = "45"  # seconds: longer than a busy machine takes to answer
LOOP = 'while true; do "$0" "$@"; sleep 1; done'
OTHER_FLOWER = Path(sysconfig.get_path("data")) / "flwr-1.42.0"  # make test-flower-versions


class Restarting(Federation):
    """Nodes that are started again whenever they end; they reach the SuperLink through nginx."""

    def start_node(self, name: str) -> None:
        """Start a client's SuperNode, again and again."""
        data = str(self.app / "data" / f"{name}.npz")
        script = str(self.app / "deploy" / "supernode.sh")
        self.launch(name, ["bash", "-c", LOOP, script, name, data])

    def signal_proxy(self, number: signal.Signals) -> None:
        """A signal to nginx and its workers."""
        os.killpg(self._processes["proxy"].pid, number)

    def health(self) -> str:
        """What health.sh says."""
        return self.attempt([str(self.app / "deploy" / "health.sh"), "3"]).stdout


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarting]:
    """Three members; state/ is on a disk of its own, which can be filled."""
    require(["nginx", "openssl", "ssh-keygen", "mount"], root=True)
    one = Restarting(tmp_path_factory.mktemp("federation"), NAMES)
    one.state.mkdir(mode=0o700)
    disk = ["mount", "-t", "tmpfs", "-o", "size=100m,mode=700", "tmpfs", str(one.state)]
    subprocess.run(disk, check=True)
    pace = processes.pace()
    one.environment |= {"LINK_PORT": str(free_port()), "SILENCE": SILENCE, "FREE_MB": "5"}
    limits = {"min_replies": 2, "train_seconds": 300 * pace, "grace_seconds": 60 * pace}
    one.configure({"rounds": 1, "flower": limits, "evaluation": {"clients_every": 100}})
    try:
        one.start()
        one.start_proxy()
        one.wait_for_nodes()
        yield one
    finally:
        one.stop()
        subprocess.run(["umount", "--lazy", str(one.state)], check=True)


def goes_on(federation: Restarting, rounds: int) -> int:
    """More rounds: a new version of the app, approved by every node."""
    federation.change({"rounds": rounds})
    federation.agree()
    return federation.begin()


def test_nodes_return_after_a_proxy_that_hung(federation: Restarting) -> None:
    assert federation.health() == "OK 3 members online\n"
    federation.signal_proxy(signal.SIGSTOP)  # connections are accepted, and nothing answers
    for name in NAMES:
        federation.wait_for(
            lambda name=name: "the server has not answered for" in federation.log(name),  # type: ignore[misc]
            180,
            f"{name} to notice",
        )
    assert "nothing answers at 127.0.0.1:" in federation.health()
    federation.signal_proxy(signal.SIGCONT)
    federation.wait_for_nodes()
    run = federation.begin()
    federation.wait_for_rounds(1)
    federation.script("wait.sh", run)
    assert set(federation.weights(1)) == {0, 1, 2}


def test_members_learn_no_paths_of_the_server(federation: Restarting) -> None:
    """Flower answers get-run with what its table has; the log beside it is the server's own."""
    with contextlib.closing(sqlite3.connect(federation.state / "superlink.sqlite")) as database:
        runs = database.execute("SELECT * FROM run").fetchall()
    assert len(runs) == 1
    assert "state" not in str(runs)
    assert "server.npz" not in str(runs)


def test_health_reports_a_killed_server_app(federation: Restarting) -> None:
    federation.set_moods("ward-a", "sleep 600")
    goes_on(federation, 2)
    sleeper = federation.sleeper("ward-a", 300)
    assert federation.health().startswith("OK")
    federation.kill_app("serverapp")
    gone = "BAD the process of the run is gone: run start.sh\n"
    federation.wait_for(lambda: federation.health() == gone, 120, "health.sh to notice")
    os.kill(sleeper, signal.SIGKILL)
    run = federation.begin()
    federation.wait_for_rounds(2)
    federation.script("wait.sh", run)
    assert federation.health().startswith("OK")


def test_an_upgraded_node_works_beside_old_ones(federation: Restarting) -> None:
    if not OTHER_FLOWER.is_dir():
        require(["flwr 1.42.0, which make test-flower-versions installs"])
    federation.kill("ward-b")
    before = federation.environment
    path = f"{OTHER_FLOWER}{os.pathsep}{before.get('PYTHONPATH', '')}"
    federation.environment = before | {"PYTHONPATH": path}
    federation.start_node("ward-b")
    federation.environment = before
    federation.wait_for(
        lambda: federation.log("ward-b").count("SuperNode ID") > 2, 180, "the new node"
    )
    federation.wait_for_nodes()
    run = goes_on(federation, 3)
    federation.wait_for_rounds(3)
    federation.script("wait.sh", run)
    assert set(federation.weights(3)) == {0, 1, 2}
    events = (federation.state / "run-events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in events if '"event": "versions"' in line]
    (differs,) = [one["differs"] for one in found if one["differs"]]
    assert differs[0].startswith("flwr 1.42.0, here ")


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(2**12))


def test_a_run_goes_on_after_a_full_disk(federation: Restarting) -> None:
    federation.set_moods("ward-a", f"sleep {20 * processes.pace()}")
    goes_on(federation, 5)
    federation.sleeper("ward-a", 300)
    filler = federation.state / "filler"
    fill(filler)
    federation.wait_for(
        lambda: not is_locked(federation.run_folder), 300, "the run to end for want of space"
    )
    said = federation.health()
    assert "less than 5 MB free on the disk" in said
    assert "run start.sh" in said
    filler.unlink()
    federation.wait_for_nodes()
    run = federation.begin()
    federation.wait_for_rounds(5)
    federation.script("wait.sh", run)
    assert federation.health().startswith("OK")
