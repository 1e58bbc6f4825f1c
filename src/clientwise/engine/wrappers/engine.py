"""An engine around another one: what it does not change, it hands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ...core.clock import Clock
from ...core.criteria import ClientFacts
from ...core.objective.problem import Problem
from ...core.types import (
    Evaluation,
    LocalTraining,
    ModelSpec,
    ServerPart,
    Task,
    Updates,
)
from ...data.federated import FederatedData
from ..local import LocalEngine


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
    def train_sizes(self) -> Tensor | None:
        """See `core.engine.Engine`."""
        return self.inner.train_sizes

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

    def prefetch(self, client_ids: Sequence[int]) -> None:
        """See `core.engine.Engine`."""
        self.inner.prefetch(client_ids)

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`."""
        return self.inner.train(client_ids, model, task)

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """See `core.engine.Engine`."""
        return self.inner.train_server(models, task)

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """See `core.engine.Engine`."""
        return self.inner.server_gradients(model, groups)

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`."""
        return self.inner.evaluate(client_ids, models)

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`."""
        return self.inner.evaluate_server(models, part)

    def facts(
        self,
        clients: Sequence[int],
        training_loss: Tensor,
        model: Tensor,
        training: LocalTraining,
    ) -> ClientFacts:
        """See `LocalEngine.facts`."""
        return self.inner.facts(clients, training_loss, model, training)

    def state(self) -> dict[str, Tensor]:
        """See `core.engine.Engine`."""
        return self.inner.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""
        self.inner.load_state(state)


EmbeddedEngine = LocalEngine | WrappingEngine  # any engine whose clients live in this process
