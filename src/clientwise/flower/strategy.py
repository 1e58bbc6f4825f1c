"""The weighting alone, for Flower apps of others: `Weighted` goes around their strategy."""

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

from ..core.criteria import ANY, CRITERIA, Arrivals, ClientFacts, make_criterion, measure_clients, model_divergence
from ..core.problem import Classification
from ..core.scores import Prioritized, Score
from ..core.types import Evaluation, ModelSpec
from ..core.weighting import weigh
from ..registry import Part

log = logging.getLogger("flwr.clientwise")
WEIGHT = "clientwise-weight"  # what a reply's weight is called among its metrics
T = TypeVar("T")
Metric = int | float | list[int] | list[float]
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
    remarks: tuple[str, ...] = ()  # on what was not believed, or could not be weighed


@dataclass(frozen=True)
class RoundEvaluation:
    """Whose evaluation counted in a round, by node id."""

    num_samples: Mapping[int, int]
    refusals: Mapping[int, str]
    remarks: tuple[str, ...] = ()


class Weighted(Strategy):
    """A Flower strategy of yours, with clientwise's weights instead of the number of examples.

    `criteria` are names of metrics in the clients' replies, most important first; `model_divergence` is measured here,
    and `measured_here` gives functions of a reply's arrays for others (a server's accuracy, as AdaFed weighs by). What
    is measured here is never taken from a client. `num_classes`, if you give it, is the most that `label_diversity` can
    be; `max_test_samples` the largest test set that is believed. `rounds` and `evaluations` tell, for every round so
    far, who got which weight and who was refused; `record` is a file to which they are written, a line of JSON each.
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
        record: str | Path | None = None,
    ) -> None:
        if not isinstance(strategy, FedAvg) or isinstance(strategy, WITHOUT_WEIGHTS):
            raise TypeError(
                f"{type(strategy).__name__} takes no weighted mean: use FedAvg, FedProx, FedAdam or the like"
            )
        self.rounds: dict[int, RoundWeights] = {}
        self.evaluations: dict[int, RoundEvaluation] = {}
        self._strategy, self._criteria = strategy, tuple(criteria)
        self._score, self._normalise = score or Prioritized(tuple(criteria)), normalise
        self._measured_here = {"model_divergence": self._divergence, **(measured_here or {})}
        ours = {name: make_criterion(name) for name in self._criteria if name in CRITERIA}
        problem = Classification(num_classes or int(ANY))
        self._most = dict.fromkeys(criteria, ANY) | {name: one.high(problem) for name, one in ours.items()}
        for name, one in ours.items():
            if one.measured_by == "server" and name not in self._measured_here:
                raise ValueError(f"{name} is not for a client to say: give a function for it as measured_here")
        self._weigh([dict.fromkeys(criteria, 1.0)])  # what does not fit together is said now, not in round 1
        self._global: dict[str, numpy.ndarray] = {}  # the model that was sent out
        self._max_test_samples, self._test_sizes = max_test_samples, dict[int, int]()  # of every node's first answer
        self._record = None if record is None else Path(record)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As your strategy does; the model is remembered, since the replies are held against it."""
        self._global = {name: array.numpy() for name, array in arrays.items()}
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Measure, weigh, and let your strategy aggregate with these weights; no model where nobody weighs anything."""
        refusals: dict[int, str] = {}
        remarks: list[str] = []
        accepted = _accept(replies, self._read_update, refusals)
        measured = self._measure(accepted, refusals, remarks)
        accepted = {node: accepted[node] for node in measured}
        try:
            weights = self._weigh(list(measured.values()))
        except (ValueError, OverflowError) as error:
            weights = [0.0] * len(measured)
            remarks.append(f"nobody could be weighed: {error}")
        aggregated: tuple[ArrayRecord | None, MetricRecord | None] = None, None
        if any(weights):
            remarks += _leave_common([metrics for _, _, metrics in accepted.values()])
            for (reply, arrays, metrics), weight in zip(accepted.values(), weights, strict=True):
                _replace(reply, MetricRecord(metrics | {WEIGHT: weight}), arrays)
            aggregated = self._aggregate(server_round, [reply for reply, _, _ in accepted.values()])
        by_node = dict(zip(measured, weights, strict=True))
        self.rounds[server_round] = RoundWeights(measured, by_node, refusals, tuple(remarks))
        self._write_down("train", server_round, self.rounds[server_round])
        return aggregated

    def _read_update(self, reply: Message) -> tuple[Message, ArrayRecord, dict[str, Metric]]:
        """A reply's model, as ours is laid out, and its metrics; ValueError where it cannot be used."""
        content = reply.content
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise ValueError("does not consist of one record of arrays and one of metrics")
        (arrays,), (metrics,) = content.array_records.values(), content.metric_records.values()
        model = self._fitting(arrays)
        for name in self._criteria:
            if name not in self._measured_here:
                self._check(name, _number(metrics, name))
        return reply, model, dict(metrics)

    def _fitting(self, arrays: ArrayRecord) -> ArrayRecord:
        """A client's model with the names, the order and the types of the one that was sent out."""
        found = {name: array.numpy() for name, array in arrays.items()}
        if {name: array.shape for name, array in found.items()} != {
            name: array.shape for name, array in self._global.items()
        }:
            raise ValueError("model of another shape")
        if not all(numpy.can_cast(found[name].dtype, ours.dtype, "same_kind") for name, ours in self._global.items()):
            raise ValueError("model of another type")
        with numpy.errstate(over="ignore"):  # what overflows is infinite, and seen below
            model = {name: found[name].astype(ours.dtype) for name, ours in self._global.items()}
        flat = _flat(model)
        if not bool(flat.isfinite().all()):
            raise ValueError("model has NaN or Inf")
        if not bool(torch.linalg.vector_norm(flat - _flat(self._global)).isfinite()):
            raise ValueError("update norm is not finite")
        return ArrayRecord({name: Array(array) for name, array in model.items()})

    def _measure(
        self,
        accepted: Mapping[int, tuple[Message, ArrayRecord, dict[str, Metric]]],
        refusals: dict[int, str],
        remarks: list[str],
    ) -> dict[int, dict[str, float]]:
        """The criteria of every node: what is measured here, and what the others claim."""
        measured: dict[int, dict[str, float]] = {}
        for node, (_, arrays, metrics) in accepted.items():
            values = {}
            try:
                for name in self._criteria:
                    if name in self._measured_here:
                        values[name] = self._measure_here(name, arrays)
                        if (claim := metrics.pop(name, None)) is not None:
                            said = f"node {node} claims {name} = {str(claim)[:40]}"
                            remarks.append(f"{said}, which is measured here: {values[name]:g}")
                    else:
                        values[name] = _number(metrics, name)
            except _RefusedError as error:
                refusals[node] = str(error)
            else:
                measured[node] = values
        return measured

    def _measure_here(self, name: str, arrays: ArrayRecord) -> float:
        """The server's own measurement. Where it fails for the model that was sent out as well, the fault is here."""
        measure_model = self._measured_here[name]
        try:
            return self._check(name, float(measure_model(arrays)))
        except Exception as error:
            ours = ArrayRecord({key: Array(array) for key, array in self._global.items()})
            self._check(name, float(measure_model(ours)))
            raise _RefusedError(f"{name} of its model cannot be measured: {error}"[:300]) from error

    def _check(self, name: str, value: float) -> float:
        if not 0 <= value <= self._most[name] * (1 + 1e-9):
            raise ValueError(f"{name} = {value:g} is outside [0, {self._most[name]:g}]")
        return value

    def _weigh(self, measured: Sequence[Mapping[str, float]]) -> list[float]:
        columns = {name: [one[name] for one in measured] for name in self._criteria}
        weights: list[float] = weigh(columns, score=self._score, normalise=self._normalise).tolist()
        return weights

    def _aggregate(
        self, server_round: int, replies: Sequence[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What your strategy makes of these replies with their weights."""
        usual, self._strategy.weighted_by_key = self._strategy.weighted_by_key, WEIGHT
        try:
            return self._strategy.aggregate_train(server_round, replies)
        finally:
            self._strategy.weighted_by_key = usual

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As your strategy does."""
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As your strategy does, with the replies that can be believed.

        A node's test set stays as large as it was in its first answer, or its say would grow at will.
        """
        refusals: dict[int, str] = {}
        accepted = _accept(replies, self._read_evaluation, refusals)
        sizes = {node: int(_number(metrics, self._strategy.weighted_by_key)) for node, (_, metrics) in accepted.items()}
        self._test_sizes |= sizes
        remarks = _leave_common([metrics for _, metrics in accepted.values()])
        for reply, metrics in accepted.values():
            _replace(reply, MetricRecord(metrics))
        self.evaluations[server_round] = RoundEvaluation(sizes, refusals, tuple(remarks))
        self._write_down("evaluate", server_round, self.evaluations[server_round])
        if not any(sizes.values()):
            return None
        return self._strategy.aggregate_evaluate(server_round, [reply for reply, _ in accepted.values()])

    def _read_evaluation(self, reply: Message) -> tuple[Message, dict[str, Metric]]:
        """A reply's metrics; ValueError where they cannot be believed."""
        if len(reply.content.metric_records) != 1:
            raise ValueError("does not hold one record of metrics")
        (metrics,) = reply.content.metric_records.values()
        size, first = _number(metrics, self._strategy.weighted_by_key), self._test_sizes.get(reply.metadata.src_node_id)
        if size != int(size) or not 0 <= size <= self._max_test_samples:
            raise ValueError(f"{size:.12g} test samples, with max_test_samples = {self._max_test_samples}")
        if first not in (None, size):
            raise ValueError(f"{size:.12g} test samples, {first} in its first answer")
        return reply, dict(metrics)

    def _write_down(self, kind: str, server_round: int, found: RoundWeights | RoundEvaluation) -> None:
        """In the log what went wrong, in the file everything."""
        left_out = (f"node {node} is left out: {reason}" for node, reason in found.refusals.items())
        for text in (*left_out, *found.remarks):
            log.warning("round %d: %s", server_round, text)
        if self._record is not None:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"round": server_round, "kind": kind, **asdict(found)}) + "\n")

    def summary(self) -> None:
        """What is weighed by, and your strategy's own summary."""
        log.info("\t├──> Weighted by: %s (%s)", ", ".join(self._criteria), type(self._score).__name__)
        self._strategy.summary()

    def _divergence(self, arrays: ArrayRecord) -> float:
        """1/√(‖Θ − Θ_a‖₂ + 1), see `core.criteria.model_divergence`."""
        model = _flat({name: array.numpy() for name, array in arrays.items()})
        spec = ModelSpec((), len(model), len(model))
        arrivals = Arrivals((0,), model[None], _flat(self._global), spec, _no_judge)
        return float(model_divergence(arrivals)[0])


