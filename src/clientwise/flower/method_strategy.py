"""`MethodStrategy`: a whole method, such as `Recommended`, inside a Flower app of your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from ..core.method import Method, Plan
from ..core.round import first_state, run_round
from ..core.types import Evaluation, RoundRecord, ServerPart, Task, Updates
from ..data.federated import FederatedData, Holdings
from ..engine.local import LocalEngine
from ..engine.wrapping import WrappingEngine
from ..experiment.methods import MethodSettings
from ..experiment.named import write_out
from ..experiment.settings import Training
from .strategy import (
    WEIGHT,
    Aggregated,
    RoundWeights,
    Weighted,
    _accept,
    _keep_common,
    _record,
    _Reply,
    _set_content,
)

DATASET_SIZE = "dataset_size"  # the criterion that Flower's own metric stands for


class MethodStrategy(Weighted):
    """A Flower strategy that runs a clientwise method on the server: evidence, rule, server step, fine-tuning.

    The wrapped strategy samples clients, sends messages and averages metrics. The model comes from
    `core.round.run_round`, as in every clientwise run. Replies are checked as by `Weighted`.

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
        record: file to which each round is appended as one line of JSON.

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
        record: str | Path | None = None,
    ) -> None:
        if type(strategy).aggregate_train is not FedAvg.aggregate_train:
            kind = type(strategy).__name__
            raise TypeError(f"{kind} takes a server step of its own: use FedAvg or FedProx")
        self._method = _build(method, learning_rate)
        self._metrics = {one.name: one.name for one in self._method.client_criteria}
        if DATASET_SIZE in self._metrics:
            self._metrics[DATASET_SIZE] = strategy.weighted_by_key
        super().__init__(
            strategy,
            criteria=list(self._metrics.values()),
            num_classes=num_classes,
            max_test_samples=max_test_samples,
            record=record,
        )
        data = _server_data(samples, num_classes, max_nodes)
        self._engine = _Replies(LocalEngine(data, deepcopy(model), seed=seed))
        self._state = first_state(self._engine.initial_model, self._method, self._engine)
        self._clients: dict[int, int] = {}  # by node: its number in the method's memory

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does; ValueError where the arrays are not the model's state."""
        messages = super().configure_train(server_round, arrays, config, grid)
        expected = {layer.name: layer.shape for layer in self._engine.spec.layers}
        given = {name: self._global[name].shape for name in expected if name in self._global}
        if given != expected:
            raise ValueError("initial_arrays are not the state of `model`: names or shapes differ")
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """One round of the method on the accepted replies; no model where none was accepted."""
        refusals: dict[int, str] = {}
        remarks: list[str] = []
        accepted = _accept(replies, self._read_update, refusals)
        measured = self._measure(accepted, refusals, remarks)
        accepted = {node: accepted[node] for node in measured}
        self._number_nodes(accepted, refusals)
        aggregated: Aggregated = (None, None)
        weights: dict[int, float] = {}
        if accepted:
            record = self._run_round(server_round, accepted, measured)
            weights = self._by_node(record, accepted, refusals)
            remarks += [*record.notes, *_keep_common([one.metrics for one in accepted.values()])]
            aggregated = (self._arrays(), self._averaged(server_round, accepted, weights))
        found = RoundWeights(
            {node: measured[node] for node in accepted}, weights, refusals, tuple(remarks)
        )
        self.rounds[server_round] = found
        self._write_down("train", server_round, found)
        return aggregated

    def _number_nodes(self, accepted: dict[int, _Reply], refusals: dict[int, str]) -> None:
        """Give new nodes a number; refuse those beyond `max_nodes`."""
        for node in list(accepted):
            if node not in self._clients and len(self._clients) == self._engine.num_clients:
                refusals[node] = f"more than max_nodes = {self._engine.num_clients} nodes"
                del accepted[node]
            else:
                self._clients.setdefault(node, len(self._clients))

    def _run_round(
        self,
        server_round: int,
        accepted: Mapping[int, _Reply],
        measured: Mapping[int, Mapping[str, float]],
    ) -> RoundRecord:
        clients = tuple(self._clients[node] for node in accepted)
        nothing = torch.zeros(len(clients), dtype=torch.float64)
        measurements = {
            criterion: torch.tensor([measured[node][metric] for node in accepted]).double()
            for criterion, metric in self._metrics.items()
        }
        models = torch.stack([self._flat(_numpy(reply.arrays)) for reply in accepted.values()])
        self._engine.updates = Updates(clients, models, measurements, nothing, nothing)
        state = replace(self._state, round_num=server_round - 1, model=self._flat(self._global))
        plan = Plan(self._engine.seed, len(clients), evaluate_clients_every=0, asks=clients)
        self._state, record = run_round(state, self._method, plan, self._engine)
        return record

    def _by_node(
        self, record: RoundRecord, accepted: dict[int, _Reply], refusals: dict[int, str]
    ) -> dict[int, float]:
        """The weights; nodes that the round refused go to `refusals`."""
        node_of = {self._clients[node]: node for node in accepted}
        for refusal in record.refusals:
            node = node_of[refusal.client_id]
            refusals[node] = refusal.reason
            del accepted[node]
        weights = record.weights.tolist()
        clients = record.client_ids
        return {node_of[client]: weight for client, weight in zip(clients, weights, strict=True)}

    def _averaged(
        self, server_round: int, accepted: Mapping[int, _Reply], weights: Mapping[int, float]
    ) -> MetricRecord | None:
        """The clients' metrics, averaged by the wrapped strategy with the method's weights."""
        if not any(weights.values()):
            return None
        for node, reply in accepted.items():
            metrics = MetricRecord(reply.metrics | {WEIGHT: weights[node]})
            _set_content(reply.message, metrics, reply.arrays)
        messages = [reply.message for reply in accepted.values()]
        return self._aggregate(server_round, messages)[1]

    def _flat(self, arrays: Mapping[str, numpy.ndarray]) -> Tensor:
        """A model as one vector [d]; counters are no part of it."""
        layers = self._engine.spec.layers
        parts = [
            torch.tensor(arrays[layer.name], dtype=torch.float32).flatten() for layer in layers
        ]
        return torch.cat(parts)

    def _arrays(self) -> ArrayRecord:
        """The method's model with the names, shapes and types of the one that was sent out."""
        model = dict(self._global)
        for layer in self._engine.spec.layers:
            values = self._state.model[layer.start : layer.stop].reshape(layer.shape)
            model[layer.name] = values.cpu().numpy().astype(model[layer.name].dtype)
        return _record(model)


