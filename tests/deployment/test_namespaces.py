"""A federation across network namespaces, over a wire that delays every packet and loses some (`make test-netns`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from federation import Federation

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]
NAMES = ["ward-a", "ward-b", "ward-c"]
DELAY, LOSS = 0.05, 0.01  # seconds each way; share of the packets
PREFIX = f"cw{os.getpid()}-"


@pytest.fixture
def wire() -> Iterator[subprocess.Popen[str]]:
    """One namespace for the server and one for each client, the wire between them, and one for the SuperLink alone."""
    places = [PREFIX + place for place in ("server", *NAMES)]
    link = PREFIX + "link"
    try:
        for place in (*places, link):
            subprocess.run(["ip", "netns", "add", place], check=True, capture_output=True)
        subprocess.run(["ip", "-n", link, "link", "set", "lo", "up"], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root and `ip netns` (iproute2)")
    command = [sys.executable, str(Path(__file__).with_name("bad_wire.py")), "--delay", str(DELAY), "--loss", str(LOSS)]
    process = subprocess.Popen([*command, *places], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)
        for place in (*places, link):
            subprocess.run(["ip", "netns", "del", place], check=True)


def test_a_federation_across_a_bad_wire(wire: subprocess.Popen[str], tmp_path: Path) -> None:
    federation = Federation(
        tmp_path, NAMES, host="10.77.0.1", proxy=True, enter=lambda place: ["ip", "netns", "exec", PREFIX + place]
    )
    try:
        federation.configure({"rounds": 2})
        federation.start()
        federation.wait_for_nodes()
        federation.begin()
        federation.wait_for(lambda: federation.rounds() == 2, 480, "both rounds")
    finally:
        federation.stop()
    wire.terminate()
    seen, lost = (int(word) for word in wire.communicate(timeout=10)[0].replace(",", "").split()[::2][:2])
    assert seen > 500
    assert 0 < lost < seen / 10
    assert federation.weights(2) == pytest.approx(federation.weights_here(2), abs=1e-6)
