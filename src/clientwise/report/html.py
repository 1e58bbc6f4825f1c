"""The report as one HTML file: it opens from disk, asks the network for nothing, and holds all it shows."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from ..runs.files import write_atomically
from .document import Document
from .page_json import as_json

# Plotly's bundle for charts with two axes, a third of the whole: npm's plotly.js-cartesian-dist-min, unchanged.
PLOTLY = "plotly-cartesian.min.js"
ASSETS = ("style.css", "app.js", PLOTLY)
_TAGS = {
    "style.css": '<link rel="stylesheet" href="/static/style.css">',
    PLOTLY: f'<script src="/static/{PLOTLY}" id="plotly" async></script>',
    "app.js": '<script src="/static/app.js" type="module"></script>',
}


def write_html(document: Document, audits: Mapping[str, Mapping[str, Document]], path: Path) -> Path:
    """Write a document as one file, with what it opens.

    That is {"round": {"METHOD|SEED|ROUND": audit}, "client": {...}, "seed": {"SEED": the sections of that seed}}.
    """
    style, plotly, app = (asset(name) for name in _TAGS)
    for script in (plotly, app):
        if "</script" in script.lower() or "<!--" in script:  # it would end too early, or never
            raise ValueError("a script that cannot stand inside a page")
    # Only these two scripts may run, and nothing may be fetched: not even markup from a config could change that.
    policy = (
        f"default-src 'none'; script-src {_digest(plotly)} {_digest(app)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    carried = {kind: {key: as_json(one) for key, one in found.items()} for kind, found in audits.items()}
    data = _packed(to_json({"document": as_json(document), "audits": carried}))
    inline = {
        "style.css": f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>',
        PLOTLY: f'<script type="text/plain" id="embedded">{data}</script>\n<script>{plotly}</script>',
        "app.js": f'<script type="module">{app}</script>',
    }
    page = asset("page.html")
    for name, tag in _TAGS.items():
        before, found, after = page.partition(tag)
        if not found:
            raise ValueError(f"page.html has no {tag}")
        page = before + inline[name] + after
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


def to_json(value: object) -> str:
    """JSON that can stand inside a page; what is not finite, and JSON cannot say, is null.

    >>> to_json({"name": "</script>", "loss": float("inf")})
    '{"name":"\\\\u003c/script>","loss":null}'
    """
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:  # rare, and the copy is large: only then
        text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


@cache
def asset(name: str) -> str:
    """A file of the page, as text."""
    return (files("clientwise.report") / "page" / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Compressed, in letters: audits repeat themselves, and take a tenth of the room."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
