"""Reports on runs: tables, charts and texts, in the terminal, on a page and as files.

`items.py` defines them, `sections.py` and `standings.py` make them from frames, `explanation.py` and `audit.py` explain
weights. `terminal.py`, `page.py` and `charts.py` show them.
"""

from __future__ import annotations

from rich import markup

from ..errors import printable


def escape(text: str) -> str:
    r"""A text of others as the terminal shows it: no markup, no control characters.

    >>> escape("[red]ward-a\x1b[2J")
    '\\[red]ward-a[2J'
    """
    return markup.escape(printable(text))
