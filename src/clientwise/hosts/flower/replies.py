"""Replies of nodes: why there is none, and updates and evaluations as the core reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from ...core.evaluation import LARGEST_LOSS
from ...core.objective.problem import Problem
from ...core.reasons import Reason
from ...core.types import Evaluation, Refusal, Updates
from ...errors import plain

MAX_REASON = 300  # characters

# Why a client has no part in a round.
NO_ANSWER = Reason("no answer in time", "unreachable")
WENT_AWAY = Reason("its node disconnected", "unreachable")
DIED = Reason("its process died", "unreachable")

KNOWN_ERRORS: dict[int, Reason] = {3: NO_ANSWER, 4: NO_ANSWER, 5: WENT_AWAY, 8: DIED}

LOSS_TOO_LARGE = "its loss is not finite or too large"

Content = RecordDict | Reason | str  # of a reply; a text says why there is none
T = TypeVar("T")


def why_unreadable(error: Exception) -> str:
    """The reason in a refusal."""
    if isinstance(error, ValueError) and str(error):
        return plain(f"answer refused: {error}")[:MAX_REASON]
    return plain(f"answer cannot be read: {type(error).__name__}: {error}")[:MAX_REASON]


def content_of(message: Message) -> Content:
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
        return Refusal(client, why_unreadable(error))


def stacked(updates: Sequence[Updates], model: Tensor) -> Iterator[Updates]:
    """Updates of the right shape with the usual measurements as one chunk.

    The others are yielded one by one, for the guard to refuse.
    """
    names = [tuple(sorted(update.measurements)) for update in updates]
    usual = max(names, key=names.count, default=())
    alike = []
    others = []
    for update, measured in zip(updates, names, strict=True):
        right_shape = update.models.shape[1] == len(model) and update.models.is_floating_point()
        if right_shape and measured == usual:
            alike.append(update)
        else:
            others.append(update)
    if alike:
        yield Updates(
            tuple(update.client_ids[0] for update in alike),
            torch.cat([update.models.to(model) for update in alike]),
            {name: torch.cat([update.measurements[name] for update in alike]) for name in usual},
            torch.cat([update.training_loss for update in alike]),
            torch.cat([update.seconds for update in alike]),
            ages=torch.cat([update.known_ages for update in alike]),
        )
    yield from others


def merged(
    client_ids: Sequence[int],
    found: Mapping[int, Evaluation],
    missing: tuple[Refusal, ...],
    num_candidates: int,
    problem: Problem,
) -> Evaluation:
    """One evaluation over all clients, in their order, whatever the order of the replies.

    A loss above `LARGEST_LOSS` is the model's if every client has it, else the client's.
    """
    usable = {}
    for client, one in found.items():
        if bool((one.losses < LARGEST_LOSS).all()):  # false for NaN
            usable[client] = one
    if usable:
        unusable = [client for client in found if client not in usable]
        missing += tuple(Refusal(client, LOSS_TOO_LARGE) for client in unusable)
        found = usable
    counts = torch.zeros(num_candidates, *problem.counts_shape, dtype=problem.counts_dtype)
    num_samples = torch.zeros(len(client_ids), dtype=torch.int64)
    values = torch.zeros(num_candidates, len(client_ids), dtype=torch.float64)
    losses = torch.zeros_like(values)
    for column, client in enumerate(client_ids):
        if client in found:
            one = found[client]
            num_samples[column] = one.num_samples[0]
            values[:, column] = one.values[:, 0]
            losses[:, column] = one.losses[:, 0]
            counts += one.counts
    return Evaluation(num_samples, values, losses, counts, missing)
