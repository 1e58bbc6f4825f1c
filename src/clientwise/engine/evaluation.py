"""Candidate models on samples that belong to holders: clients, or the server. Shared by every engine."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.loss import class_scores, plain_loss
from ..core.metrics import confusion, error_sums, relative_error
from ..core.types import Evaluation, Problem
from ..data.federated import Samples
from ..models.flat import FlatModel

BATCH = 4096


def evaluate_models(
    flat: FlatModel, models: Tensor, samples: Samples, numbers: Tensor, targets: Tensor, owner: Tensor, num_owners: int
) -> Evaluation:
    """Every model [c, d] on all samples, in batches that know no borders between holders."""
    problem = samples.problem
    per_owner = torch.bincount(owner, minlength=num_owners)
    values = torch.zeros(len(models), num_owners, dtype=torch.float64)
    losses = torch.zeros_like(values)
    counts, right = [], []
    flat.module.eval()
    for candidate, model in enumerate(models):
        flat.load(model)
        loss, value, count = _evaluate_one(flat, samples, numbers, targets, problem)
        losses[candidate].index_add_(0, owner, loss.cpu())  # on the CPU, where the order of the sum is fixed
        values[candidate].index_add_(0, owner, value.cpu())
        counts.append(count)
        right.append(value.bool().cpu())
    holds = per_owner.clamp(min=1)
    classified = torch.stack(right) if problem.kind == "classification" else None
    return Evaluation(per_owner, values / holds, losses / holds, torch.stack(counts).cpu(), classified)


def _evaluate_one(
    flat: FlatModel, samples: Samples, numbers: Tensor, targets: Tensor, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [N] and value [N] of every sample (right or wrong; relative error), and the counts over all."""
    plain = plain_loss(problem)
    losses, values, counts = [], [], []
    with torch.no_grad():
        for rows, truth in zip(torch.split(numbers, BATCH), torch.split(targets, BATCH), strict=True):
            outputs = flat.module(samples.batch(rows))
            losses.append(plain.per_sample(outputs, truth).double())
            if problem.kind == "classification":
                predictions = class_scores(outputs).argmax(-1)
                values.append((predictions == truth).double())
                counts.append(confusion(truth, predictions, problem.num_classes))
            else:
                answers = outputs.reshape(truth.shape)
                if problem.sums:
                    truth, answers = truth.flatten(1).sum(1), answers.flatten(1).sum(1)
                values.append(relative_error(truth, answers).reshape(len(truth), -1).mean(1))
                counts.append(error_sums(truth.flatten(), answers.flatten()))
    return torch.cat(losses), torch.cat(values), torch.stack(counts).sum(0)
