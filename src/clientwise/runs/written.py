"""What a run folder says about itself beside its database: the resolved config, and what ran it.

Anybody may have written it: it is read up to a size, nothing it names is imported, and what is no config is none.
"""

from __future__ import annotations

import json
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

MOST_BYTES = 2**22  # a resolved config has every default written out


def written_config(folder: Path) -> dict[str, Any]:
    """The resolved config, unchecked; nothing where it cannot be read."""
    return _read(folder / "config.toml")


def written_versions(folder: Path) -> dict[str, str]:
    """What ran it, by name; nothing where it cannot be read."""
    return {str(name): str(found) for name, found in _read(folder / "versions.json").items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=64)
def _parsed(path: Path, modified: int) -> dict[str, Any]:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    try:
        text = content.decode() if len(content) <= MOST_BYTES else ""
        found: object = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
