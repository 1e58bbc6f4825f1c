"""Other people's code that ours is measured beside and, in the tests, checked against: see .ci/oracles.txt."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def byzfl(part: str) -> ModuleType | None:
    """ByzFL's `aggregators` or `attacks`, if it is installed; without its framework, which needs torchvision."""
    return _part("byzfl", part)


def shapiq(part: str) -> ModuleType | None:
    """A module of shapiq, if it is installed; without its approximations, which need galois and numba."""
    return _part("shapiq", part)


def _part(package: str, part: str) -> ModuleType | None:
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        if spec is None:
            return None
        # Not executed: it would import all of itself.
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{part}")
