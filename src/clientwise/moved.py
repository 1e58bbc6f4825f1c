"""Import paths of 0.2.0 that have moved. They work, with a warning, until 0.4.0."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

MOVED = {  # what the documentation of 0.2.0 shows, and what the scripts of its apps start
    "clientwise.core.adapt_loss": "clientwise.core.objective.adapt_loss",
    "clientwise.core.before": "clientwise.core.aggregation.before",
    "clientwise.core.problem": "clientwise.core.objective.problem",
    "clientwise.core.rules": "clientwise.core.aggregation.rules",
    "clientwise.core.scores": "clientwise.core.weights.scores",
    "clientwise.runs.lock": "clientwise.record.lock",
}


class _OldPaths:
    """A finder and loader. The classes of `importlib.abc` take a twentieth of `clientwise --help` to import."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(name, loader) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state if module.__spec__ else None

    def get_code(self, fullname: str) -> CodeType:
        """For `python -m`."""
        start = f"import runpy; runpy.run_module({MOVED[fullname]!r}, run_name='__main__', alter_sys=True)"
        return compile(start, fullname, "exec")

    def get_source(self, fullname: str) -> str | None:
        return None


sys.meta_path.append(_OldPaths())
