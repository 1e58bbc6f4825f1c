"""The live page: a read-only web server over run folders. What it shows is in `views.py`, how in `page/`."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import ipaddress
import math
import os
import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ClientwiseError, NotBegunError, RunError
from ..runs.database import time_limit
from ..runs.folder import RunFolder
from ..runs.lock import is_locked
from ..runs.schema import DATABASE
from . import views
from .document import Content, Document, as_json, counted, without_none
from .html import ASSETS, asset, to_json
from .metrics import Sample, as_text, samples_of
from .runs import find_runs

# "[" is all that Starlette 1.3, which Flower needs, sees of "[::1]:8000". It lets any bare IPv6 address pass, which is
# harmless: the check is against names of others that resolve to this machine, and an address resolves to itself.
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1", "[")
UNIX = "unix:"
MAX_CACHED = 32  # documents
REST, MOST_REST = 20, 15.0  # an answer holds for so many times what it took, and seconds: reading must not slow a run
DOCUMENT_SECONDS, ROW_SECONDS = (
    20.0,
    2.0,
)  # of processor time, to read what a page shows and what a line of the list does
MAX_COMPARED = 20  # runs on one page
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_Packed = tuple[bytes, bytes]  # as it is, and compressed
MEDIA_TYPES = {"css": "text/css", "js": "text/javascript"}


class ServeError(ClientwiseError, OSError):
    """The server cannot be started, and why."""


def serve(
    folders: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve run folders until interrupted. `on_ready` gets the address, once the port is taken.

    unix:PATH as `host` is a socket that only this user can open: for a proxy that asks who is there.
    """
    if not token and not is_loopback(host):
        raise ServeError(f"{host} can be reached by others: a token is needed")
    app = make_app(folders, token or None)
    listener = _listen(host, port)
    port = 0 if host.startswith(UNIX) else listener.getsockname()[1]
    config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False, ws="none", lifespan="off")
    config.timeout_graceful_shutdown = 1
    shown = f"[{host}]" if ":" in host else host
    address = host if host.startswith(UNIX) else f"http://{shown}:{port}/"
    on_ready(address + (f"?token={quote(token)}" if token else ""))
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if host.startswith(UNIX):
            return _listen_on(Path(host.removeprefix(UNIX)))
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ServeError(f"{host}:{port}: {error.strerror or error}; choose another with --port or --host") from None


def _listen_on(path: Path) -> socket.socket:
    """A socket in the file system that nobody but its owner can open, not even for a moment."""
    if path.is_socket():
        path.unlink()  # of a server that was killed
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen()
    return listener


