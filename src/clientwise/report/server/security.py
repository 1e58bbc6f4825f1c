"""Which requests are answered, by their token or host name, and what a browser may do with answers."""

from __future__ import annotations

import secrets
from urllib.parse import quote, unquote

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .responses import send_error
from .roles import (
    OPERATOR,
    Reader,
    Roles,
    RolesError,
)

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
NO_TOKEN = "A token is required: open the address that you were given, with ?token=..."
NO_ROLES = "The roles file cannot be read. The operator sees why with `clientwise token ROLES`."
READER = "clientwise.reader"  # key of a request's scope


def guards(token: str | None, roles: Roles | None) -> list[Middleware]:
    """What every request passes first: security headers, then the check of token or host name.

    Without the check of the host name, a foreign page could point its own name here and read runs.
    """
    if token is not None:
        return [Middleware(SecurityHeaders), Middleware(TokenCheck, token=token, roles=roles)]
    names = Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False)
    return [Middleware(SecurityHeaders), names, Middleware(WithoutToken)]


def reader_of(request: Request) -> Reader:
    """Who sent a request."""
    found: Reader = request.scope[READER]
    return found


class SecurityHeaders:
    """Adds headers that forbid the browser whatever the page does not need.

    An answer that is a file with its own scripts has a policy of its own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to its answer."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class WithoutToken:
    """Every reader is the operator: only this machine can connect."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, as the operator's."""
        await self.app({**scope, READER: OPERATOR}, receive, send)


class TokenCheck:
    """Requires a token: once in the address, afterwards in a cookie that no script can read.

    A program, for example a monitoring system, sends it as `Authorization: Bearer TOKEN`.
    """

    def __init__(self, app: ASGIApp, token: str, roles: Roles | None) -> None:
        self.app = app
        self.token = token
        self.roles = roles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on as that of its reader; without a valid token, answer with status 401."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        _, port = scope["server"]
        cookie = f"clientwise-{port}"  # cookies are shared by all ports, and two servers may run
        in_address = request.query_params.get("token")
        in_cookie = unquote(request.cookies.get(cookie, ""))
        try:
            by_address = self._reader(in_address)
            reader = by_address or self._reader(_bearer(request)) or self._reader(in_cookie)
        except (RolesError, OSError):
            await send_error(request, 503, NO_ROLES)(scope, receive, send)
            return
        if reader is None:
            await send_error(request, 401, NO_TOKEN)(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and by_address and in_address:
                value = f"{cookie}={quote(in_address, safe='')}; Path=/; HttpOnly; SameSite=Strict"
                if scope["scheme"] == "https":  # as a proxy on this machine says
                    value += "; Secure"
                MutableHeaders(scope=message).append("Set-Cookie", value)
            await send(message)

        await self.app({**scope, READER: reader}, receive, send_with_cookie)

    def _reader(self, given: str | None) -> Reader | None:
        if not given:
            return None
        if secrets.compare_digest(given.encode(), self.token.encode()):
            return OPERATOR
        return self.roles.reader(given) if self.roles else None


def _bearer(request: Request) -> str | None:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return given if kind.lower() == "bearer" else None
