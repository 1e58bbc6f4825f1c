"""A run in a notebook: in words, as a table, as a picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape

from matplotlib.figure import Figure

from ..runs.folder import RunFolder
from .document import Cell, Chart, Table
from .figures import draw_into
from .sections import result
from .series import series_of
from .views import headline, result_charts, run_state


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
    """What came of a run: whether it has ended, the verdict, one line per method, and the picture of it."""
    series = series_of([run])
    said = [f"{run.id}: {run_state(run)}", *headline(series)]
    parts = [f"<strong>{escape(said[0])}</strong>", *(f"<div>{escape(line)}</div>" for line in said[1:])]
    if series:
        parts += [_table(item) for item in result(series).items if isinstance(item, Table)][:1]
        charts = result_charts(run)
        picture = base64.b64encode(Picture(charts)._repr_png_()).decode()
        parts.append(f'<img src="data:image/png;base64,{picture}" alt="{escape(charts[0].alt)}">')
    return "".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.label)}</th>" for column in table.columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(_rows(table))}</tbody></table>"


def _rows(table: Table) -> Iterator[str]:
    for row in table.rows:
        texts = [cell.text if isinstance(cell, Cell) else "" if cell is None else str(cell) for cell in row]
        yield f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
