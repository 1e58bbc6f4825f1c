"""Fetches replies from a SuperLink, each on its own. One that cannot be decoded ends nothing.

Flower's own `HttpGrid.pull_messages` decodes all replies in one go: a single record that is not
valid raises there, and the other replies are lost with it. Its result also says whom a message
answers by the sender's own words. Here every reply is decoded on its own, and belongs to the
request under which the SuperLink stored it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Message

from ..flower.replies import INCOMPLETE, Content, Unseal, content_of, why_failed, why_unreadable
from .known_flower import known_flower

with known_flower(__name__):
    import httpx
    from flwr.common.serde_utils import error_from_proto
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
    from flwr.proto.message_pb2 import Message as StoredMessage
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        inflate_object_from_contents,
        pull_objects,
    )

MAX_OBJECTS = 1_000  # of one reply; an honest one has about ten, and one per 20 MB of its model
LEAST_SECONDS = 5.0  # in which a reply's objects must arrive, also after the round's deadline


def pull_stored(
    grid: Any, names: Sequence[str], deadline: float, unseal: Unseal
) -> Iterator[tuple[str, Content]]:
    """The replies that the SuperLink has for a `HttpGrid`; see `grids.pull_replies`."""
    # Not public: Flower offers no way to fetch a reply without decoding it.
    client = grid._runtime_client
    response = client.PullMessages(PullAppMessagesRequest(message_ids=names))
    for stored, tree in zip(response.messages_list, response.message_object_trees, strict=True):
        # The SuperLink has compared this id with the sender's node
        name = stored.metadata.reply_to_message_id
        if name in names:  # else a member sent it as an instruction to the server
            yield name, _decoded(grid, client, stored, tree, deadline, unseal)


def _decoded(
    grid: Any,
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
            return why_failed(error_from_proto(stored.error))
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
        return content_of(message, stored.metadata.reply_to_message_id, unseal)
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
