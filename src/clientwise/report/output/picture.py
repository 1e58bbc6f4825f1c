"""A run in a notebook: in words, as a table, as a picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from matplotlib.figure import Figure

from ...record.reading.folder import RunFolder
from ..document import Chart, Table
from ..sections.result import result_table
from ..series import series_of
from ..views import headline, result_charts, run_state
from .figures import draw_into


class Picture(Figure):
    """A figure that a notebook shows by itself."""

    def __init__(self, charts: Sequence[Chart]) -> None:
        super().__init__()
        draw_into(self, charts)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=90, bbox_inches="tight")
        return content.getvalue()


def run_html(run: RunFolder) -> str:
    """The state of a run, its headline, one row per method, and its picture."""
    series = series_of([run])
    parts = [f"<strong>{escape(f'{run.id}: {run_state(run)}')}</strong>"]
    parts += [f"<div>{escape(line)}</div>" for line in headline(series)]
    if series:
        parts.append(_table(result_table(series)))
        charts = result_charts(run)
        picture = base64.b64encode(Picture(charts)._repr_png_()).decode()
        alt = escape(charts[0].alt)
        parts.append(f'<img src="data:image/png;base64,{picture}" alt="{alt}">')
    return "".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.label)}</th>" for column in table.columns)
    rows = []
    for row in table.texts(escape, "<b>{}</b>".format):
        cells = "".join(f"<td>{text}</td>" for text in row)
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
