"""The client's side: a request comes in, the embedded engine does the work for one client, an answer goes out."""

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
    """What this node does not do, and why. Its text is about the request alone, so the server may read it."""


def answer(content: RecordDict, engine_of: Callable[[Request], EmbeddedEngine], smallest_cell: int = 1) -> RecordDict:
    """Train or evaluate as the one client that is meant, with the same code as on one machine."""
    request, models, kept = read_request(content)
    engine, client = engine_of(request), request.client
    if request.task is None:
        return write_evaluation(in_cells(engine.evaluate([client], models), engine.problem, smallest_cell))
    engine.load_state({} if kept is None else {str(client): kept})
    (updates,) = (one for one in engine.train([client], models.to(engine.device), request.task) if one.client_ids)
    return write_update(updates, engine.state().get(str(client)))


def answer_failure(message: Message, error: Exception, *, private: bool) -> Message:
    """Says what went wrong; where the data are private only the kind of error, since its text may quote a sample."""
    log.exception("clientwise could not answer a %s message", message.metadata.message_type)
    kind, told = type(error).__name__, not private or isinstance(error, RefusedError)
    reason = " ".join(f"{kind}: {error}".split())[:300] if told else f"{kind}; the node's log says more"
    return Message(Error(code=RAISED, reason=reason), reply_to=message)
