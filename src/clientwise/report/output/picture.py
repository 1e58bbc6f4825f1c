"""Charts as a matplotlib figure for notebooks."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from ..document import Chart
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
