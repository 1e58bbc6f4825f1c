"""Who may read the page, and what a browser may do with it."""

from __future__ import annotations

import secrets
from urllib.parse import quote, unquote

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .responses import send_error

# Starlette 1.3, which Flower needs, reads only "[" of "[::1]:8000", so "[" must be allowed. Then
# any IPv6 address passes, which is harmless: the check is against foreign names that resolve to
# this machine, and an address resolves only to itself.
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1", "[")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_TOKEN = "A token is required: open the address that `clientwise serve` printed, with ?token=..."


def guards(token: str | None) -> list[Middleware]:
    """What every request passes first: security headers, then the check of token or host name.

    Without the check of the host name, a foreign page could point its own name here and read runs.
    """
    if token is not None:
        return [Middleware(SecurityHeaders), Middleware(TokenCheck, token=token)]
    names = Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False)
    return [Middleware(SecurityHeaders), names]


class SecurityHeaders:
    """Adds headers that forbid the browser whatever the page does not need."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to its answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class TokenCheck:
    """Requires the token: once in the address, afterwards in a cookie that no script can read.

    A program, for example a monitoring system, sends it as `Authorization: Bearer TOKEN`.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if it has the token; else answer with status 401."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        _, port = scope["server"]
        cookie = f"clientwise-{port}"  # cookies are shared by all ports, and two servers may run
        in_address = request.query_params.get("token")
        in_cookie = unquote(request.cookies.get(cookie, ""))
        if not any(map(self._fits, (in_address, in_cookie, _bearer(request)))):
            await send_error(request, 401, NO_TOKEN)(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and self._fits(in_address):
                value = f"{cookie}={quote(self.token, safe='')}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("Set-Cookie", value)
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _fits(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())


def _bearer(request: Request) -> str | None:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return given if kind.lower() == "bearer" else None
