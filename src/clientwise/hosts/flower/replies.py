"""Fetches replies. A reply that cannot be decoded is a text with the reason, and ends nothing.

Flower's own `HttpGrid.pull_messages` decodes all replies in one go: a single record that is not
valid raises there, and the other replies are lost with it. Its result also says whom a message
answers by the sender's own words. Here every reply is decoded on its own, and belongs to the
request under which the SuperLink stored it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.common.serde_utils import error_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as StoredMessage
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import HttpGrid

from ...core.reasons import Reason
from ...errors import plain

MAX_REASON = 300  # characters
MAX_OBJECTS = 1_000  # of one reply; an honest one has about ten, and one per 20 MB of its model
LEAST_SECONDS = 5.0  # in which a reply's objects must arrive, also after the round's deadline

# Why a client has no part in a round.
NO_ANSWER = Reason("no answer in time", "unreachable")
WENT_AWAY = Reason("its node disconnected", "unreachable")
NOT_APPROVED = "app not approved by the node's operator (deploy/agree.sh)"
DIED = Reason("its process died", "unreachable")
INCOMPLETE = Reason(
    "answer incomplete: the node announced it and did not send all of it", "unreachable"
)

KNOWN_ERRORS: dict[int, str] = {3: NO_ANSWER, 4: NO_ANSWER, 5: WENT_AWAY, 7: NOT_APPROVED, 8: DIED}

Content = RecordDict | str  # of a reply; a text says why there is none
Unseal = Callable[[RecordDict, str], RecordDict]


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
    if not isinstance(grid, HttpGrid):  # a simulation: nothing was encoded
        for message in grid.pull_messages(names):
            name = message.metadata.reply_to_message_id
            yield name, _content_of(message, name, unseal)
        return
    # Not public: Flower offers no way to fetch a reply without decoding it.
    client = grid._runtime_client
    response = client.PullMessages(PullAppMessagesRequest(message_ids=names))
    for stored, tree in zip(response.messages_list, response.message_object_trees, strict=True):
        # The SuperLink has compared this id with the sender's node
        name = stored.metadata.reply_to_message_id
        if name in names:  # else a member sent it as an instruction to the server
            yield name, _decoded(grid, client, stored, tree, deadline, unseal)


def why_unreadable(error: Exception) -> str:
    """The reason in a refusal."""
    if isinstance(error, ValueError) and str(error):
        return plain(f"answer refused: {error}")[:MAX_REASON]
    return plain(f"answer cannot be read: {type(error).__name__}: {error}")[:MAX_REASON]


def _decoded(
    grid: HttpGrid,
    client: Any,
    stored: StoredMessage,
    tree: ObjectTree,
    deadline: float,
    unseal: Unseal,
) -> Content:
    """The content of one reply; a text where it cannot be had."""
    run_id = grid.run.run_id
    object_id = stored.metadata.message_id
    try:
        if stored.HasField("error"):
            return _why_failed(error_from_proto(stored.error))
        objects = [one.object_id for one in iterate_object_tree(tree)]
        if len(objects) > MAX_OBJECTS:
            raise ValueError(f"{len(objects)} objects, at most {MAX_OBJECTS} are allowed")
        contents = pull_objects(
            objects,
            make_pull_object_fn_protobuf(client.PullObject, grid.node, run_id),
            max_time=max(LEAST_SECONDS, deadline - time.monotonic()),
        )
        message = inflate_object_from_contents(object_id, contents)
        if not isinstance(message, Message):
            raise TypeError(f"not a message but {type(message).__name__}")
        return _content_of(message, stored.metadata.reply_to_message_id, unseal)
    except httpx.TransportError:  # the SuperLink cannot be reached: no member's fault
        raise
    except ObjectPullError:
        return INCOMPLETE
    except Exception as error:
        return why_unreadable(error)
    finally:
        confirmed = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=object_id
        )
        client.ConfirmMessageReceived(confirmed)  # the SuperLink deletes it


def _content_of(message: Message, name: str, unseal: Unseal) -> Content:
    if message.has_error():
        return _why_failed(message.error)
    if not isinstance(message.content, RecordDict):
        raise TypeError(f"a message of {type(message.content).__name__}")
    return unseal(message.content, name)


def _why_failed(error: Any) -> str:
    """The reason that Flower's error code stands for; the client's own words for other codes."""
    own_words = plain(str(error.reason)) or "failed"
    return KNOWN_ERRORS.get(error.code, own_words[:MAX_REASON])
