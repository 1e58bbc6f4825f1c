"""What parts declare, without importing their code: reading a run needs no PyTorch.

`experiment/reference.py` writes down the parts of this library. Where a kind of part has been imported, its registry
is asked instead, to which plugins may have added.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..registry import IMPORTED

PARTS_FILE = Path(__file__).parents[1] / "experiment" / "parts.json"


class KnownPart(NamedTuple):
    """What a part declares."""

    about: str  # the first line of its docstring
    needs: frozenset[str]
    measured_by: str | None  # "client" or "server" for a criterion


def known_part(kind: str, name: str) -> KnownPart | None:
    """A part by its kind ("rules") and name; None for a plugin's that has not been imported.

    >>> known_part("rules", "krum").needs >= {"models"}, known_part("rules", "none")
    (True, None)
    """
    registry = IMPORTED.get(kind)
    if registry is None:
        return _written().get((kind, name))
    if name not in registry:
        return None
    declared = registry.declared(name)
    by = getattr(declared, "measured_by", None)
    return KnownPart(registry.describe(name), declared.needs, by)


def listed_parts() -> Any:
    """All that `clientwise list` prints."""
    return json.loads(PARTS_FILE.read_text("utf-8"))


@cache
def _written() -> dict[tuple[str, str], KnownPart]:
    found = {}
    for kind, listed in listed_parts()["kinds"].items():
        for name, part in listed["parts"].items():
            needs = frozenset(part.get("needs", ()))
            found[kind, name] = KnownPart(part["about"], needs, part.get("measured_by"))
    return found
