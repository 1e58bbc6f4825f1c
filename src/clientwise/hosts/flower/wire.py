"""The messages between server and clients, as Flower's records: arrays, numbers and JSON.

server -> client
    train:    the model [d], the task, and the client's number
    evaluate: c candidate models [c, d], and the client's number
client -> server
    trained:  the model [d], training loss, seconds, one number per requested criterion
    judged:   number of test samples; metric, loss and counts (confusion, sums, pairs) per candidate

There is no pickle. Nodes keep no model between messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from ...core.objective.loss import LossRecord
from ...core.objective.metrics import METRICS, measured
from ...core.objective.problem import Problem
from ...core.privacy import LocalNoise
from ...core.types import Evaluation, LocalTraining, Task, Updates
from ...registry import Part
from ..protocols import VERSION, Refused, Request
from ..values import number_of

# The records of a message.
ARRAYS = "arrays"
REQUEST = "request"
NUMBERS = "numbers"
CRITERION = "criterion."  # prefix of a criterion's name among the numbers
LARGEST_COUNT = 1e300
MOST_TEST_SAMPLES = 1_000_000  # evaluations on more are refused
Numbers = Mapping[str, float | int | Sequence[float] | Sequence[int]]


def write_request(request: Request, models: ArrayRecord) -> RecordDict:
    """A message to a client. `models` comes from `pack`, so that all clients share one array."""
    plain = asdict(replace(request, task=None))
    if request.task is not None:
        plain["task"] = request.task.plain()
    asked = ConfigRecord({"json": json.dumps(plain)})
    return RecordDict({ARRAYS: models, REQUEST: asked})


def read_request(content: RecordDict) -> tuple[Request, Tensor]:
    """The request and the models."""
    plain = json.loads(str(content.config_records[REQUEST]["json"]))
    if plain["version"] != VERSION:
        raise Refused(
            f"the server runs clientwise {plain['version']}, this node {VERSION}: install the same version"
        )
    task = plain.pop("task")
    if task is not None:
        task["training"] = LocalTraining.read(task["training"])
        task["loss"] = LossRecord(**task["loss"]).loss()
        task["criteria"] = tuple(Part(**part) for part in task["criteria"])
        noise = task["noise"]
        task["noise"] = LocalNoise(**noise) if noise else None
        task = Task(**task)
    return Request(task=task, **plain), unpack(content.array_records[ARRAYS])


def write_update(updates: Updates) -> RecordDict:
    """A trained model and what the client measured."""
    numbers = MetricRecord()
    numbers["training_loss"] = float(updates.training_loss[0])
    numbers["seconds"] = float(updates.seconds[0])
    for name, values in updates.measurements.items():
        numbers[CRITERION + name] = float(values[0])
    return RecordDict({ARRAYS: pack(updates.models[0]), NUMBERS: numbers})


def read_update(client: int, content: RecordDict, criteria: Sequence[Part]) -> Updates:
    """One client's update, unchecked: the round's guard checks it.

    Only the `criteria` that were asked for are read.
    """
    numbers = content.metric_records[NUMBERS]
    measured = {}
    for part in criteria:
        if CRITERION + part.called in numbers:  # the guard refuses an update that lacks one
            measured[part.called] = _number(numbers, CRITERION + part.called)
    model = unpack(content.array_records[ARRAYS]).reshape(1, -1)
    loss = _number(numbers, "training_loss")
    seconds = _number(numbers, "seconds")
    return Updates((client,), model, measured, loss, seconds)


def write_evaluation(evaluation: Evaluation) -> RecordDict:
    """The candidates' results on one client's test set."""
    numbers = MetricRecord()
    numbers["num_samples"] = int(evaluation.num_samples[0])
    numbers["values"] = evaluation.values[:, 0].tolist()
    numbers["losses"] = evaluation.losses[:, 0].tolist()
    return RecordDict({ARRAYS: pack(evaluation.counts), NUMBERS: numbers})


def read_evaluation(
    content: RecordDict,
    num_candidates: int,
    problem: Problem,
    *,
    outputs: int = 1,
) -> Evaluation:
    """One client's evaluation; ValueError where its numbers contradict each other.

    Args:
        content: a reply, as `write_evaluation` writes it.
        num_candidates: number of models that were sent, c.
        problem: says which counts there are and how the metric follows from them.
        outputs: numbers per sample, for regression.
    """
    numbers = content.metric_records[NUMBERS]
    num_samples = _number(numbers, "num_samples")
    values = _column(numbers, "values", num_candidates)
    losses = _column(numbers, "losses", num_candidates)
    counts = unpack(content.array_records[ARRAYS]).double()
    if counts.shape != (num_candidates, *problem.counts_shape):
        raise ValueError(f"counts of shape {tuple(counts.shape)}")
    if not bool((counts >= 0).all() & (counts < LARGEST_COUNT).all()):
        raise ValueError("counts that are negative, not finite or too large")
    size = float(num_samples)
    check_size(size)
    problem.check_counts(counts, size, outputs)
    _check_metric(problem, values, counts)
    if bool((losses < 0).any()):
        raise ValueError(f"a loss below zero: {losses.flatten().tolist()}")
    return Evaluation(num_samples.long(), values, losses, counts.to(problem.counts_dtype))


def check_size(size: float, first: float | None = None) -> None:
    """ValueError for a size that no test set has, or another than in the client's `first` answer.

    Test sets keep their size: a client could otherwise raise its own influence.
    """
    if not 0 <= size <= MOST_TEST_SAMPLES or not size.is_integer():
        raise ValueError(f"{size:.12g} test samples: at most {MOST_TEST_SAMPLES} are accepted")
    if first not in (None, size):
        raise ValueError(f"{size:.12g} test samples, {first:.12g} in its first answer")


def _check_metric(problem: Problem, values: Tensor, counts: Tensor) -> None:
    """A metric of scores is finite, a share in [0, 1]; any other follows from the counts."""
    claimed = values.flatten().tolist()
    declared = measured(problem.metric)
    if declared.from_scores:
        if not bool(values.isfinite().all()):
            raise ValueError(f"{problem.metric} must be finite: {claimed}")
        if declared.is_share and not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(f"{problem.metric} must be 0 to 1: {claimed}")
        return
    expected = METRICS.get(problem.metric)(counts)[:, None]
    if not torch.allclose(values, expected, rtol=1e-9, atol=1e-9):
        raise ValueError(f"{problem.metric} does not follow from the counts: {claimed}")


def pack(tensor: Tensor) -> ArrayRecord:
    """One tensor as a record."""
    return ArrayRecord({"data": Array(numpy.ascontiguousarray(tensor.detach().cpu().numpy()))})


def unpack(record: Mapping[str, Array]) -> Tensor:
    """The tensor of a record; TypeError or ValueError where the record holds something else."""
    return torch.from_numpy(record["data"].numpy().copy())


def _number(numbers: Numbers, name: str) -> Tensor:
    """A number as a tensor [1]; ValueError for a list."""
    return torch.tensor([number_of(numbers[name], name)], dtype=torch.float64)


def _column(numbers: Numbers, name: str, rows: int) -> Tensor:
    """A list of numbers as a tensor [rows, 1]."""
    return torch.tensor(numbers[name], dtype=torch.float64).reshape(rows, 1)
