"""The generic `ClientApp`: finds the client's data and answers requests."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...data.datasets import DataError
from ...engine.device import pick_device
from ...engine.wrappers.engine import EmbeddedEngine
from ...experiment.build.clients import build_data
from ...experiment.build.engine import build_engine, build_executor
from ...experiment.build.samples import load_samples
from ...experiment.load import load_experiment
from ..deployment.approval import config_digest
from ..deployment.gate import Gate
from ..deployment.ledger import Ledger
from ..deployment.receipts import keep_receipts
from ..deployment.sealing import seal
from ..deployment.signing import verify
from ..deployment.small_numbers import USUAL_CELL, read_own
from .client import answer, answer_failure
from .data import (
    DATA_KEYS,
    Config,
    OwnData,
    data_held_by,
    found_by,
    from_files,
    load_npz,
    loader_in,
)
from .secure_node import answer_secure, refuse_in_clear
from .wire import Request


def client_app(config: Config, load: Callable[[str], OwnData] = load_npz) -> ClientApp:
    """A Flower `ClientApp` that trains, measures criteria and evaluates models, as the config says.

    Args:
        config: an experiment's file or table.
        load: reads a node's data from the path `data` in its node config. A node can name a Python
            file of its own as `loader` in the node config; the function `load` of that file is then
            used instead, so that no foreign code reads the data.
    """
    # The server sends the initial model; a node does not need its file.
    text = load_experiment(config, replaced={"initial_model": None}).to_toml()
    name = config_digest(config)
    app = ClientApp()
    for register in (app.train(), app.evaluate()):
        register(partial(_answer, text, name, load))
    app.query()(_confirm)
    return app


def _confirm(message: Message, context: Context) -> Message:
    """Keep the last receipts of a run. Nothing is read and nothing is told but that they came."""
    try:
        reply_key = verify(message, context)
        keep_receipts(message.content, context.node_config)
        reply = RecordDict()
        if reply_key is not None:
            reply = seal(reply, reply_key, message.metadata.message_id)
        return Message(reply, reply_to=message)
    except Exception as error:
        return answer_failure(message, error, private=True)


def _answer(
    text: str, name: str, load: Callable[[str], OwnData], message: Message, context: Context
) -> Message:
    """The reply to one message."""
    settings = context.node_config
    path = settings.get("data")
    gate: Gate | None = None
    # An x86 takes longer for subnormal numbers: with a made-up model, the time would tell of a row.
    torch.set_flush_denormal(path is not None)
    try:
        reply_key = verify(message, context)
        keep_receipts(message.content, settings)
        if path is not None:
            cell = int(settings.get("smallest-cell", USUAL_CELL))
            if "loader" in settings:
                load = loader_in(str(settings["loader"]))
            ledger = _ledger_of(settings)
            gate = Gate(load_experiment(tomllib.loads(text)), name, ledger, cell, context.run_id)
            engine_of = partial(
                _engine_of_node, text, lambda: read_own(load, str(path), cell, ledger.key())
            )
        elif "partition-id" in settings:  # set by Flower's simulation
            engine_of = partial(_simulated_engine, text, context.run_config)
        else:
            raise DataError(
                "this node has no data: start it with --node-config 'data=\"/path/to/it\"'"
            )
        experiment = load_experiment(tomllib.loads(text))
        if refuse_in_clear(experiment, message.content):
            reply = answer_secure(message.content, experiment, engine_of, gate, context)
        else:
            reply = answer(message.content, engine_of, gate)
        if reply_key is not None:
            reply = seal(reply, reply_key, message.metadata.message_id)
        return Message(reply, reply_to=message)
    except Exception as error:  # every failure is answered, so that the server need not wait
        if gate is not None:
            with suppress(OSError):  # a full disk: the log has the error all the same
                gate.failed(error)
        return answer_failure(message, error, private=path is not None)
    finally:
        torch.set_flush_denormal(False)


def _ledger_of(settings: Mapping[str, Any]) -> Ledger:
    """The ledger that the node's operator keeps."""
    if "ledger" not in settings:
        raise DataError(
            "this node has no ledger: start it with --node-config 'ledger=\"/path/of/a/file\"'"
        )
    return Ledger(Path(str(settings["ledger"])))


def _simulated_engine(text: str, run_config: Mapping[str, Any], request: Request) -> EmbeddedEngine:
    sources = tuple((key, run_config[key]) for key in DATA_KEYS if key in run_config)
    return _all_clients(text, sources, request.seed)


@lru_cache(maxsize=2)
def _all_clients(text: str, sources: tuple[tuple[str, str], ...], seed: int) -> EmbeddedEngine:
    """An engine with all clients of a simulation. Kept for the next message to this process."""
    experiment = found_by(load_experiment(tomllib.loads(text)), dict(sources))
    settings = [method.privacy for method in experiment.build_methods() if method.privacy]
    if any(privacy.local and privacy.secret for privacy in settings):
        raise DataError(
            "privacy.secret is for the nodes of a deployment: simulated clients draw their noise "
            "from the seed"
        )
    own = from_files(experiment) if experiment.reads_files else None
    samples = own.samples if own else load_samples(experiment)
    data, hostile = build_data(experiment, samples, seed, own)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    return build_engine(experiment, data, hostile, seed, executor)


def _engine_of_node(text: str, load: Callable[[], OwnData], request: Request) -> EmbeddedEngine:
    """An engine in which only this client has data."""
    experiment = load_experiment(tomllib.loads(text))
    data = data_held_by(experiment, {request.client: load()}, {})
    data, hostile = build_data(experiment, data.samples, request.seed, data)
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    return build_engine(experiment, data, hostile, request.seed, executor)
