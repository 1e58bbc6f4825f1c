"""The engine of a host: its clients have answered already, and only the server's samples are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.clock import Clock
from ..core.criteria import ANY
from ..core.objective.problem import Classification, Problem
from ..core.types import Evaluation, ModelSpec, ServerPart, Task, Updates
from ..data.federated import FederatedData
from ..engine.local import LocalEngine
from ..models.flat import FlatModel

Pair = tuple[Any, Any]  # inputs and targets


class ServerSamples:
    """The samples that a host's server holds, and the network that they are evaluated with.

    Args:
        module: the network.
        weigh: samples to weigh by and to fine-tune on.
        report: samples to report on; `weigh` if None.
        num_classes: number of classes over all clients; by default the largest label plus one.
        seed: of the order of samples in fine-tuning.
    """

    def __init__(
        self,
        module: nn.Module,
        weigh: Pair | None,
        report: Pair | None,
        num_classes: int | None,
        seed: int,
    ) -> None:
        self._shows: ServerPart = "weigh" if report is None else "report"
        some = weigh if weigh is not None else report
        assert some is not None, "there is a set only where there are samples"
        inputs, targets = some
        nobody = [(inputs[:1], targets[:1])]  # a client for the layout of the samples
        data = FederatedData.from_clients(
            nobody, nobody, weigh=weigh, report=report, num_classes=num_classes
        )
        samples = replace(data.samples, problem=data.samples.problem.by(None))
        data = replace(data, samples=samples)
        self._engine = LocalEngine(data, deepcopy(module), seed=seed)
        self.problem = self._engine.problem
        self.spec = self._engine.spec

    def evaluate(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """The models [c, d] on a part of the samples; None where there is no such part."""
        return self._engine.evaluate_server(models, self._shows if part == "report" else part)

    def train(self, models: Tensor, task: Task) -> Tensor:
        """The models [c, d], trained on the samples to weigh by."""
        return self._engine.train_server(models, task)

    def gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """Of the mean loss of groups of the samples to weigh by [g, d]."""
        return self._engine.server_gradients(model, groups)


def server_set(
    model: nn.Module | None,
    weigh: Pair | None,
    report: Pair | None,
    num_classes: int | None,
    seed: int,
) -> tuple[ServerSamples | None, ModelSpec | None]:
    """The server's samples, if it has any, and the layout of the network; see `Aggregator`."""
    if model is None:
        if weigh is not None or report is not None:
            raise ValueError(
                "samples of the server need `model`, the network they are evaluated with"
            )
        return None, None
    if weigh is None and report is None:
        return None, FlatModel(deepcopy(model), torch.device("cpu")).spec
    server = ServerSamples(model, weigh, report, num_classes, seed)
    return server, server.spec


class HostEngine:
    """See `core.engine.Engine`. `updates` are those of the round that is run next."""

    updates: Updates

    def __init__(
        self,
        initial_model: Tensor,
        spec: ModelSpec,
        num_clients: int,
        server: ServerSamples | None,
        num_classes: int | None,
    ) -> None:
        self.num_clients = num_clients
        self.initial_model = initial_model
        self.spec = spec
        self.problem: Problem = problem_of(server, num_classes)
        self.device = torch.device("cpu")
        self.attributes: Mapping[str, Tensor] = {}
        self.idle_work: Callable[[], None] | None = None
        self.clock: Clock | None = None
        self._server = server

    @property
    def train_sizes(self) -> Tensor | None:
        """See `core.engine.Engine`: the clients' samples are elsewhere."""
        return None

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`."""
        yield self.updates

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`: methods that would ask clients are refused beforehand."""
        raise NotImplementedError("a host's clients are not asked to evaluate")

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`."""
        return None if self._server is None else self._server.evaluate(models, part)

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """See `core.engine.Engine`."""
        assert self._server is not None, "methods that need samples are refused beforehand"
        return self._server.train(models, task)

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """See `core.engine.Engine`."""
        assert self._server is not None, "methods that need samples are refused beforehand"
        return self._server.gradients(model, groups)

    def prefetch(self, client_ids: Sequence[int]) -> None:
        """See `core.engine.Engine`."""

    def state(self) -> Mapping[str, Tensor]:
        """See `core.engine.Engine`."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""


def problem_of(server: ServerSamples | None, num_classes: int | None) -> Problem:
    """What the model predicts; without samples, classes, whose number may be unknown."""
    if server is not None:
        return server.problem
    return Classification(num_classes or int(ANY))
