"""A node's calls are about its own messages. With a real SuperLink: tests/deployment/test_members.py."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node

from clientwise.hosts.deployment.fleet_calls import KEPT_SECONDS, FleetCalls

MINE = Node(node_id=7)
OTHER = Node(node_id=8)
RUN = 3


def deliver(calls: FleetCalls, node: Node, name: str, ttl: float = 60.0) -> None:
    """A message with one object, pulled by a node."""
    about = Metadata(message_id=name, run_id=RUN, created_at=time.time(), ttl=ttl)
    tree = ObjectTree(object_id=name, children=[ObjectTree(object_id=f"{name}-content")])
    pulled = PullMessagesResponse(
        messages_list=[Message(metadata=about)], message_object_trees=[tree]
    )
    calls.answered(PullMessagesRequest(node=node), pulled)


def reply(node: Node, **about: Any) -> PushMessagesRequest:
    """A reply of a node to the message "one"; `about` changes it."""
    usual: dict[str, Any] = {
        "src_node_id": 7,
        "dst_node_id": 1,
        "run_id": RUN,
        "reply_to_message_id": "one",
    }
    message = Message(metadata=Metadata(**(usual | about)))
    return PushMessagesRequest(
        node=node, messages_list=[message], message_object_trees=[ObjectTree(object_id="reply")]
    )


@pytest.fixture
def calls() -> FleetCalls:
    one = FleetCalls()
    deliver(one, MINE, "one")
    deliver(one, OTHER, "two")
    return one


def test_a_reply_answers_a_message_that_its_node_got(calls: FleetCalls) -> None:
    assert calls.refusal(reply(MINE)) is None
    assert calls.refusal(reply(MINE)) is None  # sent again after a lost answer
    for about in (
        {"reply_to_message_id": ""},  # an instruction
        {"reply_to_message_id": "", "src_node_id": 1, "dst_node_id": 8},
        {"reply_to_message_id": "two"},
        {"src_node_id": 8, "reply_to_message_id": "two"},
        {"dst_node_id": 8},
        {"run_id": 4},
    ):
        assert calls.refusal(reply(MINE, **about)) is not None
    two = reply(MINE)
    two.messages_list.append(reply(MINE, src_node_id=1).messages_list[0])
    assert calls.refusal(two) == "one reply at a time"
    assert calls.refusal(PushMessagesRequest(node=MINE)) == "one reply at a time"


def test_a_node_pulls_and_confirms_its_own_messages(calls: FleetCalls) -> None:
    for node, name, allowed in ((MINE, "one", True), (MINE, "two", False), (OTHER, "two", True)):
        for one in (name, f"{name}-content"):
            pull = PullObjectRequest(node=node, run_id=RUN, object_id=one)
            assert (calls.refusal(pull) is None) == allowed
        confirm = ConfirmMessageReceivedRequest(node=node, run_id=RUN, message_object_id=name)
        assert (calls.refusal(confirm) is None) == allowed


def test_a_node_pushes_what_it_was_asked_for(calls: FleetCalls) -> None:
    asked = PushMessagesResponse(objects_to_push=["a"], session_id="session")
    calls.answered(reply(MINE), asked)
    for node, session, name, allowed in (
        (MINE, "session", "a", True),
        (MINE, "session", "b", False),
        (MINE, "", "a", False),
        (OTHER, "session", "a", False),
    ):
        push = PushObjectRequest(node=node, session_id=session, object_id=name)
        assert (calls.refusal(push) is None) == allowed


def test_other_calls_are_not_its_business_and_old_messages_are_forgotten(
    calls: FleetCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calls.refusal(PullMessagesRequest(node=MINE)) is None
    assert calls.refusal(None) is None
    calls.answered(reply(MINE), None)  # Flower refused it
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + KEPT_SECONDS + 61)
    calls.answered(PullMessagesRequest(node=MINE), PullMessagesResponse())
    assert calls.refusal(reply(MINE)) is not None
