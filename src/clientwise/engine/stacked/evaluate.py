"""Evaluates many models at once, as one stacked network; on a GPU small evaluations are CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ...data.federated import Inputs, Samples
from ..evaluation import BATCH, evaluate_batches, joined
from ..graphs import CudaGraph
from ..jobs import EvaluateJob, EvaluateResult
from .network import StackedNetwork

LARGE = 2**25  # values of models: a graph keeps as many
MAX_GRAPHS = 8  # numbers of models for which one job has a graph


def evaluate_stacked(
    network: StackedNetwork,
    models: Tensor,
    samples: Samples,
    indices: Tensor,
    targets: Tensor,
    at_once: int,
) -> EvaluateResult:
    """Several models side by side."""
    results = []
    for some in torch.split(models, network.size):
        network.load(some)
        forward = partial(_forward, network, len(some))
        results.append(evaluate_batches(forward, len(some), samples, indices, targets, at_once))
    return joined(results)


def _forward(network: StackedNetwork, count: int, inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor), "a network with several inputs is not stacked"
    return network.forward(inputs.expand(count, *inputs.shape), training=False)


class EvaluationGraph:
    """So many models on the samples of one job, as a graph: a small job is over before its launches are."""

    def __init__(self, evaluate: Callable[[Tensor], EvaluateResult], models: Tensor) -> None:
        self._models = models.clone()
        self._result = evaluate(self._models)
        self._graph = CudaGraph(lambda: self._put(evaluate(self._models)), [])

    def _put(self, result: EvaluateResult) -> None:
        for kept, given in zip(self._result, result, strict=True):
            kept.copy_(given)

    def __call__(self, models: Tensor) -> EvaluateResult:
        """Valid until the next call."""
        self._models.copy_(models)
        self._graph()
        return self._result


def evaluate_by_graph(
    job: EvaluateJob, models: Tensor, evaluate: Callable[[Tensor], EvaluateResult]
) -> EvaluateResult:
    """On a GPU: a job of one pass that as many models had before gets a graph; the others are `evaluate`d anew."""
    count, known = len(models), job.graphs
    if len(job.indices) * count > 4 * BATCH or models.numel() > LARGE:
        return evaluate(models)
    if count in known:
        graph = known[count] = known[count] or EvaluationGraph(evaluate, models)
        return graph(models)
    if len(known) < MAX_GRAPHS:
        known[count] = None
    return evaluate(models)
