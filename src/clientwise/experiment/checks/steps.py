"""How many training steps a round has: of a client, and of the server on its own samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch

from ...core.method import Method
from ...data.federated import FederatedData
from ...record.facts import StepsRow
from ..config.methods import MethodSettings
from ..config.schema import Experiment


def count_steps(experiment: Experiment, data: Iterable[FederatedData]) -> list[StepsRow]:
    """The steps of every method in a round, over the data of all seeds.

    The control "pooled" is left out: it has neither clients nor a server.
    """
    held = list(data)
    sizes = torch.cat([one.train.sizes for one in held])
    weighing = max(len(one.weigh.indices) if one.weigh else 0 for one in held)
    found = []
    for settings in experiment.methods:
        method = settings.build(experiment.training)
        if method.control == "pooled":
            continue
        steps: list[int] = []
        if method.control is None or method.control == "alone":
            steps = method.training.num_steps(sizes[sizes > 0]).tolist()
        middle = statistics.median(steps) if steps else None
        by_server = _server_steps(settings, method, weighing)
        row = StepsRow(
            method.name, min(steps, default=None), middle, max(steps, default=None), by_server
        )
        found.append(row)
    return found


def total_steps(experiment: Experiment, data: FederatedData, cohort: int) -> int:
    """About how many steps the whole run trains: the mean client's, times the clients of a round."""
    sizes = data.train.sizes[data.train.sizes > 0]
    weighing = len(data.weigh.indices) if data.weigh else 0
    in_round = 0.0
    for settings in experiment.methods:
        method = settings.build(experiment.training)
        in_round += _server_steps(settings, method, weighing)
        if method.control == "pooled":
            in_round += float(method.training.num_steps(sizes.sum()))
        elif method.control is None or method.control == "alone":
            in_round += cohort * float(method.training.num_steps(sizes).double().mean())
    return round(in_round * experiment.rounds * len(experiment.seeds))


def _server_steps(settings: MethodSettings, method: Method, samples: int) -> int:
    """Steps on the server's samples; evidence that needs them learns weights, not a model."""
    training = method.fine_tune
    if training is None and settings.trains_model_on_server:
        training = method.training
    if training is None or not samples:
        return 0
    return int(training.num_steps(torch.tensor(samples)))
