"""`Weighted`: clientwise's weights for the weighted mean of any Flower strategy that takes one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
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
    Result,
    Strategy,
)
from torch import Tensor, nn

from ...core.criteria import ClientFacts, measure_clients
from ...core.weights.scores import Score
from ...errors import plain
from ...registry import Part
from ..aggregator import SIZE, Aggregate, Aggregator, AggregatorOptions
from ..values import Metric, keep_common, number_in, reason_of
from .wire import check_size

log = logging.getLogger("flwr.clientwise")
WEIGHT = "clientwise-weight"  # the metric under which the wrapped strategy finds a reply's weight
Aggregated = tuple[ArrayRecord | None, MetricRecord | None]
WITHOUT_WEIGHTS = (
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Bulyan,
    QFedAvg,
    FedXgbBagging,
    FedXgbCyclic,
)


def measure(
    criteria: Sequence[str], labels: Sequence[int], num_classes: int, training_loss: float = 0.0
) -> dict[str, float]:
    """Built-in criteria of a client, by name; add them to the metrics of the client's reply.

    Args:
        criteria: names of built-in criteria that a client measures.
        labels: classes of the client's training samples, [n].
        num_classes: number of classes of the problem.
        training_loss: mean loss in the last local epoch; used by `training_loss` alone.

    Returns:
        One value per criterion.

    Example:
        >>> measure(["dataset_size", "label_diversity"], [0, 1, 1, 1], num_classes=2)
        {'dataset_size': 4.0, 'label_diversity': 2.0}
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
    """Criteria, weights and refusals of a training round, by node id."""

    criteria: Mapping[int, Mapping[str, float]]
    weights: Mapping[int, float]
    refusals: Mapping[int, str]
    remarks: tuple[str, ...] = ()  # such as metrics that were ignored, and why


@dataclass(frozen=True)
class RoundEvaluation:
    """Test samples and refusals of an evaluation round, by node id."""

    num_samples: Mapping[int, int]
    refusals: Mapping[int, str]
    remarks: tuple[str, ...] = ()


