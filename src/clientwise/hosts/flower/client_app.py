"""The generic `ClientApp`: finds the client's data and answers requests."""

from __future__ import annotations

import logging
import secrets
import tomllib
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from ...data.datasets import DataError
from ...engine.device import pick_device
from ...engine.wrapping import EmbeddedEngine
from ...experiment.build.data import build_data, load_samples
from ...experiment.build.engine import build_engine, build_executor
from ...experiment.load import load_experiment
from ...models.flat import same_frozen
from ..protocols import Exact, Gate, OwnData, Refused, Request
from .data import Config, data_held_by, load_npz
from .wire import read_request, write_evaluation, write_update


def client_app(
    config: Config, load: Callable[[str], OwnData] = load_npz, gate: Gate | None = None
) -> ClientApp:
    """A Flower `ClientApp` that trains, measures criteria and evaluates models, as the config says.

    Args:
        config: an experiment's file or table.
        load: reads a node's data from the path `data` in its node config.
        gate: decides which requests are answered, and what leaves; by default, every request is
            answered exactly.
    """
    # The server sends the initial model; a node does not need its file.
    replaced = {"initial_model": None, "engine": "flower"}
    text = load_experiment(config, replaced=replaced).to_toml()
    app = ClientApp()
    for register in (app.train(), app.evaluate()):
        register(partial(_answer, text, load, gate))
    return app


def _answer(
    text: str,
    load: Callable[[str], OwnData],
    gate: Gate | None,
    message: Message,
    context: Context,
) -> Message:
    """The reply to one message."""
    settings = context.node_config
    engine_of: Callable[[Request], EmbeddedEngine]
    try:
        if "data" in settings:
            read = partial(load, str(settings["data"]))
            own = partial(gate.rows, read) if gate else read
            engine_of = partial(_engine_of_node, text, own)
        elif "partition-id" in settings:  # set by Flower's simulation
            engine_of = partial(_simulated_engine, text)
        else:
            raise DataError(
                "this node has no data: start it with --node-config 'data=\"/path/to/it\"'"
            )
        return Message(answer(message.content, engine_of, gate), reply_to=message)
    except Exception as error:  # every failure is answered, so that the server need not wait
        return answer_failure(message, error, private="data" in settings)


@lru_cache(maxsize=2)
def _all_clients(text: str, seed: int) -> EmbeddedEngine:
    """An engine with all clients of a simulation. Kept for the next message to this process."""
    experiment = load_experiment(tomllib.loads(text))
    data, hostile = build_data(experiment, load_samples(experiment), seed)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    return build_engine(experiment, data, hostile, seed, executor)


def _simulated_engine(text: str, request: Request) -> EmbeddedEngine:
    return _all_clients(text, request.seed)


def _engine_of_node(text: str, load: Callable[[], OwnData], request: Request) -> EmbeddedEngine:
    """An engine in which only this client has data."""
    experiment = load_experiment(tomllib.loads(text))
    data = data_held_by(experiment, {request.client: load()}, {})
    data, hostile = build_data(experiment, data.samples, request.seed, data)
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    engine = build_engine(experiment, data, hostile, request.seed, executor)
    engine.noise_key = secrets.token_bytes(32)  # the server knows the seed
    return engine


log = logging.getLogger("clientwise")
RAISED = 2  # Flower's code for a client app that raised


def answer(
    content: RecordDict, engine_of: Callable[[Request], EmbeddedEngine], gate: Gate | None
) -> RecordDict:
    """Train or evaluate as the client that the request names, with the code of a local run.

    Args:
        content: a request, as `wire.write_request` writes it.
        engine_of: returns the engine that holds the client's data.
        gate: a site's rules for requests and answers; None: all are answered exactly.
    """
    request, models = read_request(content)
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
    engine.load_state({})  # of the message before: nodes keep nothing
    trained = engine.train([client], models.to(engine.device), request.task)
    (updates,) = (one for one in trained if one.client_ids)
    return write_update(released(updates))


def _refuse_other_weights(request: Request, engine: EmbeddedEngine) -> None:
    """Frozen parameters are not sent: with others, a client would train or judge another model."""
    if not same_frozen(request.frozen, engine.frozen):
        raise Refused(
            "the frozen parameters of this node's network are not those of the server: load the same "
            "pretrained weights"
        )


def answer_failure(message: Message, error: Exception, *, private: bool) -> Message:
    """An error reply.

    With private data it has only the error's type, since the text may quote a sample.
    """
    if isinstance(error, Refused):
        log.warning("REFUSED to %s: %s", message.metadata.message_type, error)
    else:
        log.exception("clientwise could not %s", message.metadata.message_type)
    kind = type(error).__name__
    if private and not isinstance(error, Refused):
        reason = f"{kind}; the node's log says more"
    else:
        reason = " ".join(f"{kind}: {error}".split())[:300]
    return Message(Error(code=RAISED, reason=reason), reply_to=message)
