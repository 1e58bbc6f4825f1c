"""Evaluates many models at once, as one stacked network; on a GPU small evaluations are CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ...core.objective.problem import Problem
from ...data.federated import Inputs, Samples
from ..evaluation import evaluate_batches, joined
from ..graphs import CudaGraph
from ..jobs import EvaluateJob, EvaluateResult
from .network import StackedNetwork

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