class _Replies(WrappingEngine):
    """An engine whose clients have answered already; the server's samples also check the result."""

    updates: Updates

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        yield self.updates

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        return super().evaluate_server(models, "weigh" if part == "report" else part)


def _build(method: str | Mapping[str, Any], learning_rate: float) -> Method:
    """ValueError for methods that need more than one exchange per round."""
    (table,) = write_out([method], "method")
    built = MethodSettings.model_validate(table).build(
        Training.model_validate({"learning_rate": learning_rate})
    )
    if built.privacy:
        hint = "its accountant must know how clients are sampled: use `clientwise new`"
        raise ValueError(f"{built.name}: privacy does not run inside a Flower strategy: {hint}")
    if built.bounds and not built.bounds.is_plain:
        hint = "nodes have no names here: give cap and floor alone, or use `clientwise new`"
        raise ValueError(f"{built.name}: bounds on single clients need their names; {hint}")
    if built.adjust or built.adapt_loss or built.control:
        hint = "adjust, adapt_loss and control need rounds of their own: use `clientwise new`"
        raise ValueError(f"{built.name} does not run inside a Flower strategy: {hint}")
    return built


def _server_data(
    samples: tuple[Any, Any], num_classes: int | None, max_nodes: int
) -> FederatedData:
    """The server's samples, and so many clients whose samples are elsewhere."""
    inputs, targets = samples
    one = FederatedData.from_clients(
        [(inputs[:1], targets[:1])],
        [(inputs[:1], targets[:1])],
        weigh=samples,
        num_classes=num_classes,
    )
    assert one.weigh is not None
    nobody = Holdings(
        one.weigh.indices[:0], one.weigh.targets[:0], torch.zeros(max_nodes + 1, dtype=torch.int64)
    )
    return replace(one, train=nobody, test=nobody)


def _numpy(arrays: ArrayRecord) -> dict[str, numpy.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}
