"""Flower's real SuperLink without its sockets: link state, object store, handlers and wire format.

What a member sends and what the server fetches passes as bytes through the handlers of the fleet and
the runtime interface, so that everything is decoded by Flower's own code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

OWNER = "owner"


class Link:
    """A SuperLink with one run and some nodes."""

    def __init__(self, num_nodes: int, database: str = ":flwr-in-memory:") -> None:
        manager = get_federation_manager(is_simulation=False)
        self.factory = LinkStateFactory(database, manager, ObjectStoreFactory())
        self.state = self.factory.state()
        self.run_id = self.state.create_run(
            "app", "1", "hash", {}, NOOP_FEDERATION_ID, None, OWNER, TaskType.SERVER_APP
        )
        run = self.state.get_run_info(run_ids=[self.run_id])[0]
        self.task = self.state.get_tasks(task_ids=[run.primary_task_id])[0]
        self.state.claim_task(run.primary_task_id)
        self.state.activate_task(run.primary_task_id)
        self.errors: list[Exception] = []  # that nodes were answered with
        self.nodes: list[int] = []
        for number in range(num_nodes):
            key = f"key {number}".encode()
            node = self.state.create_node(OWNER, OWNER, key, 1e6, name=f"ward-{number}")
            self.state.acknowledge_node_heartbeat(node, 1e6)
            self.nodes.append(node)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, 1, 1
        self.grid = HttpGrid(token="token", insecure=True)
        self.grid.set_run(run)
        self.grid._client = Runtime(self)  # type: ignore[assignment]

    def requests_to(self, node: int) -> list[Message]:
        """The messages that wait for a node, decoded as the node does."""
        # As the server app's process does all the time; without it Flower ends the run
        assert self.state.acknowledge_task_heartbeat(self.task.task_id)
        asked = PullMessagesRequest(node=Node(node_id=node))
        answer = fleet_handlers.pull_messages(asked, self.state, self.state.object_store)
        found = []
        for stored, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            contents = {name: self.state.object_store.get(name) for name in ids_in(tree)}
            message = inflate_object_from_contents(stored.metadata.message_id, contents)
            message.metadata.__dict__["_message_id"] = stored.metadata.message_id
            found.append(message)
            received = ConfirmMessageReceivedRequest(
                node=asked.node,
                run_id=self.run_id,
                message_object_id=stored.metadata.message_id,
            )
            fleet_handlers.confirm_message_received(received, self.state, self.state.object_store)
        return found

    def send(self, node: int, parcel: Parcel) -> None:
        """What a node pushes. An error in Flower's handler is the answer to the node alone."""
        push = PushMessagesRequest(
            node=Node(node_id=node),
            messages_list=[parcel.stored],
            message_object_trees=[parcel.tree],
        )
        try:
            push = PushMessagesRequest.FromString(push.SerializeToString())
            answer = fleet_handlers.push_messages(push, self.state)
            for name in answer.objects_to_push:
                if name in parcel.objects:
                    one = PushObjectRequest(
                        node=Node(node_id=node),
                        run_id=parcel.run_id or self.run_id,
                        object_id=name,
                        object_content=parcel.objects[name],
                        session_id=answer.session_id,
                    )
                    fleet_handlers.push_object(one, self.state)
        except Exception as error:
            self.errors.append(error)


class Parcel:
    """A message as a node sends it: its metadata, the tree of its objects, and their contents."""

    def __init__(self, message: Message) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        self.stored = message_to_proto(remove_content_from_message(message))
        self.tree = get_object_tree(message)
        self.objects = {
            name: one.deflate() for name, one in get_all_nested_objects(message).items()
        }
        self.run_id: int | None = None

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Change the content of one object, and all ids above it, so that every hash fits."""
        self._replace(name, change(self.objects.pop(name)))

    def named(self, kind: str) -> list[str]:
        """The ids of all objects of a kind, such as MetricRecord."""
        start = kind.encode() + b" "
        return [name for name, content in self.objects.items() if content.startswith(start)]

    def _replace(self, old: str, content: bytes) -> None:
        new = hashlib.sha256(content).hexdigest()
        self.objects[new] = content
        _rename(self.tree, old, new)
        if self.stored.metadata.message_id == old:
            self.stored.metadata.message_id = new
        for name, parent in list(self.objects.items()):
            if name != new and old.encode() in parent:
                changed = parent.replace(old.encode(), new.encode())
                del self.objects[name]
                self._replace(name, changed)


class Runtime:
    """The server app's client for the runtime interface."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def PushMessages(self, request: Any) -> Any:  # noqa: N802  Flower's name
        return self._call(runtime_handlers.push_messages, request)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        return self._call(runtime_handlers.pull_messages, request)

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        return self._call(runtime_handlers.push_object, request)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        return self._call(runtime_handlers.pull_object, request)

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        return self._call(runtime_handlers.confirm_message_received, request)

    def GetNodes(self, request: Any) -> Any:  # noqa: N802
        return self._call(runtime_handlers.get_nodes, request)

    def _call(self, handler: Callable[..., Any], request: Any) -> Any:
        received = type(request).FromString(request.SerializeToString())
        answer = handler(received, self._link.state, self._link.task)
        return type(answer).FromString(answer.SerializeToString())


def ids_in(tree: ObjectTree) -> list[str]:
    """All object ids of a tree."""
    found = [tree.object_id]
    for child in tree.children:
        found += ids_in(child)
    return found


def _rename(tree: ObjectTree, old: str, new: str) -> None:
    if tree.object_id == old:
        tree.object_id = new
    for child in tree.children:
        _rename(child, old, new)
