"""A SuperLink that keeps its nodes apart, and their updates off its disk.

    python -m clientwise.hosts.deployment.link ...    arguments as for flower-superlink

Calls of a node about messages and objects of other nodes are refused: see `fleet_calls.py`.
Members' updates do not reach its disk: see `retention.py`.
A node's call for messages is held until there may be one: Flower's nodes ask every three seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

from .known_flower import known_flower

with known_flower(__name__):
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .fleet_calls import FleetCalls
    from .patches import add_to_superlink
    from .retention import KEEP, keep_updates_in_memory

log = logging.getLogger("flwr.clientwise")
CLIENT_CLOSED = 499  # nginx's status for it; nobody reads it
HOLD_SECONDS = 10.0  # less than the 30 s after which a node gives a call up


class HeldCalls:
    """Holds a node's call for messages until there may be one. Flower has authenticated the node by now."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._mail: dict[int, asyncio.Event] = {}  # set: there may be a message for this node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See https://asgi.readthedocs.io."""
        state = scope.get("state", {})
        asked = state.get("protobuf_request")
        if not isinstance(asked, PullMessagesRequest):
            await self._app(scope, receive, send)
            if isinstance(asked, PushAppMessagesRequest):
                for message in asked.messages_list:
                    self._mail_of(message.metadata.dst_node_id).set()
            return
        mail = self._mail_of(asked.node.node_id)
        if not await _held(mail, receive):
            await Response(status_code=CLIENT_CLOSED)(scope, receive, send)
            return
        mail.clear()  # before Flower looks for messages: one that is stored meanwhile sets it again
        await self._app(scope, receive, send)
        answer = state.get("protobuf_response")
        if answer is not None and answer.messages_list:
            mail.set()  # there may be another one

    def _mail_of(self, node: int) -> asyncio.Event:
        return self._mail.setdefault(node, asyncio.Event())


async def _held(mail: asyncio.Event, receive: Receive) -> bool:
    """Wait for mail, `HOLD_SECONDS` at most; false if the node has hung up: it would not get its message."""

    async def hung_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.create_task(hung_up())
    tasks = [gone, asyncio.create_task(mail.wait())]
    try:
        await asyncio.wait(tasks, timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done()
    finally:
        for task in tasks:
            task.cancel()


class OwnCalls(BaseHTTPMiddleware):
    """Refuses a node's calls that are not about its own messages. Flower has parsed them by now."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._calls = FleetCalls()

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """See `starlette.middleware.base`."""
        if not request.url.path.startswith("/v1/fleet/"):
            return await call_next(request)
        asked: Any = getattr(request.state, "protobuf_request", None)
        refusal = self._calls.refusal(asked)
        if refusal is not None:
            log.error("REFUSED %s of node %s: %s", request.url.path, asked.node.node_id, refusal)
            return JSONResponse({"detail": refusal}, 403)
        response = await call_next(request)
        self._calls.answered(asked, getattr(request.state, "protobuf_response", None))
        return response


def main() -> None:
    """Run `flower-superlink` with the check and the store in memory."""
    add_to_superlink(Middleware(OwnCalls))
    add_to_superlink(Middleware(HeldCalls))
    if os.environ.get(KEEP) != "true":
        keep_updates_in_memory(sys.argv)
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
