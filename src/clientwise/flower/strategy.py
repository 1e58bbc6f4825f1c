"""The weighting alone, for Flower apps of others: `Weighted` goes around their strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from torch import Tensor

from ..core.criteria import Arrivals, ClientFacts, measure_clients, model_divergence
from ..core.scores import Prioritized, Score
from ..core.types import Evaluation, ModelSpec
from ..core.weighting import weigh
from ..registry import Part

log = logging.getLogger("flwr.clientwise")
WEIGHT = "clientwise-weight"  # what a reply's weight is called among its metrics
WITHOUT_WEIGHTS = (FedMedian, FedTrimmedAvg, Krum, MultiKrum, Bulyan, QFedAvg, FedXgbBagging, FedXgbCyclic)


def measure(
    criteria: Sequence[str], labels: Sequence[int], num_classes: int, training_loss: float = 0.0
) -> dict[str, float]:
    """clientwise's own criteria of a client's labels, by name, to be put among the metrics of its reply.

    >>> measure(["dataset_size", "label_diversity", "class_balance"], [0, 1, 1, 1], num_classes=2)
    {'dataset_size': 4.0, 'label_diversity': 2.0, 'class_balance': 0.3333333333333333}
    """
    targets = torch.as_tensor(labels)
    facts = ClientFacts(
        num_samples=torch.tensor([len(targets)]),
        label_counts=torch.bincount(targets, minlength=num_classes)[None],
        training_loss=torch.tensor([training_loss], dtype=torch.float64),
        attributes={},
        sample_attributes={},
        load_inputs=lambda: torch.zeros(len(targets), 0),
    )
    values = measure_clients([Part(name, {}) for name in criteria], facts)
    return {name: float(value[0]) for name, value in values.items()}


@dataclass(frozen=True)
class RoundWeights:
    """What a round's weights came from, by node id."""

    criteria: Mapping[int, Mapping[str, float]]
    weights: Mapping[int, float]
    refusals: Mapping[int, str]


class Weighted(Strategy):
    """A Flower strategy of yours, with clientwise's weights instead of the number of examples.

    `criteria` are names of metrics in the clients' replies, most important first; `model_divergence` is measured here,
    and `measured_here` gives functions of a reply's arrays for others (a server's accuracy, as AdaFed weighs by).
    `rounds` tells, for every round so far, who got which weight and who was refused.
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        criteria: Sequence[str],
        score: Score | None = None,
        normalise: str | None = None,
        measured_here: Mapping[str, Callable[[ArrayRecord], float]] | None = None,
    ) -> None:
        if not isinstance(strategy, FedAvg) or isinstance(strategy, WITHOUT_WEIGHTS):
            raise TypeError(
                f"{type(strategy).__name__} takes no weighted mean: use FedAvg, FedProx, FedAdam or the like"
            )
        self.rounds: dict[int, RoundWeights] = {}
        self._strategy, self._criteria = strategy, tuple(criteria)
        self._score, self._normalise = score or Prioritized(tuple(criteria)), normalise
        self._score.check(self._criteria)
        self._measured_here = {"model_divergence": self._divergence, **(measured_here or {})}
        self._global: Tensor | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As your strategy does; the model is remembered, for divergence is measured from it."""
        self._global = _flat(arrays)
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Measure, weigh, and let your strategy aggregate with these weights; no model where nobody weighs anything."""
        accepted: list[Message] = []
        measured: dict[int, dict[str, float]] = {}
        refusals: dict[int, str] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                measured[node] = self._measure(reply)
                accepted.append(reply)
            except Exception as error:  # nothing a client sends ends the run
                refusals[node] = str(error)
                log.warning("round %d: node %d is left out: %s", server_round, node, error)
        values = {name: [measured[reply.metadata.src_node_id][name] for reply in accepted] for name in self._criteria}
        weights = weigh(values, score=self._score, normalise=self._normalise).tolist()
        nodes = [reply.metadata.src_node_id for reply in accepted]
        self.rounds[server_round] = RoundWeights(measured, dict(zip(nodes, weights, strict=True)), refusals)
        if not any(weights):
            return None, None
        for reply, weight in zip(accepted, weights, strict=True):
            next(iter(reply.content.metric_records.values()))[WEIGHT] = weight
        usual, self._strategy.weighted_by_key = self._strategy.weighted_by_key, WEIGHT
        try:
            return self._strategy.aggregate_train(server_round, accepted)
        finally:
            self._strategy.weighted_by_key = usual

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As your strategy does."""
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As your strategy does."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """What is weighed by, and your strategy's own summary."""
        log.info("\t├──> Weighted by: %s (%s)", ", ".join(self._criteria), type(self._score).__name__)
        self._strategy.summary()

    def _measure(self, reply: Message) -> dict[str, float]:
        """The reply's criteria; ValueError where it cannot be used."""
        if reply.has_error():
            raise ValueError(reply.error.reason)
        arrays = next(iter(reply.content.array_records.values()))
        metrics = next(iter(reply.content.metric_records.values()))
        if not bool(_flat(arrays).isfinite().all()):
            raise ValueError("model has NaN or Inf")
        values = {}
        for name in self._criteria:
            value = metrics[name] if name in metrics else self._measured_here[name](arrays)
            if not isinstance(value, (int, float)) or not 0 <= value < torch.inf:
                raise ValueError(f"{name} = {value} is not a number of zero or more")
            values[name] = float(value)
        return values

    def _divergence(self, arrays: ArrayRecord) -> float:
        """1/√(‖Θ − Θ_a‖₂ + 1), see `core.criteria.model_divergence`."""
        assert self._global is not None
        model, size = _flat(arrays), len(self._global)
        arrivals = Arrivals((0,), model[None], self._global, ModelSpec((), size, size), _no_judge)
        return float(model_divergence(arrivals)[0])


def _flat(arrays: ArrayRecord) -> Tensor:
    return torch.cat([torch.from_numpy(array.numpy().copy()).float().flatten() for array in arrays.values()])


def _no_judge(models: Tensor) -> Evaluation:
    raise NotImplementedError("give the function that evaluates a model as measured_here")
