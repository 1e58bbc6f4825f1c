"""The engine of a host: its clients have answered already, and only the server's samples are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from ..core.clock import Clock
from ..core.criteria import ANY
from ..core.objective.problem import Classification, Problem
from ..core.types import Evaluation, Layer, ModelSpec, ServerPart, Task, Updates
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


Arrays = Mapping[str, Any]  # NumPy arrays or tensors, by name
OTHER_SHAPE = "model of another shape"
OTHER_TYPE = "model of another type"
NO_NAMES = "does not hold arrays by name"


class Layout:
    """The names, shapes and types of a global model.

    Floating-point arrays are the vector [d]. Others, such as counters of batches, are no part of it.

    Args:
        model: the global model.
        spec: the layout of the network whose state the arrays are. Without it, the order is that of
            the arrays, and all are parameters.
    """

    def __init__(self, model: Arrays, spec: ModelSpec | None = None) -> None:
        if not isinstance(model, Mapping):
            raise ValueError(f"the global model {NO_NAMES}: pass a dict, such as a state_dict")
        self._tensors = _copied(_tensors(model))  # of the last global model
        self._is_tensor = {name: isinstance(array, Tensor) for name, array in model.items()}
        found = _spec_of(self._tensors)
        self.spec = spec or found
        if _shapes(self.spec) != _shapes(found):
            raise ValueError("the arrays are not the state of `model`: names or shapes differ")
        if not found.layers:
            raise ValueError("the global model has no floating-point array")

    def renew(self, model: Arrays) -> None:
        """Take another global model; ValueError where its names, shapes or types differ."""
        try:
            self._tensors = _copied(self.fit(model))
        except ValueError as error:
            raise ValueError(f"the global model is not that of the first round: {error}") from None

    def fit(self, arrays: Arrays) -> dict[str, Tensor]:
        """A model with the names, the order and the types of the global one.

        ValueError where names or shapes differ, or a type cannot be converted.
        """
        if not isinstance(arrays, Mapping):
            raise ValueError(NO_NAMES)
        self._compare({name: tuple(numpy.shape(array)) for name, array in arrays.items()})
        found = _tensors(arrays)
        fitted = {}
        for name, ours in self._tensors.items():
            if not torch.can_cast(found[name].dtype, ours.dtype):
                raise ValueError(OTHER_TYPE)
            fitted[name] = found[name].to(ours.dtype)  # what overflows is infinite from here on
        return fitted

    def _compare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """ValueError where names or shapes differ.

        It has no word of the other model, since reports count refusals by reason.
        """
        for name, ours in self._tensors.items():
            if name not in shapes:
                raise ValueError(f"{OTHER_SHAPE}: {name} is missing")
            if shapes[name] != tuple(ours.shape):
                raise ValueError(f"{OTHER_SHAPE}: {name} is not of shape {tuple(ours.shape)}")
        if len(shapes) > len(self._tensors):
            raise ValueError(f"{OTHER_SHAPE}: it has arrays that the global model has not")

    def vector(self, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The vector [d] of a fitted model, or of the global one."""
        found = self._tensors if tensors is None else tensors
        return torch.cat([found[layer.name].flatten().float() for layer in self.spec.layers])

    def sent(self) -> dict[str, Any]:
        """The global model that clients were sent, as the host's arrays."""
        return self.native(self._tensors)

    def named(self, vector: Tensor) -> dict[str, Any]:
        """A vector [d] as the host's arrays. What is no part of it is that of the global model."""
        tensors = dict(self._tensors)
        for layer in self.spec.layers:
            part = vector[layer.start : layer.stop].reshape(layer.shape)
            tensors[layer.name] = part.to(tensors[layer.name].dtype)
        return self.native(tensors)

    def native(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Tensors as the host's own arrays: NumPy arrays where the global model has these."""
        arrays: dict[str, Any] = {}
        for name, tensor in tensors.items():
            arrays[name] = tensor.clone() if self._is_tensor[name] else tensor.numpy().copy()
        return arrays


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Tensors on the CPU; ValueError for what holds no numbers."""
    found = {}
    for name, array in arrays.items():
        if isinstance(array, Tensor):
            found[name] = array.detach().cpu()
            continue
        try:
            found[name] = torch.from_numpy(numpy.array(array))  # a copy: hosts reuse their memory
        except (TypeError, ValueError):
            raise ValueError(OTHER_TYPE) from None
    return found


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies: a host may train the module in place whose state it passed."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _spec_of(tensors: Mapping[str, Tensor]) -> ModelSpec:
    """All floating-point tensors as parameters, in their order."""
    layers = []
    start = 0
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            layers.append(Layer(name, tuple(tensor.shape), start, start + tensor.numel()))
            start += tensor.numel()
    return ModelSpec(tuple(layers), start, start)


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {layer.name: layer.shape for layer in spec.layers}