def make_app(folders: Sequence[Path], token: str | None = None) -> Starlette:
    """The web application. Without a token it answers only to the names of this machine."""
    runs = _Runs(folders)

    async def page(request: Request) -> Response:
        known = await run_in_threadpool(runs.find)
        return Response(_page(), 200 if set(_names(request)) <= known.keys() else 404, media_type="text/html")

    async def document(request: Request) -> Response:
        return _pick(request, await runs.document(_names(request)), {"Cache-Control": "no-store"}, "application/json")

    async def version(request: Request) -> Response:
        standing, again = await runs.standing(_names(request))
        return _json(to_json({**standing.as_json(), "again": again}))

    async def audit(request: Request) -> Response:
        kind, query = _path(request).rpartition("/")[2], request.query_params
        try:
            method, seed, number = query["method"], _whole(query["seed"]), _whole(query[kind])
        except (KeyError, ValueError):
            raise RunError(f"an audit needs method, seed and {kind}, the last two as whole numbers") from None
        show = views.audit_round if kind == "round" else views.audit_client

        def found() -> Document:
            with time_limit(DOCUMENT_SECONDS):
                return show(runs.open(request.path_params["id"]), method, seed, number)

        return _json(to_json(as_json(await run_in_threadpool(found))))

    async def one_seed(request: Request) -> Response:
        try:
            seed = _whole(request.query_params["seed"])
        except (KeyError, ValueError):
            raise RunError("name the seed to show, as a whole number: ?seed=2") from None

        def found() -> Document:
            with time_limit(DOCUMENT_SECONDS):
                return views.one_seed([runs.open(name) for name in _names(request)], seed)

        return _json(to_json(as_json(await run_in_threadpool(found))))

    async def metrics(request: Request) -> Response:
        text = await run_in_threadpool(runs.metrics)
        return Response(text, 200, {"Cache-Control": "no-store"}, "text/plain; version=0.0.4; charset=utf-8")

    async def health(request: Request) -> Response:
        return _json(to_json({"status": "ok", "runs": len(await run_in_threadpool(runs.find))}))

    routes = [
        Route("/", page),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/runs/{id}", page),
        Route("/compare", page),
        Route("/api/list", document),
        Route("/api/list/version", version),
        Route("/api/runs/{id}", document),
        Route("/api/runs/{id}/version", version),
        Route("/api/runs/{id}/seed", one_seed),
        Route("/api/runs/{id}/round", audit),
        Route("/api/runs/{id}/client", audit),
        Route("/api/compare", document),
        Route("/api/compare/version", version),
        Route("/api/compare/seed", one_seed),
        Route("/static/{fingerprint}/{name}", _static),
    ]
    # Without a token, only the names of this machine: or a page elsewhere could point its own name here and read along.
    guard = (
        Middleware(_Token, token=token)
        if token is not None
        else Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False)
    )
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Headers), guard],
        exception_handlers={HTTPException: _refuse, RunError: _explain, Exception: _fail},
    )
    app.router.redirect_slashes = False  # an address is right or it is not
    return app


@dataclass(frozen=True)
class Standing:
    """How far a run is. With another version there is something new to show."""

    version: str
    state: str | None  # running, finished or stopped; None of the list of runs
    status: str  # the same in a line
    rounds: int | None = None  # done; of a single run
    total: int | None = None  # planned

    def as_json(self) -> dict[str, object]:
        """As the page reads it."""
        return {"state": self.state, **without_none(asdict(self))}


@dataclass(frozen=True)
class _Answer:
    """What is told of runs, to all who ask until it is to be looked at again."""

    standing: Standing
    document: _Packed | None  # None: nobody has asked for more than how far it is
    again: float  # by the clock


