"""`Weighted`: clientwise's weights for the weighted mean of any Flower strategy that takes one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

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
    Strategy,
)
from torch import Tensor

from ..core.criteria import (
    ANY,
    CRITERIA,
    Arrivals,
    ClientFacts,
    is_fixed,
    make_criterion,
    measure_clients,
    model_divergence,
)
from ..core.guard import inspect_models, inspect_values
from ..core.problem import Classification
from ..core.scores import Prioritized, Score
from ..core.types import Evaluation, ModelSpec
from ..core.weighting import weigh
from ..errors import plain
from ..registry import Part

log = logging.getLogger("flwr.clientwise")
WEIGHT = "clientwise-weight"  # the metric under which the wrapped strategy finds a reply's weight
MAX_REASON = 300  # characters
T = TypeVar("T")
Metric = int | float | list[int] | list[float]
NOT_USABLE = -1  # the form of a metric that cannot be averaged
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
    remarks: tuple[str, ...] = ()  # claims and metrics that were ignored, and why


@dataclass(frozen=True)
class RoundEvaluation:
    """Test samples and refusals of an evaluation round, by node id."""

    num_samples: Mapping[int, int]
    refusals: Mapping[int, str]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Reply:
    """A reply whose content was read: the model laid out as the global one, and the metrics."""

    message: Message
    arrays: ArrayRecord
    metrics: dict[str, Metric]


class Weighted(Strategy):
    """A Flower strategy with clientwise's weights instead of the number of examples.

    Every reply is checked by `core.guard`, as an update in a clientwise run is. A refused reply
    does not end the run.

    Args:
        strategy: a strategy that takes a weighted mean: FedAvg, FedProx, FedAdam and the like.
        criteria: names of metrics in the clients' replies, most important first. `model_divergence`
            is measured on the server.
        score: how the criteria become one number; `Prioritized` by default.
        normalise: how each criterion is scaled across clients; the score's own default if None.
        measured_here: functions of a reply's arrays, by criterion, for what the server measures
            itself. A client's claim for such a criterion is ignored.
        num_classes: upper bound of `label_diversity`.
        max_test_samples: largest test set size accepted from a client.
        max_change: factor by which a node's claim about its data, such as `dataset_size`, may differ
            from its first claim.
        record: file to which each round is appended as one line of JSON.

    Attributes:
        rounds: `RoundWeights` of every training round so far.
        evaluations: `RoundEvaluation` of every evaluation round so far.
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        criteria: Sequence[str],
        score: Score | None = None,
        normalise: str | None = None,
        measured_here: Mapping[str, Callable[[ArrayRecord], float]] | None = None,
        num_classes: int | None = None,
        max_test_samples: int = 100_000,
        max_change: float = 1.5,
        record: str | Path | None = None,
    ) -> None:
        if not isinstance(strategy, FedAvg) or isinstance(strategy, WITHOUT_WEIGHTS):
            kind = type(strategy).__name__
            raise TypeError(
                f"{kind} takes no weighted mean: use FedAvg, FedProx, FedAdam or the like"
            )
        self.rounds: dict[int, RoundWeights] = {}
        self.evaluations: dict[int, RoundEvaluation] = {}
        self._strategy = strategy
        self._criteria = tuple(criteria)
        self._score = score or Prioritized(self._criteria)
        self._normalise = normalise
        self._measured_here = {"model_divergence": self._divergence, **(measured_here or {})}
        self._highest = self._upper_bounds(num_classes)
        self._max_test_samples = max_test_samples
        self._test_sizes: dict[int, int] = {}  # of every node's first evaluation
        self._max_change = max_change
        self._first_claims: dict[tuple[int, str], float] = {}  # by node and criterion
        self._record = None if record is None else Path(record)
        self._global: dict[str, numpy.ndarray] = {}  # the model that was sent out
        # An invalid combination fails here, not in round 1
        self._weigh([dict.fromkeys(criteria, 1.0)])

    def _upper_bounds(self, num_classes: int | None) -> dict[str, float]:
        """The largest value of every criterion that can be true."""
        problem = Classification(num_classes or int(ANY))
        highest = dict.fromkeys(self._criteria, ANY)
        for name in self._criteria:
            if name not in CRITERIA:
                continue
            known = make_criterion(name)
            if known.measured_by == "server" and name not in self._measured_here:
                raise ValueError(
                    f"{name} is measured by the server: give a function for it as measured_here"
                )
            highest[name] = known.high(problem)
        return highest

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does. The model is kept, since replies are compared with it."""
        self._global = {name: array.numpy() for name, array in arrays.items()}
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """Measure, weigh, and aggregate by the wrapped strategy.

        Returns no model where all weights are zero.
        """
        refusals: dict[int, str] = {}
        remarks: list[str] = []
        accepted = _accept(replies, self._read_update, refusals)
        measured = self._measure(accepted, refusals, remarks)
        accepted = {node: accepted[node] for node in measured}
        try:
            weights = self._weigh(list(measured.values()))
        except (ValueError, OverflowError) as error:
            weights = [0.0] * len(measured)
            remarks.append(f"no weights could be computed: {error}")
        aggregated: Aggregated = (None, None)
        if any(weights):
            remarks += _keep_common([reply.metrics for reply in accepted.values()])
            for reply, weight in zip(accepted.values(), weights, strict=True):
                metrics = MetricRecord(reply.metrics | {WEIGHT: weight})
                _set_content(reply.message, metrics, reply.arrays)
            messages = [reply.message for reply in accepted.values()]
            aggregated = self._aggregate(server_round, messages)
        by_node = dict(zip(measured, weights, strict=True))
        found = RoundWeights(measured, by_node, refusals, tuple(map(plain, remarks)))
        self.rounds[server_round] = found
        self._write_down("train", server_round, found)
        return aggregated

    def _read_update(self, message: Message) -> _Reply:
        """A reply's model and metrics; ValueError where they cannot be used."""
        content = message.content
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise ValueError("does not consist of one record of arrays and one of metrics")
        (arrays,) = content.array_records.values()
        (metrics,) = content.metric_records.values()
        model = self._laid_out(arrays)
        _require(inspect_models(_flat(model)[None]))
        for name in self._criteria:
            if name not in self._measured_here:
                claimed = self._check(name, _number(metrics, name))
                self._compare(message.metadata.src_node_id, name, claimed)
        return _Reply(message, _record(model), dict(metrics))

    def _laid_out(self, arrays: ArrayRecord) -> dict[str, numpy.ndarray]:
        """A client's model with the names, the order and the types of the global one."""
        found = {name: array.numpy() for name, array in arrays.items()}
        shapes = {name: array.shape for name, array in found.items()}
        if shapes != {name: array.shape for name, array in self._global.items()}:
            raise ValueError("model of another shape")
        model = {}
        for name, ours in self._global.items():
            if not numpy.can_cast(found[name].dtype, ours.dtype, "same_kind"):
                raise ValueError("model of another type")
            with numpy.errstate(over="ignore"):  # an overflow is infinite, which the guard refuses
                model[name] = found[name].astype(ours.dtype)
        return model

    def _measure(
        self, accepted: Mapping[int, _Reply], refusals: dict[int, str], remarks: list[str]
    ) -> dict[int, dict[str, float]]:
        """The criteria of every node: measured here, or as the node claims."""
        measured: dict[int, dict[str, float]] = {}
        for node, reply in accepted.items():
            try:
                measured[node] = {name: self._value(name, reply) for name in self._criteria}
            except _RefusedError as error:
                refusals[node] = str(error)
                continue
            remarks += self._take_out_claims(node, reply.metrics, measured[node])
        return measured

    def _value(self, name: str, reply: _Reply) -> float:
        if name in self._measured_here:
            return self._measure_here(name, reply.arrays)
        return _number(reply.metrics, name)

    def _take_out_claims(
        self, node: int, metrics: dict[str, Metric], measured: Mapping[str, float]
    ) -> list[str]:
        """Remove what a client claims about criteria that are measured here.

        Returns one remark per claim.
        """
        claimed = [name for name in measured if name in self._measured_here and name in metrics]
        remarks = []
        for name in claimed:
            claim = str(metrics.pop(name))[:40]
            remarks.append(
                f"node {node} claims {name} = {claim}, which is measured here: {measured[name]:g}"
            )
        return remarks

    def _measure_here(self, name: str, arrays: ArrayRecord) -> float:
        """The server's own measurement.

        If it fails for the global model too, the server is at fault: it raises.
        """
        measure_model = self._measured_here[name]
        try:
            return self._check(name, float(measure_model(arrays)))
        except Exception as error:
            self._check(name, float(measure_model(_record(self._global))))
            reason = plain(f"{name} of its model cannot be measured: {error}")
            raise _RefusedError(reason[:MAX_REASON]) from error

    def _check(self, name: str, value: float) -> float:
        _require(
            inspect_values(name, torch.tensor([value], dtype=torch.float64), self._highest[name])
        )
        return value

    def _compare(self, node: int, name: str, claimed: float) -> None:
        """ValueError where a fact of the node's data differs much from its first claim."""
        if name not in CRITERIA or not is_fixed(Part(name, {})):
            return
        first = self._first_claims.setdefault((node, name), claimed)
        low = first / self._max_change
        high = first * self._max_change
        if not low <= claimed <= high:
            raise ValueError(
                f"{name} = {claimed:.12g}, at first {first:.12g}: {low:.6g} to {high:.6g} is "
                f"allowed (max_change = {self._max_change:g})"
            )

    def _weigh(self, measured: Sequence[Mapping[str, float]]) -> list[float]:
        columns = {name: [one[name] for one in measured] for name in self._criteria}
        weights: list[float] = weigh(columns, score=self._score, normalise=self._normalise).tolist()
        return weights

    def _aggregate(self, server_round: int, replies: Sequence[Message]) -> Aggregated:
        """The wrapped strategy's aggregate of these replies, by the weights in them."""
        usual = self._strategy.weighted_by_key
        self._strategy.weighted_by_key = WEIGHT
        try:
            return self._strategy.aggregate_train(server_round, replies)
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
        """As the wrapped strategy does, with the replies that were accepted.

        A node's test set keeps the size of its first evaluation; a node could otherwise raise its
        own influence.
        """
        refusals: dict[int, str] = {}
        accepted = _accept(replies, self._read_evaluation, refusals)
        key = self._strategy.weighted_by_key
        sizes = {node: int(_number(metrics, key)) for node, (_, metrics) in accepted.items()}
        self._test_sizes |= sizes
        remarks = _keep_common([metrics for _, metrics in accepted.values()])
        for message, metrics in accepted.values():
            _set_content(message, MetricRecord(metrics))
        found = RoundEvaluation(sizes, refusals, tuple(map(plain, remarks)))
        self.evaluations[server_round] = found
        self._write_down("evaluate", server_round, found)
        if not any(sizes.values()):
            return None
        messages = [message for message, _ in accepted.values()]
        return self._strategy.aggregate_evaluate(server_round, messages)

    def _read_evaluation(self, message: Message) -> tuple[Message, dict[str, Metric]]:
        """A reply's metrics; ValueError where they cannot be true."""
        if len(message.content.metric_records) != 1:
            raise ValueError("does not hold one record of metrics")
        (metrics,) = message.content.metric_records.values()
        size = _number(metrics, self._strategy.weighted_by_key)
        first = self._test_sizes.get(message.metadata.src_node_id)
        if size != int(size) or not 0 <= size <= self._max_test_samples:
            limit = self._max_test_samples
            raise ValueError(f"{size:.12g} test samples, with max_test_samples = {limit}")
        if first not in (None, size):
            raise ValueError(f"{size:.12g} test samples, {first} in its first answer")
        return message, dict(metrics)

    def _write_down(
        self, kind: str, server_round: int, found: RoundWeights | RoundEvaluation
    ) -> None:
        """Refusals and remarks to the log, everything to the record."""
        for node, reason in found.refusals.items():
            log.warning("round %d: node %d is refused: %s", server_round, node, reason)
        for remark in found.remarks:
            log.warning("round %d: %s", server_round, remark)
        if self._record is not None:
            line = json.dumps({"round": server_round, "kind": kind, **asdict(found)})
            with self._record.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def summary(self) -> None:
        """Log the criteria, and the wrapped strategy's own summary."""
        criteria = ", ".join(self._criteria)
        log.info("\t├──> Weighted by: %s (%s)", criteria, type(self._score).__name__)
        self._strategy.summary()

    def _divergence(self, arrays: ArrayRecord) -> float:
        """1/√(‖Θ − Θ_a‖₂ + 1), see `core.criteria.model_divergence`."""
        model = _flat({name: array.numpy() for name, array in arrays.items()})
        spec = ModelSpec((), len(model), len(model))
        arrivals = Arrivals((0,), model[None], _flat(self._global), spec, _no_judge)
        return float(model_divergence(arrivals)[0])


