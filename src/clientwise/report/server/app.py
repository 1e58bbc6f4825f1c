"""The web application: which address is answered with what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import RunError
from ..html import ASSETS
from ..page_json import as_json
from .responses import (
    CACHED_FOR_GOOD,
    MEDIA_TYPES,
    NOT_CACHED,
    assets_fingerprint,
    packed_asset,
    page,
    path_of,
    send_error,
    send_json,
    send_packed,
)
from .runs import ServedRuns
from .security import guards

MAX_COMPARED = 20  # runs on one page
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def make_app(folders: Sequence[Path], token: str | None = None) -> Starlette:
    """The web application. Without a token it answers only to the names of this machine."""
    answers = _Answers(ServedRuns(folders))
    app = Starlette(
        routes=[
            Route("/", answers.page),
            Route("/health", answers.health),
            Route("/metrics", answers.metrics),
            Route("/runs/{id}", answers.page),
            Route("/compare", answers.page),
            Route("/api/list", answers.document),
            Route("/api/list/version", answers.version),
            Route("/api/runs/{id}", answers.document),
            Route("/api/runs/{id}/version", answers.version),
            Route("/api/runs/{id}/seed", answers.one_seed),
            Route("/api/runs/{id}/round", answers.audit),
            Route("/api/runs/{id}/client", answers.audit),
            Route("/api/compare", answers.document),
            Route("/api/compare/version", answers.version),
            Route("/api/compare/seed", answers.one_seed),
            Route("/static/{fingerprint}/{name}", _static),
        ],
        middleware=guards(token),
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