class _Runs:
    """The run folders, looked up by id, and the documents made of them. No path ever comes from a request."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._answers: OrderedDict[tuple[str, ...], _Answer] = OrderedDict()  # by ids; none: the list of all
        self._making: dict[tuple[str, ...], asyncio.Task[_Answer]] = {}  # one at a time of each
        self._rows: dict[Path, tuple[str, list[Content]]] = {}  # of the list of runs: version, row
        self._samples: dict[Path, tuple[str, list[Sample]]] = {}  # for a monitoring system, likewise

    def find(self) -> dict[str, Path]:
        """All run folders by id: what was given, or what lies in it."""
        return find_runs(self._folders)

    def folder(self, name: str) -> Path:
        """The folder with this id."""
        try:
            return self.find()[name]
        except KeyError:
            raise HTTPException(404, f"there is no run {name!r} here") from None

    def open(self, name: str) -> RunFolder:
        """The run with this id, under this id."""
        return RunFolder(self.folder(name), name)

    async def standing(self, names: Sequence[str]) -> tuple[Standing, float]:
        """The version of what is shown, and how far it is; and in how many seconds there may be something new."""
        answer = await self._answer(tuple(names), whole=False)
        return answer.standing, max(0.0, answer.again - time.monotonic())

    async def document(self, names: Sequence[str]) -> _Packed:
        """The overview of runs, or the list of all."""
        answer = await self._answer(tuple(names), whole=True)
        assert answer.document is not None
        return answer.document

    async def _answer(self, names: tuple[str, ...], whole: bool) -> _Answer:
        """What was told last, for a while and while it is made anew; whoever comes first makes it for all who wait."""
        while True:
            answer = self._answers.get(names)
            if answer and (answer.document or not whole) and (names in self._making or time.monotonic() < answer.again):
                return answer
            if names not in self._making:
                self._making[names] = asyncio.create_task(self._make(names, whole))
            answer = await asyncio.shield(self._making[names])  # that one reader leaves is nothing to the others
            if answer.document or not whole:
                return answer

    async def _make(self, names: tuple[str, ...], whole: bool) -> _Answer:
        try:
            answer = await run_in_threadpool(self._look, names, whole)
            self._answers[names] = answer
            self._answers.move_to_end(names)
            if len(self._answers) > MAX_CACHED:
                self._answers.popitem(last=False)
            return answer
        finally:
            del self._making[names]  # known or not: anyone can ask for any name

    def _look(self, names: tuple[str, ...], whole: bool) -> _Answer:
        began, last = time.thread_time(), self._answers.get(names)
        with time_limit(DOCUMENT_SECONDS if names else math.inf):  # of the list every line has a limit of its own
            standing = self._standing(names)
            document = last.document if last else None
            is_old = document is None or last is None or last.standing.version != standing.version
            if is_old and (whole or document is not None):  # also unasked: what is told to be new is there for all
                document = self._build(names, standing)
        rest = min(MOST_REST, REST * (time.thread_time() - began))
        return _Answer(standing, document, time.monotonic() + rest)

    def _standing(self, names: Sequence[str]) -> Standing:
        if not names:
            folders = self.find()
            version = _hashed([(name, _version(folder)) for name, folder in folders.items()])
            return Standing(version, None, counted(len(folders), "run"))
        runs = [(name, self.folder(name)) for name in names]
        version = _hashed([(name, _version(folder)) for name, folder in runs])
        if len(runs) == 1:
            return _progress(runs[0][1], version)
        running = any(_progress(folder, version).state == "running" for _, folder in runs)
        return Standing(version, "running" if running else "finished", f"{len(runs)} runs compared")

    def _build(self, names: Sequence[str], standing: Standing) -> _Packed:
        try:
            made = views.overview([self.open(name) for name in names]) if names else self._list()
        except NotBegunError:
            made = views.not_begun(", ".join(names))
        return _pack(to_json({**as_json(made), **standing.as_json(), "id": " ".join(names)}))

    def _list(self) -> Document:
        """The list of runs, the newest first."""
        folders = sorted(self.find().items(), key=lambda item: _modified(item[1]), reverse=True)
        return views.runs_document([self._row(name, folder) for name, folder in folders])

    def _row(self, name: str, folder: Path) -> list[Content]:
        """A line of the list, made once for each version of its run."""
        version, row = self._rows.get(folder, ("", []))
        if version != (now := _version(folder)):
            with time_limit(ROW_SECONDS):
                row = views.run_row(folder, name)
            self._rows[folder] = (now, row)
        return row

    def metrics(self) -> str:
        """How all runs stand, for a monitoring system; looked up once for each version of a run."""
        found: list[Sample] = []
        for name, folder in self.find().items():
            version, samples = self._samples.get(folder, ("", []))
            if version != (now := _version(folder)):
                with time_limit(ROW_SECONDS):
                    samples = samples_of(folder, name)
                self._samples[folder] = (now, samples)
            found += samples
        return as_text(found)


def _version(folder: Path) -> str:
    """Changes whenever something is written to a run, or whoever writes it begins or ends."""
    marks: list[object] = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        try:
            facts = (folder / name).lstat()
        except OSError:
            continue
        if facts.st_size:  # an empty log is a reader's doing
            marks.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return _hashed([*marks, is_locked(folder)])


def _modified(folder: Path) -> float:
    try:
        return (folder / DATABASE).lstat().st_mtime
    except OSError:
        return 0.0


def _hashed(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _progress(folder: Path, version: str) -> Standing:
    """How far a run is, in a line."""
    try:
        run = RunFolder(folder)
    except NotBegunError:
        return Standing(version, "running" if is_locked(folder) else "stopped", "starting", 0, 0)
    lanes = run.progress()
    done, total = sum(lane.rounds for lane in lanes), run.num_lanes * run.rounds
    state, share = views.run_state(run), f"{done / max(1, total):.0%}"
    if state == "finished":
        status = f"finished, {counted(run.rounds, 'round')}"
    elif state == "stopped":
        status = f"stopped after {share} of its rounds"
    else:
        now = next((lane for lane in lanes if not lane.finished), None)
        where = f"round {now.rounds} of {run.rounds} of {now.method}, seed {now.seed}" if now else "starting"
        status = f"running, {where} ({share} in all)"
    return Standing(version, state, status, done, total)


def _path(request: Request) -> str:
    return str(
        request.scope["path"]
    )  # not of its `url`: that holds what the reader calls this host, which may be anything


def _names(request: Request) -> list[str]:
    """The ids of the runs a request is about; none for the list of runs."""
    if "id" in request.path_params:
        return [request.path_params["id"]]
    if "compare" not in _path(request):
        return []
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if not 0 < len(names) <= MAX_COMPARED:
        raise RunError(f"name between 1 and {MAX_COMPARED} runs to compare: /compare?run=ONE&run=OTHER")
    return names


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) >= 2**63:
        raise ValueError("more than the database can count to")
    return value


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, {"Cache-Control": "no-store"}, "application/json")


def _error(request: Request, status: int, message: str) -> Response:
    if _path(request).startswith("/api/"):
        return _json(to_json({"error": message}), status)
    return PlainTextResponse(message, status)


async def _refuse(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = error.detail if isinstance(error, HTTPException) else str(error)
    return _error(request, status, message)


async def _explain(request: Request, error: Exception) -> Response:
    """A run that cannot be read."""
    return _error(request, 422, re.sub(r"/\S*/", "", str(error)))  # where it lies is nobody's business


async def _fail(request: Request, error: Exception) -> Response:
    """A fault of ours. Starlette raises it again after this answer, so that the server logs it with its traceback."""
    return _error(request, 500, "the server failed; the terminal that runs it says where")


@cache
def _fingerprint() -> str:
    return _hashed([asset(name) for name in ASSETS])


@cache
def _page() -> str:
    return asset("page.html").replace("/static/", f"/static/{_fingerprint()}/")


@cache
def _packed_asset(name: str) -> _Packed:
    return _pack(asset(name))


async def _static(request: Request) -> Response:
    """The page's own files. Their address changes with their content, so that a browser asks for each once."""
    name = request.path_params["name"]
    if name not in ASSETS or request.path_params["fingerprint"] != _fingerprint():
        raise HTTPException(404, "there is no such file")
    packed = await run_in_threadpool(_packed_asset, name)
    return _pick(
        request, packed, {"Cache-Control": "private, max-age=31536000, immutable"}, MEDIA_TYPES[name.rpartition(".")[2]]
    )