class _RefusedError(Exception):
    """A client's model that the server cannot measure, though it can measure the global model."""


def _accept(
    replies: Iterable[Message], read: Callable[[Message], T], refusals: dict[int, str]
) -> dict[int, T]:
    """Readable replies by node.

    The others are added to `refusals` with the reason; none ends the run.
    """
    found: dict[int, T] = {}
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            if node in found:
                raise ValueError("second reply of the same node")
            if reply.has_error():
                raise ValueError(reply.error.reason)
            found[node] = read(reply)
        except Exception as error:
            refusals[node] = plain(str(error) or type(error).__name__)[:MAX_REASON]
    return found


def _require(reasons: Sequence[str | None]) -> None:
    """ValueError with the guard's reason, where it has one."""
    for reason in reasons:
        if reason is not None:
            raise ValueError(reason)


def _keep_common(metrics: Sequence[dict[str, Metric]]) -> list[str]:
    """Remove metrics that cannot be averaged; returns a remark that lists them.

    Such metrics are missing in some replies, have another form there, or are not usable numbers.
    """
    forms = [{name: _form(value) for name, value in one.items()} for one in metrics]
    common = set()
    for name, form in (forms[0] if forms else {}).items():
        if form != NOT_USABLE and all(one.get(name) == form for one in forms):
            common.add(name)
    others = set()
    for one in metrics:
        for name in one.keys() - common:
            others.add(str(name)[:40])
            del one[name]
    if not others:
        return []
    listed = ", ".join(sorted(others))[:MAX_REASON]
    return [f"not averaged, since not every reply has a usable number for it: {listed}"]


def _form(value: Metric) -> int:
    """0 for a number, n + 1 for n numbers, `NOT_USABLE` where one is not finite or above `ANY`."""
    values = value if isinstance(value, list) else [value]
    if not all(abs(one) <= ANY for one in values):  # false for NaN
        return NOT_USABLE
    return len(value) + 1 if isinstance(value, list) else 0


def _set_content(
    message: Message, metrics: MetricRecord, arrays: ArrayRecord | None = None
) -> None:
    """Replace what was sent by what was accepted, under the same record names in all replies."""
    message.content.clear()
    message.content["metrics"] = metrics
    if arrays is not None:
        message.content["arrays"] = arrays


def _number(metrics: Mapping[str, Metric], name: str) -> float:
    value = metrics.get(name)
    if value is None:
        raise ValueError(f"no metric {name}")
    if not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not one number")
    return float(value)


def _record(model: Mapping[str, numpy.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def _flat(model: Mapping[str, numpy.ndarray]) -> Tensor:
    arrays = [torch.from_numpy(array.astype("float32")) for array in model.values()]
    return torch.cat([array.flatten() for array in arrays])


def _no_judge(models: Tensor) -> Evaluation:
    raise NotImplementedError("give the function that evaluates a model as measured_here")
