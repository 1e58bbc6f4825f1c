"""Engines around another one: what they do not change, they hand on. `AloneEngine` trains without a federation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..core.clock import Clock
from ..core.objective.problem import Problem
from ..core.types import Evaluation, ModelSpec, ServerNetwork, ServerPart, Task, Updates
from ..data.federated import FederatedData
from .jobs import joined_evaluations
from .local import Changes, LocalEngine


class WrappingEngine:
    """An engine that asks `inner` for everything; subclasses override what differs."""

    def __init__(self, inner: EmbeddedEngine) -> None:
        self.inner = inner
        self.num_clients: int = inner.num_clients
        self.problem: Problem = inner.problem
        self.spec: ModelSpec = inner.spec
        self.device: torch.device = inner.device
        self.data: FederatedData = inner.data
        self.seed: int = inner.seed
        self.initial_model: Tensor = inner.initial_model
        self.attributes: Mapping[str, Tensor] = inner.attributes
        self.clock: Clock | None = inner.clock

    @property
    def frozen(self) -> str:
        """See `LocalEngine.frozen`."""
        return self.inner.frozen

    @property
    def label_counts(self) -> Tensor:
        """See `core.engine.CountsLabels`."""
        return self.inner.label_counts

    @property
    def noise_key(self) -> bytes:
        """See `LocalEngine.noise_key`."""
        return self.inner.noise_key

    @noise_key.setter
    def noise_key(self, key: bytes) -> None:
        self.inner.noise_key = key

    @property
    def idle_work(self) -> Callable[[], None] | None:
        """See `core.engine.Engine`: the innermost engine runs it."""
        return self.inner.idle_work

    @idle_work.setter
    def idle_work(self, work: Callable[[], None] | None) -> None:
        self.inner.idle_work = work

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`."""
        return self.inner.train(client_ids, model, task)

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """See `core.engine.Engine`."""
        return self.inner.train_server(models, task)

    def server_network(self) -> ServerNetwork | None:
        """See `core.engine.Engine`."""
        return self.inner.server_network()

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """See `core.engine.Engine`."""
        return self.inner.server_gradients(model, groups)

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`."""
        return self.inner.evaluate(client_ids, models)

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`."""
        return self.inner.evaluate_server(models, part)

    def state(self) -> dict[str, Tensor]:
        """See `core.engine.Engine`."""
        return self.inner.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""
        self.inner.load_state(state)


EmbeddedEngine = LocalEngine | WrappingEngine  # any engine whose clients live in this process


class AloneEngine(WrappingEngine):
    """Clients that continue with their own models, whatever they are sent.

    Every client begins with the initial model. On its test set, its own model is evaluated
    instead of the global one. On the server's set all of them are, and the mean is reported.

    Args:
        honest: the engine that trains and evaluates.
        hostile: clients whose models do not count in the mean, unless all clients are hostile.
    """

    def __init__(self, honest: LocalEngine, hostile: Collection[int] = ()) -> None:
        super().__init__(honest)
        self._honest = honest
        self._models: dict[int, Tensor] = {}  # of clients that have trained
        counted = [client for client in range(self.num_clients) if client not in hostile]
        self._counted = counted or list(range(self.num_clients))

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`; no client uses `model`."""
        own = {client: self._models.get(client, self.initial_model) for client in client_ids}
        for updates in self._honest.train(client_ids, model, task, Changes(starts=own)):
            self._models |= dict(zip(updates.client_ids, updates.models.clone(), strict=True))
            yield updates

    def _models_of(self, clients: Sequence[int]) -> Tensor:
        """The model of each client [n, d]."""
        return torch.stack([self._models.get(client, self.initial_model) for client in clients])

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`: each client's own model on its own test set."""
        each = []
        for client, own in zip(client_ids, self._models_of(client_ids), strict=True):
            each.append(self.inner.evaluate([client], own[None]))
        return joined_evaluations(each, torch.arange(len(each)))

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`: the mean over the clients' own models."""
        every = self.inner.evaluate_server(self._models_of(self._counted), part)
        if every is None:
            return None
        return Evaluation(
            every.num_samples,
            every.values.mean(0, keepdim=True),
            every.losses.mean(0, keepdim=True),
            every.counts.sum(0, keepdim=True),
        )

    def state(self) -> dict[str, Tensor]:
        """See `core.engine.Engine`: the model of every client that has trained."""
        return {str(client): model for client, model in self._models.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""
        self._models = {int(client): model.to(self.device) for client, model in state.items()}
