"""Models on samples that belong to holders: what all backends share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.loss import class_scores
from ..core.metrics import confusion, error_sums, relative_error
from ..core.types import Evaluation
from ..data.federated import Samples
from .jobs import EvaluateJob, EvaluateResult

BATCH = 4096  # samples times models in one pass; on a GPU four times as many


@torch.no_grad()
def evaluate_batches(
    forward: Callable[[Tensor], Tensor], count: int, samples: Samples, indices: Tensor, targets: Tensor
) -> EvaluateResult:
    """How `count` models do, in large batches that know no borders between holders.

    `forward` takes inputs [B, ...] to outputs [count, B, ...].
    """
    problem = samples.problem
    plain, size = problem.loss, max(1, (4 * BATCH if indices.is_cuda else BATCH) // count)
    losses, values, counts = [], [], []
    for some, truth in zip(torch.split(indices, size), torch.split(targets, size), strict=True):
        outputs = forward(samples.batch(some))
        truths = truth.expand(count, *truth.shape)
        losses.append(plain.per_sample(outputs.flatten(0, 1), truths.flatten(0, 1)).view(count, -1))
        if problem.kind == "classification":
            predictions = class_scores(outputs).argmax(-1)
            values.append(predictions == truth)
            counts.append(confusion(truths, predictions, problem.num_classes))
        else:
            predictions = outputs.reshape(truths.shape)
            if problem.sums:
                truths, predictions = truths.flatten(2).sum(2), predictions.flatten(2).sum(2)
            values.append(relative_error(truths, predictions).reshape(count, len(truth), -1).mean(2))
            counts.append(error_sums(truths.flatten(1), predictions.flatten(1)))
    return EvaluateResult(torch.cat(losses, 1), torch.cat(values, 1), torch.stack(counts).sum(0))


def joined(results: Sequence[EvaluateResult]) -> EvaluateResult:
    """The results of several models, or groups of models, on the same samples."""
    return EvaluateResult(*(torch.cat(kind) for kind in zip(*results, strict=True)))


def summarise(parts: Sequence[EvaluateResult], job: EvaluateJob) -> Evaluation:
    """The results, part after part of the job, by holder: summed on the CPU, where the order of a sum is fixed."""
    losses, values = (torch.cat([part[kind].cpu() for part in parts], 1).double() for kind in (0, 1))

    def per_owner(values: Tensor) -> Tensor:
        sums = torch.zeros(len(values), len(job.sizes), dtype=torch.float64)
        return sums.index_add_(1, job.owner, values) / job.sizes.clamp(min=1)

    counts = torch.stack([part.counts.cpu() for part in parts]).sum(0)
    is_classification = counts.ndim == 3
    by_owner = (per_owner(values), per_owner(losses))
    right = values.bool() if is_classification else None
    return Evaluation(job.sizes, *by_owner, counts, right=right, sample_losses=losses)
