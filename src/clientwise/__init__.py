"""Federated learning that weighs every client by what it brings.

>>> import clientwise as cw
>>> cw.weigh({"size": [900, 100], "accuracy": [0.5, 0.9]}, score=cw.product({"accuracy": 2})).round(3).tolist()
[0.735, 0.265]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attacks import ATTACKS, Attack
    from .core.adapt_loss import LOSS_ADAPTERS
    from .core.aggregate import SERVER_STEPS
    from .core.criteria import CRITERIA, Arrivals, ClientFacts, criterion
    from .core.metrics import METRICS
    from .core.priority import ADJUSTMENTS
    from .core.scores import SCORES, Score, prioritized
    from .core.scores import Choquet as choquet
    from .core.scores import Mean as mean
    from .core.scores import Owa as owa
    from .core.scores import Product as product
    from .core.scores import WeightedMean as weighted_mean
    from .core.types import RoundRecord
    from .core.weighting import NORMALISERS, weigh
    from .data.datasets import DATASETS
    from .data.federated import FederatedData, Samples
    from .data.partition import PARTITIONS
    from .errors import ClientwiseError
    from .experiment.config import load_experiment as load
    from .experiment.schema import Experiment
    from .launch import run
    from .models.networks import MODELS
    from .runs.reader import Run
    from .trackers import TRACKERS, LaneInfo, Tracker

# Names are imported when they are first used, so that `clientwise --help` need not wait for PyTorch.
_PLACES = {
    "ADJUSTMENTS": ("core.priority", "ADJUSTMENTS"),
    "LOSS_ADAPTERS": ("core.adapt_loss", "LOSS_ADAPTERS"),
    "SERVER_STEPS": ("core.aggregate", "SERVER_STEPS"),
    "METRICS": ("core.metrics", "METRICS"),
    "NORMALISERS": ("core.weighting", "NORMALISERS"),
    "SCORES": ("core.scores", "SCORES"),
    "CRITERIA": ("core.criteria", "CRITERIA"),
    "ATTACKS": ("attacks", "ATTACKS"),
    "Attack": ("attacks", "Attack"),
    "Arrivals": ("core.criteria", "Arrivals"),
    "ClientFacts": ("core.criteria", "ClientFacts"),
    "criterion": ("core.criteria", "criterion"),
    "Score": ("core.scores", "Score"),
    "choquet": ("core.scores", "Choquet"),
    "mean": ("core.scores", "Mean"),
    "owa": ("core.scores", "Owa"),
    "prioritized": ("core.scores", "prioritized"),
    "product": ("core.scores", "Product"),
    "weighted_mean": ("core.scores", "WeightedMean"),
    "RoundRecord": ("core.types", "RoundRecord"),
    "weigh": ("core.weighting", "weigh"),
    "DATASETS": ("data.datasets", "DATASETS"),
    "FederatedData": ("data.federated", "FederatedData"),
    "Samples": ("data.federated", "Samples"),
    "PARTITIONS": ("data.partition", "PARTITIONS"),
    "ClientwiseError": ("errors", "ClientwiseError"),
    "Experiment": ("experiment.schema", "Experiment"),
    "load": ("experiment.config", "load_experiment"),
    "run": ("launch", "run"),
    "MODELS": ("models.networks", "MODELS"),
    "Run": ("runs.reader", "Run"),
    "TRACKERS": ("trackers", "TRACKERS"),
    "LaneInfo": ("trackers", "LaneInfo"),
    "Tracker": ("trackers", "Tracker"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'clientwise' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ADJUSTMENTS",
    "ATTACKS",
    "CRITERIA",
    "DATASETS",
    "LOSS_ADAPTERS",
    "METRICS",
    "MODELS",
    "NORMALISERS",
    "PARTITIONS",
    "SCORES",
    "SERVER_STEPS",
    "TRACKERS",
    "Arrivals",
    "Attack",
    "ClientFacts",
    "ClientwiseError",
    "Experiment",
    "FederatedData",
    "LaneInfo",
    "RoundRecord",
    "Run",
    "Samples",
    "Score",
    "Tracker",
    "choquet",
    "criterion",
    "load",
    "mean",
    "owa",
    "prioritized",
    "product",
    "run",
    "weigh",
    "weighted_mean",
]
