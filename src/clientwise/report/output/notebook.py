"""A run in a notebook: in words, as a table, as a picture."""

from __future__ import annotations

import base64
from html import escape

from ...errors import MissingPackageError, needing
from ...record.run import RunFolder
from ..document import Table
from ..sections.result import result_table
from ..series import series_of
from ..views import headline, result_charts, run_state


def run_html(run: RunFolder) -> str:
    """The state of a run, its headline, one row per method, and its picture."""
    series = series_of([run])
    parts = [f"<strong>{escape(f'{run.id}: {run_state(run)}')}</strong>"]
    parts += [f"<div>{escape(line)}</div>" for line in headline(series)]
    if series:
        parts.append(_table(result_table(series)))
        parts.append(_picture(run))
    return "".join(parts)


def _picture(run: RunFolder) -> str:
    """The picture; without matplotlib, how to install it."""
    try:
        with needing("report", "the figure"):
            from .picture import Picture
    except MissingPackageError as error:
        return f"<div>{escape(str(error))}</div>"
    charts = result_charts(run)
    picture = base64.b64encode(Picture(charts)._repr_png_()).decode()
    return f'<img src="data:image/png;base64,{picture}" alt="{escape(charts[0].alt)}">'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.label)}</th>" for column in table.columns)
    rows = []
    for row in table.texts(escape, "<b>{}</b>".format):
        cells = "".join(f"<td>{text}</td>" for text in row)
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
