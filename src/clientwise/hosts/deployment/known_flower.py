"""The versions of Flower that a deployment supports: it uses more than Flower's public API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from ...errors import ClientwiseError, needing


@contextmanager
def known_flower(module: str) -> Iterator[None]:
    """Around imports from Flower: another version is an error of one line.

    Args:
        module: `__name__` of the module that imports; a program ends with the error.
    """
    with needing("deployment", "a deployment"):
        import flwr  # noqa: F401
    try:
        yield
    except ImportError as error:
        if not str(error.name).startswith("flwr"):
            raise
        found = unknown_flower(str(error))
        if module == "__main__":
            sys.exit(f"error: {found}")
        raise found from None


def unknown_flower(why: str) -> ClientwiseError:
    """The error for a version of Flower that lacks something."""
    return ClientwiseError(
        f"a deployment does not support this version of Flower, {version('flwr')} ({why}): "
        'pip install "clientwise[deployment]"'
    )
