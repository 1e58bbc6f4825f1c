"""Requests to Flower's nodes and their replies: push, pull, wait. Every wait has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, TypeVar

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ...core.reasons import Reason
from ...core.types import Refusal
from ...errors import plain
from ..values import MAX_REASON

CHUNK = 8  # replies fetched at a time, which is the most models the server holds at once
FIRST_PAUSE = 0.05  # seconds between two looks for replies, at first
LONGEST_PAUSE = 1.0
CONNECT_PAUSE = 0.5  # seconds between two looks for connected nodes

# Why a client has no part in a round.
NO_ANSWER = Reason("no answer in time", "unreachable")
WENT_AWAY = Reason("its node disconnected", "unreachable")
DIED = Reason("its process died", "unreachable")

KNOWN_ERRORS: dict[int, Reason] = {3: NO_ANSWER, 4: NO_ANSWER, 5: WENT_AWAY, 8: DIED}

Connected = Callable[[], Mapping[int, int]]  # the node of every client that is connected now
Content = RecordDict | Reason | str  # of a reply; a text says why there is none
T = TypeVar("T")


def wait_for(
    connected: Connected, client_ids: Sequence[int], needed: int, deadline: float
) -> dict[int, int]:
    """The nodes of these clients, once `needed` are connected or the deadline has passed."""
    while True:
        known = connected()
        nodes = {client: known[client] for client in client_ids if client in known}
        if len(nodes) >= needed or time.monotonic() >= deadline:
            return nodes
        time.sleep(CONNECT_PAUSE)


def push(
    grid: Grid,
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
        taken.update(grid.push_messages(list(messages.values())))
    names = {message.metadata.message_id: client for client, message in messages.items()}
    waiting = {name: client for name, client in names.items() if name in taken}
    return waiting, [client for name, client in names.items() if name not in taken]


def pull_until(
    grid: Grid,
    waiting: dict[str, int],
    deadline: float,
    enough: float = torch.inf,
    awaited: Collection[int] | None = None,
) -> Iterator[list[tuple[int, Content]]]:
    """Yield (client, content) in chunks as replies arrive, until all or `enough` have replied.

    Args:
        grid: Flower's connection to the nodes.
        waiting: clients by message id. Clients that reply are removed; the others remain at the end.
        deadline: when to stop, by `time.monotonic`.
        enough: stop after so many replies.
        awaited: count only replies of these clients; None for all.
    """
    pause = FIRST_PAUSE
    answered = 0

    def counts(client: int) -> bool:
        return awaited is None or client in awaited

    while answered < enough and any(map(counts, waiting.values())):
        in_time = time.monotonic() < deadline
        arrived = False
        names = list(waiting)
        for first in range(0, len(names), CHUNK):
            pulled = _pull(grid, names[first : first + CHUNK])
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


def _pull(grid: Grid, names: Sequence[str]) -> Iterator[tuple[str, Content]]:
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
                _content_of(one) for one in pulled if one.metadata.reply_to_message_id == name
            ]
        except Exception as error:
            grid.get_node_ids()  # raises if the server cannot be reached: no client's fault
            found = [_why_unreadable(error)]
        for content in found[:1]:
            yield name, content


def _content_of(message: Message) -> Content:
    """The content of a decoded message; a text where it is an error."""
    if message.has_error():
        return why_failed(message.error)
    if not isinstance(message.content, RecordDict):
        raise TypeError(f"a message of {type(message.content).__name__}")
    return message.content


def why_failed(error: Any) -> Reason | str:
    """The reason that Flower's error code stands for; the client's own words for other codes."""
    own_words = plain(str(error.reason)) or "failed"
    return KNOWN_ERRORS.get(error.code, own_words[:MAX_REASON])


def read_reply(client: int, content: Content, read: Callable[[RecordDict], T]) -> T | Refusal:
    """A reply's content, or the reason why it cannot be used.

    Nothing a client sends ends the run.
    """
    if isinstance(content, Reason | str):
        return Refusal(client, content)
    try:
        return read(content)
    except Exception as error:
        return Refusal(client, _why_unreadable(error))


def _why_unreadable(error: Exception) -> str:
    """The reason in a refusal."""
    if isinstance(error, ValueError) and str(error):
        return plain(f"answer refused: {error}")[:MAX_REASON]
    return plain(f"answer cannot be read: {type(error).__name__}: {error}")[:MAX_REASON]
