"""Many clients, or many models, at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.objective.problem import Problem
from ...core.types import ModelSpec
from ...data.federated import Samples
from ..jobs import EvaluateResult, TrainJob, TrainResult
from .evaluate import LARGE, evaluate_stacked
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
