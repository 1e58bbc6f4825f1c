"""Candidate models on samples that belong to holders: clients, or the server. Shared by every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..core.loss import class_scores
from ..core.metrics import confusion, error_sums, relative_error
from ..core.types import Evaluation
from ..data.federated import Samples
from ..models.flat import FlatModel
from .recording import Recording
from .stacked import StackedNetwork

BATCH = 4096  # samples times models in one pass; on a GPU four times as many
LARGE = 2**24  # values of models: a recording keeps as many
MOST_RECORDED = 8  # numbers of models for which one exam is recorded

# Of c models and N samples: losses [c, N], values [c, N] (right or wrong; relative error), counts of each model.
Answers = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Exam:
    """Samples to be tested on, and who holds each."""

    numbers: Tensor  # [N] places in the samples
    targets: Tensor  # [N, ...]
    owner: Tensor  # [N] on the CPU
    held: Tensor  # [K] how many samples each holder has
    recorded: dict[int, RecordedAnswers | None] = field(default_factory=dict)  # by number of models; see `answer_again`


class RecordedAnswers:
    """What so many models answer in one exam, recorded: a small one is over before its launches are."""

    def __init__(self, answer: Callable[[Tensor], Answers], models: Tensor) -> None:
        self._models = models.clone()
        self._answers = answer(self._models)
        self._recording = Recording(lambda: self._put(answer(self._models)), [])

    def _put(self, answers: Answers) -> None:
        for place, given in zip(self._answers, answers, strict=True):
            place.copy_(given)

    def __call__(self, models: Tensor) -> Answers:
        """Valid until the next call."""
        self._models.copy_(models)
        self._recording()
        return self._answers


def answer_again(exam: Exam, models: Tensor, answer: Callable[[Tensor], Answers]) -> Answers:
    """On a GPU: an exam of one pass that as many models took before is recorded; the others are `answer`ed anew."""
    count, known = len(models), exam.recorded
    if len(exam.numbers) * count > 4 * BATCH or models.numel() > LARGE:
        return answer(models)
    if count in known:
        recorded = known[count] = known[count] or RecordedAnswers(answer, models)
        return recorded(models)
    if len(known) < MOST_RECORDED:
        known[count] = None
    return answer(models)


def graded(parts: Sequence[Answers], exam: Exam) -> Evaluation:
    """The answers, part after part of the exam, summed up by holder on the CPU, where the order of a sum is fixed."""
    losses, values = (torch.cat([part[kind].cpu() for part in parts], 1).double() for kind in (0, 1))

    def per_owner(values: Tensor) -> Tensor:
        sums = torch.zeros(len(values), len(exam.held), dtype=torch.float64)
        return sums.index_add_(1, exam.owner, values) / exam.held.clamp(min=1)

    counts = torch.stack([part[2].cpu() for part in parts]).sum(0)
    right = values.bool() if counts.ndim == 3 else None  # of classes, not of numbers
    return Evaluation(exam.held, per_owner(values), per_owner(losses), counts, right=right)


def answer_one_by_one(
    flat: FlatModel, models: Tensor, samples: Samples, numbers: Tensor, targets: Tensor, dtype: torch.dtype
) -> Answers:
    """Model after model, in large batches that know no borders between holders."""
    flat.module.eval()

    def run(inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            outputs: Tensor = flat.module(inputs)
        return outputs.float()[None]

    answers = []
    for model in models:
        flat.load(model)
        answers.append(_answers(run, 1, samples, numbers, targets))
    losses, values, counts = (torch.cat(kind) for kind in zip(*answers, strict=True))
    return losses, values, counts


def answer_together(
    network: StackedNetwork, models: Tensor, samples: Samples, numbers: Tensor, targets: Tensor
) -> Answers:
    """Several models side by side."""
    answers = []
    for some in torch.split(models, network.size):
        network.load(some)
        answers.append(_answers(partial(_run_stacked, network, len(some)), len(some), samples, numbers, targets))
    losses, values, counts = (torch.cat(kind) for kind in zip(*answers, strict=True))
    return losses, values, counts


def _run_stacked(network: StackedNetwork, count: int, inputs: Tensor) -> Tensor:
    return network.forward(inputs.expand(count, *inputs.shape), training=False)


@torch.no_grad()
def _answers(
    run: Callable[[Tensor], Tensor], count: int, samples: Samples, numbers: Tensor, targets: Tensor
) -> Answers:
    """What `count` models answer; `run` takes inputs [B, ...] to outputs [count, B, ...]."""
    problem = samples.problem
    plain, size = problem.loss, max(1, (4 * BATCH if numbers.is_cuda else BATCH) // count)
    losses, values, counts = [], [], []
    for some, truth in zip(torch.split(numbers, size), torch.split(targets, size), strict=True):
        outputs = run(samples.batch(some))
        truths = truth.expand(count, *truth.shape)
        losses.append(plain.per_sample(outputs.flatten(0, 1), truths.flatten(0, 1)).view(count, -1))
        if problem.kind == "classification":
            predictions = class_scores(outputs).argmax(-1)
            values.append(predictions == truth)
            counts.append(confusion(truths, predictions, problem.num_classes))
        else:
            answers = outputs.reshape(truths.shape)
            if problem.sums:
                truths, answers = truths.flatten(2).sum(2), answers.flatten(2).sum(2)
            values.append(relative_error(truths, answers).reshape(count, len(truth), -1).mean(2))
            counts.append(error_sums(truths.flatten(1), answers.flatten(1)))
    return torch.cat(losses, 1), torch.cat(values, 1), torch.stack(counts).sum(0)
