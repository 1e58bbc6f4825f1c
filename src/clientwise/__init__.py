"""Federated learning that weighs every client by what it brings.

>>> import clientwise as cw
>>> cw.weigh({"size": [900, 100], "accuracy": [0.5, 0.9]}, score=cw.product({"accuracy": 2})).round(3).tolist()
[0.735, 0.265]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *


def _api() -> dict[str, Any]:
    """The public names; imported when one is first used, so that `clientwise --help` need not wait for PyTorch."""
    return {name: value for name, value in vars(import_module(".api", __name__)).items() if not name.startswith("_")}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_api())
    if name.startswith("_") or name not in (public := _api()):
        raise AttributeError(f"module 'clientwise' has no attribute {name!r}")
    return public[name]


def __dir__() -> list[str]:
    return sorted(_api())
