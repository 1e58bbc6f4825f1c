"""Texts of others for the terminal."""

from __future__ import annotations

from rich import markup

from ...errors import printable


def escape(text: str) -> str:
    r"""A text that the terminal shows as it is: no markup, no control characters.

    >>> escape("[red]ward-a\x1b[2J")
    '\\[red]ward-a[2J'
    """
    return markup.escape(printable(text))
