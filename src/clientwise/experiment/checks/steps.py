"""How many training steps a round has: of a client, and of the server on its own samples.

A method whose server trains much more than the clients do may lead for that reason alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import torch

from ...core.method import Method
from ...data.federated import FederatedData
from ...record.reading.rows import StepsRow
from ..config.methods import MethodSettings
from ..config.schema import Experiment

MUCH_MORE = 3  # times the steps of the median client


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


def steps_in_words(rows: Sequence[StepsRow]) -> str:
    """The steps of a round; methods are named where they differ.

    >>> rows = [StepsRow("FedAvg", 2, 4.0, 7, 0), StepsRow("ServerTuning", 2, 4.0, 7, 28)]
    >>> steps_in_words(rows)
    'client 2 to 7 (median 4); server 28 (ServerTuning)'
    """
    clients: dict[str, list[str]] = {}
    server: dict[str, list[str]] = {}
    for row in rows:
        if row.median is not None:
            clients.setdefault(_range(row), []).append(row.method)
        if row.server:
            server.setdefault(f"{row.server:,}", []).append(row.method)
    parts = []
    if len(clients) == 1:
        parts.append(f"client {next(iter(clients))}")
    elif clients:
        parts.append(f"client {_named(clients)}")
    if server:
        parts.append(f"server {_named(server)}")
    return "; ".join(parts)


def _range(row: StepsRow) -> str:
    if row.least == row.most:
        return f"{row.least:,}"
    return f"{row.least:,} to {row.most:,} (median {row.median:,g})"


def _named(methods: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in methods.items())


def unequal_steps(rows: Sequence[StepsRow]) -> list[str]:
    """A warning for methods whose server trains much more than the median client does.

    >>> (line,) = unequal_steps([StepsRow("Recommended", 1, 1.0, 1, 8)])
    >>> line.partition(".")[0]
    "Recommended trains 8 steps a round on the server's samples, the median client 1"
    """
    alike: dict[tuple[int, float], list[str]] = {}
    for row in rows:
        if row.median is not None and row.server > MUCH_MORE * row.median:
            alike.setdefault((row.server, row.median), []).append(row.method)
    lines = []
    for (server, median), methods in alike.items():
        verb = "train" if len(methods) > 1 else "trains"
        whose = "Their" if len(methods) > 1 else "Its"
        lines.append(
            f"{' and '.join(methods)} {verb} {server:,} steps a round on the server's samples, the "
            f"median client {median:,g}. {whose} lead may come from training more: give the clients "
            "more steps (training.epochs, training.batch_size). ServerTuning shows what training on "
            "the server's samples brings by itself."
        )
    return lines
