"""A node's call for messages is held until there may be one, and no message goes to a node that hung up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs clientwise[flower]")

from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest

from clientwise.hosts.deployment import link
from clientwise.hosts.deployment.link import HeldCalls

LIMIT = 0.5  # seconds, in the place of HOLD_SECONDS


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HOLD_SECONDS", LIMIT)


class SuperLink:
    """What Flower does with a call once it comes: store messages, or deliver one."""

    def __init__(self) -> None:
        self.stored: list[int] = []  # messages, by the node that they are for
        self.delivered: list[int] = []
        self.calls = HeldCalls(self._handle)

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        asked = scope["state"]["protobuf_request"]
        if isinstance(asked, PushAppMessagesRequest):
            self.stored += [one.metadata.dst_node_id for one in asked.messages_list]
            return
        answer = PullMessagesResponse()
        if asked.node.node_id in self.stored:
            self.stored.remove(asked.node.node_id)
            self.delivered.append(asked.node.node_id)
            answer.messages_list.add()
        scope["state"]["protobuf_response"] = answer

    async def push(self, *nodes: int) -> None:
        """The server app sends a message to each of these nodes."""
        messages = [Message(metadata=Metadata(dst_node_id=node)) for node in nodes]
        await self._call(PushAppMessagesRequest(messages_list=messages), connected)

    async def pull(self, node: int, receive: Callable[[], Awaitable[Any]] | None = None) -> float:
        """A node asks for messages; how many seconds it waited."""
        began = time.monotonic()
        await self._call(PullMessagesRequest(node=Node(node_id=node)), receive or connected)
        return time.monotonic() - began

    async def _call(self, request: Any, receive: Callable[[], Awaitable[Any]]) -> None:
        scope = {"type": "http", "state": {"protobuf_request": request}}
        await self.calls(scope, receive, lambda message: asyncio.sleep(0))


async def connected() -> Any:
    """What a server hears of a client that waits for its answer: nothing."""
    await asyncio.sleep(3600)


def test_a_call_waits_for_a_message_and_not_longer() -> None:
    async def scenario() -> None:
        superlink = SuperLink()
        waiting = asyncio.create_task(superlink.pull(7))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await superlink.push(8)
        await superlink.push(7)
        assert await waiting < LIMIT
        assert superlink.delivered == [7]

    asyncio.run(scenario())


def test_a_call_without_a_message_comes_back() -> None:
    async def scenario() -> None:
        superlink = SuperLink()
        assert await superlink.pull(7) >= LIMIT
        assert superlink.delivered == []

    asyncio.run(scenario())


def test_messages_that_came_before_or_together_wait_for_nothing() -> None:
    async def scenario() -> None:
        superlink = SuperLink()
        await superlink.push(7, 7)
        assert await superlink.pull(7) + await superlink.pull(7) < LIMIT
        assert superlink.delivered == [7, 7]
        assert await superlink.pull(7) < LIMIT  # looks once more, and finds nothing
        assert await superlink.pull(7) >= LIMIT

    asyncio.run(scenario())


def test_no_message_is_lost_to_a_node_that_hung_up() -> None:
    """A node that is started again: its last call must not take the message."""

    async def scenario() -> None:
        superlink = SuperLink()
        hung_up = asyncio.Event()
        heard = iter([{"type": "http.request"}])

        async def receive() -> Any:
            for message in heard:
                return message
            await hung_up.wait()
            return {"type": "http.disconnect"}

        first = asyncio.create_task(superlink.pull(7, receive))
        await asyncio.sleep(0.1)
        hung_up.set()
        await first
        await superlink.push(7)
        assert superlink.delivered == []
        assert await superlink.pull(7) < LIMIT
        assert superlink.delivered == [7]

    asyncio.run(scenario())
