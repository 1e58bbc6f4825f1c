"""What a node may ask of the SuperLink: its own messages and their objects, nothing of other nodes.

Flower checks who calls, not what the call is about. A node could

- store a message as an instruction of the server to another node (`push-messages` that replies to
  nothing), or reply in the name of another node;
- learn from an object's hash whether any node has sent that object (`pull-object`), and read it;
- delete another node's messages (`confirm-message-received`).

`FleetCalls` remembers what was delivered to each node and which objects each node was asked to
send. Calls about anything else are refused with 403. The memory ends with the process, as does
every run: Flower marks the runs of a SuperLink that was restarted as failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)

KEPT_SECONDS = 300.0  # after a message has expired: a node may send its reply again


@dataclass(frozen=True)
class _Delivered:
    """A message that a node pulled."""

    run_id: int
    objects: frozenset[str]
    until: float  # unix time
    # What the node sends in reply: the objects that each session expects
    sessions: dict[str, frozenset[str]] = field(default_factory=dict)


class FleetCalls:
    """Which calls of the fleet API are about a node's own messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._delivered: dict[int, dict[str, _Delivered]] = {}  # by node, by message

    def refusal(self, request: Any) -> str | None:
        """Why a call is refused; None if it is allowed.

        Args:
            request: of a node that Flower has authenticated, as protobuf.
        """
        with self._lock:
            if isinstance(request, PushMessagesRequest):
                return self._refused_reply(request)
            if isinstance(request, PullObjectRequest):
                mine = any(
                    request.object_id in one.objects for one in self._of(request.node.node_id)
                )
                return None if mine else "the object belongs to no message to this node"
            if isinstance(request, PushObjectRequest):
                mine = any(
                    request.object_id in one.sessions.get(request.session_id, ())
                    for one in self._of(request.node.node_id)
                )
                return None if mine else "the object belongs to no reply of this node"
            if isinstance(request, ConfirmMessageReceivedRequest):
                messages = self._delivered.get(request.node.node_id, {})
                mine = request.message_object_id in messages
                return None if mine else "the message was not sent to this node"
        return None

    def answered(self, request: Any, response: Any) -> None:
        """Remember what a call gave the node, or asked of it."""
        with self._lock:
            if isinstance(response, PullMessagesResponse):
                self._remember(request.node.node_id, response)
            elif isinstance(response, PushMessagesResponse):
                replied_to = request.messages_list[0].metadata.reply_to_message_id
                message = self._delivered[request.node.node_id][replied_to]
                message.sessions[response.session_id] = frozenset(response.objects_to_push)

    def _refused_reply(self, request: PushMessagesRequest) -> str | None:
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            return "one reply at a time"
        about = request.messages_list[0].metadata
        node = request.node.node_id
        if about.src_node_id != node or about.dst_node_id != SUPERLINK_NODE_ID:
            return "a node sends replies in its own name, to the server"
        message = self._delivered.get(node, {}).get(about.reply_to_message_id)
        if message is None or message.run_id != about.run_id:
            return "not a reply to a message that this node got"
        return None

    def _remember(self, node: int, response: PullMessagesResponse) -> None:
        now = time.time()
        messages = {
            name: one for name, one in self._delivered.get(node, {}).items() if one.until > now
        }
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            about = message.metadata
            until = about.created_at + about.ttl + KEPT_SECONDS
            delivered = _Delivered(about.run_id, frozenset(_objects(tree)), until)
            messages[about.message_id] = delivered
        self._delivered[node] = messages

    def _of(self, node: int) -> list[_Delivered]:
        return list(self._delivered.get(node, {}).values())


def _objects(tree: ObjectTree) -> Iterator[str]:
    yield tree.object_id
    for child in tree.children:
        yield from _objects(child)
