"""Secure aggregation between real processes: the wire, the server's memory and its disk hold no secret."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from approvals import approve_once
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import clientwise as cw
import processes
from clientwise.flower import write_parts

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]  # the waits have limits of their own
CLIENTS = 5
STEPS = ["keys", "shares"]
STEPS += [
    f"{kind} {what}" for what in ("criteria", "vector") for kind in ("mask", "confirm", "unmask")
]
PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import secure_processes
secure_processes.main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
"""


def settings_in(folder: Path, tiny: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Five nodes with data, identities and ledgers of their own."""
    names = [f"ward-{client}" for client in range(CLIENTS)]
    partition = {"name": "dirichlet", "clients": CLIENTS, "concentration": 0.5}
    secret = {"name": "secret", "criteria": ["class_balance", "label_diversity"]}
    table = tiny | {
        "rounds": rounds,
        "seeds": [1],
        "federation": {},
        "evaluation": {"clients_every": 0},
        "methods": [secret | {"secure_aggregation": {}}],
    }
    parts = write_parts(
        table | {"partition": partition, "flower": {"clients": names}}, folder / "data"
    )
    identities = {}
    nodes = []
    for name, data in zip(names, parts, strict=False):
        key = Ed25519PrivateKey.generate()
        file = folder / f"{name}.identity"
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        identities[name] = key.public_key().public_bytes_raw().hex()
        own = {"data": str(data), "identity": str(file), "smallest-cell": 1}
        nodes.append(own | {"ledger": str(folder / f"{name}.ledger")})
    flower = {"clients": names, "identities": identities, "train_seconds": 600.0}
    flower |= {"input_shape": [1, 8, 8], "num_classes": 10, "evaluate_seconds": 600.0}
    table = {key: value for key, value in table.items() if key not in ("data", "partition")}
    for own in nodes:
        approve_once(own["ledger"], table | {"flower": flower}, cell=1)
    return {
        "folder": str(folder),
        "config": table | {"flower": flower},
        "nodes": nodes,
        "server_data": str(parts[-1]),
        "canaries": str(folder / "canaries"),
        "masked": True,
        "moods": {},
        "lies": {},
    }


@contextmanager
def run(settings: dict[str, Any]) -> Iterator[int]:
    """The process of the server, after it has run all rounds."""
    folder = Path(settings["folder"])
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    started = []
    for role in ("nodes", "server"):
        file = folder / f"{role}.json"
        file.write_text(json.dumps(settings | {"role": role}), encoding="utf-8")
        log = folder / f"{role}.log"
        started.append(processes.start(program, file, stdout=log, stderr=log))
    nodes, server = started
    assert nodes.pid
    assert server.pid
    try:
        processes.wait_until(
            lambda: (folder / "done").exists() or not (server.is_alive() and nodes.is_alive()),
            240,
            "the rounds",
            lambda: (folder / "server.log").read_text()[-3000:],
        )
        logs = [folder / "server.log", folder / "nodes.log"]
        assert (folder / "done").exists(), [log.read_text()[-3000:] for log in logs]
        yield server.pid
    finally:
        server.kill()
        os.killpg(nodes.pid, signal.SIGKILL)
        server.join()
        nodes.join()


def places_with_canaries(folder: Path, server: int) -> dict[str, int]:
    """How many of the nodes' secrets are on the wire, in the server's memory and on its disk."""
    lines = (folder / "canaries").read_text(encoding="utf-8").split()
    canaries = {bytes.fromhex(line) for line in lines}
    assert all(any(piece) for piece in canaries)
    disk = [path for path in (folder / "run").rglob("*") if path.is_file()]
    assert disk
    read = {
        "wire": [(folder / "wire").read_bytes()],
        "memory": processes.memory_of(server),
        "disk": (path.read_bytes() for path in disk),
    }
    found = dict[str, int]()
    for place, chunks in read.items():
        found[place] = len(
            {one for chunk in chunks for one in processes.pieces_in(chunk, canaries)}
        )
    return found


@pytest.mark.parametrize("masked", [True, False])
def test_the_wire_the_memory_and_the_disk_have_no_secret(
    tiny: dict[str, Any], tmp_path: Path, masked: bool
) -> None:
    """Without masks, the same search finds secrets of all nodes."""
    settings = settings_in(tmp_path, tiny, rounds=2) | {"masked": masked}
    with run(settings) as server:
        found = places_with_canaries(tmp_path, server)
    assert found["disk"] == 0
    if masked:
        assert found == {"wire": 0, "memory": 0, "disk": 0}
    else:
        assert found["wire"] == 3 * CLIENTS  # vectors of both rounds, and the criteria, which stay
        assert found["memory"] > 0


def test_members_that_vanish_or_lie_and_a_server_that_lies_expose_nobody(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    moods = [(step, "vanish") for step in STEPS]
    moods += [("keys", "false key"), ("shares", "garbage"), ("unmask vector", "garbage")]
    settings = settings_in(tmp_path, tiny, rounds=len(moods) + 4)
    settings["moods"] = {f"2 {number}": mood for number, mood in enumerate(moods, 1)}
    lies = len(moods) + 1
    settings["lies"] = {
        str(lies): "criteria",
        str(lies + 1): "vector",
        str(lies + 2): "other sums",
    }
    with run(settings) as server:
        assert places_with_canaries(tmp_path, server) == {"wire": 0, "memory": 0, "disk": 0}
    rows = cw.Run(tmp_path / "run").query(
        """SELECT round_num, notes,
               (SELECT COUNT(*) FROM participants WHERE participants.round_num = rounds.round_num
                AND refusal IS NULL) AS clients,
               (SELECT refusal FROM participants WHERE participants.round_num = rounds.round_num
                AND client = 2) AS refusal
           FROM rounds ORDER BY round_num"""
    )
    told = {number: (clients, notes, refusal or "") for number, notes, clients, refusal in rows}
    for number, (step, action) in enumerate(moods, 1):
        clients, notes, refusal = told[number]
        place = STEPS.index(step)
        if action == "garbage" or place > STEPS.index("mask vector"):
            assert clients == CLIENTS, (step, told[number])
        elif place > STEPS.index("mask criteria"):
            assert clients == 0, (step, told[number])
            assert "between the two sums" in notes
        else:
            assert clients == CLIENTS - 1, (step, told[number])
            assert step in refusal or "did not sign these keys" in refusal
    assert "wrong share" in told[len(moods)][1]
    for number in (lies, lies + 1, lies + 2):
        assert "the server lied" in told[number][1]
    # Each of five nodes signed one of the two lists, and none sent a secret for either. With other sums
    # for one node, the others send theirs, and the server reads noise.
    obtained = (tmp_path / "obtained").read_text(encoding="utf-8").splitlines()
    assert obtained == [
        f"{lies}: 5 signatures, 0 secrets",
        f"{lies + 1}: 5 signatures, 0 secrets",
        f"{lies + 2}: 4 secrets, noise",
    ]
    assert told[lies + 3][0] == CLIENTS
