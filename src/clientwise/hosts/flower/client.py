"""The client's side: the embedded engine answers a request for one client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from flwr.app import Error, Message, RecordDict
from torch import Tensor

from ...engine.wrappers.engine import EmbeddedEngine
from ..deployment.gate import Gate, RefusedError, refuse_other_weights
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
        gate: a node's rules for requests and replies; None in a simulation, where all is exact.
    """
    request, models, kept = read_request(content)
    if gate is None:
        return _answer(request, models, kept, engine_of(request))
    gate.check(request)
    engine = engine_of(request)
    gate.admit(request, models, engine.data)
    reply = _answer(request, models, None, engine, gate)
    gate.sent(reply)
    return reply


def _answer(
    request: Request,
    models: Tensor,
    kept: Tensor | None,
    engine: EmbeddedEngine,
    gate: Gate | None = None,
) -> RecordDict:
    refuse_other_weights(request, engine)
    client = request.client
    if request.task is None:
        evaluate = partial(engine.evaluate, [client])
        if gate is None:
            return write_evaluation(evaluate(models))
        return write_evaluation(gate.evaluation(models, engine.data, engine.problem, evaluate))
    engine.load_state({} if kept is None else {str(client): kept})
    if gate is not None:
        engine.noise_key = gate.noise_key(engine.data)
    trained = engine.train([client], models.to(engine.device), request.task)
    (updates,) = (one for one in trained if one.client_ids)
    if gate is None:
        return write_update(updates, engine.state().get(str(client)))
    return write_update(gate.update(updates), None)


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
