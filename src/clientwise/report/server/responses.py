"""The forms of an answer: JSON, errors, and content that is compressed once and sent many times."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..output.html import ASSETS, asset, to_json

NOT_CACHED = {"Cache-Control": "no-store"}
CACHED_FOR_GOOD = {"Cache-Control": "private, max-age=31536000, immutable"}
MEDIA_TYPES = {"css": "text/css", "js": "text/javascript"}


class Packed(NamedTuple):
    """Content as it is, and compressed."""

    plain: bytes
    compressed: bytes


def pack(text: str) -> Packed:
    """Text, compressed quickly."""
    plain = text.encode()
    return Packed(plain, gzip.compress(plain, 1))


def send_packed(
    request: Request,
    packed: Packed,
    headers: dict[str, str],
    media_type: str,
) -> Response:
    """Packed content; compressed if the client accepts that, which saves seconds on a slow line."""
    headers = {**headers, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(packed.plain, 200, headers, media_type)
    headers["Content-Encoding"] = "gzip"
    return Response(packed.compressed, 200, headers, media_type)


def send_json(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(to_json(value), status, NOT_CACHED, "application/json")


def send_error(request: Request, status: int, message: str) -> Response:
    """An error: as JSON under /api/, else as text."""
    if path_of(request).startswith("/api/"):
        return send_json({"error": message}, status)
    return PlainTextResponse(message, status)


def path_of(request: Request) -> str:
    """The path of a request; `request.url` depends on the Host header, which may be anything."""
    return str(request.scope["path"])


def hashed(value: object) -> str:
    """A short fingerprint of a value."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@cache
def page() -> str:
    """The HTML page, whose files are addressed by their fingerprint."""
    return asset("page.html").replace("/static/", f"/static/{assets_fingerprint()}/")


@cache
def assets_fingerprint() -> str:
    """Changes with the content of the page's files, so that a browser loads each of them once."""
    return hashed([asset(name) for name in ASSETS])


@cache
def packed_asset(name: str) -> Packed:
    """A file of the page."""
    return pack(asset(name))
