"""The building blocks of what the report and the live page show: a page need only render them.

    document = {"title", "lead": [str], "sections": [section]}
    section  = {"id", "title", "lead", "items": [chart | table]}
    chart    = {"kind": "chart", "id", "title", "alt", "data": traces, "layout": partial layout}   (of plotly.js)
    table    = {"kind": "table", "id", "title", "columns": [{"label", "numeric", "lower"}], "rows": [[cell]], "note"}
    cell     = text | number | None | {"value", "text", "open" or "href"}

`open` names an audit: {"round": {"method", "seed", "round"}} or {"client": {"method", "seed", "client"}}. A trace whose
points open audits has one such object per point as `customdata`, or says it once as `meta`: {"open": "round" or
"client", "method", "seed", "run"}, the number being the point's x, or that of a heat map's row in `numbers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def section(name: str, title: str, lead: str, items: Sequence[Json]) -> Json:
    """Charts and tables under a heading."""
    return {"id": name, "title": title, "lead": lead, "items": list(items)}


def chart(name: str, title: str, alt: str, data: Sequence[Json], layout: Json) -> Json:
    """A chart; `alt` says in words what it shows."""
    return {"kind": "chart", "id": name, "title": title, "alt": alt, "data": list(data), "layout": layout}


def table(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    note: str,
    numeric: Sequence[bool] | None = None,
    lower: Sequence[str] = (),
) -> Json:
    """A table; columns are numbers but for the first, unless `numeric` says otherwise; of `lower`, less is better."""
    kinds = numeric or [False] + [True] * (len(columns) - 1)
    heads = [
        {"label": label, "numeric": kind, **({"lower": True} if label in lower else {})}
        for label, kind in zip(columns, kinds, strict=True)
    ]
    lines = [list(row) for row in rows]
    return {"kind": "table", "id": name, "title": title, "columns": heads, "rows": lines, "note": note}


def cell(value: float | None, text: str) -> Json:
    """A value to sort by, and how it reads."""
    return {"value": value, "text": text}


def percent_of(value: float | None) -> str:
    """A share as it reads."""
    return "–" if value is None else f"{value:.1%}"


def number(value: float | None, digits: int) -> str:
    """A number as it reads: with so many decimals, or more than three significant digits."""
    return "–" if value is None else f"{value:.{digits}g}" if digits > 3 else f"{value:.{digits}f}"


def in_bytes(size: float) -> str:
    """A size as it reads.

    >>> in_bytes(12_345_678)
    '12.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def counted(number: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
