"""Many clients, or many models, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from ...core.objective.problem import Problem
from ...core.types import ModelSpec
from ...data.federated import Inputs, Samples
from ..device import CudaGraph
from ..evaluation import evaluate_batches, joined
from ..jobs import EvaluateJob, EvaluateResult, TrainJob, TrainResult
from .network import StackedNetwork
from .train import StackedTrainer

MAX_NETWORKS = 8  # stacked networks that train and are kept, with their graphs
MAX_MODELS = 1024  # in all of them
MAX_EVALUATED = 32  # models evaluated at once
MANY_EVALUATED = 512  # small ones on a GPU, where a pass over few takes as long as one over many


class StackedBackend:
    """Trains and evaluates with stacked networks, which are kept from round to round."""

    def __init__(
        self,
        module: nn.Module,
        spec: ModelSpec,
        samples: Samples,
        device: torch.device,
        dtype: torch.dtype,
        evaluated: int,
    ) -> None:
        self._module = module
        self._spec = spec
        self._samples = samples
        self._device = device
        self._dtype = dtype
        self._evaluated = evaluated
        # By number of models and, on a GPU, by recipe; the one that was used last is the last
        self._trainers: dict[tuple[int, object], StackedTrainer] = {}
        self._evaluating: dict[int, StackedNetwork] = {}  # by number of models

    def train(self, job: TrainJob) -> TrainResult:
        """Every client of the job."""
        try:
            return self._trainer(job).train(job)
        except Exception:
            self._trainers.clear()  # what their steps read may be half of the old and half of the new
            raise

    def evaluate(
        self, models: Tensor, indices: Tensor, targets: Tensor, problem: Problem
    ) -> EvaluateResult:
        """All models side by side."""
        size = evaluated_together(len(models), self._spec.size, self._device)
        if size not in self._evaluating:  # all are kept: graphs read them
            self._evaluating[size] = self._stack(size)
        return evaluate_stacked(
            self._evaluating[size],
            models,
            self._samples,
            indices,
            targets,
            problem,
            self._evaluated,
        )

    def _trainer(self, job: TrainJob) -> StackedTrainer:
        use_graphs = self._device.type == "cuda"
        size = len(job)
        recipe: object = job.as_evaluated
        if use_graphs:  # they belong to one recipe
            recipe = job.training.recipe, job.as_evaluated
        else:  # a larger one serves as well
            size = max([size, *(known for known, other in self._trainers if other == recipe)])
        trainer = self._trainers.pop((size, recipe), None)
        if trainer is None:
            while self._trainers and self._has_no_room_for(size):
                self._trainers.pop(next(iter(self._trainers)))
            trainer = StackedTrainer(self._stack(size), self._samples, use_graphs=use_graphs)
        self._trainers[size, recipe] = trainer
        return trainer

    def _has_no_room_for(self, size: int) -> bool:
        models = sum(known for known, _ in self._trainers)
        return len(self._trainers) >= MAX_NETWORKS or models + size > MAX_MODELS

    def _stack(self, size: int) -> StackedNetwork:
        return StackedNetwork(self._module, self._spec, size, self._device, self._dtype)


def evaluated_together(count: int, size: int, device: torch.device) -> int:
    """How many of `count` models with `size` values are evaluated in one pass: a power of two, for few sizes."""
    together = MAX_EVALUATED
    if device.type != "cuda":
        return together
    while together < count and 2 * together <= min(MANY_EVALUATED, LARGE // size):
        together *= 2
    return together


LARGE = 2**25  # values of models that lie side by side or are read by graphs
LEAST_ROOM = 2**22  # values of models that graphs read
MAX_GRAPHS = 8  # numbers of models for which one job has a graph
# Where graphs read their models, as long as one of them lives: they take turns
_TURN = threading.Lock()
_ROOMS: WeakValueDictionary[torch.device, Tensor] = WeakValueDictionary()


def evaluate_stacked(
    network: StackedNetwork,
    models: Tensor,
    samples: Samples,
    indices: Tensor,
    targets: Tensor,
    problem: Problem,
    at_once: int,
) -> EvaluateResult:
    """Several models side by side."""
    results = []
    for some in torch.split(models, network.size):
        network.load(some)
        forward = partial(_forward, network, len(some))
        found = evaluate_batches(forward, len(some), samples, indices, targets, problem, at_once)
        results.append(found)
    return joined(results)


def _forward(network: StackedNetwork, count: int, inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor), "a network with several inputs is not stacked"
    return network.forward(inputs.expand(count, *inputs.shape), training=False)


class EvaluationGraph:
    """So many models on the samples of one job, as a graph: a small job is over before its launches are."""

    def __init__(self, evaluate: Callable[[Tensor], EvaluateResult], models: Tensor) -> None:
        with _TURN:
            self._room = _room(models)
            self._models = self._room[: models.numel()].view(models.shape)
            self._models.copy_(models)
            self._result = evaluate(self._models)
            self._graph = CudaGraph(lambda: self._put(evaluate(self._models)), [])

    def _put(self, result: EvaluateResult) -> None:
        for kept, given in zip(self._result, result, strict=True):
            kept.copy_(given)

    def __call__(self, models: Tensor) -> EvaluateResult:
        """Valid until the next call."""
        with _TURN:  # two runs in one process
            self._models.copy_(models)
            self._graph()
        return self._result


def _room(models: Tensor) -> Tensor:
    """Values for these models, which other graphs use, too."""
    room = _ROOMS.get(models.device)
    if room is None or room.numel() < models.numel():
        room = models.new_empty(max(models.numel(), LEAST_ROOM))
        _ROOMS[models.device] = room
    return room


def evaluate_by_graph(
    job: EvaluateJob,
    models: Tensor,
    evaluate: Callable[[Tensor], EvaluateResult],
    at_once: int,
) -> EvaluateResult:
    """On a GPU: a small job that as many models had before gets a graph; the others are `evaluate`d anew.

    Small are at most `at_once` samples times models.
    """
    count, known = len(models), job.graphs
    if len(job.indices) * count > at_once or models.numel() > LARGE:
        return evaluate(models)
    if count in known:
        graph = known[count] = known[count] or EvaluationGraph(evaluate, models)
        return graph(models)
    if len(known) < MAX_GRAPHS:
        known[count] = None
    return evaluate(models)
