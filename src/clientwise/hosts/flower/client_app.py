"""The generic `ClientApp`: finds the client's data and answers requests."""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...data.datasets import DataError
from ...engine.device import pick_device
from ...engine.wrappers.engine import EmbeddedEngine
from ...experiment.build.data import build_data, load_samples
from ...experiment.build.engine import build_engine, build_executor
from ...experiment.load import load_experiment
from ..protocols import Gate
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
from .wire import Request


def client_app(
    config: Config, load: Callable[[str], OwnData] = load_npz, gate: Gate | None = None
) -> ClientApp:
    """A Flower `ClientApp` that trains, measures criteria and evaluates models, as the config says.

    Args:
        config: an experiment's file or table.
        load: reads a node's data from the path `data` in its node config. A node can name a Python
            file of its own as `loader` in the node config; the function `load` of that file is then
            used instead, so that no foreign code reads the data.
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
            engine_of = partial(_engine_of_node, text, partial(_own_data, settings, load, gate))
        elif "partition-id" in settings:  # set by Flower's simulation
            engine_of = partial(_simulated_engine, text, context.run_config)
        else:
            raise DataError(
                "this node has no data: start it with --node-config 'data=\"/path/to/it\"'"
            )
        return Message(answer(message.content, engine_of, gate), reply_to=message)
    except Exception as error:  # every failure is answered, so that the server need not wait
        return answer_failure(message, error, private="data" in settings)


def _own_data(
    settings: Mapping[str, Any], load: Callable[[str], OwnData], gate: Gate | None
) -> OwnData:
    """What a node holds, by its own loader if it names one."""
    if "loader" in settings:
        load = loader_in(str(settings["loader"]))
    read = partial(load, str(settings["data"]))
    return gate.rows(read) if gate else read()


def _simulated_engine(text: str, run_config: Mapping[str, Any], request: Request) -> EmbeddedEngine:
    sources = tuple((key, run_config[key]) for key in DATA_KEYS if key in run_config)
    return _all_clients(text, sources, request.seed)


@lru_cache(maxsize=2)
def _all_clients(text: str, sources: tuple[tuple[str, str], ...], seed: int) -> EmbeddedEngine:
    """An engine with all clients of a simulation. Kept for the next message to this process."""
    experiment = found_by(load_experiment(tomllib.loads(text)), dict(sources))
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
    engine = build_engine(experiment, data, hostile, request.seed, executor)
    engine.noise_key = secrets.token_bytes(32)  # the server knows the seed
    return engine
