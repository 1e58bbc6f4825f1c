"""The client's side: the embedded engine answers a request for one client."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Error, Message, RecordDict

from ..engine.wrapping import EmbeddedEngine
from ..errors import ClientwiseError
from .small_numbers import in_cells
from .wire import Request, read_request, write_evaluation, write_update

log = logging.getLogger("clientwise")
RAISED = 2  # Flower's code for a client app that raised


class RefusedError(ClientwiseError):
    """A request that this node refuses.

    The text is about the request alone, so the server may read it.
    """


def answer(
    content: RecordDict, engine_of: Callable[[Request], EmbeddedEngine], smallest_cell: int = 1
) -> RecordDict:
    """Train or evaluate as the client that the request names, with the code of a local run.

    Args:
        content: a request, as `wire.write_request` writes it.
        engine_of: returns the engine that holds the client's data.
        smallest_cell: evaluations are reported in multiples of this number.
    """
    request, models, kept = read_request(content)
    engine = engine_of(request)
    client = request.client
    if request.task is None:
        evaluation = engine.evaluate([client], models)
        return write_evaluation(in_cells(evaluation, engine.problem, smallest_cell))
    engine.load_state({} if kept is None else {str(client): kept})
    trained = engine.train([client], models.to(engine.device), request.task)
    (updates,) = (one for one in trained if one.client_ids)
    return write_update(updates, engine.state().get(str(client)))


def answer_failure(message: Message, error: Exception, *, private: bool) -> Message:
    """An error reply.

    With private data it has only the error's type, since the text may quote a sample.
    """
    log.exception("clientwise could not answer a %s message", message.metadata.message_type)
    kind = type(error).__name__
    if private and not isinstance(error, RefusedError):
        reason = f"{kind}; the node's log says more"
    else:
        reason = " ".join(f"{kind}: {error}".split())[:300]
    return Message(Error(code=RAISED, reason=reason), reply_to=message)
