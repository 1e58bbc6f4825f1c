"""A node's link is lost for minutes, silently: packets vanish, and no connection is closed.

The guide promises this for ten minutes. Ten minutes outlast `SILENCE` (180 s by default), after
which a node starts anew, three times. Here `SILENCE` is 45 s, and the link is lost until the node
has started anew twice. Flower's own limit, 60 to 90 s until a node counts as offline, is as it is.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

from federation import Federation, require
from test_operation import LOOP

import processes

pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,  # about five minutes
    pytest.mark.timeout(3600),  # the waits have limits of their own
]
NAMES = ["ward-a", "ward-b"]
FAR = "ward-b"  # the node behind the link
PLACE = f"cw{os.getpid()}-far"
WIRE = f"cw{os.getpid()}"
SERVER = "10.78.0.1"
SILENCE = "45"  # seconds: longer than a busy machine takes to answer
ENDED = "the server has not answered for"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Linked(Federation):
    """Nodes that are started again whenever they end, as by their systemd unit."""

    def start_node(self, name: str) -> None:
        """Start a client's SuperNode, again and again."""
        data = str(self.app / "data" / f"{name}.npz")
        script = str(self.app / "deploy" / "supernode.sh")
        self.launch(name, self.at(name, "bash", "-c", LOOP, script, name, data))

    def events(self) -> str:
        """The events of the run so far."""
        return (self.state / "run-events.jsonl").read_text()


@pytest.fixture
def link() -> Iterator[None]:
    """A network of its own for one node, and a wire from there to the server's."""
    require(["ip", "openssl", "ssh-keygen"], root=True)
    ip("netns", "add", PLACE)
    try:
        ip("link", "add", WIRE, "type", "veth", "peer", "name", "eth0", "netns", PLACE)
        ip("address", "add", f"{SERVER}/24", "dev", WIRE)
        ip("link", "set", WIRE, "up")
        for command in (["link", "set", "lo", "up"], ["link", "set", "eth0", "up"]):
            ip("-n", PLACE, *command)
        ip("-n", PLACE, "address", "add", "10.78.0.2/24", "dev", "eth0")
        yield
    finally:
        ip("netns", "del", PLACE)  # and its end of the wire


@pytest.fixture
def federation(link: None, tmp_path: Path) -> Iterator[Linked]:
    def enter(place: str) -> list[str]:
        return ["ip", "netns", "exec", PLACE] if place == FAR else []

    one = Linked(tmp_path, NAMES, host=SERVER, enter=enter)
    pace = processes.pace()
    one.environment |= {"LISTEN": SERVER, "SILENCE": SILENCE}
    limits = {"min_replies": 1, "train_seconds": 300 * pace, "grace_seconds": 20 * pace}
    one.configure({"rounds": 200, "flower": limits, "evaluation": {"clients_every": 200}})
    yield one
    one.stop()


def test_a_node_returns_after_its_link(federation: Linked) -> None:
    federation.start()
    federation.wait_for_nodes()
    run = federation.begin()
    federation.wait_for(
        lambda: set(federation.weights(federation.rounds())) == {0, 1}, 300, "both to take part"
    )

    ip("link", "set", WIRE, "down")
    before = federation.rounds()
    federation.wait_for(lambda: federation.log(FAR).count(ENDED) >= 2, 300, "two new starts")
    federation.wait_for(
        lambda: (
            federation.rounds() > before and set(federation.weights(federation.rounds())) == {0}
        ),
        300,
        "a round without the node",
    )
    assert '"reason": "not connected"' in federation.events()

    ip("link", "set", WIRE, "up")
    federation.wait_for(
        lambda: set(federation.weights(federation.rounds())) == {0, 1}, 300, "the node to return"
    )
    federation.script("stop.sh", run)
