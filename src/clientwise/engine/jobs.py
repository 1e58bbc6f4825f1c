"""What an engine asks of a backend and what comes back: jobs in, results out; and how models are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.objective.loss import Loss
from ..core.objective.problem import Problem
from ..core.types import FLOAT_BYTES, Evaluation, LocalTraining
from ..data.federated import Holdings, Inputs, Samples

BATCH = 4096  # samples times models in one pass; on a GPU four times as many
CUT_BYTES = 2**28  # of what a layer makes of a pass, where so many samples do not fit into memory
PASS_BYTES = 2**27  # of what a layer makes of a pass over more samples than usual, on a GPU
SPARE = 16  # of a GPU's memory: such a pass takes at most one of so many parts


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
        samples = slice(int(self.sizes[:first].sum()), int(self.sizes[:end].sum()))
        return self._part(slice(first, end), samples)

    def select(self, order: Tensor) -> TrainJob:
        """Some of the clients, in another order."""
        ends = self.sizes.cumsum(0)
        parts = [
            torch.arange(int(ends[row] - self.sizes[row]), int(ends[row])) for row in order.tolist()
        ]
        return self._part(order, torch.cat(parts))

    def _part(self, clients: slice | Tensor, samples: slice | Tensor) -> TrainJob:
        rows = torch.arange(len(self))[clients].tolist()
        noise_keys = self.noise_keys
        return replace(
            self,
            starts=self.starts[clients],
            indices=self.indices[samples],
            targets=self.targets[samples],
            sizes=self.sizes[clients],
            keys=self.keys[clients],
            losses=[self.losses[row] for row in rows],
            corrections=None if self.corrections is None else self.corrections[clients],
            noise_keys=None if noise_keys is None else [noise_keys[row] for row in rows],
        )

    @staticmethod
    def joined(jobs: Sequence[TrainJob]) -> TrainJob:
        """Several jobs with the same training options, as one."""
        if len(jobs) == 1:
            return jobs[0]
        tensors: dict[str, Any] = {
            name: torch.cat([getattr(job, name) for job in jobs])
            for name in ("starts", "indices", "targets", "sizes", "keys")
        }
        corrections = [job.corrections for job in jobs if job.corrections is not None]
        return replace(
            jobs[0],
            losses=[loss for job in jobs for loss in job.losses],
            corrections=torch.cat(corrections) if corrections else None,
            noise_keys=[key for job in jobs for key in job.noise_keys or ()] or None,
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

    def split(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Indices and targets of so many samples at a time."""
        return zip(torch.split(self.indices, size), torch.split(self.targets, size), strict=True)

    @cached_property
    def targets_on_cpu(self) -> Tensor:
        """The targets where evaluations are summed up."""
        return self.targets.cpu()


class EvaluateResult(NamedTuple):
    """The results of c models on N samples."""

    losses: Tensor  # [c, N]
    values: Tensor  # [c, N] right or wrong, or scores [c, N, C]; regression: relative error; survival: the score
    counts: Tensor  # as `core.types.Evaluation` has them

    @staticmethod
    def joined(results: Sequence[EvaluateResult]) -> EvaluateResult:
        """The results of several models, or groups of models, on the same samples."""
        return EvaluateResult(*(torch.cat(kind) for kind in zip(*results, strict=True)))


@dataclass(frozen=True)
class Setup:
    """What every backend of an executor computes with."""

    samples: Samples
    draws: bool = True  # whether the network draws from PyTorch's default generator
    pairs: bool = False  # whether a batch of one sample cannot be trained on
    use_graphs: bool = False  # whether the loop's steps are CUDA graphs
    dtype: torch.dtype = torch.float32
    evaluated: int = BATCH  # samples times models in one pass


def samples_at_once(largest: int, room: int, *, on_gpu: bool) -> int:
    """How many samples times models are evaluated in one pass.

    Args:
        largest: values that the layer with most of them makes of one sample.
        room: bytes of memory.
        on_gpu: whether it is that of a GPU.
    """
    usual = 4 * BATCH if on_gpu else BATCH
    if on_gpu and largest:  # small layers: one pass takes no longer than its launches
        usual = max(usual, min(PASS_BYTES, room // SPARE) // (FLOAT_BYTES * largest))
    if FLOAT_BYTES * usual * largest <= room:
        return usual
    return max(1, CUT_BYTES // (FLOAT_BYTES * largest))


@torch.no_grad()
def evaluate_batches(
    forward: Callable[[Inputs], Tensor], count: int, setup: Setup, job: EvaluateJob
) -> EvaluateResult:
    """How `count` models do on a job, in large batches that know no borders between holders.

    `forward` takes inputs [B, ...] to outputs [count, B, ...]. See `samples_at_once`.
    """
    # The inputs of a pass are there only once
    size = max(1, min(setup.evaluated // count, 4 * BATCH))
    batches = []
    for indices, targets in job.split(size):
        outputs = forward(setup.samples.network_inputs(indices))
        batches.append(job.problem.judge(outputs, targets))
    losses, values, counts = zip(*batches, strict=True)
    return EvaluateResult(torch.cat(losses, 1), torch.cat(values, 1), torch.stack(counts).sum(0))


def summarise(parts: Sequence[EvaluateResult], job: EvaluateJob) -> Evaluation:
    """The results, part after part of the job, by holder: summed on the CPU, where the order of a sum is fixed."""
    parts = [EvaluateResult(*_fetched(part)) for part in parts]
    losses, values = (torch.cat([part[kind] for part in parts], 1).double() for kind in (0, 1))
    counts = torch.stack([part.counts for part in parts]).sum(0)
    return job.problem.evaluation((losses, values, counts), job)


def _fetched(values: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the CPU; a GPU is waited for once, not once for each of them."""
    copies = [value.to("cpu", non_blocking=True) for value in values]
    for device in {value.device for value in values if value.is_cuda}:  # not always the first GPU
        torch.cuda.current_stream(device).synchronize()
    return copies


def joined_evaluations(parts: Sequence[Evaluation], ranks: Tensor) -> Evaluation:
    """Evaluations of several groups of clients as one; `ranks` [K] are the clients' positions in it."""
    num_samples = torch.cat([part.num_samples for part in parts])
    order = ranks.argsort()
    right = None
    if parts[0].right is not None:
        by_sample = ranks.repeat_interleave(num_samples).argsort(stable=True)
        right = torch.cat([part.right for part in parts if part.right is not None], 1)[:, by_sample]
    missing = [refusal for part in parts for refusal in part.missing]
    return Evaluation(
        num_samples[order],
        torch.cat([part.values for part in parts], 1)[:, order],
        torch.cat([part.losses for part in parts], 1)[:, order],
        torch.stack([part.counts for part in parts]).sum(0),
        tuple(missing),
        right=right,
    )