class _RefusedError(Exception):
    """A client's model that the server cannot measure, though it can measure its own."""


def _accept(replies: Iterable[Message], read: Callable[[Message], T], refusals: dict[int, str]) -> dict[int, T]:
    """What can be used of the replies, by node; `refusals` tells why the others cannot. Nothing sent ends the run."""
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
            refusals[node] = (str(error) or type(error).__name__)[:300]
    return found


def _leave_common(metrics: Sequence[dict[str, Metric]]) -> list[str]:
    """Take out what cannot be averaged: what not everybody sent, in one form, and what is no usual number."""
    forms = [{name: _form(value) for name, value in one.items()} for one in metrics]
    common = (
        [name for name in forms[0] if all(one.get(name, -1) == forms[0][name] >= 0 for one in forms)] if forms else []
    )
    others = sorted({str(name)[:40] for one in metrics for name in one if name not in common})
    for one in metrics:
        for name in [name for name in one if name not in common]:
            del one[name]
    return [f"not averaged, since not everybody sent a number for it: {', '.join(others)[:300]}"] if others else []


def _form(value: Metric) -> int:
    """0 for a number, n + 1 for n numbers, −1 where one of them is beyond what is usual."""
    values = value if isinstance(value, list) else [value]
    if not all(abs(one) <= ANY for one in values):  # NaN neither
        return -1
    return len(value) + 1 if isinstance(value, list) else 0


def _replace(reply: Message, metrics: MetricRecord, arrays: ArrayRecord | None = None) -> None:
    """Put what was accepted in the place of what was sent, under names that are alike in all replies."""
    reply.content.clear()
    reply.content["metrics"] = metrics
    if arrays is not None:
        reply.content["arrays"] = arrays


def _number(metrics: Mapping[str, Metric], name: str) -> float:
    value = metrics.get(name)
    if not isinstance(value, (int, float)):
        raise ValueError(f"no metric {name}" if value is None else f"{name} is not one number")
    return float(value)


def _flat(model: Mapping[str, numpy.ndarray]) -> Tensor:
    return torch.cat([torch.from_numpy(array.astype("float32")).flatten() for array in model.values()])


def _no_judge(models: Tensor) -> Evaluation:
    raise NotImplementedError("give the function that evaluates a model as measured_here")
