"""A member with a registered key attacks another member through the SuperLink, and gets nothing."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[deployment]")

import httpx
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from federation import Federation
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.utils import uint64_to_int64
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

import processes
from clientwise.hosts.flower.wire import Request, pack, write_request

pytestmark = [pytest.mark.flower, pytest.mark.timeout(3600)]  # the waits have limits of their own
VICTIM = "ward-a"
MEMBER = "ward-b"


class Attacker:
    """Calls the fleet API with a member's key, outside of Flower's SuperNode."""

    def __init__(self, federation: Federation, run_id: int) -> None:
        lines = (federation.state / "members" / "nodes").read_text().splitlines()
        nodes = {name: int(node) for node, name in map(str.split, lines)}
        key = load_ssh_private_key((federation.state / "keys" / MEMBER).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.run_id = run_id
        self.victim = nodes[VICTIM]
        # SQLite's integers have a sign
        self.victim_in_sql = uint64_to_int64(self.victim)
        self.node = Node(node_id=nodes[MEMBER])
        self.client = FleetHttpClient.from_server_address(
            f"127.0.0.1:{federation.environment['PORT']}",
            False,
            (federation.state / "certificates" / "ca.crt").read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )

    def command(self, sender: int, reply_to: str = "") -> None:
        """An instruction to the victim: evaluate this model."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, sender, 1
        content = write_request(Request(0, 1), pack(torch.zeros(1, 2410)))
        message = Message(content, self.victim, "evaluate", ttl=600)
        message.metadata.__dict__["_reply_to_message_id"] = reply_to
        message.metadata.__dict__["_message_id"] = message.object_id
        response = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
        )
        for name, one in get_all_nested_objects(message).items():
            if name in response.objects_to_push:
                self.push_object(name, one.deflate(), response.session_id)

    def push_object(self, name: str, content: bytes, session: str = "") -> None:
        request = PushObjectRequest(
            node=self.node,
            run_id=self.run_id,
            object_id=name,
            object_content=content,
            session_id=session,
        )
        self.client.PushObject(request)

    def pull_object(self, name: str) -> bool:
        """Whether an object exists."""
        request = PullObjectRequest(node=self.node, run_id=self.run_id, object_id=name)
        return self.client.PullObject(request).object_found

    def confirm(self, message: str) -> None:
        request = ConfirmMessageReceivedRequest(
            node=self.node, run_id=self.run_id, message_object_id=message
        )
        self.client.ConfirmMessageReceived(request)


def rows(federation: Federation, sql: str) -> list[Any]:
    """The first column of a query to the SuperLink's database."""
    file = f"file:{federation.state / 'superlink.sqlite'}?mode=ro"
    with contextlib.closing(sqlite3.connect(file, uri=True)) as database:
        return [row[0] for row in database.execute(sql)]


def status(call: Callable[..., Any], *arguments: Any) -> int:
    """The HTTP status of a call."""
    try:
        call(*arguments)
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    one = Federation(tmp_path, [VICTIM, MEMBER])
    one.environment["KEEP_UPDATES"] = "true"  # on the disk, so that the tests see what is there
    seconds = 300 * processes.pace()
    limits = {"train_seconds": seconds, "evaluate_seconds": seconds, "min_replies": 1}
    one.configure({"rounds": 2, "flower": limits, "evaluation": {"clients_every": 2}})
    try:
        yield one
    finally:
        one.stop()


@contextlib.contextmanager
def start_run(federation: Federation) -> Iterator[Attacker]:
    """A run in which the victim's node is slow: its instruction waits at the SuperLink."""
    federation.start()
    federation.wait_for_nodes()
    federation.send_signal(VICTIM, signal.SIGSTOP)
    run = federation.begin()
    federation.wait_for(
        lambda: len(rows(federation, "SELECT message_id FROM message_ins")) == 2, 120, "round 1"
    )
    attacker = Attacker(federation, run)
    with attacker.client:
        yield attacker


def finish(federation: Federation) -> None:
    """The members' own calls are accepted, and the run ends well."""
    federation.send_signal(VICTIM, signal.SIGCONT)
    federation.wait_for_rounds(2)
    federation.wait_until_finished()
    assert len(federation.weights(2)) == 2


def test_a_member_reaches_no_other_member(federation: Federation) -> None:
    with start_run(federation) as attacker:
        where = f"dst_node_id = {attacker.victim_in_sql}"
        (theirs,) = rows(federation, f"SELECT message_id FROM message_ins WHERE {where}")
        # A message is stored before its content has arrived.
        available = "SELECT object_id FROM objects WHERE is_available = 1"
        federation.wait_for(lambda: theirs in rows(federation, available), 60, "the instruction")
        assert status(attacker.command, SUPERLINK_NODE_ID) == 403  # as the server
        assert status(attacker.command, attacker.node.node_id) == 403
        # A reply in the victim's name.
        assert status(attacker.command, attacker.victim, theirs) == 403
        assert status(attacker.pull_object, theirs) == 403
        assert status(attacker.pull_object, "0" * 64) == 403  # the same for what does not exist
        assert status(attacker.confirm, theirs) == 403
        assert status(attacker.push_object, theirs, b"") == 403
    assert "REFUSED /v1/fleet/push-messages" in federation.log("superlink")
    finish(federation)
    # What the members sent cannot be read on the server's disk.
    for path in federation.state.glob("superlink.sqlite*"):
        assert b"training_loss" not in path.read_bytes()


def test_a_node_obeys_nobody_but_its_server(federation: Federation) -> None:
    """Flower's own SuperLink stores the instruction of a member; the node refuses it."""
    script = federation.app / "deploy" / "superlink.sh"
    script.write_text(
        script.read_text().replace("python -m clientwise.hosts.deployment.link", "flower-superlink")
    )
    with start_run(federation) as attacker:
        assert status(attacker.command, SUPERLINK_NODE_ID) == 200
    federation.send_signal(VICTIM, signal.SIGCONT)
    refused = "REFUSED to evaluate: the instruction is not signed"
    federation.wait_for(lambda: refused in federation.log(VICTIM), 120, "the victim to refuse")
    finish(federation)
