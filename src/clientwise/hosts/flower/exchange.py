"""Requests to Flower's nodes and their replies: push, pull, wait. Every wait has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ...experiment.config.settings import FlowerSettings
from .replies import Content, content_of, why_unreadable

CHUNK = 8  # replies fetched at a time, which is the most models the server holds at once
FIRST_PAUSE = 0.05  # seconds between two looks for replies, at first
LONGEST_PAUSE = 1.0
CONNECT_PAUSE = 0.5  # seconds between two looks for connected nodes

Connected = Callable[[], Mapping[int, int]]  # the node of every client that is connected now


class Exchange:
    """Sends requests over a Flower grid and waits for the replies.

    Args:
        grid: Flower's connection to the nodes.
        connected: returns the node of every connected client.
        settings: the config's `[flower]` table.
    """

    def __init__(self, grid: Grid, connected: Connected, settings: FlowerSettings) -> None:
        self._grid = grid
        self._connected = connected
        self._settings = settings

    def wait_for(self, client_ids: Sequence[int], needed: int, deadline: float) -> dict[int, int]:
        """The nodes of these clients, once `needed` are connected or the deadline has passed."""
        wanted = [client for client in client_ids if client not in self._settings.away]
        while True:
            connected = self._connected()
            nodes = {client: connected[client] for client in wanted if client in connected}
            if len(nodes) >= needed or time.monotonic() >= deadline:
                return nodes
            time.sleep(CONNECT_PAUSE)

    def push(
        self,
        kind: str,
        requests: Mapping[int, RecordDict],
        nodes: Mapping[int, int],
        deadline: float,
    ) -> tuple[dict[str, int], list[int]]:
        """Send all requests.

        Returns clients by message id, and the clients whose message was not accepted.
        """
        # A message to a busy server must not expire
        ttl = 2 * max(1.0, deadline - time.monotonic())
        messages = {}
        for client, content in requests.items():
            # Makes the message's id secret: only the node that received it can reply to it
            secret = token_hex()
            messages[client] = Message(content, nodes[client], kind, ttl=ttl, group_id=secret)
        taken: set[str] = set()
        if messages:
            # Gives every message its id
            taken.update(self._grid.push_messages(list(messages.values())))
        names = {message.metadata.message_id: client for client, message in messages.items()}
        waiting = {name: client for name, client in names.items() if name in taken}
        return waiting, [client for name, client in names.items() if name not in taken]

    def pull_until(
        self,
        waiting: dict[str, int],
        deadline: float,
        few: int,
        enough: float = torch.inf,
        awaited: Collection[int] | None = None,
    ) -> Iterator[list[tuple[int, Content]]]:
        """Yield (client, content) in chunks as replies arrive, until all or `enough` have replied.

        Args:
            waiting: clients by message id. Clients that reply are removed; the others remain at the end.
            deadline: when to stop, by `time.monotonic`.
            few: after so many replies only `grace_seconds` are left.
            enough: stop after so many replies.
            awaited: count only replies of these clients; None for all.
        """
        pause = FIRST_PAUSE
        grace = self._settings.grace_seconds
        answered = 0

        def counts(client: int) -> bool:
            return awaited is None or client in awaited

        while answered < enough and any(map(counts, waiting.values())):
            if grace is not None and answered >= few:
                deadline = min(deadline, time.monotonic() + grace)
                grace = None
            in_time = time.monotonic() < deadline
            arrived = False
            for names in _slices(list(waiting), CHUNK):
                pulled = pull_replies(self._grid, names)
                replies = [(waiting.pop(name), content) for name, content in pulled]
                if replies:
                    arrived = True
                    good = [client for client, content in replies if not isinstance(content, str)]
                    answered += sum(map(counts, good))
                    yield replies
            if not arrived and not in_time:
                return
            pause = FIRST_PAUSE if arrived else min(2 * pause, LONGEST_PAUSE)
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))


def pull_replies(grid: Grid, names: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """The replies that are there, each with the id of the request it answers.

    They are fetched one by one: Flower raises at a message that it cannot decode, and loses those
    that it fetched with it. With any of them it delivers what clients sent unasked, so that goes first.
    """
    with suppress(Exception):
        grid.pull_messages([])
    for name in names:
        try:
            pulled = grid.pull_messages([name])
            found: list[Content] = [
                content_of(one) for one in pulled if one.metadata.reply_to_message_id == name
            ]
        except Exception as error:
            grid.get_node_ids()  # raises if the server cannot be reached: no client's fault
            found = [why_unreadable(error)]
        for content in found[:1]:
            yield name, content


def _slices(names: list[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]
