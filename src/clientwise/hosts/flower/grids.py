"""Flower's grids: a simulation in this process, or nodes behind a SuperLink.

Flower exports neither class, and moves their modules between versions. So they are told apart by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flwr.serverapp import Grid

from .replies import Content, Unseal, content_of

DEPLOYED = {"GrpcGrid", "HttpGrid"}  # before Flower 1.41, and since


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes are those of a simulation."""
    return "InMemoryGrid" in _kinds(grid)


def pull_replies(
    grid: Grid, names: Sequence[str], deadline: float, unseal: Unseal
) -> Iterator[tuple[str, Content]]:
    """The replies that are there, each with the id of the request it answers.

    Args:
        grid: Flower's connection to the nodes.
        names: ids of requests.
        deadline: until when objects of a reply may arrive, by `time.monotonic`.
        unseal: returns the readable content of a reply, given also the id of its request.
    """
    if _kinds(grid) & DEPLOYED:
        from ..deployment.stored_replies import pull_stored

        yield from pull_stored(grid, names, deadline, unseal)
        return
    for message in grid.pull_messages(names):  # nothing was encoded
        name = message.metadata.reply_to_message_id
        yield name, content_of(message, name, unseal)


def _kinds(grid: Grid) -> set[str]:
    return {kind.__name__ for kind in type(grid).__mro__}
