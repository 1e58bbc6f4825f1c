"""All that crosses the wire, as Flower's records: arrays, numbers and JSON, no pickle.

server -> client   train:    the model [d], the task, and which client is meant
                   evaluate: c candidate models [c, d], and which client is meant
client -> server   trained:  the model [d], training loss, seconds, one number per criterion it was asked for,
                             and which versions it runs
                   judged:   number of test samples; metric, loss and counts (confusion, sums, pairs) per candidate

Simulated hostile clients that keep a model of their own get it from the server and give it back: nodes keep nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from platform import python_version

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from ..core.loss import LossRecord
from ..core.metrics import METRICS, measured
from ..core.problem import Problem
from ..core.types import Evaluation, LocalTraining, Task, Updates
from ..registry import Part

# The records of a message.
ARRAYS, REQUEST, NUMBERS, KEPT, VERSIONS = "arrays", "request", "numbers", "kept", "versions"
VERSION = version("clientwise")
RUNS_HERE = {name: version(name) for name in ("clientwise", "flwr", "torch")} | {"python": python_version()}
CRITERION = "criterion."  # before the name of a criterion among the numbers


@dataclass(frozen=True)
class Request:
    """Who is meant, and what is asked beside the models."""

    client: int
    seed: int
    task: Task | None = None  # None: evaluate
    version: str = VERSION  # of clientwise, at the server


def write_request(request: Request, models: ArrayRecord, kept: Tensor | None = None) -> RecordDict:
    """A message to a client. `models` comes from `pack`, so that one array serves the whole cohort."""
    plain = asdict(request)
    if request.task is not None:
        plain["task"]["loss"] = asdict(request.task.loss.record())
    content = RecordDict({ARRAYS: models, REQUEST: ConfigRecord({"json": json.dumps(plain)})})
    if kept is not None:
        content[KEPT] = pack(kept)
    return content


def read_request(content: RecordDict) -> tuple[Request, Tensor, Tensor | None]:
    """The request, the models, and what a simulated hostile client kept."""
    plain = json.loads(str(content.config_records[REQUEST]["json"]))
    task = plain.pop("task")
    if task is not None:
        task["training"] = LocalTraining(**task["training"])
        weights = task["loss"].pop("class_weights")
        weights = None if weights is None else tuple(weights)
        task["loss"] = LossRecord(class_weights=weights, **task["loss"]).loss()
        task["criteria"] = tuple(Part(**part) for part in task["criteria"])
        task = Task(**task)
    kept = unpack(content.array_records[KEPT]) if KEPT in content.array_records else None
    return Request(task=task, **plain), unpack(content.array_records[ARRAYS]), kept


def write_update(updates: Updates, kept: Tensor | None) -> RecordDict:
    """A trained model and what the client measured."""
    numbers = MetricRecord({"training_loss": float(updates.training_loss[0]), "seconds": float(updates.seconds[0])})
    for name, values in updates.measurements.items():
        numbers[CRITERION + name] = float(values[0])
    content = RecordDict({ARRAYS: pack(updates.models[0]), NUMBERS: numbers, VERSIONS: ConfigRecord({**RUNS_HERE})})
    if kept is not None:
        content[KEPT] = pack(kept)
    return content


def read_versions(content: RecordDict) -> dict[str, str]:
    """What a client says that it runs; nothing but short texts that fit into a log."""
    said = content.config_records.get(VERSIONS, ConfigRecord())
    told = {name: one for name, one in said.items() if isinstance(one, str) and len(one) < 40 and one.isprintable()}
    return {name: told.get(name, "not told") for name in RUNS_HERE}


def read_update(client: int, content: RecordDict) -> tuple[Updates, Tensor | None]:
    """One client's update, whatever it sent: the round's guard judges it."""
    numbers = content.metric_records[NUMBERS]
    measured = {
        name.removeprefix(CRITERION): _number(numbers, name) for name in numbers if str(name).startswith(CRITERION)
    }
    model = unpack(content.array_records[ARRAYS]).reshape(1, -1)
    kept = unpack(content.array_records[KEPT]) if KEPT in content.array_records else None
    return Updates((client,), model, measured, _number(numbers, "training_loss"), _number(numbers, "seconds")), kept


def write_evaluation(evaluation: Evaluation) -> RecordDict:
    """How the candidates did on one client's test set."""
    values, losses = evaluation.values[:, 0].tolist(), evaluation.losses[:, 0].tolist()
    numbers = MetricRecord({"num_samples": int(evaluation.num_samples[0]), "values": values, "losses": losses})
    return RecordDict({ARRAYS: pack(evaluation.counts), NUMBERS: numbers})


def read_evaluation(
    content: RecordDict, num_candidates: int, problem: Problem, *, most_samples: int, outputs: int = 1
) -> Evaluation:
    """One client's evaluation. ValueError where it cannot be true: what it says of itself must agree.

    `most_samples` is the largest test set that is believed; `outputs` is how many numbers regression has per sample.
    """
    numbers = content.metric_records[NUMBERS]
    num_samples = _number(numbers, "num_samples")
    values, losses = (
        torch.tensor(numbers[name], dtype=torch.float64).reshape(num_candidates, 1) for name in ("values", "losses")
    )
    counts = unpack(content.array_records[ARRAYS]).double()
    if counts.shape != (num_candidates, *problem.counts_shape):
        raise ValueError(f"counts of shape {tuple(counts.shape)}")
    if not bool((counts >= 0).all() & (counts < 1e300).all()):
        raise ValueError("counts that are negative, or beyond all bounds")
    size = float(num_samples)
    if not 0 <= size <= most_samples:
        raise ValueError(f"{size:.12g} test samples, with flower.max_test_samples = {most_samples}")
    problem.check_counts(counts, size, outputs)
    if measured(problem.metric).from_scores:
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(f"{problem.metric} must be 0 to 1: {values.flatten().tolist()}")
    elif not torch.allclose(values, METRICS.get(problem.metric)(counts)[:, None], rtol=1e-9, atol=1e-9):
        raise ValueError(f"{problem.metric} is not what the counts say: {values.flatten().tolist()}")
    if bool((losses < 0).any()):
        raise ValueError(f"a loss below zero: {losses.flatten().tolist()}")
    return Evaluation(num_samples.long(), values, losses, counts.to(problem.counts_dtype))


def pack(tensor: Tensor) -> ArrayRecord:
    """One tensor as a record."""
    return ArrayRecord({"data": Array(numpy.ascontiguousarray(tensor.detach().cpu().numpy()))})


def unpack(record: Mapping[str, Array]) -> Tensor:
    """The tensor of a record; TypeError or ValueError where it holds something else."""
    return torch.from_numpy(record["data"].numpy().copy())


def _number(numbers: Mapping[str, float | int | Sequence[float] | Sequence[int]], name: str) -> Tensor:
    """A number as a tensor [1]; a list, or none at all, is an error."""
    value = numbers[name]
    if not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not one number")
    return torch.tensor([value], dtype=torch.float64)
