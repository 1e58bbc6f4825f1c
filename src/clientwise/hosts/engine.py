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
from ..core.objective.problem import Classification
from ..core.types import Evaluation, Layer, ModelSpec, ServerNetwork, ServerPart, Task, Updates
from ..data.federated import FederatedData
from ..engine.local import LocalEngine
from ..models.flat import FlatModel

Pair = tuple[Any, Any]  # inputs and targets


def server_engine(
    model: nn.Module | None,
    weigh: Pair | None,
    report: Pair | None,
    num_classes: int | None,
    seed: int,
) -> tuple[LocalEngine | None, ModelSpec | None]:
    """What evaluates the server's samples and trains on them, if it has any, and the network's layout.

    See `Aggregator` for the arguments.
    """
    some = weigh if weigh is not None else report
    if model is None:
        if some is not None:
            raise ValueError(
                "samples of the server need `model`, the network they are evaluated with"
            )
        return None, None
    module = deepcopy(model)
    if some is None:
        return None, FlatModel(module, torch.device("cpu")).spec
    inputs, targets = some
    nobody = [(inputs[:1], targets[:1])]  # a client for the layout of the samples
    data = FederatedData.from_clients(
        nobody, nobody, weigh=weigh, report=report, num_classes=num_classes
    )
    samples = replace(data.samples, problem=data.samples.problem.by(None))
    engine = LocalEngine(replace(data, samples=samples), module, seed=seed)
    return engine, engine.spec


class HostEngine:
    """See `core.engine.Engine`. `updates` are those of the round that is run next.

    Args:
        num_clients: the most that may take part.
        server: with the server's samples, if it has any.
        num_classes: how many there are, if that is known.
    """

    updates: Updates
    initial_model: Tensor
    spec: ModelSpec

    def __init__(
        self, num_clients: int, server: LocalEngine | None, num_classes: int | None
    ) -> None:
        self.num_clients = num_clients
        # Without samples, classes, whose number may be unknown
        self.problem = server.problem if server else Classification(num_classes or int(ANY))
        self.device = torch.device("cpu")
        self.attributes: Mapping[str, Tensor] = {}
        self.idle_work: Callable[[], None] | None = None
        self.clock: Clock | None = None
        self._server = server

    def begin(self, layout: Layout) -> None:
        """Take the model of the first round."""
        self.initial_model = layout.vector()
        self.spec = layout.spec

    def train(self, client_ids: Sequence[int], model: Tensor, task: Task) -> Iterator[Updates]:
        """See `core.engine.Engine`."""
        yield self.updates

    def evaluate(self, client_ids: Sequence[int], models: Tensor) -> Evaluation:
        """See `core.engine.Engine`: methods that would ask clients are refused beforehand."""
        raise NotImplementedError("a host's clients are not asked to evaluate")

    def evaluate_server(self, models: Tensor, part: ServerPart) -> Evaluation | None:
        """See `core.engine.Engine`. Without samples to report on, those to weigh by are reported on."""
        if self._server is None:
            return None
        if part == "report" and self._server.data.report is None:
            part = "weigh"
        return self._server.evaluate_server(models, part)

    def train_server(self, models: Tensor, task: Task) -> Tensor:
        """See `core.engine.Engine`."""
        assert self._server is not None, "methods that need samples are refused beforehand"
        return self._server.train_server(models, task)

    def server_network(self) -> ServerNetwork | None:
        """See `core.engine.Engine`."""
        return self._server.server_network() if self._server else None

    def server_gradients(self, model: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """See `core.engine.Engine`."""
        assert self._server is not None, "methods that need samples are refused beforehand"
        return self._server.server_gradients(model, groups)

    def state(self) -> Mapping[str, Tensor]:
        """See `core.engine.Engine`."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `core.engine.Engine`."""


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
