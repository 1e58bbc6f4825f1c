"""The training steps of a round: of a client, and of the server on its own samples; counted, and in words.

A method whose server trains much more than the clients do may lead for that reason alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...record.facts import StepsRow
from ...registry import listed

if TYPE_CHECKING:  # reports of recorded steps need no PyTorch
    from ...core.method import Method
    from ...data.federated import FederatedData
    from ..config.methods import MethodSettings
    from ..config.schema import Experiment

MUCH_MORE = 3  # times the steps of the median client


def count_steps(experiment: Experiment, data: Iterable[FederatedData]) -> list[StepsRow]:
    """The steps of every method in a round, over the data of all seeds.

    The control "pooled" is left out: it has neither clients nor a server.
    """
    held = list(data)
    found = []
    for settings in experiment.methods:
        method = settings.build(experiment.training)
        if method.control == "pooled":
            continue
        steps = [count for one in held for count in _client_steps(method, one)]
        middle = statistics.median(steps) if steps else None
        server = max(_server_steps(settings, method, one) for one in held)
        least, most = min(steps, default=None), max(steps, default=None)
        found.append(StepsRow(method.name, least, middle, most, server))
    return found


def _client_steps(method: Method, data: FederatedData) -> list[int]:
    """Of every client that has samples; nothing where none trains by itself."""
    if method.control not in (None, "alone"):
        return []
    sizes = data.train.sizes
    steps: list[int] = method.training.num_steps(sizes[sizes > 0]).tolist()
    return steps


def _server_steps(settings: MethodSettings, method: Method, data: FederatedData) -> int:
    """Steps on the server's samples; evidence that needs them learns weights, not a model."""
    training = method.fine_tune
    if training is None and settings.trains_model_on_server:
        training = method.training
    if training is None or data.weigh is None:
        return 0
    return int(training.num_steps(data.weigh.sizes))


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
            text = f"{row.least:,}"
            if row.least != row.most:
                text += f" to {row.most:,} (median {row.median:,g})"
            clients.setdefault(text, []).append(row.method)
        if row.server:
            server.setdefault(f"{row.server:,}", []).append(row.method)
    parts = []
    if clients:
        parts.append(f"client {next(iter(clients)) if len(clients) == 1 else _named(clients)}")
    if server:
        parts.append(f"server {_named(server)}")
    return "; ".join(parts)


def _named(methods: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{text} ({listed(names)})" for text, names in methods.items())


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
        lines.append(
            f"{' and '.join(methods)} {verb} {server:,} steps a round on the server's samples, the median client "
            f"{median:,g}. A lead may come from training more: give the clients more steps (training.epochs, "
            "training.batch_size). ServerTuning shows what training on the server's samples brings by itself."
        )
    return lines
