"""`MethodStrategy`: a whole method, such as `Recommended`, inside a Flower app of your own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from ..aggregate import Aggregate
from ..aggregator import MAX_CLIENTS, SIZE, Aggregator, AggregatorOptions
from ..best import BestModel, KeepBest
from ..metrics import Metric
from .strategy import Weighted, _record


class MethodStrategy(Weighted):
    """A Flower strategy that runs a clientwise method on the server: evidence, rule, server step, fine-tuning.

    The wrapped strategy samples clients, sends messages and averages metrics. The model comes from
    `cw.Aggregator`. Replies are checked as by `Weighted`.

    Args:
        strategy: FedAvg or FedProx; others take a server step of their own.
        model: the network whose state the arrays are.
        samples: (inputs, targets) that the server holds: it weighs by them and fine-tunes on them.
        method: a name of `clientwise list methods`, or a table as in TOML with `name` and `like`.
        max_nodes: nodes that may take part; evidence keeps three numbers for each.
        max_test_samples: largest test set size accepted from a client.
        record: file to which each round is appended as one line of JSON.
        keep_best: as in `Weighted`.
        options: `num_classes`, `learning_rate`, `seed`, `max_change`, `folder` and `weights` of
            `cw.Aggregator`.

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
        max_nodes: int = MAX_CLIENTS,
        max_test_samples: int = 100_000,
        record: str | Path | None = None,
        keep_best: KeepBest | None = None,
        **options: Unpack[AggregatorOptions],
    ) -> None:
        if type(strategy).aggregate_train is not FedAvg.aggregate_train:
            kind = type(strategy).__name__
            raise TypeError(f"{kind} takes a server step of its own: use FedAvg or FedProx")
        aggregator = Aggregator(
            method, model=model, weigh=samples, max_clients=max_nodes, **options
        )
        best = None if keep_best is None else BestModel(keep_best, options.get("folder"))
        self._set_up(strategy, aggregator, max_test_samples, record, best)

    def _values(self, metrics: Mapping[str, Metric]) -> Mapping[str, Metric]:
        """The metrics of a reply; Flower's own number of examples is the dataset's size."""
        size = metrics.get(self._strategy.weighted_by_key)
        return metrics if size is None else {**metrics, SIZE: size}

    def _new_arrays(self, mean: ArrayRecord | None, done: Aggregate) -> ArrayRecord | None:
        """The method's model instead of the wrapped strategy's."""
        return _record(done.model)
