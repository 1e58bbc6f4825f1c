"""Many clients, or many models, at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.types import ModelSpec
from ...data.federated import Samples
from ..jobs import EvaluateResult, TrainJob, TrainResult
from .evaluate import evaluate_stacked
from .network import StackedNetwork
from .train import StackedTrainer

MAX_NETWORKS = 4  # sizes of stacked networks kept, with their graphs
MAX_EVALUATED = 32  # models evaluated at once


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
        self._trainers: dict[int, StackedTrainer] = {}
        self._evaluating: StackedNetwork | None = None

    def train(self, job: TrainJob) -> TrainResult:
        """Every client of the job."""
        try:
            return self._trainer(len(job)).train(job)
        except Exception:
            self._trainers.clear()  # what their steps read may be half of the old and half of the new
            raise

    def evaluate(self, models: Tensor, indices: Tensor, targets: Tensor) -> EvaluateResult:
        """All models side by side."""
        if self._evaluating is None:
            self._evaluating = self._stack(MAX_EVALUATED)
        return evaluate_stacked(
            self._evaluating, models, self._samples, indices, targets, self._evaluated
        )

    def _trainer(self, size: int) -> StackedTrainer:
        use_graphs = self._device.type == "cuda"
        if not use_graphs:  # a larger one serves as well
            size = max(size, *self._trainers, 1)
        if size not in self._trainers:
            while len(self._trainers) >= MAX_NETWORKS:
                self._trainers.pop(next(iter(self._trainers)))
            self._trainers[size] = StackedTrainer(
                self._stack(size), self._samples, use_graphs=use_graphs
            )
        return self._trainers[size]

    def _stack(self, size: int) -> StackedNetwork:
        return StackedNetwork(self._module, self._spec, size, self._device, self._dtype)
