"""Models on samples that belong to holders: what all backends share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.loss import class_scores, cox_losses
from ..core.metrics import METRICS, concordance, confusion, error_sums, measured, pair_counts, relative_error
from ..core.types import Evaluation, Problem
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
        if problem.kind == "survival":  # what becomes of the scores depends on whose they are: see `_compared`
            scores = outputs.reshape(count, len(truth))
            losses.append(torch.zeros_like(scores))
            values.append(scores)
            counts.append(scores.new_zeros(count, *problem.counts_shape))
            continue
        truths = truth.expand(count, *truth.shape)
        losses.append(plain.per_sample(outputs.flatten(0, 1), truths.flatten(0, 1)).view(count, -1))
        if problem.kind == "classification":
            scores = class_scores(outputs)
            predictions = scores.argmax(-1)
            values.append(scores if problem.scored_by else predictions == truth)
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


def summarise(parts: Sequence[EvaluateResult], job: EvaluateJob, problem: Problem) -> Evaluation:
    """The results, part after part of the job, by holder: summed on the CPU, where the order of a sum is fixed."""
    losses, values = (torch.cat([part[kind].cpu() for part in parts], 1).double() for kind in (0, 1))

    def per_owner(values: Tensor) -> Tensor:
        sums = torch.zeros(len(values), len(job.sizes), dtype=torch.float64)
        return sums.index_add_(1, job.owner, values) / job.sizes.clamp(min=1)

    if problem.kind == "survival":
        losses, counts = _compared(values, job)
        by_holder = concordance(counts), per_owner(losses)
        return Evaluation(job.sizes, *by_holder, counts.sum(1), sample_losses=losses)
    counts = torch.stack([part.counts.cpu() for part in parts]).sum(0)
    if problem.kind == "classification" and problem.scored_by:
        correct = values.argmax(-1) == job.targets_on_cpu
        return Evaluation(
            job.sizes, _scored(values, job, problem), per_owner(losses), counts, right=correct, sample_losses=losses
        )
    by_owner = (per_owner(values), per_owner(losses))
    right = values.bool() if problem.kind == "classification" else None
    return Evaluation(job.sizes, *by_owner, counts, right=right, sample_losses=losses)


def _scored(scores: Tensor, job: EvaluateJob, problem: Problem) -> Tensor:
    """Another metric than accuracy, holder by holder [c, K], of scores [c, N, C]."""
    metric, sizes = METRICS.get(problem.metric), job.sizes.tolist()
    values = []
    for mine, targets in zip(torch.split(scores, sizes, 1), torch.split(job.targets_on_cpu, sizes), strict=True):
        if measured(problem.metric).from_scores:
            values.append(metric(mine, targets))
        else:
            values.append(metric(confusion(targets, mine.argmax(-1), problem.num_classes)))
    return torch.stack(values, 1).double()


def _compared(scores: Tensor, job: EvaluateJob) -> tuple[Tensor, Tensor]:
    """Cox losses [c, N] and counts of pairs [c, K, 3]: a sample is compared with those of the same holder."""
    sizes = job.sizes.tolist()
    held = list(zip(torch.split(scores, sizes, 1), torch.split(job.targets_on_cpu, sizes), strict=True))
    losses = torch.cat([cox_losses(mine, targets) for mine, targets in held], 1)
    return losses, torch.stack([pair_counts(targets, mine) for mine, targets in held], 1)