class Weighted(Strategy):
    """A Flower strategy with clientwise's weights instead of the number of examples.

    Every reply is checked by `cw.Aggregator`, as an update in a clientwise run is. A refused reply
    does not end the run.

    Args:
        strategy: a strategy that takes a weighted mean: FedAvg, FedProx, FedAdam and the like.
        criteria: names of metrics in the clients' replies, most important first. `model_divergence`
            is measured on the server.
        score: how the criteria become one number; `Prioritized` by default.
        normalise: how each criterion is scaled across clients; the score's own default if None.
        measured_here: functions of a reply's arrays, by criterion, for what the server measures
            itself. A client's claim for such a criterion is ignored.
        options: `num_classes` (the upper bound of `label_diversity`), `folder` and `weights` of
            `cw.Aggregator`; the last one stands instead of `criteria`.

    Attributes:
        rounds: `RoundWeights` of every training round so far.
        evaluations: `RoundEvaluation` of every evaluation round so far.
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        criteria: Sequence[str] | None = None,
        score: Score | None = None,
        normalise: str | None = None,
        measured_here: Mapping[str, Callable[[ArrayRecord], float]] | None = None,
        **options: Unpack[AggregatorOptions],
    ) -> None:
        if criteria is None and options.get("weights") is None:
            raise ValueError("give `criteria`, or `weights`")
        if not isinstance(strategy, FedAvg) or isinstance(strategy, WITHOUT_WEIGHTS):
            kind = type(strategy).__name__
            raise TypeError(
                f"{kind} takes no weighted mean: use FedAvg, FedProx, FedAdam or the like"
            )
        functions = {name: _of_record(one) for name, one in (measured_here or {}).items()}
        aggregator = Aggregator(
            {"name": "Weighted", "like": "FedAvg"},
            criteria=criteria,
            score=score,
            normalise=normalise,
            measured_here=functions,
            **options,
        )
        self._set_up(strategy, aggregator)

    def _set_up(self, strategy: FedAvg, aggregator: Aggregator) -> None:
        self.rounds: dict[int, RoundWeights] = {}
        self.evaluations: dict[int, RoundEvaluation] = {}
        self._strategy = strategy
        self._aggregator = aggregator
        self._test_sizes: dict[int, int] = {}  # of every node's first evaluation

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, *arguments: Any, **options: Any
    ) -> Result:
        """As every strategy does; the run folder is closed at the end.

        Where no round gave a model, the result has the initial arrays. Flower's would have none.
        """
        try:
            result = super().start(grid, initial_arrays, *arguments, **options)
        finally:
            self._aggregator.close()
        if not result.arrays:
            log.error("no round gave a model: the result has the initial arrays")
            result.arrays = initial_arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does. The model is kept, since replies are compared with it."""
        messages = self._strategy.configure_train(server_round, arrays, config, grid)
        self._aggregator.begin(_arrays(arrays))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """Measure, weigh, and aggregate by the wrapped strategy.

        Returns no model where all weights are zero.
        """
        accepted: dict[int, _Accepted] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                sent, numbers = _read_update(reply)
                values = self._values(numbers)
                _require_metrics(values, self._aggregator.asks_for)
            except Exception as error:
                self._aggregator.refuse(node, error)
                continue
            fitted = self._aggregator.accept(node, sent, values)
            if fitted is not None:
                accepted[node] = _Accepted(reply, fitted, numbers)
        done = self._aggregator.finish()
        accepted = {node: one for node, one in accepted.items() if node in done.weights}
        remarks = list(done.remarks)
        aggregated: Aggregated = (None, None)
        if any(done.weights.values()):
            remarks += keep_common([reply.metrics for reply in accepted.values()])
            arrays, metrics = self._average(server_round, done.weights, accepted)
            aggregated = (self._new_arrays(arrays, done), metrics)
        found = RoundWeights(done.criteria, done.weights, done.refusals, tuple(map(plain, remarks)))
        self.rounds[server_round] = found
        _log(server_round, found)
        return aggregated

    def _values(self, metrics: Mapping[str, Metric]) -> Mapping[str, Metric]:
        """The metrics of a reply as values of criteria."""
        return metrics

    def _new_arrays(self, mean: ArrayRecord | None, done: Aggregate) -> ArrayRecord | None:
        """The wrapped strategy's result; None where the model has to stay as it was."""
        return mean if done.is_new else None

    def _average(
        self, server_round: int, weights: Mapping[int, float], accepted: Mapping[int, _Accepted]
    ) -> Aggregated:
        """What the wrapped strategy makes of the accepted replies, with clientwise's weights."""
        for node, reply in accepted.items():
            metrics = MetricRecord(reply.metrics | {WEIGHT: weights[node]})
            _set_content(reply.message, metrics, _record(reply.tensors))
        messages = [reply.message for reply in accepted.values()]
        usual = self._strategy.weighted_by_key
        self._strategy.weighted_by_key = WEIGHT
        try:
            return self._strategy.aggregate_train(server_round, messages)
        finally:
            self._strategy.weighted_by_key = usual

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does."""
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the wrapped strategy does, with the replies that were accepted."""
        refusals: dict[int, str] = {}
        accepted: dict[int, tuple[Message, dict[str, Metric]]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in accepted:
                    raise ValueError("second reply of the same node")
                accepted[node] = self._read_evaluation(reply)
            except Exception as error:
                refusals[node] = str(reason_of(error))
        key = self._strategy.weighted_by_key
        sizes = {node: int(number_in(metrics, key)) for node, (_, metrics) in accepted.items()}
        self._test_sizes |= sizes
        remarks = keep_common([metrics for _, metrics in accepted.values()])
        for message, metrics in accepted.values():
            _set_content(message, MetricRecord(metrics))
        found = RoundEvaluation(sizes, refusals, tuple(map(plain, remarks)))
        self.evaluations[server_round] = found
        _log(server_round, found)
        if not any(sizes.values()):
            return None
        messages = [message for message, _ in accepted.values()]
        return self._strategy.aggregate_evaluate(server_round, messages)

    def _read_evaluation(self, message: Message) -> tuple[Message, dict[str, Metric]]:
        """A reply's metrics; ValueError where they cannot be true."""
        if message.has_error():
            raise ValueError(message.error.reason)
        if len(message.content.metric_records) != 1:
            raise ValueError("does not hold one record of metrics")
        (metrics,) = message.content.metric_records.values()
        size = number_in(metrics, self._strategy.weighted_by_key)
        check_size(size, self._test_sizes.get(message.metadata.src_node_id))
        return message, dict(metrics)

    def summary(self) -> None:
        """Log the criteria, and the wrapped strategy's own summary."""
        log.info("\t├──> Weighted by: %s", ", ".join(self._aggregator.criteria))
        self._strategy.summary()


def _log(server_round: int, found: RoundWeights | RoundEvaluation) -> None:
    for node, reason in found.refusals.items():
        log.warning("round %d: node %d is refused: %s", server_round, node, reason)
    for remark in found.remarks:
        log.warning("round %d: %s", server_round, remark)


@dataclass(frozen=True)
class _Accepted:
    """A reply with the model laid out as the global one, and the metrics."""

    message: Message
    tensors: Mapping[str, Tensor]
    metrics: dict[str, Metric]


def _read_update(message: Message) -> tuple[dict[str, numpy.ndarray], dict[str, Metric]]:
    """A reply's model and metrics; ValueError where it holds something else."""
    if message.has_error():
        raise ValueError(message.error.reason)
    content = message.content
    if len(content.array_records) != 1 or len(content.metric_records) != 1:
        raise ValueError("does not consist of one record of arrays and one of metrics")
    (arrays,) = content.array_records.values()
    (metrics,) = content.metric_records.values()
    return _arrays(arrays), dict(metrics)


def _require_metrics(metrics: Mapping[str, Metric], names: Iterable[str]) -> None:
    """ValueError where a client does not send a metric, with what its app has to do."""
    for name in names:
        if name not in metrics:
            raise ValueError(
                f"no metric {name}: add it to the metrics of the client's reply; "
                "clientwise.flower.measure computes built-in criteria"
            )


def _set_content(
    message: Message, metrics: MetricRecord, arrays: ArrayRecord | None = None
) -> None:
    """Replace what was sent by what was accepted, under the same record names in all replies."""
    message.content.clear()
    message.content["metrics"] = metrics
    if arrays is not None:
        message.content["arrays"] = arrays


def _arrays(record: ArrayRecord) -> dict[str, numpy.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def _record(model: Mapping[str, Tensor | numpy.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(numpy.asarray(array)) for name, array in model.items()})


def _of_record(function: Callable[[ArrayRecord], float]) -> Callable[[dict[str, Any]], float]:
    """A function of Flower's arrays as one of NumPy arrays."""
    return lambda arrays: function(_record(arrays))


class MethodStrategy(Weighted):
    """A Flower strategy that runs a clientwise method on the server: evidence, rule, server step, fine-tuning.

    The wrapped strategy samples clients, sends messages and averages metrics. The model comes from
    `cw.Aggregator`. Replies are checked as by `Weighted`.

    Args:
        strategy: FedAvg or FedProx; others take a server step of their own.
        model: the network whose state the arrays are.
        samples: (inputs, targets) that the server holds: it weighs by them and fine-tunes on them.
        method: a name of `clientwise list methods`, or a table as in TOML with `name` and `like`.
        options: `num_classes`, `learning_rate`, `seed`, `folder` and `weights` of
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
        **options: Unpack[AggregatorOptions],
    ) -> None:
        if type(strategy).aggregate_train is not FedAvg.aggregate_train:
            kind = type(strategy).__name__
            raise TypeError(f"{kind} takes a server step of its own: use FedAvg or FedProx")
        aggregator = Aggregator(method, model=model, weigh=samples, **options)
        self._set_up(strategy, aggregator)

    def _values(self, metrics: Mapping[str, Metric]) -> Mapping[str, Metric]:
        """The metrics of a reply; Flower's own number of examples is the dataset's size."""
        size = metrics.get(self._strategy.weighted_by_key)
        return metrics if size is None else {**metrics, SIZE: size}

    def _new_arrays(self, mean: ArrayRecord | None, done: Aggregate) -> ArrayRecord | None:
        """The method's model instead of the wrapped strategy's."""
        return _record(done.model)