def _pack(text: str) -> _Packed:
    plain = text.encode()
    return plain, gzip.compress(plain, 1)


def _pick(request: Request, packed: _Packed, headers: dict[str, str], media_type: str) -> Response:
    """The compressed form for whoever takes it: over a slow line, a second or two."""
    headers = {**headers, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed[1], 200, {**headers, "Content-Encoding": "gzip"}, media_type)
    return Response(packed[0], 200, headers, media_type)


class _Headers:
    """Adds the headers that keep a browser from doing what no page here needs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class _Token:
    """Asks every request for the token: once in the address, from then on in a cookie that no script can read.

    A program, a monitoring system say, sends it as `Authorization: Bearer TOKEN`.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        _, port = scope["server"]
        cookie = f"clientwise-{port}"  # cookies do not tell ports apart, and two servers may run
        given = request.query_params.get("token")
        kind, _, said = request.headers.get("authorization", "").partition(" ")
        known = [given, unquote(request.cookies.get(cookie, "")), said if kind.lower() == "bearer" else None]
        if not any(map(self._fits, known)):
            message = "This page needs a token: open the address that `clientwise serve` printed, with its ?token=..."
            await _error(request, 401, message)(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and self._fits(given):
                value = f"{cookie}={quote(self.token, safe='')}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("Set-Cookie", value)
            await send(message)

        await self.app(scope, receive, send_with_cookie)

    def _fits(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())
