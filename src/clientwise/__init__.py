"""Federated learning that weighs every client by what it brings.

>>> import clientwise as cw
>>> clients = {"size": [900, 100], "accuracy": [0.5, 0.9]}
>>> cw.weigh(clients, score=cw.product({"accuracy": 2})).round(3).tolist()
[0.735, 0.265]
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *

# PyTorch for ARM has an allocator, mimalloc, that reads this when PyTorch is imported. By default it returns
# freed memory after 10 ms: requesting it again, page by page, takes a quarter of a round of small models.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")  # milliseconds


def _api() -> dict[str, Any]:
    """The public names, imported on first use: `clientwise --help` does not wait for PyTorch."""
    names = vars(import_module(".api", __name__))
    return {name: value for name, value in names.items() if not name.startswith("_")}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_api())
    if not name.startswith("_"):
        public = _api()
        if name in public:
            return public[name]
    raise AttributeError(f"module 'clientwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_api())
