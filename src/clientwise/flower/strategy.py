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

from ..core.criteria import ANY, CRITERIA, Arrivals, ClientFacts, make_criterion, measure_clients, model_divergence
from ..core.scores import Prioritized, Score
from ..core.types import Evaluation, ModelSpec, Problem
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
    remarks: tuple[str, ...] = ()  # on what was not believed, or could not be weighed


class Weighted(Strategy):
    """A Flower strategy of yours, with clientwise's weights instead of the number of examples.

    `criteria` are names of metrics in the clients' replies, most important first; `model_divergence` is measured here,
    and `measured_here` gives functions of a reply's arrays for others (a server's accuracy, as AdaFed weighs by). What
    is measured here is never taken from a client. `num_classes`, if you give it, is the most that `label_diversity` can
    be. `rounds` tells, for every round so far, who got which weight and who was refused.
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
    ) -> None:
        if not isinstance(strategy, FedAvg) or isinstance(strategy, WITHOUT_WEIGHTS):
            raise TypeError(
                f"{type(strategy).__name__} takes no weighted mean: use FedAvg, FedProx, FedAdam or the like"
            )
        self.rounds: dict[int, RoundWeights] = {}
        self._strategy, self._criteria = strategy, tuple(criteria)
        self._score, self._normalise = score or Prioritized(tuple(criteria)), normalise
        self._measured_here = {"model_divergence": self._divergence, **(measured_here or {})}
        ours = {name: make_criterion(name) for name in self._criteria if name in CRITERIA}
        problem = Problem("classification", num_classes or int(ANY))
        self._most = dict.fromkeys(criteria, ANY) | {name: one.high(problem) for name, one in ours.items()}
        for name, one in ours.items():
            if one.measured_by == "server" and name not in self._measured_here:
                raise ValueError(f"{name} is not for a client to say: give a function for it as measured_here")
        self._weigh([dict.fromkeys(criteria, 1.0)])  # what does not fit together is said now, not in round 1
        self._shapes: dict[str, torch.Size] = {}  # of the model that was sent out
        self._global = torch.zeros(0)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As your strategy does; the model is remembered, since the replies are held against it."""
        model = _tensors(arrays)
        self._shapes = {name: array.shape for name, array in model.items()}
        self._global = self._flat(model)
        return self._strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Measure, weigh, and let your strategy aggregate with these weights; no model where nobody weighs anything."""
        refusals: dict[int, str] = {}
        remarks: list[str] = []
        accepted = self._accept(replies, refusals, remarks)
        measured = {node: values for node, (_, values) in accepted.items()}
        try:
            weights = self._weigh(list(measured.values()))
        except (ValueError, OverflowError) as error:
            weights = [0.0] * len(measured)
            remarks.append(f"nobody could be weighed: {error}")
        for text in (*(f"node {node} is left out: {reason}" for node, reason in refusals.items()), *remarks):
            log.warning("round %d: %s", server_round, text)
        by_node = dict(zip(measured, weights, strict=True))
        self.rounds[server_round] = RoundWeights(measured, by_node, refusals, tuple(remarks))
        if not any(weights):
            return None, None
        return self._aggregate(server_round, [reply for reply, _ in accepted.values()], weights)

    def _accept(
        self, replies: Iterable[Message], refusals: dict[int, str], remarks: list[str]
    ) -> dict[int, tuple[Message, dict[str, float]]]:
        """The replies that can be used and their criteria, by node; `refusals` tells why the others cannot."""
        found: dict[int, tuple[Message, dict[str, float]]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in found:
                    raise ValueError("second reply of the same node")
                found[node] = reply, self._measure(reply, remarks)
            except Exception as error:  # nothing a client sends ends the run
                refusals[node] = str(error) or type(error).__name__
        forms = {node: _form(reply) for node, (reply, _) in found.items()}
        usual = max(forms.values(), key=list(forms.values()).count, default=None)
        for node in [node for node, form in forms.items() if form != usual]:
            del found[node]
            refusals[node] = "its records and metrics are not those that most others sent"
        return found

    def _weigh(self, measured: Sequence[Mapping[str, float]]) -> list[float]:
        columns = {name: [one[name] for one in measured] for name in self._criteria}
        weights: list[float] = weigh(columns, score=self._score, normalise=self._normalise).tolist()
        return weights

    def _aggregate(
        self, server_round: int, replies: Sequence[Message], weights: Sequence[float]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What your strategy makes of these replies with these weights."""
        for reply, weight in zip(replies, weights, strict=True):
            next(iter(reply.content.metric_records.values()))[WEIGHT] = weight
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
        """As your strategy does."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """What is weighed by, and your strategy's own summary."""
        log.info("\t├──> Weighted by: %s (%s)", ", ".join(self._criteria), type(self._score).__name__)
        self._strategy.summary()

    def _measure(self, reply: Message, remarks: list[str]) -> dict[str, float]:
        """The reply's criteria; ValueError where it cannot be used."""
        if reply.has_error():
            raise ValueError(reply.error.reason)
        content = reply.content
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise ValueError("does not consist of one record of arrays and one of metrics")
        (arrays,), (metrics,) = content.array_records.values(), content.metric_records.values()
        self._check_model(_tensors(arrays))
        values = {}
        for name in self._criteria:
            if name in self._measured_here:
                value = float(self._measured_here[name](arrays))
                if name in metrics:
                    node, claim = reply.metadata.src_node_id, str(metrics.pop(name))[:40]
                    remarks.append(f"node {node} claims {name} = {claim}, which is measured here: {value:g}")
            else:
                value = _number(metrics, name)
            if not 0 <= value <= self._most[name] * (1 + 1e-9):
                raise ValueError(f"{name} = {value:g} is outside [0, {self._most[name]:g}]")
            values[name] = value
        return values

    def _check_model(self, model: Mapping[str, Tensor]) -> None:
        """ValueError where it is no model like the one that was sent out."""
        if {name: array.shape for name, array in model.items()} != self._shapes:
            raise ValueError("model of another shape")
        if any(array.is_complex() for array in model.values()):
            raise ValueError("model of complex numbers")
        flat = self._flat(model)
        if not bool(flat.isfinite().all()):
            raise ValueError("model has NaN or Inf")
        if not bool(torch.linalg.vector_norm(flat - self._global).isfinite()):
            raise ValueError("model is so far off that its distance overflows")

    def _divergence(self, arrays: ArrayRecord) -> float:
        """1/√(‖Θ − Θ_a‖₂ + 1), see `core.criteria.model_divergence`."""
        model, size = self._flat(_tensors(arrays)), len(self._global)
        arrivals = Arrivals((0,), model[None], self._global, ModelSpec((), size, size), _no_judge)
        return float(model_divergence(arrivals)[0])

    def _flat(self, model: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([model[name].float().flatten() for name in self._shapes])


def _form(reply: Message) -> object:
    """What must be alike in all replies, or Flower gives up: names, and lengths of lists."""
    ((where, metrics),) = reply.content.metric_records.items()
    lengths = frozenset((name, len(value) if isinstance(value, list) else None) for name, value in metrics.items())
    return tuple(reply.content.array_records), where, lengths


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics.get(name)
    if not isinstance(value, (int, float)):
        raise ValueError(f"no metric {name}" if value is None else f"{name} is not one number")
    return float(value)


def _tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def _no_judge(models: Tensor) -> Evaluation:
    raise NotImplementedError("give the function that evaluates a model as measured_here")
