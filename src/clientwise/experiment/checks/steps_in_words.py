"""The training steps of a round in words, also of a recorded run.

A method whose server trains much more than the clients do may lead for that reason alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...record.facts import StepsRow
from ...registry import listed

MUCH_MORE = 3  # times the steps of the median client


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
        whose = "Their" if len(methods) > 1 else "Its"
        lines.append(
            f"{' and '.join(methods)} {verb} {server:,} steps a round on the server's samples, the "
            f"median client {median:,g}. {whose} lead may come from training more: give the clients "
            "more steps (training.epochs, training.batch_size). ServerTuning shows what training on "
            "the server's samples brings by itself."
        )
    return lines
