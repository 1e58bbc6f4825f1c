"""`MethodStrategy`: a whole method, such as `Recommended`, inside a Flower app of your own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from ..aggregator import SIZE, Aggregate, Aggregator
from ..metrics import Metric
from .strategy import Weighted, _record


class MethodStrategy(Weighted):
    """A Flower strategy that runs a clientwise method on the server: evidence, rule, server step, fine-tuning.

    The wrapped strategy samples clients, sends messages and averages metrics. The model comes from
    `hosts.Aggregator`. Replies are checked as by `Weighted`.

    Args:
        strategy: FedAvg or FedProx; others take a server step of their own.
        model: the network whose state the arrays are.
        samples: (inputs, targets) that the server holds: it weighs by them and fine-tunes on them.
        method: a name of `clientwise list methods`, or a table as in TOML with `name` and `like`.
        num_classes: number of classes over all clients; by default the largest label plus one.
        learning_rate: of fine-tuning.
        seed: of the order of samples in fine-tuning.
        max_nodes: nodes that may take part; evidence keeps three numbers for each.
        max_test_samples: largest test set size accepted from a client.
        max_change: factor by which a node's claim about its data may differ from its first claim.
        record: file to which each round is appended as one line of JSON.
        folder: a new run folder for the record, which `clientwise show`, `report` and `serve` read.

    Attributes:
        rounds: `RoundWeights` of every training round so far.
        evaluations: `RoundEvaluation` of every evaluation round so far.
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        model: nn.Module,
        samples: tuple[Any, Any],
        method: str | Mapping[str, Any] = "Recommended",
        num_classes: int | None = None,
        learning_rate: float = 0.01,
        seed: int = 1,
        max_nodes: int = 10_000,
        max_test_samples: int = 100_000,
        max_change: float = 1.5,
        record: str | Path | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if type(strategy).aggregate_train is not FedAvg.aggregate_train:
            kind = type(strategy).__name__
            raise TypeError(f"{kind} takes a server step of its own: use FedAvg or FedProx")
        aggregator = Aggregator(
            method,
            model=model,
            weigh=samples,
            num_classes=num_classes,
            learning_rate=learning_rate,
            seed=seed,
            max_clients=max_nodes,
            max_change=max_change,
            folder=folder,
        )
        self._set_up(strategy, aggregator, max_test_samples, record)

    def _values(self, metrics: Mapping[str, Metric]) -> Mapping[str, Metric]:
        """The metrics of a reply; Flower's own number of examples is the dataset's size."""
        size = metrics.get(self._strategy.weighted_by_key)
        return metrics if size is None else {**metrics, SIZE: size}

    def _new_arrays(self, mean: ArrayRecord | None, done: Aggregate) -> ArrayRecord | None:
        """The method's model instead of the wrapped strategy's."""
        return _record(done.model)
