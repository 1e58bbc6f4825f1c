"""Other people's code that ours is measured beside and, in the tests, checked against: see oracles.txt."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def byzfl(part: str) -> ModuleType | None:
    """ByzFL's `aggregators` or `attacks`, if it is installed; without its framework, which needs torchvision."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None:
            return None
        sys.modules["byzfl"] = importlib.util.module_from_spec(
            spec
        )  # not executed: it would import all of itself
    return importlib.import_module(f"byzfl.{part}")
