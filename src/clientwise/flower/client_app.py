"""The generic `ClientApp`: finds the data, does the work, says what went wrong where it cannot."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..data.datasets import DataError
from ..engine.device import pick_device
from ..engine.wrapping import EmbeddedEngine
from ..experiment.build import build_data, build_engine, build_executor, load_samples
from ..experiment.config import load_experiment
from ..experiment.schema import Experiment
from .client import RefusedError, answer, answer_failure
from .data import PLACES, Config, OwnData, data_held_by, found_by, from_files, load_npz, loader_in
from .small_numbers import in_groups
from .wire import VERSION, Request


def client_app(config: Config, load: Callable[[str], OwnData] = load_npz) -> ClientApp:
    """A Flower `ClientApp` that trains, measures its criteria and evaluates models, as the config says.

    `load` reads a node's own data from the path `data` in its node config. If that names a Python file of the node's
    own as `loader`, the `load` in there is used instead: a hospital need not run another's code on its data.
    """
    text = load_experiment(config, replaced={"initial_model": None}).to_toml()  # the server has it, and sends it
    app = ClientApp()
    for register in (app.train(), app.evaluate()):
        register(partial(_answer, text, load))
    return app


def _answer(text: str, load: Callable[[str], OwnData], message: Message, context: Context) -> Message:
    """The answer to one message, by the client it means."""
    path, cell = context.node_config.get("data"), int(context.node_config.get("smallest-cell", 1))
    try:
        if path is None and "partition-id" not in context.node_config:  # the mark of Flower's simulation
            raise DataError("this node has no data: start it with --node-config 'data=\"/path/to/it\"'")
        if "loader" in context.node_config:
            load = loader_in(str(context.node_config["loader"]))
        own = partial(_engine_of_node, text, lambda: in_groups(load(str(path)), cell))
        find = partial(_simulated_engine, text, context.run_config) if path is None else own
        return Message(answer(message.content, find, cell), reply_to=message)
    except Exception as error:  # the server is to hear of it, whatever it is
        return answer_failure(message, error, private=path is not None)


def _simulated_engine(text: str, run_config: Mapping[str, Any], request: Request) -> EmbeddedEngine:
    return _all_clients(text, tuple((key, run_config[key]) for key in PLACES if key in run_config), request.seed)


@lru_cache(maxsize=2)
def _all_clients(text: str, places: tuple[tuple[str, str], ...], seed: int) -> EmbeddedEngine:
    """All clients of a simulation: whoever is asked for is there. Kept for the next message to this process."""
    experiment = found_by(load_experiment(tomllib.loads(text)), dict(places))
    own = from_files(experiment) if experiment.reads_files else None
    data, hostile = build_data(experiment, own.samples if own else load_samples(experiment), seed, own)
    executor = build_executor(experiment, data.samples, torch.device("cpu"))
    return build_engine(experiment, data, hostile, seed, executor)


def _engine_of_node(text: str, load: Callable[[], OwnData], request: Request) -> EmbeddedEngine:
    """A federation in which only this client holds anything."""
    experiment = load_experiment(tomllib.loads(text))
    _refuse_more_than_agreed(experiment, request)
    data = data_held_by(experiment, {request.client: load()}, {})
    data, hostile = build_data(experiment, data.samples, request.seed, data)
    executor = build_executor(experiment, data.samples, pick_device(experiment.device))
    return build_engine(experiment, data, hostile, request.seed, executor)


def _refuse_more_than_agreed(experiment: Experiment, request: Request) -> None:
    """A server may ask for what the experiment says, which the node's hospital has read, and for nothing else."""
    if request.version != VERSION:
        raise RefusedError(f"the server has clientwise {request.version}, this node {VERSION}: install the same")
    if request.task is None:
        return
    for method in experiment.build_methods():
        criteria = all(part in method.client_criteria for part in request.task.criteria)
        if criteria and request.task.training == method.training:
            return
    raise RefusedError("asked to train or to measure otherwise than the experiment says")
