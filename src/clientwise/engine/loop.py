"""The loop backend: one client, or one model, after the other. It takes any network."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.objective.loss import Loss
from ..core.seeding import mixed, seeded_default_generator, standard_normal
from ..core.training import TRANSFORMS, applied, is_elementwise
from ..core.types import LocalTraining
from ..data.federated import Inputs
from ..models.flat import FlatModel
from ..models.modules import CountedDropout, outputs_of
from ..registry import Part
from .batches import (
    BatchSchedule,
    add_terms,
    begin_steps,
    make_optimizer,
    seeded_generators,
    state_of,
)
from .device import CudaGraph
from .jobs import EvaluateJob, EvaluateResult, Setup, TrainJob, TrainResult, evaluate_batches

MAX_GRAPHS = 16  # for batches of different sizes; beyond that, batches run as they come


class LoopBackend:
    """Trains and evaluates with one module: steps of P1 Eq. 3 on the client's part of P1 Eq. 1."""

    def __init__(self, flat: FlatModel, setup: Setup) -> None:
        self._flat = flat
        self._setup = setup
        self._samples = setup.samples
        self._parameters = [one for one in flat.module.parameters() if one.requires_grad]
        self._dropouts = [
            module for module in flat.module.modules() if isinstance(module, CountedDropout)
        ]
        self._anchor = flat.parameter.detach().clone()
        self._correction = torch.zeros_like(self._anchor)
        self._recipe: object = None  # what the optimizer and the graphs belong to
        self._training: LocalTraining
        self._criterion: Loss
        self._graphs: dict[int, tuple[tuple[Tensor, Tensor], CudaGraph]] = {}
        self._loss = torch.zeros((), device=flat.vector.device)
        self._class_weights: Tensor | None = None
        self._noise_key: bytes | None = None
        self._rate = 0.0
        self._transform: Callable[..., Any] | None = None
        self._step_num = 0

    def train(self, job: TrainJob) -> TrainResult:
        """Every client of the job."""
        ends = job.sizes.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        trained = [
            self._train_client(job, *client)
            for client in zip(range(len(job)), starts, ends, strict=True)
        ]
        return TrainResult(
            torch.stack([model for model, _ in trained]), torch.stack([loss for _, loss in trained])
        )

    def _train_client(
        self, job: TrainJob, index: int, start: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """The model of one client [d] and its loss []."""
        training = job.training
        flat = self._flat
        device = job.starts.device
        key = job.keys[index : index + 1]
        size = job.sizes[index : index + 1]
        indices = job.indices[start:end]
        targets = job.targets[start:end]
        self._prepare(training, job.losses[index], job.as_evaluated)
        flat.load(job.starts[index])
        flat.module.train(not job.as_evaluated)
        self._anchor.copy_(flat.parameter.detach())
        self._noise_key = job.noise_keys[index] if job.noise_keys is not None else None
        if job.corrections is not None:
            self._correction.copy_(job.corrections[index, : len(self._correction)])
        for dropout in self._dropouts:
            dropout.key.copy_(mixed(key[0]))
        loss = torch.zeros((), dtype=torch.float64, device=device)
        schedule = BatchSchedule.of(
            size, training, min(training.batch_size or int(size), int(size)), device
        )
        counts = schedule.counts[:, 0].tolist()
        last_epoch = schedule.last_epoch[:, 0].tolist()
        order = schedule.draw(key.to(device))
        with self._seeded(int(key), device):
            for step, (count, share) in enumerate(zip(counts, last_epoch, strict=True)):
                rows = order[step, 0, :count]
                if count == 1 and self._setup.pairs and not job.as_evaluated:
                    rows = _with_another(order, step, rows)
                self._step_num = step
                for dropout in self._dropouts:
                    dropout.step.fill_(step)
                loss += share * self._take_step(indices[rows], targets[rows])
        return flat.vector.clone(), loss

    def _seeded(self, key: int, device: torch.device) -> AbstractContextManager[None]:
        """What draws from generators of the process: modules and transforms."""
        if self._transform is not None:
            return seeded_generators(key, "modules", device)
        if self._setup.draws:
            return seeded_default_generator(key, "modules", device=device)
        return nullcontext()

    def _prepare(self, training: LocalTraining, loss: Loss, as_evaluated: bool) -> None:
        """A fresh optimizer, and graphs that belong to this task."""
        if training.sample_clip is not None and self._flat.spec.size > len(self._anchor):
            raise ValueError("statistics of batch norm get no noise: use a network without them")
        self._training = training.recipe
        self._criterion = loss.unweighted()
        recipe = self._training, self._criterion, as_evaluated
        if self._recipe != recipe:
            self._optimizer = make_optimizer(self._flat.parameter, training)
            self._recipe = recipe
            self._graphs = {}
            self._transform = _made(training.transform)
        elif not is_elementwise(training.optimizer):
            self._optimizer = make_optimizer(self._flat.parameter, training)
        if is_elementwise(training.optimizer):
            begin_steps(self._optimizer, training)
        self._rate = training.rate
        if loss.class_weights is not None:
            # Kept in place: they change from round to round, the graphs do not
            if self._class_weights is None:
                self._class_weights, self._graphs = (
                    torch.ones(len(loss.class_weights), device=self._loss.device),
                    {},
                )
            self._class_weights.copy_(torch.tensor(loss.class_weights))
        elif self._class_weights is not None:
            self._class_weights.fill_(1)

    def _take_step(self, indices: Tensor, targets: Tensor) -> Tensor:
        """One step on a batch; a graph for every size of batch."""
        if not self._setup.use_graphs or not self._can_be_captured:
            return self._step(indices, targets)
        count = len(indices)
        if count not in self._graphs and len(self._graphs) >= MAX_GRAPHS:
            return self._step(indices, targets)
        if count not in self._graphs:
            batch = indices.clone(), targets.clone()
            changes = [self._flat.vector, *self._flat.module.buffers(), *state_of(self._optimizer)]
            graph = CudaGraph(lambda: self._loss.copy_(self._step(*batch)), changes)
            self._graphs[count] = batch, graph
        batch, graph = self._graphs[count]
        for read, given in zip(batch, (indices, targets), strict=True):
            read.copy_(given)
        graph()
        return self._loss

    @property
    def _can_be_captured(self) -> bool:
        """Whether every step does the same: no noise, no transform, an optimizer that is restarted."""
        draws_nothing = self._noise_key is None and self._transform is None
        is_restarted = is_elementwise(self._training.optimizer)
        return draws_nothing and is_restarted and self._criterion.can_be_captured

    def _step(self, indices: Tensor, targets: Tensor) -> Tensor:
        flat = self._flat
        training = self._training
        if training.sample_clip is not None:
            loss, gradients = self._private_gradients(indices, targets)
        else:
            loss = self._losses(indices, targets).mean()
            gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():
            if self._optimizer is None:  # plain SGD, without another pass over memory
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-self._rate)
                return loss.detach()
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(gradient)
            add_terms(flat.parameter, training, self._anchor, self._correction)
            if training.clip_gradients is not None:
                assert flat.parameter.grad is not None
                _clip(flat.parameter.grad, training.clip_gradients)
        self._optimizer.step()
        return loss.detach()

    def _losses(self, indices: Tensor, targets: Tensor) -> Tensor:
        """Loss of every sample of a batch [B], times the weight of its class."""
        module = self._flat.module
        inputs = self._samples.network_inputs(indices)
        if self._transform is not None:
            inputs = applied(self._transform, inputs)
        if self._setup.dtype == torch.bfloat16:
            with torch.autocast(indices.device.type, torch.bfloat16):
                outputs = outputs_of(module, inputs).float()
        else:
            outputs = outputs_of(module, inputs)
        losses = self._criterion.per_sample(outputs, targets)
        if self._class_weights is None:
            return losses
        return losses * self._class_weights[targets]

    def _private_gradients(
        self, indices: Tensor, targets: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Mean loss, and the mean of the samples' clipped gradients with noise (DP-SGD).

        The network sees one sample at a time. So no sample changes the gradient of another one,
        whatever the network does with a batch.
        """
        assert self._noise_key is not None
        training = self._training
        assert training.sample_clip is not None
        assert training.sample_noise is not None
        sizes = [one.numel() for one in self._parameters]
        # float64: no clipped norm is rounded above the limit
        total = torch.zeros(sum(sizes), dtype=torch.float64, device=indices.device)
        losses = []
        for row in range(len(indices)):
            (loss,) = self._losses(indices[row : row + 1], targets[row : row + 1])
            parts = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
            gradient = torch.cat([part.flatten() for part in parts]).double()
            norm = float(torch.linalg.vector_norm(gradient))
            if math.isfinite(norm):  # else the sample counts as zero: an error would tell of it
                total.add_(gradient, alpha=min(1.0, training.sample_clip / max(norm, 1e-300)))
            losses.append(loss.detach())
        noise = standard_normal(self._noise_key, f"step {self._step_num}", len(total))
        deviation = 2 * training.sample_clip * training.sample_noise
        mean = ((total + deviation * noise.to(total.device)) / len(indices)).float()
        shaped = zip(torch.split(mean, sizes), self._parameters, strict=True)
        return torch.stack(losses).mean(), tuple(part.view_as(one) for part, one in shaped)

    def evaluate(self, models: Tensor, job: EvaluateJob) -> EvaluateResult:
        """Model after model."""
        self._flat.module.eval()
        results = []
        for model in models:
            self._flat.load(model)
            results.append(evaluate_batches(self._forward, 1, self._setup, job))
        return EvaluateResult.joined(results)

    def _forward(self, inputs: Inputs) -> Tensor:
        device = self._flat.vector.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._setup.dtype == torch.bfloat16):
            return outputs_of(self._flat.module, inputs).float()[None]


def _made(part: Part | None) -> Callable[..., Any] | None:
    """The transform of a task."""
    return None if part is None else partial(TRANSFORMS.get(part.name), **part.options)


def _clip(gradient: Tensor, limit: float) -> None:
    """Scale a gradient [d] down to a norm of `limit`."""
    norm = torch.linalg.vector_norm(gradient).clamp(min=torch.finfo(gradient.dtype).tiny)
    gradient.mul_((limit / norm).clamp(max=1.0))


def _with_another(order: Tensor, step: int, rows: Tensor) -> Tensor:
    """A last batch of one, and a sample of the batch before it: batch norm needs two."""
    if not step:
        raise ValueError(
            "batch norm cannot train on one sample: batches and clients need two or more"
        )
    return torch.cat([order[step - 1, 0, :1], rows])
