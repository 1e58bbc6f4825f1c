"""The report as one HTML file that opens from disk and loads nothing from the network."""

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
from types import MappingProxyType

from ...writing import make_folder, write_atomically
from ..document import Document
from .page_json import as_json

# npm's plotly.js-cartesian-dist-min, unchanged: charts with two axes, a third of all of Plotly.
PLOTLY = "plotly-cartesian.min.js"

Audits = Mapping[str, Mapping[str, Document]]


def write_html(document: Document, audits: Audits, path: Path) -> Path:
    """Write a document as one file, whose folder is made."""
    make_folder(path.parent)
    write_atomically(path, as_file(document, audits).encode())
    return path


def as_file(document: Document, audits: Audits = MappingProxyType({})) -> str:
    """A document as one HTML file, with the audits that it opens.

    Args:
        document: the page.
        audits: {"round": {"METHOD|SEED|ROUND": audit}, "client": {"METHOD|SEED|CLIENT": audit},
            "seed": {"SEED": the sections of that seed}}.
    """
    page = asset("page.html")
    for name, inline in _inline(document, audits).items():
        before, found, after = page.partition(f"<!-- {name} -->")
        if not found:
            raise ValueError(f"page.html has no place for {name}")
        page = before + inline + after
    return page


@cache
def file_policy() -> str:
    """The content security policy of a file.

    Only its two scripts may run, and nothing may be fetched, whatever markup a config contains.
    """
    scripts = f"{_digest(_script(PLOTLY))} {_digest(_script('app.js'))}"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _inline(document: Document, audits: Audits) -> dict[str, str]:
    """What stands in the file, by its place in `page.html`."""
    style = asset("style.css")
    plotly = _script(PLOTLY)
    app = _script("app.js")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{file_policy()}">'
    carried = {kind: _all_as_json(found) for kind, found in audits.items()}
    # Browsers unpack only asynchronously: a page that is printed as soon as it is loaded would be empty.
    shown = f'<script type="application/json" id="document">{to_json(as_json(document))}</script>'
    packed = f'<script type="text/plain" id="audits">{_packed(to_json(carried))}</script>'
    return {
        "style.css": f"{meta}\n<style>{style}</style>",
        PLOTLY: f"{shown}\n{packed}\n<script>{plotly}</script>",
        "app.js": f'<script type="module">{app}</script>',
    }


def _script(name: str) -> str:
    script = asset(name)
    if "</script" in script.lower() or "<!--" in script:  # it would end too early, or never
        raise ValueError(f"{name} cannot stand inside a page")
    return script


def _all_as_json(documents: Mapping[str, Document]) -> dict[str, object]:
    return {key: as_json(document) for key, document in documents.items()}


def to_json(value: object) -> str:
    """JSON that can stand inside a page; numbers that are not finite become null.

    >>> to_json({"name": "</script>", "loss": float("inf")})
    '{"name":"\\\\u003c/script>","loss":null}'
    """
    encode = json.JSONEncoder(
        check_circular=False, allow_nan=False, separators=(",", ":")
    ).encode  # documents have no circles, and looking for some takes time
    try:
        text = encode(value)
    except ValueError:  # rare, and the copy is large, so it is made only then
        text = encode(_finite(value))
    return text.replace("<", "\\u003c")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


@cache
def asset(name: str) -> str:
    """A file of the page, as text."""
    return (files("clientwise.report") / "page" / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Text compressed and encoded as base64: audits are repetitive and shrink to a tenth.

    Level 6 takes half the time of level 9, and the text is 5% longer.
    """
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
