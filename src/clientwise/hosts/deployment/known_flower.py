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
    require_flower("a deployment")
    try:
        yield
    except ImportError as error:
        if not str(error.name).startswith("flwr"):
            raise
        found = unknown_flower(str(error))
        if module == "__main__":
            sys.exit(f"error: {found}")
        raise found from None


def require_flower(what: str) -> None:
    """An error that says how to install Flower, if it is missing."""
    with needing("deployment", what):
        import flwr  # noqa: F401


def unknown_flower(why: str) -> ClientwiseError:
    """The error for a version of Flower that lacks something."""
    return ClientwiseError(
        f"a deployment does not support this version of Flower, {version('flwr')} ({why}): "
        'pip install "clientwise[deployment]"'
    )
