"""A SuperLink that keeps its nodes apart, and their updates off its disk.

    python -m clientwise.flower.link ...    arguments as for flower-superlink

Calls of a node about messages and objects of other nodes are refused: see `fleet_calls.py`.
Members' updates do not reach its disk: see `retention.py`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from .fleet_calls import FleetCalls
from .patches import add_to_superlink
from .retention import KEEP, keep_updates_in_memory

log = logging.getLogger("flwr.clientwise")


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
    if os.environ.get(KEEP) != "true":
        keep_updates_in_memory(sys.argv)
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
