"""The client's side: the embedded engine answers a request for one client."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Error, Message, RecordDict

from ...engine.wrapping import EmbeddedEngine
from ...errors import RefusedError
from ...models.flat import same_frozen
from ..protocols import Exact, Gate
from .wire import Request, read_request, write_evaluation, write_update

log = logging.getLogger("clientwise")
RAISED = 2  # Flower's code for a client app that raised


def answer(
    content: RecordDict, engine_of: Callable[[Request], EmbeddedEngine], gate: Gate | None = None
) -> RecordDict:
    """Train or evaluate as the client that the request names, with the code of a local run.

    Args:
        content: a request, as `wire.write_request` writes it.
        engine_of: returns the engine that holds the client's data.
        gate: a site's rules for requests and answers; None: all are answered exactly.
    """
    request, models, kept = read_request(content)
    permit = gate.admit(request, models) if gate else None
    engine = engine_of(request)
    _refuse_other_weights(request, engine)

    def released(exact: Exact) -> Exact:
        return gate.release(permit, exact) if gate and permit else exact

    client = request.client
    if request.task is None:
        return write_evaluation(released(engine.evaluate([client], models)))
    if permit:
        engine.noise_key = permit.noise_key
        kept = None  # is for simulated hostile clients alone
    engine.load_state({} if kept is None else {str(client): kept})
    trained = engine.train([client], models.to(engine.device), request.task)
    (updates,) = (one for one in trained if one.client_ids)
    return write_update(released(updates), engine.state().get(str(client)))


def _refuse_other_weights(request: Request, engine: EmbeddedEngine) -> None:
    """Frozen parameters are not sent: with others, a client would train or judge another model."""
    if not same_frozen(request.frozen, engine.frozen):
        raise RefusedError(
            "the frozen parameters of this node's network are not those of the server: load the same "
            "pretrained weights"
        )


def answer_failure(message: Message, error: Exception, *, private: bool) -> Message:
    """An error reply.

    With private data it has only the error's type, since the text may quote a sample.
    """
    if isinstance(error, RefusedError):
        log.warning("REFUSED to %s: %s", message.metadata.message_type, error)
    else:
        log.exception("clientwise could not %s", message.metadata.message_type)
    kind = type(error).__name__
    if private and not isinstance(error, RefusedError):
        reason = f"{kind}; the node's log says more"
    else:
        reason = " ".join(f"{kind}: {error}".split())[:300]
    return Message(Error(code=RAISED, reason=reason), reply_to=message)
