"""What an engine asks of a backend and what comes back: jobs in, results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.objective.loss import Loss
from ..core.objective.problem import Problem
from ..core.types import LocalTraining
from ..data.federated import Holdings


@dataclass(frozen=True)
class TrainJob:
    """G clients to train with the same options: their start models, samples and random keys."""

    starts: Tensor  # [G, d]
    indices: Tensor  # [N] of the samples, client after client
    targets: Tensor  # [N, ...]
    sizes: Tensor  # [G], on the CPU
    keys: Tensor  # [G], on the CPU
    training: LocalTraining
    losses: Sequence[Loss]  # [G]; they differ in nothing but their class weights
    # [G, d] added to every gradient; there where `training.control_variates` is set
    corrections: Tensor | None = None
    # [G] what each client's noise follows from; there where `training.sample_clip` is set
    noise_keys: Sequence[bytes] | None = None
    # Steps on the loss of an evaluation: no dropout, and batch norm with its running statistics
    as_evaluated: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def cut(self, first: int, end: int) -> TrainJob:
        """Some of the clients, one after the other; nothing is copied."""
        if (first, end) == (0, len(self)):
            return self
        clients = slice(first, end)
        samples = slice(int(self.sizes[:first].sum()), int(self.sizes[:end].sum()))
        return replace(
            self,
            starts=self.starts[clients],
            indices=self.indices[samples],
            targets=self.targets[samples],
            sizes=self.sizes[clients],
            keys=self.keys[clients],
            losses=self.losses[clients],
            corrections=None if self.corrections is None else self.corrections[clients],
            noise_keys=None if self.noise_keys is None else self.noise_keys[clients],
        )

    def select(self, order: Tensor) -> TrainJob:
        """Some of the clients, in another order."""
        ends = self.sizes.cumsum(0)
        parts = [
            torch.arange(int(ends[row] - self.sizes[row]), int(ends[row])) for row in order.tolist()
        ]
        samples, rows = torch.cat(parts).to(self.indices.device), order.to(self.starts.device)
        losses = [self.losses[row] for row in order.tolist()]
        indices, targets = self.indices[samples], self.targets[samples]
        corrections = None if self.corrections is None else self.corrections[rows]
        sizes, keys = self.sizes[order], self.keys[order]
        noise_keys = None
        if self.noise_keys is not None:
            noise_keys = [self.noise_keys[row] for row in order.tolist()]
        return TrainJob(
            starts=self.starts[rows],
            indices=indices,
            targets=targets,
            sizes=sizes,
            keys=keys,
            training=self.training,
            losses=losses,
            corrections=corrections,
            noise_keys=noise_keys,
            as_evaluated=self.as_evaluated,
        )

    @staticmethod
    def joined(jobs: Sequence[TrainJob]) -> TrainJob:
        """Several jobs with the same training options, as one."""
        if len(jobs) == 1:
            return jobs[0]
        tensors = {
            name: torch.cat([getattr(job, name) for job in jobs])
            for name in ("starts", "indices", "targets", "sizes", "keys")
        }
        losses = [loss for job in jobs for loss in job.losses]
        corrections = [job.corrections for job in jobs if job.corrections is not None]
        together = torch.cat(corrections) if corrections else None
        noise_keys = [key for job in jobs for key in job.noise_keys or ()]
        return TrainJob(
            training=jobs[0].training,
            losses=losses,
            corrections=together,
            noise_keys=noise_keys or None,
            as_evaluated=jobs[0].as_evaluated,
            **tensors,
        )


class TrainResult(NamedTuple):
    """The trained models of a job."""

    models: Tensor  # [G, d]
    losses: Tensor  # [G] mean losses of their last epochs

    @staticmethod
    def joined(parts: Sequence[TrainResult]) -> TrainResult:
        """The parts of a job, in order; a single one is not copied."""
        if len(parts) == 1:
            return parts[0]
        return TrainResult(
            torch.cat([part.models for part in parts]), torch.cat([part.losses for part in parts])
        )


@dataclass(frozen=True)
class EvaluateJob:
    """Samples to evaluate models on, and which holder (a client, or the server) each belongs to."""

    indices: Tensor  # [N] of the samples
    targets: Tensor  # [N, ...]
    owner: Tensor  # [N] on the CPU
    sizes: Tensor  # [K] samples of each holder
    problem: Problem  # by which they are judged
    # CUDA graphs by number of models; None: as many were evaluated once, without a graph.
    graphs: dict[int, Callable[[Tensor], EvaluateResult] | None] = field(default_factory=dict)

    @staticmethod
    def of(held: Holdings, holders: Sequence[int], problem: Problem) -> EvaluateJob:
        """All samples of some holders."""
        indices, targets, owner = held.gather(holders)
        return EvaluateJob(indices, targets, owner, held.sizes[list(holders)], problem)

    @cached_property
    def targets_on_cpu(self) -> Tensor:
        """The targets where evaluations are summed up."""
        return self.targets.cpu()


class EvaluateResult(NamedTuple):
    """The results of c models on N samples."""

    losses: Tensor  # [c, N]
    values: Tensor  # [c, N] right or wrong, or scores [c, N, C]; regression: relative error; survival: the score
    counts: Tensor  # as `core.types.Evaluation` has them
