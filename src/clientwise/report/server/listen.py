"""Start the server, on a port or on a Unix socket."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ...errors import ClientwiseError
from .app import make_app
from .roles import Roles

UNIX = "unix:"
HEADER_SECONDS = 10.0  # for a request's header to arrive
MOST_FILES = 16_384  # open connections, where the system allows so many


class ServeError(ClientwiseError, OSError):
    """The server cannot be started."""


# One of two classes, by what is installed.
class Prompt(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's protocol, which waits for a header for ever, with a limit for that.

    A thousand connections that never end their header would else keep everybody out.
    """

    _limit: asyncio.TimerHandle | None = None
    _end = b""  # of what has arrived of a header

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._limit is None:  # the next request
            self._expect_header()
        arrived = self._end + data
        self._end = arrived[-3:]
        if b"\r\n\r\n" in arrived:
            self._stop_waiting()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        self._limit = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        self._end = b""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def serve(
    folders: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    roles: Roles | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve run folders until interrupted.

    Args:
        folders: run folders, or folders that contain them.
        host: an address of this machine, or unix:PATH for a socket that only this user can open.
        port: 0 takes a free one; unused with a Unix socket.
        token: the operator's, which opens everything; required if other machines can connect.
        roles: the tokens of the board and of sites; they need a token of the operator.
        on_ready: called with the address once the server listens.
    """
    if not token and not is_loopback(host):
        raise ServeError(f"{host}: other machines can connect, so a token is required")
    app = make_app(folders, token or None, roles)
    listener = _listen(host, port)
    address = _address(host, listener)
    _allow_many_connections()
    config = uvicorn.Config(
        app,
        http=Prompt,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
        # Only the owner's processes can open a Unix socket: X-Forwarded-Proto is a proxy's. On a port,
        # Uvicorn believes it from 127.0.0.1.
        forwarded_allow_ips="*" if host.startswith(UNIX) else None,
    )
    on_ready(f"{address}?token={quote(token)}" if token else address)
    try:
        gc.freeze()  # PyTorch's objects: to look at all of them takes as long as a page
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _allow_many_connections() -> None:
    """Raise this process's limit of open files, which is often 1,024."""
    with suppress(ImportError, OSError, ValueError):  # Windows; a system that does not allow it
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if 0 <= soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host."""
    if host.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(host: str, listener: socket.socket) -> str:
    if host.startswith(UNIX):
        return host
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if host.startswith(UNIX):
            return _listen_on(Path(host.removeprefix(UNIX)))
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise ServeError(f"{host}:{port}: {reason}; choose another with --port or --host") from None


def _listen_on(path: Path) -> socket.socket:
    """A Unix socket that only its owner can open, from the moment it exists."""
    if path.is_socket():
        path.unlink()  # left by a server that was killed
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen()
    return listener
