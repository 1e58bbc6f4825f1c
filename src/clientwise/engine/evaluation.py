"""Models on samples that belong to holders: what all backends share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.objective.problem import Problem
from ..core.types import FLOAT_BYTES, Evaluation
from ..data.federated import Inputs, Samples
from .jobs import EvaluateJob, EvaluateResult

BATCH = 4096  # samples times models in one pass; on a GPU four times as many
CUT_BYTES = 2**28  # of what a layer makes of a pass, where so many samples do not fit into memory
PASS_BYTES = 2**27  # of what a layer makes of a pass over more samples than usual, on a GPU
SPARE = 16  # of a GPU's memory: such a pass takes at most one of so many parts


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
    forward: Callable[[Inputs], Tensor],
    count: int,
    samples: Samples,
    indices: Tensor,
    targets: Tensor,
    problem: Problem,
    at_once: int,
) -> EvaluateResult:
    """How `count` models do, in large batches that know no borders between holders.

    `forward` takes inputs [B, ...] to outputs [count, B, ...]. See `samples_at_once`.
    """
    size = max(1, min(at_once // count, 4 * BATCH))  # the inputs of a pass are there only once
    batches = []
    for some, truth in zip(torch.split(indices, size), torch.split(targets, size), strict=True):
        batches.append(problem.judge(forward(samples.network_inputs(some)), truth))
    losses, values, counts = zip(*batches, strict=True)
    return EvaluateResult(torch.cat(losses, 1), torch.cat(values, 1), torch.stack(counts).sum(0))


def joined(results: Sequence[EvaluateResult]) -> EvaluateResult:
    """The results of several models, or groups of models, on the same samples."""
    return EvaluateResult(*(torch.cat(kind) for kind in zip(*results, strict=True)))


def summarise(parts: Sequence[EvaluateResult], job: EvaluateJob) -> Evaluation:
    """The results, part after part of the job, by holder: summed on the CPU, where the order of a sum is fixed."""
    parts = [EvaluateResult(*fetched(part)) for part in parts]
    losses, values = (torch.cat([part[kind] for part in parts], 1).double() for kind in (0, 1))
    counts = torch.stack([part.counts for part in parts]).sum(0)
    return job.problem.evaluation((losses, values, counts), job)


def fetched(values: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the CPU; a GPU is waited for once, not once for each of them."""
    copies = [value.to("cpu", non_blocking=True) for value in values]
    for device in {value.device for value in values if value.is_cuda}:  # not always the first GPU
        torch.cuda.current_stream(device).synchronize()
    return copies
