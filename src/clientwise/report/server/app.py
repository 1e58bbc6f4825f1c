"""The web application: which address is answered with what."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import RunError
from ..output.html import ASSETS, file_policy
from ..output.page_json import as_json
from .responses import (
    CACHED_FOR_GOOD,
    MEDIA_TYPES,
    NOT_CACHED,
    Packed,
    assets_fingerprint,
    packed_asset,
    page,
    path_of,
    send_error,
    send_json,
    send_packed,
)
from .roles import Role, Roles
from .security import guards, reader_of
from .served_runs import ServedRuns

MAX_COMPARED = 20  # runs on one page
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Answer = Callable[[Request], Awaitable[Response]]

# Which roles an address is for.
OPERATOR: frozenset[Role] = frozenset({"operator"})
BOARD: frozenset[Role] = frozenset({"operator", "board"})
SITE: frozenset[Role] = frozenset({"site"})
EVERYONE = BOARD | SITE


def make_app(
    folders: Sequence[Path], token: str | None = None, roles: Roles | None = None
) -> Starlette:
    """The web application. Without a token it answers only to the names of this machine."""
    answers = _Answers(ServedRuns(folders))
    app = Starlette(
        routes=[
            Route("/", answers.to(EVERYONE, answers.home)),
            Route("/health", answers.to(OPERATOR, answers.health)),
            Route("/metrics", answers.to(OPERATOR, answers.metrics)),
            Route("/runs/{id}", answers.to(BOARD, answers.page)),
            Route("/runs/{id}/statement", answers.to(SITE, answers.statement)),
            Route("/compare", answers.to(OPERATOR, answers.page)),
            Route("/api/list", answers.to(OPERATOR, answers.document)),
            Route("/api/list/version", answers.to(OPERATOR, answers.version)),
            Route("/api/runs/{id}", answers.to(BOARD, answers.document)),
            Route("/api/runs/{id}/version", answers.to(BOARD, answers.version)),
            Route("/api/runs/{id}/seed", answers.to(BOARD, answers.one_seed)),
            Route("/api/runs/{id}/round", answers.to(BOARD, answers.audit)),
            Route("/api/runs/{id}/client", answers.to(BOARD, answers.audit)),
            Route("/api/compare", answers.to(OPERATOR, answers.document)),
            Route("/api/compare/version", answers.to(OPERATOR, answers.version)),
            Route("/api/compare/seed", answers.to(OPERATOR, answers.one_seed)),
            Route("/static/{fingerprint}/{name}", answers.to(BOARD, _static)),
        ],
        middleware=guards(token, roles),
        exception_handlers={
            HTTPException: _refuse,
            RunError: _explain,
            Exception: _fail,
        },
    )
    app.router.redirect_slashes = False  # an address with a slash too many is a wrong one
    return app


class _Answers:
    """The answers that depend on runs."""

    def __init__(self, runs: ServedRuns) -> None:
        self.runs = runs

    def to(self, roles: Collection[Role], answer: Answer) -> Answer:
        """The answer for readers with these roles, and a refusal for all others."""

        async def checked(request: Request) -> Response:
            reader = reader_of(request)
            if reader.role not in roles:
                raise HTTPException(403, f"Your token opens {reader.opens}, which are listed at /.")
            if reader.role == "board" and "id" in request.path_params:
                await run_in_threadpool(self.runs.refuse_private, request.path_params["id"])
            return await answer(request)

        return checked

    async def home(self, request: Request) -> Response:
        """The list of what a reader's token opens."""
        reader = reader_of(request)
        if reader.role == "operator":
            return await self.page(request)
        packed = await run_in_threadpool(self.runs.opened_by, reader)
        return _send_file(request, packed)

    async def statement(self, request: Request) -> Response:
        """The statement of the token's own site: the address names none."""
        name = request.path_params["id"]
        packed = await run_in_threadpool(self.runs.statement, name, reader_of(request).site)
        return _send_file(request, packed)

    async def page(self, request: Request) -> Response:
        known = await run_in_threadpool(self.runs.find)
        status = 200 if set(_names(request)) <= known.keys() else 404
        return Response(page(), status, media_type="text/html")

    async def document(self, request: Request) -> Response:
        packed = await self.runs.document(_names(request))
        return send_packed(request, packed, NOT_CACHED, "application/json")

    async def version(self, request: Request) -> Response:
        standing, again = await self.runs.standing(_names(request))
        return send_json({**standing.as_json(), "again": again})

    async def audit(self, request: Request) -> Response:
        kind = path_of(request).rpartition("/")[2]
        query = request.query_params
        try:
            method = query["method"]
            seed = _integer(query["seed"])
            number = _integer(query[kind])
        except (KeyError, ValueError):
            message = f"an audit needs `method`, `seed` and `{kind}`; the last two are integers"
            raise RunError(message) from None
        name = request.path_params["id"]
        found = await run_in_threadpool(self.runs.audit, kind, name, method, seed, number)
        return send_json(as_json(found))

    async def one_seed(self, request: Request) -> Response:
        try:
            seed = _integer(request.query_params["seed"])
        except (KeyError, ValueError):
            raise RunError("`seed` must be an integer, for example ?seed=2") from None
        found = await run_in_threadpool(self.runs.one_seed, _names(request), seed)
        return send_json(as_json(found))

    async def metrics(self, request: Request) -> Response:
        text = await run_in_threadpool(self.runs.metrics)
        return Response(text, 200, NOT_CACHED, PROMETHEUS)

    async def health(self, request: Request) -> Response:
        found = await run_in_threadpool(self.runs.find)
        return send_json({"status": "ok", "runs": len(found)})


def _send_file(request: Request, packed: Packed) -> Response:
    """A document as one HTML file; its policy allows the scripts in it."""
    policy = f"{file_policy()}; frame-ancestors 'none'"
    headers = {**NOT_CACHED, "Content-Security-Policy": policy}
    return send_packed(request, packed, headers, "text/html")


async def _static(request: Request) -> Response:
    """A file of the page."""
    name = request.path_params["name"]
    if name not in ASSETS or request.path_params["fingerprint"] != assets_fingerprint():
        raise HTTPException(404, "no such file")
    packed = await run_in_threadpool(packed_asset, name)
    suffix = name.rpartition(".")[2]
    return send_packed(request, packed, CACHED_FOR_GOOD, MEDIA_TYPES[suffix])


def _names(request: Request) -> list[str]:
    """The ids of the runs that a request is about; none for the list of runs."""
    if "id" in request.path_params:
        return [request.path_params["id"]]
    if "compare" not in path_of(request):
        return []
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if not 0 < len(names) <= MAX_COMPARED:
        raise RunError(f"1 to {MAX_COMPARED} runs can be compared: /compare?run=ONE&run=OTHER")
    return names


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) >= 2**63:
        raise ValueError("an integer of the database has 64 bits")
    return value


async def _refuse(request: Request, error: Exception) -> Response:
    """A request that is refused, with its status."""
    assert isinstance(error, HTTPException)
    return send_error(request, error.status_code, error.detail)


async def _explain(request: Request, error: Exception) -> Response:
    """A run that cannot be read. Where it lies on disk is not told."""
    return send_error(request, 422, re.sub(r"/\S*/", "", str(error)))


async def _fail(request: Request, error: Exception) -> Response:
    """A bug. Starlette raises it again after this answer, so that the server logs a traceback."""
    return send_error(request, 500, "the server failed; its terminal shows the traceback")
