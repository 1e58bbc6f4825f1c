"""Documents as the page reads them (`report/page/app.js`):

    document = {"title", "lead": [str], "sections": [section]}; an overview has "subtitle",
               "isComparison", "seeds", "state", "rounds", "data" and "curve" (a chart) as well
    section  = {"id", "title", "lead", "items": [chart | table]}; with "seed" if it shows only one
    chart    = {"kind": "chart", "id", "title", "alt", "data": traces, "layout"}   (see `plotly.py`)
    table    = {"kind": "table", "id", "title", "columns": [{"label", "numeric", "lower"}],
               "rows": [[cell]], "note"}; with "best": [[row, column]] if the best values are marked
    cell     = text | number | None | {"value", "text", "open"}

`open` names an audit: {"round": {"method", "seed", "round", "run"}} or
{"client": {"method", "seed", "client", "run"}}.
"""

from __future__ import annotations

from typing import Any

from ..document import (
    Cell,
    Chart,
    Column,
    Content,
    Document,
    Section,
    Table,
    without_none,
)
from .plotly import traces_and_layout

Json = dict[str, object]


def as_json(document: Document) -> Json:
    """A document as the page reads it."""
    of_overviews = {
        "subtitle": document.subtitle,
        "isComparison": document.is_comparison,
        "seeds": document.seeds,
        "state": document.state,
        "rounds": document.rounds,
        "data": document.data,
        "curve": _item(document.curve) if document.curve else None,
    }
    return {
        "title": document.title,
        "lead": list(document.lead),
        "sections": [_section(section) for section in document.sections],
        **without_none(of_overviews),
    }


def _section(section: Section) -> Json:
    return {
        "id": section.id,
        "title": section.title,
        "lead": section.lead,
        "items": [_item(item) for item in section.items],
        **without_none({"seed": section.seed}),
    }


def _item(item: Chart | Table) -> Json:
    if isinstance(item, Table):
        return _table(item)
    data, layout = traces_and_layout(item.mark)
    return {
        "kind": "chart",
        "id": item.id,
        "title": item.title,
        "alt": item.alt,
        "data": data,
        "layout": layout,
    }


def _table(table: Table) -> Json:
    shown: Json = {
        "kind": "table",
        "id": table.id,
        "title": table.title,
        "columns": [_column(column) for column in table.columns],
        "rows": [[_cell(content) for content in row] for row in table.rows],
        "note": table.note,
    }
    if any(column.marks_best for column in table.columns):
        shown["best"] = sorted(table.best())
    return shown


def _column(column: Column[Any]) -> Json:
    head: Json = {"label": column.label, "numeric": column.numeric}
    if column.lower_is_better:
        head["lower"] = True
    return head


def _cell(content: Content) -> object:
    if not isinstance(content, Cell):
        return content
    shown: Json = {"value": content.value, "text": content.text}
    link = content.opens
    if link is not None:
        audit = {"method": link.method, "seed": link.seed, link.kind: link.number, "run": link.run}
        shown["open"] = {link.kind: audit}
    return shown
